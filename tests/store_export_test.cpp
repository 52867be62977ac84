#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "cache_db/export.hpp"
#include "pagetune/error.hpp"
#include "store_expect.hpp"

namespace pagetune {
namespace {

std::vector<Store::Row> sample_rows() {
  AttentionSpec small, lse;
  small.head_dim_k = small.head_dim_v = 64;
  lse.lse = true;
  Environment newer = sample_environment(), h20 = sample_environment();
  newer.driver = "13.1";
  h20.device = "NVIDIA H20";
  h20.processors = 78;
  std::vector<Store::Row> rows;
  for (Bucket bucket : {Bucket{0, 4}, Bucket{1, 4}, Bucket{4, 12}, Bucket{3, 12}}) rows.push_back(sample_row(bucket));
  rows[3].winner.generator_hash = std::string(64, 'd');
  rows[2].winner.runner_up = {};
  rows[2].winner.floor_us = 0;
  for (const auto& env : {newer, h20}) rows.push_back(sample_row({0, 4}, small, env));
  rows.push_back(sample_row({0, 4}, lse));
  return rows;
}

std::vector<Store::Row> sorted_by_key(std::vector<Store::Row> rows) {
  std::sort(rows.begin(), rows.end(), [](const Store::Row& a, const Store::Row& b) {
    return std::tie(a.winner.env_key, a.winner.spec_key, a.winner.bucket) < std::tie(b.winner.env_key, b.winner.spec_key, b.winner.bucket);
  });
  return rows;
}

std::vector<Store::Row> import(const std::vector<ExportedFile>& files) {
  std::vector<Store::Row> rows;
  for (const auto& file : files) {
    for (auto& row : parse_table(file.name, file.text)) rows.push_back(std::move(row));
  }
  return rows;
}

// Fault: order of insertion, time, or anything but the contents in the bytes.
TEST(Export, DoesNotDependOnTheOrderOfRows) {
  std::vector<Store::Row> rows = sample_rows();
  auto json = export_json(rows);
  std::string csv = export_csv(rows);
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(rows.begin(), rows.end(), random);
    auto again = export_json(rows);
    ASSERT_EQ(again.size(), json.size());
    for (size_t f = 0; f < json.size(); ++f) {
      EXPECT_EQ(again[f].name, json[f].name);
      EXPECT_EQ(again[f].text, json[f].text);
    }
    EXPECT_EQ(export_csv(rows), csv);
  }
}

// Fault: a field that is lost or rounded on the way out and back; two tables that share a name.
TEST(Export, ImportAndExportAgainGiveTheSameBytes) {
  TempDir dir;
  std::vector<Store::Row> rows = sample_rows();
  auto files = export_json(rows);
  ASSERT_EQ(files.size(), 4u);
  std::vector<Store::Row> back = import(files);
  expect_same(sorted_by_key(back), sorted_by_key(rows));
  auto store = Store::open(dir.path());
  for (const auto& row : back) put(*store, row);
  auto again = export_json(store->all_winners());
  ASSERT_EQ(again.size(), files.size());
  for (size_t f = 0; f < files.size(); ++f) {
    EXPECT_EQ(again[f].name, files[f].name);
    EXPECT_EQ(again[f].text, files[f].text);
  }
}

// Fault: names that people and other tools do not recognise, and names of two devices or specs that collide.
TEST(Export, NamesFilesLikeTheFieldDoes) {
  EXPECT_EQ(export_json({sample_row()})[0].name, "head=128,gqa=4,kv_heads=8,page=16,dtype=bf16,layout=nhd,device_name=NVIDIA_H200.json");
  std::set<std::string> names;
  for (const auto& file : export_json(sample_rows())) names.insert(file.name);
  std::string env = sample_rows()[0].winner.env_key.substr(0, 8), lse = sample_rows()[6].winner.spec_key.substr(0, 8);
  ASSERT_EQ(names.size(), 4u);
  EXPECT_TRUE(names.contains("head=64,gqa=4,kv_heads=8,page=16,dtype=bf16,layout=nhd,device_name=NVIDIA_H20.json"));
  EXPECT_TRUE(names.contains("head=128,gqa=4,kv_heads=8,page=16,dtype=bf16,layout=nhd,spec=" + lse + ",device_name=NVIDIA_H200,env=" + env + ".json"))
      << *names.begin();
}

// Fault (a substring alias once lost the tables of a device): devices of one family share a file, or a file's name does not say which of them it is of.
TEST(Export, NamesDevicesOfOneFamilyApart_B190) {
  const std::map<std::string, std::string> names = {{"NVIDIA H20", "NVIDIA_H20"},
                                                    {"NVIDIA H200", "NVIDIA_H200"},
                                                    {"NVIDIA H200 NVL", "NVIDIA_H200_NVL"},
                                                    {"NVIDIA GH200 480GB", "NVIDIA_GH200_480GB"},
                                                    {"NVIDIA H200 MIG 1g.18gb", "NVIDIA_H200_MIG_1g.18gb"},
                                                    {"NVIDIA H200 MIG 2g.35gb", "NVIDIA_H200_MIG_2g.35gb"}};
  std::vector<Store::Row> rows;
  for (const auto& [device, name] : names) {
    Environment env = sample_environment();
    env.device = device;
    rows.push_back(sample_row({0, 4}, {}, env));
  }
  const auto files = export_json(rows);
  ASSERT_EQ(files.size(), names.size());
  for (const auto& file : files) {
    const std::string device = parse_table(file.name, file.text).at(0).environment.device;
    EXPECT_TRUE(file.name.ends_with(",device_name=" + names.at(device) + ".json")) << device << ": " << file.name;
  }
  // Names that differ only in what a file name leaves out are told apart by the device's key.
  rows.resize(2);
  for (Store::Row& row : rows) {
    row.environment.device = &row == &rows[0] ? "NVIDIA H200" : "NVIDIA/H200";
    row.winner.env_key = row.environment.key();
  }
  EXPECT_EQ(export_json(rows).size(), 2u);
  for (const auto& file : export_json(rows)) EXPECT_NE(file.name.find(",device_name=NVIDIA_H200,env="), std::string::npos) << file.name;
}

// Fault: a device name that leaves the directory or is too long for the file system.
TEST(Export, SanitisesDeviceNames) {
  for (const std::string& device : {std::string("../../etc/passwd"), std::string("Gerät µ/\\\n\"x\""), std::string(300, 'n'), std::string()}) {
    Environment env = sample_environment();
    env.device = device;
    std::string name = export_json({sample_row({0, 4}, {}, env)})[0].name;
    EXPECT_LT(name.size(), 255u);
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=,._-"), std::string::npos) << name;
    EXPECT_EQ(parse_table(name, export_json({sample_row({0, 4}, {}, env)})[0].text)[0].environment, env);
  }
}

// Fault: buckets in the order of their text (16x16 before 2x16), metadata at the end.
TEST(Export, WritesMetadataFirstAndBucketsInNumericOrder) {
  auto json = nlohmann::ordered_json::parse(export_json({sample_row({4, 4}), sample_row({1, 4}), sample_row({1, 10})})[0].text);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"_metadata", "2x16", "2x1024", "16x16"}));
}

// Fault: a column out of place, a quote that breaks the line, a unit that is wrong.
TEST(Export, CsvHasOneQuotedLinePerBucket) {
  Store::Row row = sample_row({1, 10});
  row.winner.median_us = 4;
  row.winner.ci_low_us = 3.5;
  row.winner.ci_high_us = 4.25;
  row.winner.runner_up_us = 5;
  row.winner.floor_us = 3;
  row.winner.error = 0.001;
  row.winner.config = KernelConfig({{"VARIANT", 1}});
  row.winner.runner_up = KernelConfig({{"VARIANT", 2}});
  std::string id = row.winner.env_key.substr(0, 12) + "," + row.winner.spec_key.substr(0, 12);
  // 2 x 1024 tokens x 8 heads x 256 elements x 2 bytes = 8,388,608 bytes in 4 us: 2097.2 GB/s
  EXPECT_EQ(export_csv({row}),
            "environment,arch,env,spec,GROUP_SIZE,HEAD_DIM,BLOCK_SIZE,CAUSAL,BLOCK_SHAPE_Q,ENABLE_PREFILL,IsFP8,IsDynamicC8,KV_HEADS,HEADWISE,"
            "bucket,config,median_us,ci_low_us,ci_high_us,gb_per_s,fraction_of_floor,runner_up,gap,error,reason\n"
            "NVIDIA H200,sm_90a," + id + ",4,128,16,1,16,0,0,0,8,0,2x1024,\"{\"\"VARIANT\"\":1}\",4,3.5,4.25,2097.2,0.7500,"
            "\"{\"\"VARIANT\"\":2}\",0.2500,0.001,\"12.3 % faster than the default, \"\"quoted\"\", µs\"\n");
}

int validate(const std::string& file) {
  std::string command = std::string("/usr/bin/python3 ") + PAGETUNE_SOURCE_DIR + "/tests/store_validate.py " + PAGETUNE_SOURCE_DIR +
                        "/configs/schemas/tuned_table.schema.json '" + file + "'";
  int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Fault: a schema that the exporter does not follow, or that accepts anything.
TEST(Export, FollowsItsPublishedSchema) {
  TempDir dir;
  for (const auto& file : export_json(sample_rows())) {
    write_file(dir / file.name, file.text);
    EXPECT_EQ(validate(dir / file.name), 0) << file.text;
  }
  using nlohmann::json;
  const std::string good = export_json({sample_row()})[0].text;
  const char* bad[] = {
      R"({"8x4096": {"median_us": -1}})",   R"({"8x4096": {"extra": 1}})",          R"({"8x4096": {"config": {}}})",
      R"({"8x4096": {"samples": 1.5}})",    R"({"_metadata": {"format": 2}})",      R"({"_metadata": {"spec": {"layout": "x"}}})",
      R"({"_metadata": {"time": "now"}})",  R"({"8": {}})",                         R"({"_metadata": {"environment": {"ecc": "on"}}})",
      R"({"8x4096": {"config": {"A": 1.5}}})"};
  for (const char* patch : bad) {
    json table = json::parse(good);
    json change = json::parse(patch);
    if (change.contains("8x4096") && change["8x4096"].contains("config")) table["8x4096"].erase("config");
    table.merge_patch(change);
    write_file(dir / "bad.json", table.dump());
    EXPECT_EQ(validate(dir / "bad.json"), 1) << patch;
  }
}

// Faults: a key that readers of T4 need is missing or of another type; microseconds where they expect milliseconds; two results with one configuration, of which they keep one.
TEST(Export, T4HasOneResultForEachConfigAndBucket) {
  std::vector<Store::Row> rows = sample_rows();
  const auto files = export_t4(rows);
  ASSERT_EQ(files.size(), export_json(rows).size());
  size_t results = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    EXPECT_EQ(files[f].name.substr(0, files[f].name.rfind(".t4.json")) + ".json", export_json(rows)[f].name);
    const auto table = nlohmann::json::parse(files[f].text);
    EXPECT_EQ(table["schema_version"], "1.0.0");
    EXPECT_TRUE(table["metadata"]["environment"]["device_query"].is_object());
    EXPECT_TRUE(table["metadata"]["environment"]["requirements"].is_array());
    std::set<std::string> configurations;
    for (const auto& result : table["results"]) {
      ++results;
      EXPECT_TRUE(configurations.insert(result["configuration"].dump()).second) << result;
      EXPECT_EQ(result["invalidity"], "correct");
      EXPECT_TRUE(result["correctness"].is_number());
      EXPECT_EQ(result["objectives"], nlohmann::json::array({"time"}));
      ASSERT_EQ(result["times"]["runtimes"].size(), 1u);
      EXPECT_EQ(result["measurements"][0]["name"], "time");
      EXPECT_EQ(result["measurements"][0]["unit"], "ms");
      EXPECT_EQ(result["measurements"][0]["value"], result["times"]["runtimes"][0]);
    }
  }
  EXPECT_EQ(results, 2 * rows.size() - 1) << "one has no runner-up";
  const auto one = nlohmann::json::parse(export_t4({sample_row({3, 12})})[0].text)["results"];
  EXPECT_EQ(one[0]["configuration"]["BATCH"], 8);
  EXPECT_EQ(one[0]["configuration"]["LEN"], 4096);
  EXPECT_DOUBLE_EQ(one[0]["times"]["runtimes"][0].get<double>(), sample_row({3, 12}).winner.median_us / 1000);
  EXPECT_DOUBLE_EQ(one[1]["times"]["runtimes"][0].get<double>(), 0.0125);
  EXPECT_EQ(one[1]["configuration"]["NUM_STAGES"], 2);
  std::mt19937 random(2);
  std::shuffle(rows.begin(), rows.end(), random);
  for (size_t f = 0; f < files.size(); ++f) EXPECT_EQ(export_t4(rows)[f].text, files[f].text);
}

}  // namespace
}  // namespace pagetune
