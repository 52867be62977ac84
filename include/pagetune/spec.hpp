// AttentionSpec: what an attention kernel computes and how its data lies. A value type; its canonical JSON is its identity.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace pagetune {

enum class Kind : uint8_t { decode, prefill, append, merge, page_copy };
enum class DType : uint8_t { bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, int8, int4 };
// nhd: [page][token][kv head][dim]; hnd: [page][kv head][token][dim]. Strides at launch may stretch either order, never change it.
enum class Layout : uint8_t { nhd, hnd };
// How a head-wise table's entry names memory: slot = id * kv_heads + head, flat = id.
enum class AddressMap : uint8_t { slot, flat };
enum class ScaleGranularity : uint8_t { none, tensor, head, channel, token_head };
enum class MaskKind : uint8_t { none, tree, offset };

struct AttentionSpec {
  Kind kind = Kind::decode;
  int q_heads = 32;     // of this rank
  int kv_heads = 8;     // of this rank; q_heads is a multiple
  int head_dim_k = 128;
  int head_dim_v = 128;
  int page_size = 16;   // tokens per page
  int q_len = 1;        // query tokens of a sequence in one step, at most (1 and draft tokens)
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  Layout layout = Layout::nhd;
  ScaleGranularity kv_scale = ScaleGranularity::none;
  bool headwise = false;
  AddressMap address_map = AddressMap::slot;
  // Features compiled in. A call that brings the data of a feature its kernel was built without is an error, as is the reverse.
  bool window = false;
  bool chunk = false;
  bool sink_tokens = false;
  bool sinks = false;
  bool soft_cap = false;
  bool alibi = false;
  bool block_sparse = false;     // local blocks and a vertical stride, as vLLM's paged attention has them
  MaskKind mask = MaskKind::none;
  bool lse = false;              // also write the natural-log sum of exponentials
  bool batch_invariant = false;  // bits of a sequence do not depend on its neighbours in the batch
  bool checked = false;          // report bad block-table entries through the workspace's error record

  int group_size() const { return q_heads / kv_heads; }
  int rows() const { return group_size() * q_len; }  // query rows that share one KV head's keys
  bool operator==(const AttentionSpec&) const = default;
};

struct AttentionSpecHash {
  size_t operator()(const AttentionSpec& spec) const noexcept;
};

const char* name_of(Kind);
const char* name_of(DType);
const char* name_of(Layout);
const char* name_of(AddressMap);
const char* name_of(ScaleGranularity);
const char* name_of(MaskKind);
// Parse a name as printed by name_of(); throws Error naming the value and the allowed names.
DType dtype_from_name(const std::string& name);
Layout layout_from_name(const std::string& name);
// Bits of one element (4 for int4).
int bits_of(DType);

// Sorted keys, integers, no blanks. Every field stands in it, so two specs are equal exactly when their texts are.
std::string canonical_json(const AttentionSpec&);
// Inverse of canonical_json(); an unknown or missing key or a value of the wrong kind is an Error that names it.
AttentionSpec spec_from_json(const std::string& text);
// As spec_from_json(), but absent keys take their defaults.
AttentionSpec spec_from_partial_json(const std::string& text);
// sha256 of canonical_json(), hex.
std::string spec_key(const AttentionSpec&);

// Bytes of K and V that one launch has to read: sum over sequences of len * kv_heads * (Dk + Dv) elements.
int64_t kv_bytes(const AttentionSpec&, int64_t total_len);

// The spec of one tensor-parallel rank. kv_heads % tp == 0 splits the KV heads; kv_heads < tp with tp % kv_heads == 0 replicates
// them; anything else is an Error naming both numbers.
AttentionSpec for_rank(const AttentionSpec& whole_model, int tp);

}  // namespace pagetune
