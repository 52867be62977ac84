#include "codegen/fastdeploy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "codegen/space.hpp"
#include "codegen/support.hpp"
#include "pagetune/error.hpp"

namespace pagetune::fastdeploy {
namespace {

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorCode::unsupported, reason); }

using Values = std::map<std::string, int>;  // of dispatch parameters

// The templates whose parameters have a known meaning.
struct Template {
  const char* function_name;
  std::set<std::string> params;
  DType kv_dtype;          // bf16: that of the queries
  ScaleGranularity scale;  // for each head or channel at run time; dynamic: for each token
};

const std::vector<Template>& templates() {
  static const std::vector<Template> kTemplates = [] {
    const std::set<std::string> append = {"GROUP_SIZE", "HEAD_DIM", "BLOCK_SIZE", "CAUSAL", "BLOCK_SHAPE_Q", "ENABLE_PREFILL"};
    std::set<std::string> c8 = append;
    c8.insert({"IsFP8", "IsDynamicC8"});
    const std::set<std::string> latent = {"GROUP_SIZE", "HEAD_DIM_QK", "HEAD_DIM_V", "BLOCK_SIZE", "CAUSAL", "NUM_STAGE", "cache_bytes", "DEAL_EACH_TIME"};
    return std::vector<Template>{{"MultiQueryAppendAttention", append, DType::bf16, ScaleGranularity::none},
                                 {"MultiQueryAppendC8Attention", c8, DType::int8, ScaleGranularity::head},
                                 {"MultiQueryAppendC4Attention", append, DType::int4, ScaleGranularity::channel},
                                 {"MultiQueryDecoderAttention", latent, DType::bf16, ScaleGranularity::none}};
  }();
  return kTemplates;
}

// What the entry instantiates. Error unsupported if its template or the parameters are not known.
const Template& template_of(const Entry& entry) {
  std::vector<std::string> names;
  for (const Template& known : templates()) {
    names.emplace_back(known.function_name);
    if (names.back() != entry.function_name) continue;
    std::set<std::string> params;
    for (const Entry::Parameter& param : entry.dispatch_params) params.insert(param.name);
    if (params == known.params) return known;
    refuse(fmt::format("{} has the dispatch parameters {}; pagetune knows it with {}", entry.function_name, fmt::join(params, ", "), fmt::join(known.params, ", ")));
  }
  refuse(fmt::format("the template {} is unknown to pagetune; known are {}", entry.function_name, fmt::join(names, ", ")));
}

const std::vector<std::pair<std::string, DType>>& cpp_types() {
  static const std::vector<std::pair<std::string, DType>> kTypes = {
      {"paddle::float16", DType::fp16}, {"paddle::bfloat16", DType::bf16}, {"paddle::float8_e4m3fn", DType::fp8_e4m3}, {"int8_t", DType::int8}};
  return kTypes;
}

std::optional<DType> dtype_of(const std::string& cpp_type) {
  for (const auto& [name, dtype] : cpp_types())
    if (name == cpp_type) return dtype;
  return std::nullopt;
}

std::string row_text(const Entry::DataType& row) { return row.out.empty() ? row.in : fmt::format("{} to {}", row.in, row.out); }

Values values_at(const Entry& entry, const std::vector<size_t>& at) {
  Values values;
  for (size_t i = 0; i < entry.dispatch_params.size(); ++i) values[entry.dispatch_params[i].name] = entry.dispatch_params[i].values[at[i + 1]];
  return values;
}

// The kernel of one instantiation, but for CAUSAL: attention here is causal.
AttentionSpec spec_of(const Template& known, const Values& values, DType in, DType out) {
  constexpr int kSpeculativeQueries = 2;  // one draft token, the least
  AttentionSpec spec;
  spec.q_heads = values.at("GROUP_SIZE");
  spec.kv_heads = 1;
  spec.page_size = values.at("BLOCK_SIZE");
  spec.layout = Layout::hnd;
  spec.q_dtype = in;
  spec.out_dtype = out;
  spec.kv_dtype = known.kv_dtype == DType::bf16 ? in : known.kv_dtype;
  spec.kv_scale = known.scale;
  if (known.params.contains("HEAD_DIM_V")) {
    spec.head_dim_k = values.at("HEAD_DIM_QK");
    spec.head_dim_v = values.at("HEAD_DIM_V");
    return spec;
  }
  spec.head_dim_k = spec.head_dim_v = values.at("HEAD_DIM");
  const bool enable_prefill = values.at("ENABLE_PREFILL") != 0;
  if (values.at("BLOCK_SHAPE_Q") > 32) spec.kind = enable_prefill ? Kind::prefill : Kind::append;
  if (!enable_prefill) spec.q_len = kSpeculativeQueries;
  if (known.params.contains("IsFP8")) {
    if (values.at("IsFP8") != 0) spec.kv_dtype = DType::fp8_e4m3;
    if (values.at("IsDynamicC8") != 0) spec.kv_scale = ScaleGranularity::token_head;
  }
  return spec;
}

std::string refusal(const Template& known, const Entry::DataType& types, const Values& values, const Target& target) {
  const std::optional<DType> in = dtype_of(types.in), out = dtype_of(types.out.empty() ? types.in : types.out);
  if (!in || !out) return fmt::format("the types {} are unknown to pagetune", row_text(types));
  const AttentionSpec spec = spec_of(known, values, *in, *out);
  if (Support support = supports(spec, target); !support) return support.reason;
  const Domain& causal = ConfigSpace::builtin().family(spec.kind, target.backend).dispatch_params.at("CAUSAL");
  if (spec.q_len == 1 || causal.contains(values.at("CAUSAL"))) return "";
  return fmt::format("CAUSAL {} with several query tokens is not implemented for {} on {}; allowed: {}", values.at("CAUSAL"), name_of(spec.kind), name_of(target.backend), causal.text());
}

// Calls `visit` with the indices of each instantiation, in the generator's order.
void for_each_instance(const Entry& entry, const std::function<void(const std::vector<size_t>&)>& visit) {
  std::vector<size_t> sizes{entry.data_types.size()};
  for (const Entry::Parameter& param : entry.dispatch_params) sizes.push_back(param.values.size());
  std::vector<size_t> at(sizes.size(), 0);
  while (true) {
    visit(at);
    size_t axis = sizes.size();
    while (axis > 0 && ++at[axis - 1] == sizes[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

// One call of FastDeploy's dispatch.
struct Call {
  std::string function_name;
  DType in = DType::bf16, out = DType::bf16;
  Values values;
};

void require_plain_attention(const LayerGroup& group, bool latent) {
  const AttentionSpec& spec = group.spec;
  const std::pair<bool, const char*> absent[] = {
      {spec.chunk, "chunked attention"},
      {spec.soft_cap, "soft cap of the logits"},
      {spec.alibi, "ALiBi"},
      {spec.block_sparse, "block-sparse masks"},
      {latent && spec.window, "windows in latent attention"},
      {latent && spec.sinks, "learned sinks in latent attention"},
  };
  for (const auto& [asked, what] : absent)
    if (asked) refuse(fmt::format("FastDeploy's kernels have no {}", what));
  const double built_in = 1 / std::sqrt(spec.head_dim_k);
  if (!latent && group.scale != 0 && std::abs(group.scale - built_in) > 1e-6 * built_in)
    refuse(fmt::format("the softmax scale is {:.6g}; FastDeploy's append attention has 1/sqrt({}) = {:.6g} built in", group.scale, spec.head_dim_k, built_in));
}

std::vector<Call> calls_of(const LayerGroup& group, const Deployment& deployment) {
  constexpr int kPrefillBlockShapeQ = 64, kDecodeBlockShapeQ = 16;  // FLAGS_enc_block_shape_q and FLAGS_dec_block_shape_q where they are not set
  constexpr int kDealEachTime = 32, kNumStage = 2;                  // FLAGS_cascade_attention_deal_each_time and …_num_stages where they are not set
  const AttentionSpec& spec = group.spec;
  const bool latent = spec.kv_heads == 1 && spec.head_dim_k > spec.head_dim_v;  // V is the beginning of K
  require_plain_attention(group, latent);
  if (!latent && spec.head_dim_k != spec.head_dim_v)
    refuse(fmt::format("K has {} dims and V {}; FastDeploy's append attention has one HEAD_DIM for both", spec.head_dim_k, spec.head_dim_v));
  Values values = {{"GROUP_SIZE", spec.group_size()}, {"BLOCK_SIZE", spec.page_size}, {"CAUSAL", 1}};
  if (latent) {
    if (deployment.cache_type != CacheType::c16) refuse("FastDeploy's latent attention has only the cache type c16");
    if (deployment.speculative) refuse("the latent attention of template_config.json takes one query token of each sequence; speculative decoding calls kernels that are not generated from it");
    values.insert({{"HEAD_DIM_QK", spec.head_dim_k}, {"HEAD_DIM_V", spec.head_dim_v}, {"NUM_STAGE", kNumStage}, {"cache_bytes", 16}, {"DEAL_EACH_TIME", kDealEachTime}});
    return {{"MultiQueryDecoderAttention", spec.q_dtype, spec.q_dtype, values}};
  }
  const CacheType cache = deployment.cache_type;
  std::string function_name = "MultiQueryAppendAttention";
  if (cache == CacheType::c4) function_name = "MultiQueryAppendC4Attention";
  if (cache == CacheType::c8 || cache == CacheType::c8_fp8 || cache == CacheType::c8_block_wise_fp8) {
    function_name = "MultiQueryAppendC8Attention";
    if (cache != CacheType::c8 && spec.q_dtype != DType::bf16) refuse(fmt::format("FastDeploy reads an fp8 cache only with bf16 queries, not with {}", name_of(spec.q_dtype)));
    values.insert({{"IsFP8", cache != CacheType::c8}, {"IsDynamicC8", cache == CacheType::c8_block_wise_fp8}});
  }
  values["HEAD_DIM"] = spec.head_dim_k;
  Values prefill = values, decode = values;
  prefill.insert({{"BLOCK_SHAPE_Q", kPrefillBlockShapeQ}, {"ENABLE_PREFILL", 1}});
  decode.insert({{"BLOCK_SHAPE_Q", kDecodeBlockShapeQ}, {"ENABLE_PREFILL", !deployment.speculative}});
  return {{function_name, spec.q_dtype, spec.q_dtype, prefill}, {function_name, spec.q_dtype, spec.q_dtype, decode}};
}

// Where the entry holds the call, or why it does not.
std::vector<size_t> find_in(const Entry& entry, const Call& call, std::string& reason) {
  std::vector<std::string> rows;
  std::vector<size_t> at;
  for (size_t i = 0; i < entry.data_types.size(); ++i) {
    const Entry::DataType& row = entry.data_types[i];
    if (at.empty() && dtype_of(row.in) == call.in && (row.out.empty() || dtype_of(row.out) == call.out)) at.push_back(i);
    rows.push_back(row_text(row));
  }
  if (at.empty()) {
    reason = fmt::format("{} has no instantiation from {} to {}; its types are {}. Is the config's torch_dtype the one that FastDeploy serves the model with?", entry.name, name_of(call.in), name_of(call.out), fmt::join(rows, ", "));
    return {};
  }
  for (const Entry::Parameter& param : entry.dispatch_params) {
    const int value = call.values.at(param.name);
    const auto found = std::find(param.values.begin(), param.values.end(), value);
    if (found == param.values.end()) {
      reason = fmt::format("{} has no instantiation with {} {}; its values are {}", entry.name, param.name, value, fmt::join(param.values, ", "));
      return {};
    }
    at.push_back(static_cast<size_t>(found - param.values.begin()));
  }
  return at;
}

Instance find(const std::vector<Entry>& entries, const Call& call) {
  std::string reason;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].function_name != call.function_name) continue;
    template_of(entries[i]);
    if (std::vector<size_t> at = find_in(entries[i], call, reason); !at.empty()) return {i, std::move(at)};
  }
  refuse(reason.empty() ? fmt::format("the file has no entry of {}", call.function_name) : reason);
}

// A product of index sets, one for each axis of an Instance::at.
using Box = std::vector<std::set<size_t>>;

// Boxes that differ on one axis only become one.
std::set<Box> merged_along(const std::set<Box>& boxes, size_t axis) {
  std::map<Box, std::set<size_t>> unions;
  for (const Box& box : boxes) {
    Box others = box;
    others[axis].clear();
    unions[others].insert(box[axis].begin(), box[axis].end());
  }
  std::set<Box> merged;
  for (const auto& [others, indices] : unions) {
    Box box = others;
    box[axis] = indices;
    merged.insert(std::move(box));
  }
  return merged;
}

// Disjoint boxes that hold the points and no others. Merges along the axis that leaves the fewest, which need not be the fewest there can be.
std::set<Box> boxes_of(const std::set<std::vector<size_t>>& points) {
  std::set<Box> boxes;
  for (const std::vector<size_t>& point : points) {
    Box box;
    for (const size_t index : point) box.push_back({index});
    boxes.insert(std::move(box));
  }
  const size_t axes = boxes.begin()->size();
  while (true) {
    std::set<Box> fewest = boxes;
    for (size_t axis = 0; axis < axes; ++axis)
      if (std::set<Box> merged = merged_along(boxes, axis); merged.size() < fewest.size()) fewest = std::move(merged);
    if (fewest.size() == boxes.size()) return boxes;
    boxes = std::move(fewest);
  }
}

Entry restricted(const Entry& entry, const Box& box) {
  Entry part = entry;
  part.data_types.clear();
  for (const size_t i : box[0]) part.data_types.push_back(entry.data_types[i]);
  for (size_t i = 0; i < entry.dispatch_params.size(); ++i) {
    part.dispatch_params[i].values.clear();
    for (const size_t index : box[i + 1]) part.dispatch_params[i].values.push_back(entry.dispatch_params[i].values[index]);
  }
  return part;
}

// The entry's key and the beginnings of its files' names.
std::set<std::string> names_of(const Entry& entry) {
  std::set<std::string> names{entry.name};
  for (const Entry::DataType& type : entry.data_types) names.insert(entry.file_prefix + type.suffix);
  return names;
}

// Numbers the entry and its files so that no other has their names.
void rename(Entry& entry, std::set<std::string>& taken) {
  const std::string name = entry.name, prefix = entry.file_prefix;
  for (int number = 2;; ++number) {
    entry.name = fmt::format("{}_{}", name, number);
    entry.file_prefix = fmt::format("{}{}_", prefix, number);
    std::set<std::string> names = names_of(entry);
    if (std::any_of(names.begin(), names.end(), [&](const std::string& one) { return taken.contains(one); })) continue;
    taken.merge(names);
    return;
  }
}

}  // namespace

int64_t instantiations(const Entry& entry) {
  auto count = static_cast<int64_t>(entry.data_types.size());
  for (const Entry::Parameter& param : entry.dispatch_params) count *= static_cast<int64_t>(param.values.size());
  return count;
}

int64_t files(const Entry& entry) {
  const auto types = static_cast<int64_t>(entry.data_types.size());
  return types * ((instantiations(entry) / types + entry.max_instances_per_file - 1) / entry.max_instances_per_file);
}

Coverage coverage(const Entry& entry, const Target& target) try {
  const Template& known = template_of(entry);
  Coverage coverage;
  std::map<std::string, int64_t> refused;
  for_each_instance(entry, [&](const std::vector<size_t>& at) {
    const std::string reason = refusal(known, entry.data_types[at[0]], values_at(entry, at), target);
    ++(reason.empty() ? coverage.covered : refused[reason]);
  });
  coverage.refused.assign(refused.begin(), refused.end());
  std::stable_sort(coverage.refused.begin(), coverage.refused.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return coverage;
} catch (const Error& unknown) {
  return {0, {{unknown.what(), instantiations(entry)}}};
}

const std::vector<std::string>& cache_type_names() {
  static const std::vector<std::string> kNames = {"c16", "c8", "c8_fp8", "c8_block_wise_fp8", "c4"};
  return kNames;
}

CacheType cache_type_from_name(const std::string& name) {
  const std::vector<std::string>& names = cache_type_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is no cache type; allowed: {}", name, fmt::join(names, ", ")));
  return static_cast<CacheType>(found - names.begin());
}

Needs needs(const std::vector<Entry>& entries, const ModelAttention& model, const Deployment& deployment) {
  Needs needs;
  for (const LayerGroup& group : model.groups) {
    try {
      std::vector<Instance> found;
      for (const Call& call : calls_of(group, deployment)) found.push_back(find(entries, call));
      needs.instances.insert(found.begin(), found.end());
    } catch (const Error& refused) {
      needs.unserved.push_back({group.layers, refused.what()});
    }
  }
  return needs;
}

std::vector<Entry> pruned(const std::vector<Entry>& entries, const std::set<Instance>& instances) {
  std::map<size_t, std::set<std::vector<size_t>>> points;
  for (const Instance& instance : instances) points[instance.entry].insert(instance.at);
  std::set<std::string> taken;
  for (const Entry& entry : entries) taken.merge(names_of(entry));
  std::vector<Entry> result;
  for (const auto& [index, wanted] : points) {
    const std::set<Box> boxes = boxes_of(wanted);
    for (auto box = boxes.begin(); box != boxes.end(); ++box) {
      result.push_back(restricted(entries[index], *box));
      if (box != boxes.begin()) rename(result.back(), taken);
    }
  }
  return result;
}

}  // namespace pagetune::fastdeploy
