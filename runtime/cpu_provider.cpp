#include "runtime/cpu_provider.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "pagetune/error.hpp"
#include "runtime/cpu/provider.hpp"

namespace pagetune {
namespace {

constexpr const char* kLibrary = "libpagetune_cpu.so";

// The folder of the program or shared library that this function was linked into.
std::filesystem::path own_folder() {
  Dl_info info{};
  std::error_code ignored;
  std::filesystem::path file;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 && info.dli_fname != nullptr)
    file = std::filesystem::canonical(info.dli_fname, ignored);
  // dladdr gives argv[0] for the program itself, which may be a bare name.
  if (file.empty()) file = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return file.parent_path();
}

std::vector<std::string> candidates() {
  if (const char* path = std::getenv("PAGETUNE_CPU_BACKEND"); path != nullptr && *path != '\0') return {path};
  const std::filesystem::path folder = own_folder();
  return {(folder / kLibrary).string(), (folder.parent_path() / "lib" / kLibrary).string(), kLibrary};
}

struct Loaded {
  CpuProvider* provider = nullptr;
  std::string path;
};

Loaded load_provider() {
  std::string tried;
  for (const std::string& path : candidates()) {
    tried += tried.empty() ? "" : "; ";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += dlerror();  // names the path
      continue;
    }
    auto* open = reinterpret_cast<pagetune_cpu_open_function*>(dlsym(library, "pagetune_cpu_open"));
    std::array<char, 512> message{};
    CpuProvider* provider = open == nullptr ? nullptr : open(kCpuProviderAbi, message.data(), message.size());
    if (provider != nullptr) return {provider, path};
    tried += path + ": " + (open == nullptr ? "it has no symbol pagetune_cpu_open" : message.data());
    dlclose(library);
  }
  throw Error(ErrorCode::no_device,
              std::string("the CPU backend cannot be loaded (") + tried + "); install libpagetune_cpu.so or set PAGETUNE_CPU_BACKEND to its path");
}

const Loaded& loaded() {
  static std::mutex mutex;
  static Loaded library;
  const std::scoped_lock lock(mutex);
  if (library.provider == nullptr) library = load_provider();
  return library;
}

}  // namespace

Compiler& cpu_compiler() { return loaded().provider->compiler(); }
std::string cpu_library() { return loaded().path; }
std::shared_ptr<Device> open_cpu_device(int threads) { return loaded().provider->open_device(threads); }

}  // namespace pagetune
