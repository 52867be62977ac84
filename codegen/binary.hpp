// Binary: compiled code and the launch facts read back from it, so that host and device cannot disagree.
#pragma once
#include <cstdint>
#include <string>

namespace pagetune {

// Numbers that the template itself computed and that were read out of the compiled image (symbol pt_facts), plus what the compiler spent.
struct LaunchFacts {
  int params_size = 0;      // sizeof(pt_decode_params) as the device code saw it
  int params_version = 0;
  int variant = 0;
  int threads = 0;          // per CTA of the main kernel; CPU: 0
  int shared_bytes = 0;     // dynamic shared memory; CPU: scratch bytes per thread
  int tile_tokens = 0;      // tokens of one tile: a part of a sequence is a whole number of tiles
  int rows_per_cta = 0;     // query heads that one CTA serves
  int head_tiles = 0;       // CTAs per (sequence, KV head)
  int merge_threads = 0;    // 0 if there is no merge kernel
  int kv_heads = 0;
  int q_heads = 0;
  int even_share = 0;       // 1: the grid is num_ctas
  int cluster = 0;          // 1: cluster_of() the splits of a result are a cluster
  int box_tokens = 0;       // tokens of a tensor map's box; 0: the kernel takes no tensor maps
  int page_size = 0, head_dim_k = 0, head_dim_v = 0, flat_map = 0, dtype = 0;  // for the tensor maps
  // from the image's metadata
  int registers = 0;
  int local_bytes = 0;      // stack frame: spills and local arrays
  int static_shared_bytes = 0;
};
constexpr int kTemplateFacts = 19;  // how many of them stand in pt_facts, in the order above

struct Binary {
  std::string key;      // binary_key()
  std::string arch;
  std::string kind;     // "cubin" or "object"
  std::string data;     // bytes
  std::string sha256;   // of data, hex
  LaunchFacts facts;    // always read from data, never from a database
};

}  // namespace pagetune
