#include <functional>
#include <nlohmann/json.hpp>

#include "cache_db/export.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

using nlohmann::json;

std::string good_text() { return export_json({sample_row({0, 4}), sample_row({3, 12})})[0].text; }

std::string refusal(const std::string& text) {
  try {
    parse_table("tables/my.json", text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an exception of another kind: " << error.what();
  }
  return "";
}

void expect_refused(const std::string& text, const std::vector<std::string>& words) {
  std::string message = refusal(text);
  EXPECT_NE(message, "") << "accepted: " << text.substr(0, 400);
  EXPECT_NE(message.find("tables/my.json"), std::string::npos) << message;
  for (const auto& word : words) EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
}

// The digest goes, so that each check behind it has to do its own work.
std::string changed(const std::function<void(json&)>& change) {
  json table = json::parse(good_text());
  table["_metadata"].erase("digest");
  change(table);
  return table.dump(1);
}

// Fault: the checks refuse what the exporter writes, or what an editor does to line ends and order.
TEST(Table, AcceptsItsOwnFilesInAnyLayout) {
  EXPECT_EQ(parse_table("f", good_text()).size(), 2u);
  EXPECT_EQ(parse_table("f", json::parse(good_text()).dump()).size(), 2u);
  EXPECT_EQ(parse_table("f", changed([](json&) {})).size(), 2u);
  std::string crlf;
  for (char c : good_text()) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse_table("f", crlf).size(), 2u);
}

// Fault: text that no parser should take, or an error that does not say where.
TEST(Table, MalformedTextIsRefusedWithItsPlace) {
  std::string good = good_text();
  for (size_t size = 0; size + 2 < good.size(); size += 97) expect_refused(good.substr(0, size), {"line"});
  std::string comma = good;
  comma.insert(comma.rfind('}'), ",");
  expect_refused(comma, {"line"});
  expect_refused("\xEF\xBB\xBF" + good, {"line 1", "byte-order mark"});
  expect_refused(good + "x", {"line"});
  expect_refused("[]", {"object"});
  expect_refused("null", {"object"});
  expect_refused(std::string(10'000, '['), {"64 levels"});
  std::string nan = good;
  nan.replace(nan.find("\"median_us\": ") + 13, 4, "NaN ");
  expect_refused(nan, {"line"});
  std::string huge_number = good;
  huge_number.replace(huge_number.find("\"median_us\": ") + 13, 1, "1e999");
  expect_refused(huge_number, {});
  expect_refused(std::string(5 << 20, ' ') + good, {"bytes"});
}

// Fault: the usual parser keeps the last of two equal keys.
TEST(Table, DuplicateKeysAreRefused) {
  std::string good = good_text();
  for (const char* key : {"\"8x4096\": {", "\"_metadata\": {", "\"reason\": \"x\", "}) {
    std::string twice = good;
    size_t at = std::string(key).ends_with("{") ? good.find(key) : good.find("\"reason\"");
    twice.insert(at, std::string(key).ends_with("{") ? std::string(key) + "}," : key);
    expect_refused(twice, {std::string(key).substr(1, std::string(key).find('"', 1) - 1)});
  }
}

// Fault: unknown, missing or mistyped values that are skipped or defaulted.
TEST(Table, WrongKeysAndTypesAreRefusedByName) {
  struct Case {
    std::function<void(json&)> change;
    std::vector<std::string> words;
  } const cases[] = {
      {[](json& t) { t["8x4096"]["extra"] = 1; }, {"8x4096", "extra"}},
      {[](json& t) { t["8x4096"].erase("median_us"); }, {"8x4096", "median_us", "missing"}},
      {[](json& t) { t["8x4096"]["median_us"] = "12"; }, {"8x4096", "median_us", "number"}},
      {[](json& t) { t["8x4096"]["median_us"] = -1; }, {"8x4096", "median_us"}},
      {[](json& t) { t["8x4096"]["median_us"] = nullptr; }, {"8x4096", "median_us"}},
      {[](json& t) { t["8x4096"]["samples"] = 1.5; }, {"8x4096", "samples", "integer"}},
      {[](json& t) { t["8x4096"]["samples"] = 3'000'000'000u; }, {"8x4096", "samples"}},
      {[](json& t) { t["8x4096"]["tied"] = -1; }, {"8x4096", "tied"}},
      {[](json& t) { t["8x4096"]["reason"] = 1; }, {"8x4096", "reason", "string"}},
      {[](json& t) { t["8x4096"]["session"] = 1; }, {"8x4096", "session"}},
      {[](json& t) { t["8x4096"]["config"] = 1; }, {"8x4096", "config"}},
      {[](json& t) { t["8x4096"]["config"]["VARIANT"] = "1"; }, {"8x4096", "VARIANT"}},
      {[](json& t) { t["8x4096"] = 16; }, {"8x4096", "object"}},
      {[](json& t) { t["16"] = t["8x4096"]; }, {"'16'", "bucket"}},
      {[](json& t) { t["08x4096"] = t["8x4096"]; }, {"08x4096"}},
      {[](json& t) { t["6x4096"] = t["8x4096"]; }, {"6x4096"}},
      {[](json& t) { t["8x8"] = t["8x4096"]; }, {"8x8"}},
      {[](json& t) { t["131072x16"] = t["8x4096"]; }, {"131072x16"}},
      {[](json& t) { t.erase("8x4096"); t.erase("1x16"); }, {"no bucket"}},
      {[](json& t) { t.erase("_metadata"); }, {"_metadata"}},
      {[](json& t) { t["_metadata"] = 1; }, {"_metadata"}},
      {[](json& t) { t["_metadata"]["format"] = 2; }, {"format", "2"}},
      {[](json& t) { t["_metadata"]["when"] = "now"; }, {"_metadata", "when"}},
      {[](json& t) { t["_metadata"].erase("policy_hash"); }, {"_metadata", "policy_hash"}},
      {[](json& t) { t["_metadata"]["policy_hash"] = 1; }, {"_metadata", "policy_hash"}},
      {[](json& t) { t["_metadata"]["digest"] = 1; }, {"_metadata", "digest"}},
      {[](json& t) { t["_metadata"]["spec"].erase("lse"); }, {"_metadata", "lse"}},
      {[](json& t) { t["_metadata"]["spec"]["colour"] = 1; }, {"_metadata", "colour"}},
      {[](json& t) { t["_metadata"]["spec"]["kv_heads"] = 0; }, {"kv_heads"}},
      {[](json& t) { t["_metadata"]["environment"]["ecc"] = "on"; }, {"_metadata", "ecc"}},
      {[](json& t) { t["_metadata"]["environment"]["arch"] = "sm_999"; }, {"environment", "sm_999"}},
      {[](json& t) { t["_metadata"]["environment"]["backend"] = "abacus"; }, {"environment", "abacus"}},
  };
  for (const auto& [change, words] : cases) expect_refused(changed(change), words);
}

// Fault: a table is data from outside; a config that the space does not hold must not reach the compiler.
TEST(Table, ConfigsThatTheSpaceDoesNotAdmitAreRefused) {
  expect_refused(changed([](json& t) { t["8x4096"]["config"]["TILE_KV"] = 0; }), {"8x4096", "TILE_KV"});
  expect_refused(changed([](json& t) { t["8x4096"]["config"]["EVIL"] = 1; }), {"8x4096", "EVIL"});
  expect_refused(changed([](json& t) { t["8x4096"]["config"].erase("VARIANT"); }), {"8x4096", "VARIANT"});
  expect_refused(changed([](json& t) { t["8x4096"]["config"] = json::object(); }), {"8x4096"});
}

// Fault: a digit changed by damage makes another valid config.
TEST(Table, AChangedTableDoesNotMatchItsDigest) {
  json table = json::parse(good_text());
  table["8x4096"]["median_us"] = 1.25;
  expect_refused(table.dump(), {"digest"});
  table = json::parse(good_text());
  table.erase("1x16");
  expect_refused(table.dump(), {"digest"});
}

// Fault: a table of another machine's CPU is refused, or admitted with vectors that machine does not have.
TEST(Table, CpuTablesAreCheckedAgainstTheirOwnMachine) {
  Environment env;
  env.backend = "cpu";
  env.device = "AMD EPYC 9654";
  env.arch = "znver4";
  env.cpu_features = "+avx2,+avx512f,+fma";
  env.processors = 8;
  env.compiler = "llvm 19.1";
  Store::Row row = sample_row({0, 4}, {}, env);
  row.winner.runner_up = {};
  ASSERT_EQ(row.winner.config.at("VECTOR_BITS"), 512);
  std::string text = export_json({row})[0].text;
  EXPECT_EQ(parse_table("f", text)[0].winner, row.winner);
  json table = json::parse(text);
  table["_metadata"].erase("digest");
  table["_metadata"]["environment"]["cpu_features"] = "+avx2,+fma";
  expect_refused(table.dump(), {"1x16"});
}

}  // namespace
}  // namespace pagetune
