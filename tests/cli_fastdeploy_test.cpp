// `pagetune fastdeploy` as a user runs it.
#include <sys/stat.h>

#include "cli_support.hpp"
#include "fastdeploy_support.hpp"

namespace {

using namespace cli_test;
using fastdeploy_support::generate;
using fastdeploy_support::kFile;

class FastDeploy : public Cli {
 protected:
  std::string out() const { return (dir_ / "pruned.json").string(); }
  Result fastdeploy(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "fastdeploy");
    return run(arguments);
  }
};

std::vector<std::string> shipped_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(PAGETUNE_SOURCE_DIR "/configs/models")) names.push_back(entry.path().stem().string());
  return names;
}

// Fault: the text or the JSON document does not say what the file instantiates and what of it is covered.
TEST_F(FastDeploy, SaysWhatTheFileInstantiates) {
  const Result text = fastdeploy({kFile});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("7104 instantiations in 74 files; pagetune's kernels for sm_90a cover 336\n", 0), 0u) << text.out;
  EXPECT_EQ(text.err, "");
  const Result json = fastdeploy({kFile, "--json", "--target", "sm_80"});
  const Json document = Json::parse(json.out);
  EXPECT_EQ(document["instantiations"], 7104);
  EXPECT_EQ(document["files"], 74);
  EXPECT_EQ(document["target"], "sm_80");
  int covered = 0, refused = 0;
  for (const Json& entry : document["entries"]) {
    covered += entry["covered"].get<int>();
    for (const Json& reason : entry["not_covered"]) refused += reason["instantiations"].get<int>();
    EXPECT_NE(text.out.find(entry["name"].get<std::string>() + " "), std::string::npos);
  }
  EXPECT_EQ(covered, 336);
  EXPECT_EQ(covered + refused, 7104);
  EXPECT_FALSE(document.contains("models"));
}

// Fault: the file written for a model lists thousands of kernels, or not those it needs.
TEST_F(FastDeploy, WritesWhatErnieNeeds) {
  const Result result = fastdeploy({kFile, "ernie-4.5-21b-a3b", "--out", out()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("needed: 2 instantiations in 1 file\nwritten to " + out()), std::string::npos) << result.out;
  const auto written = generate(read_file(out()));
  EXPECT_EQ(written.instantiations, (std::multiset<std::string>{"MultiQueryAppendAttention<paddle::bfloat16, 5, 128, 64, 1, 16, 1, paddle::bfloat16, 1>",
                                                                "MultiQueryAppendAttention<paddle::bfloat16, 5, 128, 64, 1, 64, 4, paddle::bfloat16, 1>"}));
  EXPECT_EQ(written.files.size(), 1u);
  EXPECT_EQ(fastdeploy({out()}).out.rfind("2 instantiations in 1 file; pagetune's kernels for sm_90a cover 1\n", 0), 0u) << "the verb reads what it writes";
}

// Fault: an option that does not reach the selection.
TEST_F(FastDeploy, OptionsChooseOtherKernels) {
  const auto of = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {kFile, "llama-3.1-8b", "--out", out()});
    EXPECT_EQ(fastdeploy(more).code, 0);
    return generate(read_file(out())).instantiations;
  };
  EXPECT_TRUE(of({}).contains("MultiQueryAppendAttention<paddle::bfloat16, 4, 128, 64, 1, 16, 1, paddle::bfloat16, 1>"));
  EXPECT_TRUE(of({"--speculative"}).contains("MultiQueryAppendAttention<paddle::bfloat16, 4, 128, 64, 1, 16, 1, paddle::bfloat16, 0>"));
  EXPECT_TRUE(of({"--cache-type", "c8_fp8"}).contains("MultiQueryAppendC8Attention<paddle::bfloat16, 4, 128, 64, 1, 16, 1, paddle::bfloat16, 1, 1, 0>"));
  EXPECT_TRUE(of({"--cache-type", "c4"}).contains("MultiQueryAppendC4Attention<paddle::bfloat16, 4, 128, 64, 1, 16, 1, paddle::bfloat16, 1>"));
  EXPECT_TRUE(of({"--tp", "16"}).contains("MultiQueryAppendAttention<paddle::bfloat16, 2, 128, 64, 1, 16, 1, paddle::bfloat16, 1>")) << "2 query heads and a copy of a KV head on each rank";
}

// Faults: a model without a kernel is left out without a word, ends the run, or the exit code says that all is well.
TEST_F(FastDeploy, ModelsWithoutAKernelAreSaid) {
  std::vector<std::string> arguments = shipped_models();
  ASSERT_EQ(arguments.size(), 32u);
  arguments.insert(arguments.begin(), {kFile, "--json", "--out", out()});
  const Result result = fastdeploy(arguments);
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.err.find("smollm2-135m, layers 0-29, has no kernel in this file: multiquery_attention_c16 has no instantiation with GROUP_SIZE 3; its values are 1, 2, 4"), std::string::npos) << result.err;
  const Json document = Json::parse(result.out);
  EXPECT_EQ(document["needed"]["instantiations"], 25);
  EXPECT_EQ(document["needed"]["files"], 4);
  EXPECT_EQ(document["needed"]["written"], out());
  const auto written = generate(read_file(out()));
  EXPECT_EQ(written.instantiations.size(), 25u);
  EXPECT_EQ(written.files.size(), 4u);
  for (const Json& model : document["models"]) EXPECT_EQ(model["instantiations"] == 0, model["files"] == 0) << model;
}

// Fault: a good file is replaced by one that instantiates nothing.
TEST_F(FastDeploy, NothingIsWrittenForNothing) {
  std::ofstream(out()) << "good";
  const Result result = fastdeploy({kFile, "phi-3-mini-4k", "--out", out()});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("'" + out() + "' was not written: no model here has a kernel in " + kFile), std::string::npos) << result.err;
  EXPECT_EQ(read_file(out()), "good");
}

// Fault: one model that cannot be split takes the others with it.
TEST_F(FastDeploy, AModelThatTpDoesNotDivideIsLeftOut) {
  const Result result = fastdeploy({kFile, "smollm2-135m", "llama-3.1-8b", "--tp", "2", "--json"});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("smollm2-135m was left out: "), std::string::npos) << result.err;
  const Json document = Json::parse(result.out);
  EXPECT_TRUE(document["models"][0].contains("error"));
  EXPECT_EQ(document["models"][1]["instantiations"], 2);
  EXPECT_FALSE(document["models"][1].contains("error"));
}

// Faults: a wrong command line or file ends as a success, with another code, or without the words that help.
TEST_F(FastDeploy, RefusesWithASentence) {
  const auto expect = [&](std::vector<std::string> arguments, int code, const std::string& words) {
    const Result result = fastdeploy(std::move(arguments));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_NE((result.out + result.err).find(words), std::string::npos) << result.out << result.err;
  };
  expect({}, 2, "template_config");
  expect({kFile, "--out", out()}, 2, "--out needs models");
  expect({kFile, "no-such-model"}, 2, "there is no model 'no-such-model'");
  expect({kFile, "--target", "sm_1"}, 2, "--target: ");
  expect({kFile, "llama-3.1-8b", "--cache-type", "int8"}, 2, "c8_block_wise_fp8");
  expect({kFile, "llama-3.1-8b", "--tp", "0"}, 2, "--tp");
  expect({(dir_ / "absent.json").string()}, 1, "could not be read as FastDeploy's template_config.json");
  expect({dir_.string()}, 1, "could not be read as FastDeploy's template_config.json");
  expect({"/dev/zero"}, 1, "larger than 1 MiB");
  expect({tiny()}, 1, "must be an object, not array");
  expect({kFile, "llama-3.1-8b", "--out", (dir_ / "no" / "such.json").string()}, 1, "could not be written: name a file in a directory that is there");
  std::ofstream(dir_ / "large.json") << read_file(kFile) << std::string(1 << 20, ' ');
  expect({(dir_ / "large.json").string()}, 1, "larger than 1 MiB");
}

// Fault: the file that stood there is lost or half written when the new one cannot be; rests stay behind; a pipe or a device is replaced by a file.
TEST_F(FastDeploy, FilesAreReplacedAtOnce) {
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_)) found.insert(entry.path().filename().string());
    return found;
  };
  std::ofstream(out()) << "old";
  const int old = open(out().c_str(), O_RDONLY);
  ASSERT_EQ(fastdeploy({kFile, "llama-3.1-8b", "--out", out()}).code, 0);
  char text[4] = {};
  EXPECT_EQ(read(old, text, 3), 3);
  EXPECT_STREQ(text, "old") << "a reader keeps the file that it opened";
  close(old);
  EXPECT_EQ(names(), (std::set<std::string>{"err", "mixed.json", "out", "pruned.json", "tiny.json"}));

  fs::create_directory(dir_ / "folder");
  EXPECT_EQ(fastdeploy({kFile, "llama-3.1-8b", "--out", (dir_ / "folder").string()}).code, 1);
  EXPECT_TRUE(fs::is_empty(dir_ / "folder"));
  const fs::path pipe = dir_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_EQ(fastdeploy({kFile, "llama-3.1-8b", "--out", pipe.string()}).code, 0);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(read(reader, text, 1), 1);
  EXPECT_EQ(text[0], '{');
  close(reader);
}

}  // namespace
