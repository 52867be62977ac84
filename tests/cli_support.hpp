// A process of the program as a user starts it: the CPU backend, a directory and a cache of its own.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace cli_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

inline constexpr const char* kTinyModel = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"})";
// Layer 0 with a window, layer 1 without.
inline constexpr const char* kMixedModel = R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
  "use_sliding_window": true, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]})";

struct Result {
  int code = -1;
  std::string out, err;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pagetune-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    std::ofstream(dir_ / "tiny.json") << kTinyModel;
    std::ofstream(dir_ / "mixed.json") << kMixedModel;
  }
  void TearDown() override { fs::remove_all(dir_); }

  fs::path cache() const { return dir_ / "cache"; }
  std::string tiny() const { return (dir_ / "tiny.json").string(); }
  std::string mixed() const { return (dir_ / "mixed.json").string(); }

  // Variables beside the test's own environment.
  using Environ = std::vector<std::pair<std::string, std::string>>;

  // Starts the program; its outputs go to files. `cuda_devices`: CUDA_VISIBLE_DEVICES.
  pid_t start(const std::vector<std::string>& arguments, const char* cuda_devices = nullptr, const Environ& environ = {}) {
    pid_t child = fork();
    if (child != 0) return child;
    setenv("PAGETUNE_CACHE_DIR", cache().c_str(), 1);
    setenv("PAGETUNE_COMMIT", "0123abcd", 1);
    for (const char* scheduler : {"SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) unsetenv(scheduler);
    for (const auto& [name, value] : environ) setenv(name.c_str(), value.c_str(), 1);
    if (cuda_devices) setenv("CUDA_VISIBLE_DEVICES", cuda_devices, 1);
    if (obeys_modes_ && geteuid() == 0 && prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) != 0) _exit(kNoSuchProcess);
    for (auto [file, descriptor] : {std::pair{"out", STDOUT_FILENO}, {"err", STDERR_FILENO}})
      dup2(open((dir_ / file).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), descriptor);
    std::vector<char*> words{const_cast<char*>(PAGETUNE_PROGRAM)};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(PAGETUNE_PROGRAM, words.data());
    _exit(127);
  }

  Result finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(dir_ / "out"), read_file(dir_ / "err")};
  }

  Result run(const std::vector<std::string>& arguments, const char* cuda_devices = nullptr) { return finish(start(arguments, cuda_devices)); }

  Result run_with(const Environ& environ, const std::vector<std::string>& arguments) { return finish(start(arguments, nullptr, environ)); }

  Result tune(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"tune", tiny(), "--device", "cpu", "--batch", "1", "--len", "64,256", "--budget", "8s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  // Programs are denied what the modes of files deny, also where the tests run as root. Ends with kNoSuchProcess where that cannot be had.
  bool obeys_modes_ = false;
  static constexpr int kNoSuchProcess = 126;
  fs::path dir_;
};

}  // namespace cli_test
