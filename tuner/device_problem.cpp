#include "tuner/device_problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pagetune/error.hpp"
#include "runtime/launch.hpp"
#include "tuner/numeric.hpp"

namespace pagetune {

// One array of a problem on the device: guarded and whole, or, if sparse, only address space of which single ranges are touched.
class DeviceProblem::Memory {
 public:
  Memory(Device& device, const HostBytes* source, size_t bytes, bool sparse) : device_(device), source_(source) {
    if (!sparse) {
      guarded_ = std::make_unique<GuardedBuffer>(device, bytes);
      if (source_ != nullptr) guarded_->upload(source_->data());
    } else if (device.target().backend == Backend::cpu) {
      if (source_ == nullptr) own_ = std::make_unique<HostBytes>(bytes);
      in_place_ = source_ != nullptr ? source_->data() : own_->data();
    } else {
      allocated_ = device.allocate(std::max<size_t>(bytes, 1));
    }
  }
  ~Memory() {
    if (allocated_ != nullptr) device_.release(allocated_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return static_cast<char*>(guarded_ ? guarded_->data() : allocated_ != nullptr ? allocated_ : in_place_); }
  GuardedBuffer* guarded() const { return guarded_.get(); }

  // Sparse device memory: brings one range of the source over.
  void upload_range(int64_t offset, size_t bytes) {
    if (allocated_ != nullptr) device_.upload(data() + offset, source_->data() + offset, bytes);
  }

  // Empty if the array still equals its source and the guards are intact.
  std::string damage() const {
    if (!guarded_) return {};
    std::string guards = guarded_->damage();
    if (!guards.empty() || source_ == nullptr) return guards;
    const std::vector<char> now = guarded_->download();
    const auto change = std::mismatch(now.begin(), now.end(), source_->data()).first;
    if (change == now.end()) return {};
    return "it was written to, first at byte " + std::to_string(change - now.begin());
  }

 private:
  Device& device_;
  const HostBytes* source_;
  std::unique_ptr<GuardedBuffer> guarded_;
  std::unique_ptr<HostBytes> own_;
  void* allocated_ = nullptr;
  void* in_place_ = nullptr;
};

DeviceProblem::DeviceProblem(Device& device, const HostProblem& host) : device_(device), host_(host), params_(host.params()) {
  const AttentionSpec& spec = host.spec();
  const bool sparse = host.shape().sparse;
  k_ = std::make_unique<Memory>(device, &host.k_memory(), host.k_memory().size(), sparse);
  if (!host.one_cache()) v_ = std::make_unique<Memory>(device, &host.v_memory(), host.v_memory().size(), sparse);
  q_ = std::make_unique<Memory>(device, &host.q_memory(), host.q_memory().size(), sparse && host.shape().q_stride_seq != 0);
  out_ = std::make_unique<Memory>(device, nullptr, host.out_bytes(), sparse && host.shape().out_stride_seq != 0);
  params_.q = q_->data();
  params_.k_cache = k_->data();
  params_.v_cache = host.one_cache() ? k_->data() + host.v_offset_bytes() : v_->data();
  for (const HostProblem::InputArray& array : host.arrays()) {
    arrays_.push_back(std::make_unique<Memory>(device, array.memory.get(), array.memory->size(), false));
    array.bind(params_, arrays_.back()->data());
  }
  params_.out = out_->data();
  if (spec.lse) {
    lse_ = std::make_unique<Memory>(device, nullptr, static_cast<size_t>(host.rows()) * static_cast<size_t>(spec.q_heads) * sizeof(float), false);
    params_.lse = reinterpret_cast<float*>(lse_->data());
  }
  if (!sparse) return;

  const int64_t kv_element = bits_of(spec.kv_dtype) / 8;
  const auto upload_tokens = [&](Memory& memory, int64_t base, int dim, long long page, long long token, long long head) {
    for (const HostProblem::UsedPage& used : host.used_pages()) {
      for (int t = 0; t < used.tokens; ++t) {
        memory.upload_range(base + (used.id * page + t * token + (host.flat() ? 0 : used.head * head)) * kv_element, static_cast<size_t>(dim * kv_element));
      }
    }
  };
  upload_tokens(*k_, 0, spec.head_dim_k, params_.k_stride_page, params_.k_stride_token, params_.k_stride_head);
  upload_tokens(host.one_cache() ? *k_ : *v_, host.v_offset_bytes(), spec.head_dim_v, params_.v_stride_page, params_.v_stride_token,
                params_.v_stride_head);
  const int64_t q_element = bits_of(spec.q_dtype) / 8;
  for (const int64_t row : host.owned_rows()) q_->upload_range(host.q_offset(row) * q_element, static_cast<size_t>(spec.q_heads) * static_cast<size_t>(spec.head_dim_k * q_element));
}

DeviceProblem::~DeviceProblem() = default;

size_t DeviceProblem::row_bytes() const { return static_cast<size_t>(host_.spec().q_heads) * static_cast<size_t>(host_.spec().head_dim_v * (bits_of(host_.spec().out_dtype) / 8)); }
int64_t DeviceProblem::out_byte(int64_t row) const { return host_.out_offset(row) * (bits_of(host_.spec().out_dtype) / 8); }

void DeviceProblem::poison_outputs() {
  if (out_->guarded() != nullptr) {
    out_->guarded()->poison();
  } else {
    std::vector<char> pattern(row_bytes());
    fill_poison(pattern.data(), pattern.size());
    for (int64_t row = 0; row < host_.rows(); ++row) device_.upload(out_->data() + out_byte(row), pattern.data(), pattern.size());
  }
  if (lse_) lse_->guarded()->poison();
}

void DeviceProblem::poison(size_t bytes) {
  poison_outputs();
  if (!workspace_ || workspace_->size() != bytes) {
    workspace_ = std::make_unique<GuardedBuffer>(device_, bytes);
  } else {
    workspace_->poison();
  }
  params_.workspace = bytes > 0 ? workspace_->data() : nullptr;
  params_.workspace_bytes = static_cast<long long>(bytes);
}

void DeviceProblem::run(const Module& module, LaunchPlan plan) {
  poison(workspace_bytes(host_.spec(), params_.batch, plan));
  launch(module, plan);
}

void DeviceProblem::run_again(const Module& module, LaunchPlan plan) {
  poison_outputs();
  launch(module, plan);
}

void DeviceProblem::launch(const Module& module, LaunchPlan plan) {
  check_params(host_.spec(), plan, params_);
  module.launch(complete(host_.spec(), plan, params_), device_.stream());
  device_.synchronize();
}

void DeviceProblem::run(Kernel& kernel) {
  poison(kernel.workspace_bytes(params_.batch, params_.max_len));
  kernel.launch(params_, device_.stream());
  device_.synchronize();
}

void DeviceProblem::run(Kernel& kernel, Selection selection) {
  poison(kernel.workspace_bytes(params_.batch, params_.max_len));
  kernel.launch(params_, selection, device_.stream());
  device_.synchronize();
}

Outputs DeviceProblem::outputs() const {
  const size_t bytes = row_bytes();
  Outputs outputs;
  outputs.out.resize(bytes * static_cast<size_t>(host_.rows()));
  std::vector<char> all;
  if (out_->guarded() != nullptr) all = out_->guarded()->download();
  for (int64_t row = 0; row < host_.rows(); ++row) {
    char* to = outputs.out.data() + static_cast<size_t>(row) * bytes;
    if (out_->guarded() != nullptr) {
      std::memcpy(to, all.data() + out_byte(row), bytes);
    } else {
      device_.download(to, out_->data() + out_byte(row), bytes);
    }
  }
  if (lse_) {
    all = lse_->guarded()->download();
    outputs.lse.resize(all.size() / sizeof(float));
    if (!all.empty()) std::memcpy(outputs.lse.data(), all.data(), all.size());
  }
  return outputs;
}

Check DeviceProblem::check(const Reference& reference) const {
  Check result = compare(host_.spec(), host_.rows(), outputs(), reference);
  const auto fail = [&](const std::string& what) {
    if (result.ok) result.what = what;
    result.ok = false;
  };
  std::vector<std::pair<const char*, const Memory*>> inputs = {{"K cache", k_.get()}, {"V cache", v_.get()}, {"q", q_.get()}, {"out", out_.get()}, {"LSE", lse_.get()}};
  for (size_t i = 0; i < arrays_.size(); ++i) inputs.emplace_back(host_.arrays()[i].name, arrays_[i].get());
  for (const auto& [name, memory] : inputs) {
    if (memory == nullptr) continue;
    const std::string damage = memory->damage();
    if (!damage.empty()) fail(std::string(name) + ": " + damage);
  }
  const std::string damage = workspace_->damage();
  if (!damage.empty()) fail("workspace: " + damage);
  if (out_->guarded() != nullptr) {
    // The gaps between the rows of a strided output belong to someone else.
    const std::vector<char> all = out_->guarded()->download();
    for (int64_t row = 0; row + 1 < host_.rows(); ++row) {
      const auto at = static_cast<size_t>(out_byte(row)) + row_bytes(), gap = static_cast<size_t>(out_byte(row + 1)) - at;
      if (gap > 0 && first_difference_from_poison(all.data() + at, gap, GuardedBuffer::kGuardBytes + at) != gap) fail("out: the gap after row " + std::to_string(row) + " was written to");
    }
  }
  return result;
}

pt_error_record DeviceProblem::error_record() const {
  if (!host_.spec().checked) throw Error(ErrorCode::mismatch, "only a checked spec leaves an error record");
  pt_error_record record{};
  device_.download(&record, workspace_->data(), sizeof record);
  return record;
}

}  // namespace pagetune
