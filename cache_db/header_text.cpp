// The look-up of an exported header as its reader gets it: C++17, no macro but its guard, and the same cell for a call as codegen/bucket.hpp gives.
#include "cache_db/export_header.hpp"

namespace pagetune {

// Numbers of the text.
static_assert(Bucket::kBatchCells == 17 && Bucket::kMinLenLog2 == 4 && Bucket::kLenCells == 19 && kMaxRaggedness == 8);

const char* const kHeaderTypes = R"(#ifndef PAGETUNE_TABLES_HPP
#define PAGETUNE_TABLES_HPP
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagetune_tables {

// Where an answer comes from, or why there is none.
enum class Source : std::uint8_t {
  tuned,             // measured for the call's bucket
  nearest,           // the nearest measured bucket, at most two octaves away on each axis
  analytic_default,  // no measured bucket is near, or it was measured on sequences of one length and the call's may differ
  unknown_device,    // nothing was measured on a device of this name, key or class
  unknown_spec,      // nothing was measured for this spec there
  ambiguous_spec     // the columns fit several specs there: name one by its key
};

struct Parameter {
  std::string_view name;
  int value;
};

// The tuning parameters of a kernel, sorted by name.
struct Config {
  const Parameter* parameters;
  std::size_t count;

  constexpr const Parameter* begin() const noexcept { return parameters; }
  constexpr const Parameter* end() const noexcept { return parameters + count; }
  constexpr int get(std::string_view name, int otherwise = 0) const noexcept {
    for (std::size_t i = 0; i < count; ++i)
      if (parameters[i].name == name) return parameters[i].value;
    return otherwise;
  }
};

// The dispatch columns of a spec, with the names of winners.db in lower case (BLOCK_SIZE: tokens per page), and the types of query and output.
struct Columns {
  int group_size = 4;
  int head_dim = 128;
  int block_size = 16;
  int causal = 1;
  int block_shape_q = 16;
  int enable_prefill = 0;
  int is_fp8 = 0;
  int is_dynamic_c8 = 0;
  int kv_heads = 8;
  int headwise = 0;
  std::string_view q_dtype = "bf16";
  std::string_view out_dtype = "bf16";
};

constexpr bool operator==(const Columns& a, const Columns& b) noexcept {
  return a.group_size == b.group_size && a.head_dim == b.head_dim && a.block_size == b.block_size && a.causal == b.causal && a.block_shape_q == b.block_shape_q &&
         a.enable_prefill == b.enable_prefill && a.is_fp8 == b.is_fp8 && a.is_dynamic_c8 == b.is_dynamic_c8 && a.kv_heads == b.kv_heads && a.headwise == b.headwise &&
         a.q_dtype == b.q_dtype && a.out_dtype == b.out_dtype;
}

// From `cell` on, up to the next step's, `config` answers. A cell is 19 * log2(batch) + log2(len) - 4.
struct Step {
  std::uint16_t cell;
  std::uint16_t config;
  Source source;
};

struct Steps {
  const Step* first;
  std::size_t count;
};

struct Device {
  std::string_view name;          // as the driver prints it
  std::string_view key;           // env_id in winners.db, 64 hex digits
  std::string_view device_class;  // backend, architecture, processors
  std::string_view arch;
  int processors;
  std::string_view driver;
  std::string_view compiler;
};

// What answers for one spec on one device.
struct Table {
  const Device* device;
  std::string_view spec_key;  // as in winners.db, 64 hex digits
  Columns columns;
  std::string_view spec;  // JSON: everything that the key covers
  Steps unlike, alike;    // for lengths that may differ, and for lengths that are alike
};

)";

const char* const kHeaderLookup = R"(struct Found {
  const Table* table;  // null: `why` says why
  Source why;
  constexpr explicit operator bool() const noexcept { return table != nullptr; }
};

struct Answer {
  const Config* config;  // null: `source` says why
  Source source;
  constexpr explicit operator bool() const noexcept { return config != nullptr; }
};

namespace detail {

constexpr bool fits(const Table& table, std::string_view spec_key) noexcept { return table.spec_key == spec_key; }
constexpr bool fits(const Table& table, const Columns& columns) noexcept { return table.columns == columns; }

template <class Spec>
constexpr Found find(std::string_view device, const Spec& spec) noexcept {
  Found found{nullptr, Source::unknown_device};
  for (const Table& table : tables) {
    // Whole texts: one product's name is the beginning of another's.
    if (table.device->name != device && table.device->key != device && table.device->device_class != device) continue;
    if (found.why == Source::unknown_device) found.why = Source::unknown_spec;
    if (!fits(table, spec)) continue;
    if (found.table == nullptr) {
      found = {&table, Source::tuned};
    } else if (found.table->spec_key != table.spec_key) {
      return {nullptr, Source::ambiguous_spec};
    }
  }
  return found;
}

// Nearest power of two in log2, at least 1: the first whose product with the square root of 2 (here its first 62 binary digits) is not below x.
constexpr int nearest_log2(std::int64_t x) noexcept {
  constexpr std::int64_t root = 0x5a827999fcef3242;
  int exponent = 0;
  while (exponent < 62 && x > (root >> (62 - exponent))) ++exponent;
  return exponent;
}

// A batch counts as the sequences of its greatest length that are as much work, at least as an eighth of its sequences.
constexpr int cell_of(int batch, int max_len, std::int64_t total_len) noexcept {
  std::int64_t sequences = batch;
  if (total_len > 0 && max_len > 0) {
    sequences = (total_len + max_len - 1) / max_len;
    const std::int64_t least = (static_cast<std::int64_t>(batch) + 7) / 8;
    if (sequences < least) sequences = least;
    if (sequences > batch) sequences = batch;
  }
  int b = nearest_log2(sequences), l = nearest_log2(max_len) - 4;
  if (b > 16) b = 16;
  if (l < 0) l = 0;
  if (l > 18) l = 18;
  return 19 * b + l;
}

constexpr bool are_alike(int batch, int max_len, std::int64_t total_len) noexcept {
  return batch <= 1 || total_len * 8 >= static_cast<std::int64_t>(batch) * max_len * 7;
}

}  // namespace detail

// device: its name, its key or its class, whole. Of devices that differ in the driver or the like, the one with the newest driver answers for the name; of devices of one class the
// first by name. spec: its key, or its columns where they fit only one spec of the device.
constexpr Found find(std::string_view device, std::string_view spec_key) noexcept { return detail::find(device, spec_key); }
constexpr Found find(std::string_view device, const Columns& columns) noexcept { return detail::find(device, columns); }

// max_len: tokens of the longest sequence. total_len: of all together, 0 if not known.
constexpr Answer lookup(const Table& table, int batch, int max_len, std::int64_t total_len = 0) noexcept {
  const Steps& steps = detail::are_alike(batch, max_len, total_len) ? table.alike : table.unlike;
  const int cell = detail::cell_of(batch, max_len, total_len);
  std::size_t low = 0, high = steps.count;  // the last step that begins at the cell or before it lies in [low, high)
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    if (steps.first[middle].cell <= cell) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Step& step = steps.first[low];
  return {&configs[step.config], step.source};
}

template <class Spec>
constexpr Answer lookup(std::string_view device, const Spec& spec, int batch, int max_len, std::int64_t total_len = 0) noexcept {
  const Found found = find(device, spec);
  return found ? lookup(*found.table, batch, max_len, total_len) : Answer{nullptr, found.why};
}

}  // namespace pagetune_tables

#endif
)";

}  // namespace pagetune
