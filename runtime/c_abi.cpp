// The C ABI: the C++ API with exceptions turned into codes and a message per thread.
#include "pagetune/pagetune.h"

#include <cstring>
#include <string>
#include <utility>

#include "pagetune/pagetune.hpp"

struct pt_kernel {
  std::shared_ptr<pagetune::Kernel> kernel;
};

namespace {

thread_local std::string last_error;

pt_status fail(pt_status code, const char* message) {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return code;
}

template <class Body>
pt_status guarded(const Body& body) {
  try {
    body();
    return PT_OK;
  } catch (const pagetune::Error& error) {
    return fail(static_cast<pt_status>(static_cast<int>(error.code())), error.what());
  } catch (const std::exception& error) {
    return fail(PT_INTERNAL, error.what());
  }
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) throw pagetune::Error(pagetune::ErrorCode::invalid_argument, std::string(what) + " is null");
}

void make_kernel(const char* spec_json, const char* device, const char* cache_dir, std::string snapshot, pt_kernel** out) {
  require(out, "out");
  *out = nullptr;
  require(spec_json, "spec_json");
  pagetune::KernelOptions options;
  if (device != nullptr) options.device = device;
  if (cache_dir != nullptr) options.cache_dir = cache_dir;
  options.snapshot = std::move(snapshot);
  *out = new pt_kernel{pagetune::get_kernel(pagetune::spec_from_partial_json(spec_json), options)};
}

}  // namespace

pt_status pt_get_kernel(const char* spec_json, const char* device, const char* cache_dir, pt_kernel** out) {
  return guarded([&] { make_kernel(spec_json, device, cache_dir, {}, out); });
}

pt_status pt_get_kernel_from_snapshot(const char* spec_json, const char* device, const char* cache_dir, const char* snapshot, size_t size, pt_kernel** out) {
  return guarded([&] {
    require(snapshot, "snapshot");
    if (size == 0) throw pagetune::Error(pagetune::ErrorCode::invalid_argument, "the snapshot has 0 bytes: give those of pt_snapshot()");
    make_kernel(spec_json, device, cache_dir, {snapshot, size}, out);
  });
}

pt_status pt_snapshot(const pt_kernel* kernel, char* buffer, size_t* size) {
  return guarded([&] {
    require(kernel, "kernel");
    require(size, "size");
    const std::string bytes = kernel->kernel->snapshot();
    const size_t room = *size;
    *size = bytes.size();
    if (buffer == nullptr && room == 0) return;
    require(buffer, "buffer");
    if (room < bytes.size()) throw pagetune::Error(pagetune::ErrorCode::invalid_argument, "the buffer has " + std::to_string(room) + " bytes, the snapshot " + std::to_string(bytes.size()) + ": give so many");
    std::memcpy(buffer, bytes.data(), bytes.size());
  });
}

pt_status pt_freeze(pt_freeze_policy policy) {
  return guarded([&] {
    if (policy < PT_FREEZE_OFF || policy > PT_FREEZE_ERROR)
      throw pagetune::Error(pagetune::ErrorCode::invalid_argument, "the freeze policy is " + std::to_string(policy) + ": PT_FREEZE_OFF, PT_FREEZE_WARN and PT_FREEZE_ERROR are allowed");
    pagetune::freeze(static_cast<pagetune::Freeze>(policy));
  });
}

void pt_kernel_release(pt_kernel* kernel) { delete kernel; }

void pt_decode_params_init(pt_decode_params* params) {
  if (params != nullptr) *params = pagetune::make_decode_params();
}

pt_status pt_set_contiguous_strides(const pt_kernel* kernel, int block_table_width, pt_decode_params* params) {
  return guarded([&] {
    require(kernel, "kernel");
    require(params, "params");
    pagetune::set_contiguous_strides(kernel->kernel->spec(), block_table_width, *params);
  });
}

pt_status pt_workspace_bytes(const pt_kernel* kernel, int max_batch, int max_len, size_t* bytes) {
  return guarded([&] {
    require(kernel, "kernel");
    require(bytes, "bytes");
    *bytes = kernel->kernel->workspace_bytes(max_batch, max_len);
  });
}

pt_status pt_prepare(pt_kernel* kernel, int max_batch, int max_len) {
  return guarded([&] {
    require(kernel, "kernel");
    kernel->kernel->prepare(max_batch, max_len);
  });
}

pt_status pt_select(const pt_kernel* kernel, int batch, int max_len, int64_t total_len, int* config_index) {
  return guarded([&] {
    require(kernel, "kernel");
    require(config_index, "config_index");
    *config_index = kernel->kernel->select(batch, max_len, total_len).index;
  });
}

pt_status pt_launch(pt_kernel* kernel, const pt_decode_params* params, void* stream) {
  return guarded([&] {
    require(kernel, "kernel");
    require(params, "params");
    kernel->kernel->launch(*params, stream);
  });
}

pt_status pt_check(pt_kernel* kernel, void* workspace, void* stream) {
  return guarded([&] {
    require(kernel, "kernel");
    kernel->kernel->check(workspace, stream);
  });
}

pt_status pt_digest(const pt_kernel* kernel, char out[65]) {
  return guarded([&] {
    require(kernel, "kernel");
    require(out, "out");
    std::memcpy(out, kernel->kernel->digest().c_str(), 65);
  });
}

const char* pt_last_error(void) { return last_error.c_str(); }
