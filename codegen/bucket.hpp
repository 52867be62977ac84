// The one mapping from a call's shape to a bucket of the dispatch table, used by tuner and runtime alike.
#pragma once
#include <cstdint>
#include <string>

namespace pagetune {

// A cell of the log2 grid of batch x length, named by its centre.
struct Bucket {
  int batch_log2 = 0;
  int len_log2 = 0;

  static constexpr int kBatchCells = 17;   // 1 … 65,536
  static constexpr int kMinLenLog2 = 4;    // all lengths up to 22 share the cell of 16
  static constexpr int kLenCells = 19;     // 16 … 4,194,304
  static constexpr int kCells = kBatchCells * kLenCells;

  int batch() const { return 1 << batch_log2; }
  int len() const { return 1 << len_log2; }
  int index() const { return batch_log2 * kLenCells + (len_log2 - kMinLenLog2); }
  std::string text() const { return std::to_string(batch()) + "x" + std::to_string(len()); }

  static constexpr Bucket at(int index) { return {index / kLenCells, index % kLenCells + kMinLenLog2}; }

  bool operator==(const Bucket&) const = default;
  auto operator<=>(const Bucket&) const = default;
};

// Nearest power of two in log2 (x * sqrt(2) rounds up), at least 1.
constexpr int nearest_log2(int64_t x) {
  if (x <= 1) return 0;
  int floor_log2 = 63 - __builtin_clzll(static_cast<unsigned long long>(x));
  // x >= sqrt(2) * 2^f <=> x > floor(sqrt(2) * 2^f), as sqrt(2) is irrational
  constexpr int64_t kSqrt2At62 = 0x5a827999fcef3242;  // floor(sqrt(2) * 2^62)
  return floor_log2 + (x > (kSqrt2At62 >> (62 - floor_log2)) ? 1 : 0);
}

// A ragged batch is taken for at least this fraction of its sequences: partial results are kept for every sequence of the batch, so
// the split of a much smaller batch would need a workspace out of proportion.
constexpr int kMaxRaggedness = 8;

// total_len: sum of the lengths, 0 if unknown. A batch of short sequences beside one long one does the work of fewer sequences of
// max_len, and wants their split: the batch axis is total_len / max_len, within [batch / kMaxRaggedness, batch].
constexpr Bucket bucket_of(int batch, int max_len, int64_t total_len) {
  int64_t equivalents = batch;
  if (total_len > 0 && max_len > 0) {
    equivalents = (total_len + max_len - 1) / max_len;
    const int64_t least = (static_cast<int64_t>(batch) + kMaxRaggedness - 1) / kMaxRaggedness;
    if (equivalents < least) equivalents = least;
    if (equivalents > batch) equivalents = batch;
  }
  int b = nearest_log2(equivalents);
  int l = nearest_log2(max_len);
  if (b >= Bucket::kBatchCells) b = Bucket::kBatchCells - 1;
  if (l < Bucket::kMinLenLog2) l = Bucket::kMinLenLog2;
  if (l >= Bucket::kMinLenLog2 + Bucket::kLenCells) l = Bucket::kMinLenLog2 + Bucket::kLenCells - 1;
  return {b, l};
}

// What a launch is, to the dispatch table.
struct CallShape {
  Bucket bucket;
  bool alike;  // the lengths hardly differ, and the host says so: a CTA for each sequence then ends when its neighbours do

  constexpr CallShape(Bucket b, bool lengths_are_alike = true) : bucket(b), alike(lengths_are_alike) {}  // NOLINT(google-explicit-constructor): what a winner of a bucket was measured on
  bool operator==(const CallShape&) const = default;
  auto operator<=>(const CallShape&) const = default;
};
constexpr CallShape call_shape(int batch, int max_len, int64_t total_len) {
  constexpr int kEighths = 7;  // of batch * max_len
  return {bucket_of(batch, max_len, total_len), batch <= 1 || total_len * 8 >= int64_t{batch} * max_len * kEighths};
}

}  // namespace pagetune
