#include "tuner/guarded.hpp"

#include <algorithm>
#include <cstring>

namespace pagetune {
namespace {

// 0xFF81 … 0xFFFF: sign and the eight (fp16: five) exponent bits set, mantissa not zero.
constexpr size_t kWords = 127;
constexpr size_t kPeriod = 2 * kWords;

const std::vector<char>& pattern() {
  static const std::vector<char> bytes = [] {
    std::vector<char> result(2 * kPeriod);
    for (size_t i = 0; i < result.size(); i += 2) {
      const auto word = static_cast<uint16_t>(0xFF81 + (i / 2) % kWords);
      std::memcpy(result.data() + i, &word, 2);
    }
    return result;
  }();
  return bytes;
}

template <class Visit>
void for_each_period(size_t bytes, size_t offset, const Visit& visit) {
  for (size_t at = 0; at < bytes; at += kPeriod) {
    if (!visit(at, std::min(kPeriod, bytes - at), pattern().data() + (at + offset) % kPeriod)) return;
  }
}

}  // namespace

void fill_poison(void* memory, size_t bytes, size_t offset) {
  for_each_period(bytes, offset, [&](size_t at, size_t count, const char* expected) {
    std::memcpy(static_cast<char*>(memory) + at, expected, count);
    return true;
  });
}

size_t first_difference_from_poison(const void* memory, size_t bytes, size_t offset) {
  size_t found = bytes;
  for_each_period(bytes, offset, [&](size_t at, size_t count, const char* expected) {
    const char* actual = static_cast<const char*>(memory) + at;
    if (std::memcmp(actual, expected, count) == 0) return true;
    found = at + static_cast<size_t>(std::mismatch(actual, actual + count, expected).first - actual);
    return false;
  });
  return found;
}

GuardedBuffer::GuardedBuffer(Device& device, size_t bytes) : device_(device), bytes_(bytes), base_(device.allocate(bytes + 2 * kGuardBytes)) {
  std::vector<char> image(bytes_ + 2 * kGuardBytes);
  fill_poison(image.data(), image.size());
  device_.upload(base_, image.data(), image.size());
}

GuardedBuffer::~GuardedBuffer() { device_.release(base_); }

void GuardedBuffer::upload(const void* host) {
  if (bytes_ > 0) device_.upload(data(), host, bytes_);
}

void GuardedBuffer::poison() {
  std::vector<char> image(bytes_);
  fill_poison(image.data(), bytes_, kGuardBytes);
  upload(image.data());
}

std::vector<char> GuardedBuffer::download() const {
  std::vector<char> image(bytes_);
  if (bytes_ > 0) device_.download(image.data(), data(), bytes_);
  return image;
}

std::string GuardedBuffer::damage() const {
  std::vector<char> zone(kGuardBytes);
  device_.download(zone.data(), base_, kGuardBytes);
  const size_t before = first_difference_from_poison(zone.data(), kGuardBytes);
  if (before < kGuardBytes) return "guard before it changed " + std::to_string(kGuardBytes - before) + " bytes ahead of its start";
  device_.download(zone.data(), static_cast<const char*>(data()) + bytes_, kGuardBytes);
  const size_t after = first_difference_from_poison(zone.data(), kGuardBytes, kGuardBytes + bytes_);
  if (after < kGuardBytes) return "guard after it changed " + std::to_string(after) + " bytes behind its end";
  return {};
}

}  // namespace pagetune
