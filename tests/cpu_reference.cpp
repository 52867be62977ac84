// What a launch should have written: a plain fp64 loop over the contract's rules, and the comparison with it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu_problem.hpp"

namespace pagetune::test {
namespace {

constexpr double kLog2E = 1.4426950408889634;

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  return bits >> 15 != 0 ? -value : value;
}

}  // namespace

double element(int dtype, const unsigned char* from) {
  if (dtype == 2) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return dtype == 1 ? half(bits) : static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

// The contract, rule by rule.
bool Problem::sees(int sequence, int token, int head, int key) const {
  const int kv_head = head / shape_.group;
  const int length = len(sequence, kv_head);
  const int position = length - tokens(sequence) + token;
  if (key > position || key >= length) return false;
  if (shape_.chunk != 0 && key < position / shape_.chunk * shape_.chunk) return false;
  const int window = shape_.windows.empty() ? 0 : params_.window[kv_head];
  if (shape_.mask == 2) {
    const int* pair = params_.mask_offset + 2 * (first_row(sequence) + token);
    if (key < pair[0] || key >= pair[1]) return false;
    if (window > 0 && key >= pair[0] + shape_.sink_tokens && key < pair[1] - window) return false;
  } else if (window > 0 && key <= position - window && key >= shape_.sink_tokens) {
    return false;
  }
  const int column = key - (length - tokens(sequence));
  const int size = params_.tree_mask_size;
  if (shape_.mask == 1 && column >= 0 && params_.tree_mask[(sequence * size + token) * size + column] != 0) return false;
  if (shape_.sparse_block != 0) {
    const int key_block = key / shape_.sparse_block, query_block = position / shape_.sparse_block;
    const int offset = shape_.head_step >= 0 ? (shape_.head_offset + head) * shape_.head_step + 1 : (shape_.kv_head_offset + kv_head) * -shape_.head_step + 1;
    if ((key_block + offset) % shape_.vert_stride != 0 && key_block <= query_block - shape_.local_blocks) return false;
  }
  return true;
}

bool Problem::anyone_sees(int sequence, int kv_head, int key) const {
  for (int token = 0; token < tokens(sequence); ++token)
    for (int head = kv_head * shape_.group; head < (kv_head + 1) * shape_.group; ++head)
      if (sees(sequence, token, head, key)) return true;
  return false;
}

Problem::Row Problem::reference(int sequence, int head, int token) const {
  const unsigned char* q = q_row(sequence, head, token);
  const int kv_head = head / shape_.group;
  const int position = len(sequence, kv_head) - tokens(sequence) + token;
  std::vector<double> logits;
  std::vector<const unsigned char*> values;
  for (int t = 0; t < len(sequence, kv_head); ++t) {
    if (!sees(sequence, token, head, t)) continue;
    const int id = params_.block_tables[table_row(sequence, kv_head) * table_stride_ + t / shape_.page];
    if (id < 0 || id >= params_.num_pages) continue;
    double dot = 0;
    for (int d = 0; d < shape_.dim; ++d)
      dot += element(shape_.dtype, q + d * shape_.bytes()) *
             element(shape_.dtype, k_row(id, t % shape_.page, kv_head) + d * shape_.bytes());
    double logit = dot * params_.scale_log2 / kLog2E;
    if (shape_.soft_cap != 0) logit = shape_.soft_cap * std::tanh(logit / shape_.soft_cap);
    if (shape_.alibi) logit += params_.alibi_slopes[head] * static_cast<double>(t - position);
    logits.push_back(logit);
    values.push_back(v_row(id, t % shape_.page, kv_head));
  }
  Row row{std::vector<double>(static_cast<size_t>(shape_.value_dim())), -std::numeric_limits<double>::infinity()};
  double top = row.lse, sum = 0;
  for (double logit : logits) top = std::max(top, logit);
  if (shape_.sinks) {
    top = std::max(top, static_cast<double>(params_.sinks[head]));
    sum = std::exp(params_.sinks[head] - top);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp(logits[i] - top);
    sum += weight;
    for (int d = 0; d < shape_.value_dim(); ++d) row.out[static_cast<size_t>(d)] += weight * element(shape_.dtype, values[i] + d * shape_.bytes());
  }
  if (sum == 0) return row;
  for (double& value : row.out) value /= sum;
  row.lse = top + std::log(sum);
  return row;
}

std::string Problem::check_row(int sequence, int head, int token) const {
  // Half a unit in the last place of the output, plus fp32 accumulation (a few 1e-7 per rounding, relative to the inputs' size of 2).
  const double relative = shape_.output_type() == 0 ? 0x1p-8 : shape_.output_type() == 1 ? 0x1p-11 : 0x1p-24;
  const Row expected = reference(sequence, head, token);
  const std::string where = " at sequence " + std::to_string(sequence) + " token " + std::to_string(token) + " head " + std::to_string(head);
  for (int d = 0; d < shape_.value_dim(); ++d) {
    const double got = out(sequence, head, d, token);
    const double want = expected.out[static_cast<size_t>(d)];
    if (!(std::abs(got - want) <= relative * std::abs(want) * 1.01 + 4e-6))
      return "out is " + std::to_string(got) + " for " + std::to_string(want) + where + " dim " + std::to_string(d);
  }
  if (!shape_.lse) return {};
  const double got = lse(sequence, head, token);
  const bool empty = std::isinf(expected.lse);
  if (empty ? !(std::isinf(got) && got < 0) : !(std::abs(got - expected.lse) <= 4e-6 + 4e-7 * std::abs(expected.lse)))
    return "LSE is " + std::to_string(got) + " for " + std::to_string(expected.lse) + where;
  return {};
}

std::string Problem::check() const {
  std::vector<bool> written(out_->size() / static_cast<size_t>(shape_.out_bytes()));
  std::vector<bool> lse_written(lse_->size() / 4);
  for (int b = 0; b < params_.batch; ++b) {
    for (int i = 0; i < tokens(b); ++i) {
      for (int h = 0; h < shape_.q_heads(); ++h) {
        if (std::string wrong = check_row(b, h, i); !wrong.empty()) return wrong;
        std::fill_n(written.begin() + out_element(b, h, i), shape_.value_dim(), true);
        if (shape_.lse) lse_written[static_cast<size_t>((first_row(b) + i) * shape_.q_heads() + h)] = true;
      }
    }
  }
  const auto untouched = [](const EdgeBytes& memory, const std::vector<bool>& mine) {
    const size_t bytes = mine.empty() ? 1 : memory.size() / mine.size();
    for (size_t i = 0; i < memory.size(); ++i)
      if (!mine[i / bytes] && memory.data()[i] != 0xFF) return false;
    return true;
  };
  if (!untouched(*out_, written)) return "out was written outside of its rows";
  if (!untouched(*lse_, lse_written)) return "LSE was written where there is none";
  for (const auto* memory : {out_.get(), lse_.get(), partial_out_.get(), partial_lse_.get(), k_.get(), v_.get(), q_.get()})
    if (!memory->front_intact()) return "written before the start of an array";
  return {};
}

}  // namespace pagetune::test
