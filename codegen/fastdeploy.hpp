// FastDeploy's custom_ops/gpu_ops/append_attn/template_config.json: which attention kernels its build instantiates, which of them pagetune's kernels cover, and the part that given
// models need. Pure. What is said here of FastDeploy was read in its sources of 2025 and 2026: the generator custom_ops/utils/auto_gen_template_instantiation.py, the dispatch macros of
// append_attn/utils.cuh and their callers, the defaults of env.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codegen/import/model_config.hpp"
#include "codegen/target.hpp"

namespace pagetune::fastdeploy {

// One host template, which the generator instantiates for each data type and each combination of dispatch values.
struct Entry {
  struct Parameter {
    std::string name;
    std::vector<int> values;
  };
  struct DataType {
    std::string in, out, suffix;  // T and OutT as C++ names; out is empty for templates without OutT
  };
  std::string name;  // the entry's key
  std::string function_name;
  std::string impl_file;
  std::vector<std::string> template_params;  // in the order of the arguments; NUM_WARP_Q follows from BLOCK_SHAPE_Q
  std::vector<Parameter> dispatch_params;    // in the order of template_params
  std::vector<DataType> data_types;
  int max_instances_per_file = 0;
  std::string file_prefix;
  std::string function_signature;
};

// The number of data types times the product of the numbers of dispatch values.
int64_t instantiations(const Entry&);
// For each data type as many as hold its instantiations, max_instances_per_file in one.
int64_t files(const Entry&);

struct Coverage {
  int64_t covered = 0;                                    // instantiations
  std::vector<std::pair<std::string, int64_t>> refused;  // reason -> instantiations, the most frequent first
};
// Each instantiation is put into an AttentionSpec's words, and supports() asked about it. BLOCK_SHAPE_Q up to 32 is a decode kernel's tile, above a prefill kernel's (NUM_WARP_Q 1 and 4);
// ENABLE_PREFILL 0 is speculative decoding, with several query tokens. For one query token CAUSAL makes no difference.
Coverage coverage(const Entry&, const Target&);

// FastDeploy's cache_quant_type: none, cache_int8, cache_fp8, block_wise_fp8, cache_int4_zp.
enum class CacheType : unsigned char { c16, c8, c8_fp8, c8_block_wise_fp8, c4 };
const std::vector<std::string>& cache_type_names();  // in the order of the values
// Error invalid_argument naming the value and those allowed.
CacheType cache_type_from_name(const std::string& name);

struct Deployment {
  CacheType cache_type = CacheType::c16;
  bool speculative = false;  // decode steps bring draft tokens
};

// Tokens of a page: the only block size of FastDeploy's attention.
constexpr int kPageSize = 64;

struct Instance {
  size_t entry = 0;
  std::vector<size_t> at;  // index of the data type, then of each dispatch parameter's value
  auto operator<=>(const Instance&) const = default;
};

struct Needs {
  struct Unserved {
    std::vector<int> layers;
    std::string reason;  // one sentence
  };
  std::set<Instance> instances;
  std::vector<Unserved> unserved;  // layers for which the entries have no kernel
};
// What FastDeploy's dispatch calls for the model's layers, causal and with outputs of the queries' type: a prefill kernel with BLOCK_SHAPE_Q 64 and a decode kernel with 16, ENABLE_PREFILL 0
// where it is speculative; for latent attention (one KV head whose V is the beginning of K) one decode kernel with NUM_STAGE 2 and DEAL_EACH_TIME 32. The model is one imported with kPageSize.
Needs needs(const std::vector<Entry>&, const ModelAttention&, const Deployment&);

// Entries that instantiate exactly `instances` of the given ones, each once, in the given order of values. Where they are no product, an entry becomes several, with names and files of their own.
std::vector<Entry> pruned(const std::vector<Entry>&, const std::set<Instance>& instances);

}  // namespace pagetune::fastdeploy
