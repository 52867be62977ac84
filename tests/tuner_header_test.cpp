// An exported header as its reader meets it: compiled alone, and asked beside the store it was made from.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <sys/wait.h>

#include "cache_db/dispatch_columns.hpp"
#include "codegen/space.hpp"
#include "runtime/dispatch.hpp"
#include "store_samples.hpp"
#include "tuner/header_tables.hpp"

namespace pagetune {
namespace {

namespace fs = std::filesystem;

enum NoAnswer { kUnknownDevice = 3, kUnknownSpec = 4, kAmbiguousSpec = 5 };  // of pagetune_tables::Source

std::string hex(const std::string& text) {
  std::string made = "x";
  for (const char c : text) made += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return made;
}

std::string columns_text(const AttentionSpec& spec) {
  const std::map<std::string, int> values = dispatch_values(spec);
  std::string text;
  for (const char* column : kDispatchColumns) text += fmt::format("{} ", values.at(column));
  return fmt::format("{}{} {}", text, name_of(spec.q_dtype), name_of(spec.out_dtype));
}

Environment device(const std::string& name, const std::string& driver = "13.0", int processors = 132) {
  Environment made = sample_environment();
  made.device = name;
  made.driver = driver;
  made.processors = processors;
  return made;
}

Environment cpu() {
  Environment made;
  made.backend = "cpu";
  made.device = "AMD EPYC 9654";
  made.arch = "znver4";
  made.cpu_features = "+avx2,+avx512f,+fma";
  made.processors = 8;
  made.compiler = "llvm 19.1";
  return made;
}

// The space is walked once for each spec and class of device: that is the dear part of these tests.
const std::vector<KernelConfig>& candidates(const AttentionSpec& spec, const Environment& environment) {
  static std::map<std::string, std::vector<KernelConfig>> known;
  std::vector<KernelConfig>& found = known[spec_key(spec) + environment.class_text()];
  if (found.empty()) found = ConfigSpace::builtin().candidates(spec, target_of(environment)).configs;
  return found;
}

// Winners of a few buckets, each any config of the space.
void put_random(Store& store, std::mt19937& random, const Environment& environment, const AttentionSpec& spec, int count) {
  const std::vector<KernelConfig>& configs = candidates(spec, environment);
  for (int i = 0; i < count; ++i) {
    const Bucket bucket{static_cast<int>(random() % 9), 7 + static_cast<int>(random() % 10)};
    Store::Row row = sample_row(bucket, spec, environment);
    row.winner.config = configs.at(random() % configs.size());
    row.winner.runner_up = {};
    put(store, row);
  }
}

struct MadeUp {
  std::vector<AttentionSpec> specs;
  std::vector<Environment> environments;
};

MadeUp fill(Store& store) {
  MadeUp made;
  std::mt19937 random(11);
  AttentionSpec plain, lse, pages, half, small, fixed;
  lse.lse = true;  // the same columns as the plain one
  pages.page_size = 64;
  half.q_dtype = half.kv_dtype = half.out_dtype = DType::fp16;
  small.q_heads = 16;
  small.head_dim_k = small.head_dim_v = 64;
  fixed.batch_invariant = true;
  fixed.q_heads = 8;
  made.specs = {plain, lse, pages, half, small, fixed};
  made.environments = {device("NVIDIA H20", "13.0", 78), device("NVIDIA H200"),  device("NVIDIA H200", "9.2"), device("NVIDIA H200", "13.1"), device("NVIDIA H200 NVL"),
                       device("NVIDIA GH200 480GB"), device("NVIDIA H200 MIG 1g.18gb", "13.0", 16), device("odd \"name\"\\ ?\?/\n#error µ"), cpu()};
  for (const Environment& environment : made.environments)
    for (const AttentionSpec& spec : made.specs)
      if (random() % 5 < 2) put_random(store, random, environment, spec, 1 + static_cast<int>(random() % 12));
  return made;
}

// What the store answers, by the rules that docs/cache-format.md gives for names.
class Answers {
 public:
  explicit Answers(const Store& store) : store_(store), rows_(store.all_winners()) {}

  // fits: does the query's spec mean this one?
  template <class Fits>
  std::string of(const std::string& name, Fits fits, int batch, int len, int64_t total) {
    const Store::Row* best = nullptr;
    std::set<std::string> specs;
    bool known = false;
    for (const Store::Row& row : rows_) {
      const Environment& e = row.environment;
      if (e.device != name && e.key() != name && e.class_text() != name) continue;
      known = true;
      if (!fits(row.spec)) continue;
      specs.insert(row.winner.spec_key);
      if (!best || rank(e) < rank(best->environment)) best = &row;
    }
    if (!known) return std::to_string(kUnknownDevice);
    if (specs.empty()) return std::to_string(kUnknownSpec);
    if (specs.size() > 1) return std::to_string(kAmbiguousSpec);
    std::vector<LayeredWinner> own = store_.layered_winners(best->environment, best->winner.spec_key);
    std::erase_if(own, [](const LayeredWinner& one) { return one.other_device; });  // a header has a table for each device
    const DispatchTable& table = tables_.try_emplace(best->winner.env_key + best->winner.spec_key, best->spec, target_of(best->environment), own).first->second;
    const Selection answer = table.select(batch, len, total);
    std::string text = std::to_string(static_cast<int>(answer.source));
    for (const auto& [parameter, value] : table.configs()[answer.index].values()) text += fmt::format(" {}={}", parameter, value);
    return text;
  }
 private:
  static std::tuple<std::string, double, std::string> rank(const Environment& e) { return {e.device, -std::atof(e.driver.c_str()), e.key()}; }

  const Store& store_;
  std::vector<Store::Row> rows_;
  std::map<std::string, DispatchTable> tables_;
};

class Header : public testing::Test {
 protected:
  std::string command(const std::string& text) const { return fmt::format("cd '{}' && {} 2>&1", dir_.path(), text); }
  // Exit status and what was printed.
  std::pair<int, std::string> run(const std::string& text) const {
    FILE* pipe = popen(command(text).c_str(), "r");
    std::string output;
    for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output += static_cast<char>(c);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
  }
  void write_header(const Store& store) { write_file(dir_ / "pagetune_tables.hpp", export_header(header_tables(store.all_winners()))); }
  // The program of header_query.cpp and header_other.cpp, linked of two translation units.
  void compile() {
    const std::string flags = std::string(PAGETUNE_CXX) + " -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -I.";
    auto [alone, said] = run(flags + " -fsyntax-only -x c++ pagetune_tables.hpp");
    ASSERT_EQ(alone, 0) << said;
    auto [together, errors] = run(fmt::format("{} '{}/header_query.cpp' '{}/header_other.cpp' -o query", flags, PAGETUNE_SOURCE_DIR "/tests", PAGETUNE_SOURCE_DIR "/tests"));
    ASSERT_EQ(together, 0) << errors;
  }
  std::vector<std::string> ask(const std::vector<std::string>& queries) {
    std::string text;
    for (const std::string& query : queries) text += query + "\n";
    write_file(dir_ / "queries", text);
    auto [code, output] = run("./query < queries");
    EXPECT_EQ(code, 0) << output;
    std::istringstream lines(output);
    std::vector<std::string> answers;
    for (std::string line; std::getline(lines, line);) answers.push_back(line);
    return answers;
  }

  TempDir dir_;
};

// Lengths and batches over and beyond the grid, every fourth at the edge of a bucket.
int random_size(std::mt19937& random, int log2_most) {
  const int exponent = static_cast<int>(random() % static_cast<unsigned>(log2_most));
  constexpr int64_t kSqrt2At62 = 0x5a827999fcef3242;
  if (random() % 4 == 0) return std::max(1, static_cast<int>(kSqrt2At62 >> (62 - exponent)) + static_cast<int>(random() % 3) - 1);
  return (1 << exponent) + static_cast<int>(random() % (1U << exponent));
}

// Faults: a cell, a default, a name or a spec that the header gives otherwise than the store and the runtime; a name that is the beginning of another; a driver that is older in
// numbers and newer in letters; what is not there answers all the same.
TEST_F(Header, AnswersAsTheStoreDoes) {
  const auto store = Store::open(dir_ / "store");
  const MadeUp made = fill(*store);
  int shipped = 0;
  for (const auto& entry : fs::recursive_directory_iterator(PAGETUNE_SOURCE_DIR "/configs/tuned")) {
    if (entry.path().extension() != ".json") continue;
    for (const Store::Row& row : parse_table(entry.path().string(), read_file(entry.path().string()))) {
      put(*store, row);
      ++shipped;
    }
  }
  ASSERT_GT(shipped, 0);
  write_header(*store);
  ASSERT_NO_FATAL_FAILURE(compile());

  std::vector<std::string> names{"NVIDIA H2", "NVIDIA H200 ", "NVIDIA H200 MIG", "nvidia h200", "NVIDIA GH200", "", "NVIDIA_H200"};  // none of a device
  const size_t strange_names = names.size();
  for (const Environment& e : made.environments) names.insert(names.end(), {e.device, e.key(), e.class_text()});
  std::vector<AttentionSpec> specs = made.specs;
  AttentionSpec strange;
  strange.q_heads = 24;
  specs.push_back(strange);

  const std::vector<Store::Row> rows = store->all_winners();
  std::mt19937 random(5);
  std::vector<std::string> queries, expected;
  Answers answers(*store);
  std::map<std::string, int> kinds;
  for (int i = 0; i < 2000; ++i) {
    const std::string& name = names[random() % 10 == 0 ? random() % strange_names : strange_names + random() % (names.size() - strange_names)];
    const AttentionSpec& spec = specs[random() % specs.size()];
    const Bucket measured = rows[random() % rows.size()].winner.bucket;
    const bool at_a_winner = random() % 2 == 0;
    const int batch = at_a_winner ? measured.batch() : random_size(random, 18), len = at_a_winner ? measured.len() : random_size(random, 23);
    const int64_t whole = int64_t{batch} * len, total = std::array<int64_t, 3>{0, whole, static_cast<int64_t>(static_cast<double>(whole) * static_cast<double>(random()) / static_cast<double>(std::mt19937::max()))}[random() % 3];
    const std::string columns = columns_text(spec);
    const bool by_key = random() % 2 == 0;
    queries.push_back(fmt::format("{} {} {} {} {}", hex(name), batch, len, total, by_key ? "key " + spec_key(spec) : "columns " + columns));
    expected.push_back(by_key ? answers.of(name, [&](const AttentionSpec& s) { return s == spec; }, batch, len, total)
                              : answers.of(name, [&](const AttentionSpec& s) { return columns_text(s) == columns; }, batch, len, total));
    ++kinds[expected.back().substr(0, 1)];
  }
  const std::vector<std::string> found = ask(queries);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << queries[i];
  for (const char* kind : {"0", "1", "2", "3", "4", "5"}) EXPECT_GE(kinds[kind], 20) << "the queries ask too little of kind " << kind;
}

// Fault (a substring alias once lost the tables of a device): names of the same family that are one entry, or that answer for each other.
TEST_F(Header, DevicesOfOneFamilyAreNeverEachOther_B190) {
  const char* names[] = {"NVIDIA H20", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 2g.35gb"};
  const auto store = Store::open(dir_ / "store");
  std::vector<KernelConfig> configs;
  for (const KernelConfig& config : candidates({}, device(names[0])))
    if (configs.size() < std::size(names)) configs.push_back(config);
  ASSERT_EQ(configs.size(), std::size(names));
  for (size_t i = 0; i < std::size(names); ++i) {
    Store::Row row = sample_row({3, 12}, {}, device(names[i]));
    row.winner.config = configs[i];
    put(*store, row);
  }
  write_header(*store);
  ASSERT_NO_FATAL_FAILURE(compile());
  std::vector<std::string> queries;
  for (const char* name : names) queries.push_back(fmt::format("{} 8 4096 {} key {}", hex(name), 8 * 4096, spec_key({})));
  const std::vector<std::string> found = ask(queries);
  ASSERT_EQ(found.size(), std::size(names));
  for (size_t i = 0; i < std::size(names); ++i) {
    std::string expected = "0";
    for (const auto& [parameter, value] : configs[i].values()) expected += fmt::format(" {}={}", parameter, value);
    EXPECT_EQ(found[i], expected) << names[i];
  }
}

// Faults: the order of the rows in the bytes; a macro that the header leaves behind beside its guard.
TEST_F(Header, HasTheSameBytesForTheSameWinnersAndNoMacro) {
  const auto store = Store::open(dir_ / "store");
  fill(*store);
  std::vector<Store::Row> rows = store->all_winners();
  const std::string text = export_header(header_tables(rows));
  std::mt19937 random(3);
  std::shuffle(rows.begin(), rows.end(), random);
  std::vector<HeaderTable> tables = header_tables(rows);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(tables.begin(), tables.end(), random);
    EXPECT_EQ(export_header(tables), text);
  }
  EXPECT_EQ(text.find("#define"), text.rfind("#define"));
  EXPECT_NE(text.find("#ifndef PAGETUNE_TABLES_HPP\n#define PAGETUNE_TABLES_HPP\n"), std::string::npos);
  EXPECT_EQ(text.find("using namespace"), std::string::npos);
}

}  // namespace
}  // namespace pagetune
