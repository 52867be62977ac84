// The other processes of the runtime tests. Each waits until its standard input ends, so that many of them start together.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cache_db/store.hpp"
#include "codegen/default_config.hpp"
#include "pagetune/pagetune.hpp"
#include "runtime/device.hpp"
#include "runtime_binaries.hpp"
#include "tuner/problem.hpp"

using namespace pagetune;

namespace {

constexpr int kUsage = 2, kWrong = 3, kProblems = 4, kError = 5;

// What an engine does at model load, for three specs, and one launch of each checked against the oracle.
int serve(const std::string& device_id, const std::string& dir) {
  int status = 0;
  for (const AttentionSpec& spec : served_specs()) {
    const auto kernel = get_kernel(spec, {.device = device_id, .cache_dir = dir});
    kernel->prepare(kMaxBatch, kMaxLen);
    const HostProblem problem({.spec = spec, .lens = {200, 1, 33}});
    DeviceProblem on_device(*open_device(device_id), problem);
    on_device.run(*kernel);
    const Check check = on_device.check(reference(spec, problem.params()));
    if (!check.ok) {
      std::fprintf(stderr, "%s\n", check.what.c_str());
      status = kWrong;
    }
    std::printf("digest %s\n", kernel->digest().c_str());
  }
  const Stats s = stats();
  std::printf("compiles %llu\ncorrupt %llu\n", static_cast<unsigned long long>(s.compiles), static_cast<unsigned long long>(s.corrupt_binaries));
  for (const auto& problem : Store::open(dir)->problems()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    status = kProblems;
  }
  return status;
}

// A kernel that reads where no memory is, and what an engine is told from then on.
int fault(const std::string& device_id, const std::string& dir) {
  const AttentionSpec spec = served_spec(128, DType::bf16);
  const auto kernel = get_kernel(spec, {.device = device_id, .cache_dir = dir});
  kernel->prepare(kMaxBatch, kMaxLen);
  const auto device = open_device(device_id);
  const HostProblem problem({.spec = spec, .lens = {200}});
  DeviceProblem on_device(*device, problem);
  on_device.run(*kernel);
  pt_decode_params nowhere = on_device.params();
  nowhere.k_cache = reinterpret_cast<const void*>(uintptr_t{1} << 56);
  nowhere.v_cache = reinterpret_cast<const void*>(uintptr_t{1} << 55);
  for (int call = 0; call < 4; ++call) {
    try {
      kernel->launch(call == 0 ? nowhere : on_device.params(), device->stream());
      device->synchronize();
      std::printf("call %d: no error\n", call);
    } catch (const Error& error) {
      std::printf("call %d: error %d: %s\n", call, static_cast<int>(error.code()), error.what());
    }
  }
  try {
    device->allocate(16);
  } catch (const Error& error) {
    std::printf("allocate: error %d\n", static_cast<int>(error.code()));
  }
  std::fflush(stdout);
  return 0;
}

// Compiles one kernel for an architecture and prints its key, its sha256 and its size.
int compile(const std::string& arch) {
  const Target target = Target::by_name(arch);
  const AttentionSpec spec = served_spec(128, DType::bf16);
  const Binary binary = compiler_for(target).compile(generate(spec, default_shape(spec, target), target));
  std::printf("%s %s %zu\n", binary.key.c_str(), binary.sha256.c_str(), binary.data.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  const std::string verb = argc > 1 ? argv[1] : "";
  try {
    if (verb == "serve" && argc == 4) return serve(argv[2], argv[3]);
    if (verb == "fault" && argc == 4) return fault(argv[2], argv[3]);
    if (verb == "compile" && argc == 3) return compile(argv[2]);
  } catch (const Error& error) {
    std::printf("error %d: %s\n", static_cast<int>(error.code()), error.what());
    return kError;
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return kError;
  }
  std::fprintf(stderr, "usage: runtime_helper serve DEVICE DIR | fault DEVICE DIR | compile ARCH\n");
  return kUsage;
}
