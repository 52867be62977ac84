#include "runtime/cuda/nvrtc.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "codegen/sha256.hpp"
#include "pagetune/error.hpp"
#include "runtime/cuda/cubin.hpp"
#include "runtime/cuda/library.hpp"

namespace pagetune::cuda {
namespace {

using Program = struct ProgramTag*;
using Status = int;

class Nvrtc final : public Compiler {
 public:
  Nvrtc() {
    std::vector<std::string> candidates;
    if (const char* file = std::getenv("PAGETUNE_NVRTC"); file != nullptr && *file != '\0') {
      candidates = {file};  // another one in its place would make other binaries than were asked for
    } else {
      candidates = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
      std::vector<std::string> homes;
      if (const char* home = std::getenv("CUDA_HOME")) homes.emplace_back(home);
      homes.emplace_back("/usr/local/cuda");
      for (const auto& home : homes)
        for (const char* name : {"/lib64/libnvrtc.so.13", "/lib64/libnvrtc.so.12", "/lib64/libnvrtc.so"}) candidates.push_back(home + name);
    }
    std::string tried;
    void* handle = open_library(candidates, tried);
    if (handle == nullptr)
      throw Error(ErrorCode::no_device, "NVRTC (libnvrtc.so.12 or .13) could not be loaded: install CUDA's NVRTC package or set PAGETUNE_NVRTC to the file; tried: " + tried);
    const auto load = [handle](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      if (function == nullptr) throw Error(ErrorCode::no_device, std::string("the NVRTC library has no ") + symbol + "; pagetune needs NVRTC 12 or newer");
    };
    load(version_, "nvrtcVersion");
    load(error_string_, "nvrtcGetErrorString");
    load(create_, "nvrtcCreateProgram");
    load(destroy_, "nvrtcDestroyProgram");
    load(compile_, "nvrtcCompileProgram");
    load(log_size_, "nvrtcGetProgramLogSize");
    load(log_, "nvrtcGetProgramLog");
    load(cubin_size_, "nvrtcGetCUBINSize");
    load(cubin_, "nvrtcGetCUBIN");
    load(ptx_size_, "nvrtcGetPTXSize");
    load(ptx_, "nvrtcGetPTX");
    int major = 0, minor = 0;
    version_(&major, &minor);
    short_version_ = "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
    Dl_info where{};
    if (dladdr(reinterpret_cast<void*>(version_), &where) == 0 || where.dli_fname == nullptr) where.dli_fname = "";
    path_ = where.dli_fname;
    const std::filesystem::path file = path_;
    // NVRTC opens its built-ins by name alone when it first compiles: from a folder that the loader does not search (PyPI's package, say)
    // they are only found if they are loaded already.
    const auto builtins = file.parent_path() / ("libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor));
    dlopen(builtins.c_str(), RTLD_NOW | RTLD_GLOBAL);
    // NVRTC tells no build number; the library's size tells two builds of one version apart.
    std::error_code failed;
    const std::uintmax_t size = std::filesystem::file_size(file, failed);
    if (major >= 13) no_cache_ = "--no-cache";
    identity_ = short_version_ + "." + std::to_string(failed ? 0 : size);
  }

  std::string identity() const override { return identity_; }
  const std::string& short_version() const { return short_version_; }
  const std::string& path() const { return path_; }

  Binary compile(const KernelSource& source) override {
    Binary binary;
    binary.key = binary_key(source, identity_);
    binary.arch = source.arch;
    binary.kind = "cubin";
    binary.data = build(source.text, source.entries.front(), options_of(source), Stage::cubin);
    binary.sha256 = sha256_hex(binary.data);
    binary.facts = read_facts(binary.data);
    return binary;
  }

  LaunchFacts read_facts(const std::string& data) override { return read_cubin(data, "pt_decode"); }

  std::string listing(const KernelSource& source, const std::string& stage) override {
    if (stage != "ptx") throw Error(ErrorCode::invalid_argument, "NVRTC has no stage '" + stage + "' to show; allowed: ptx");
    auto options = options_of(source);
    for (auto& option : options)  // PTX is made for a virtual architecture
      if (option.starts_with("--gpu-architecture=sm_")) option.replace(option.find("sm_"), 3, "compute_");
    return build(source.text, source.entries.front(), options, Stage::ptx);
  }

  enum class Stage { cubin, ptx };
  std::string build(const std::string& text, const std::string& name, const std::vector<std::string>& options, Stage stage) const {
    Program raw = nullptr;
    check(create_(&raw, text.c_str(), (name + ".cu").c_str(), 0, nullptr, nullptr), "creating a program");
    const auto destroy = [this](Program program) { destroy_(&program); };
    const std::unique_ptr<ProgramTag, decltype(destroy)> program(raw, destroy);
    std::vector<const char*> list;
    for (const auto& option : options) list.push_back(option.c_str());
    const Status status = compile_(raw, static_cast<int>(list.size()), list.data());
    if (status != 0) {
      size_t size = 0;
      log_size_(raw, &size);
      std::string log(size, '\0');
      if (size > 0) log_(raw, log.data());
      std::string all;
      for (const auto& option : options) all += " " + option;
      throw Error(ErrorCode::compile_failed, "compiling " + name + " with" + all + " failed: " + error_string_(status) + "\n" + log.c_str());
    }
    size_t size = 0;
    check(stage == Stage::cubin ? cubin_size_(raw, &size) : ptx_size_(raw, &size), "asking for the size of the result");
    std::string data(size, '\0');
    check(stage == Stage::cubin ? cubin_(raw, data.data()) : ptx_(raw, data.data()), "fetching the result");
    if (data.empty()) throw Error(ErrorCode::compile_failed, "compiling " + name + ": NVRTC returned nothing");
    return data;
  }

 private:
  // pagetune's store is the only cache: NVRTC's own (since 13) would hide compile times and stale results.
  std::vector<std::string> options_of(const KernelSource& source) const {
    auto options = source.options;
    if (!no_cache_.empty()) options.push_back(no_cache_);
    return options;
  }
  void check(Status status, const char* what) const {
    if (status != 0) throw Error(ErrorCode::compile_failed, std::string("NVRTC, ") + what + ": " + error_string_(status));
  }

  Status (*version_)(int*, int*) = nullptr;
  const char* (*error_string_)(Status) = nullptr;
  Status (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  Status (*destroy_)(Program*) = nullptr;
  Status (*compile_)(Program, int, const char* const*) = nullptr;
  Status (*log_size_)(Program, size_t*) = nullptr;
  Status (*log_)(Program, char*) = nullptr;
  Status (*cubin_size_)(Program, size_t*) = nullptr;
  Status (*cubin_)(Program, char*) = nullptr;
  Status (*ptx_size_)(Program, size_t*) = nullptr;
  Status (*ptx_)(Program, char*) = nullptr;
  std::string identity_, short_version_, path_, no_cache_;
};

Nvrtc& instance() {
  static Nvrtc compiler;
  return compiler;
}

}  // namespace

Compiler& nvrtc() { return instance(); }
std::string nvrtc_version() { return instance().short_version(); }
std::string nvrtc_path() { return instance().path(); }

std::string compile_utility(const std::string& path, const std::string& arch) {
  return instance().build(embedded_file(path), path, {"--gpu-architecture=" + arch, "--std=c++17", "-default-device"}, Nvrtc::Stage::cubin);
}

}  // namespace pagetune::cuda
