// A table of values that follow from their keys and cost something to make: looking up and filling take no lock and no memory, so a launch may do both.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagetune {

// Key: trivially copyable, with ==. Value: default-constructible. kSlots: a power of two. Entries are never replaced, so references to them stay good; a key
// that finds no room is made again each time.
template <class Key, class Value, size_t kSlots>
class OnceTable {
  static_assert((kSlots & (kSlots - 1)) == 0);

 public:
  // The value of `key`: an entry, or `spare`. make(Value&) fills one in; what it throws leaves the slot without a use. `hash`: of the key.
  template <class Make>
  const Value& find_or_make(const Key& key, uint64_t hash, Value& spare, const Make& make) {
    for (size_t probe = 0; probe < kProbes; ++probe) {
      Slot& slot = slots_[static_cast<size_t>(hash + probe) & (kSlots - 1)];
      int state = slot.state.load(std::memory_order_acquire);
      if (state == kReady && slot.key == key) return slot.value;
      if (state != kEmpty || !slot.state.compare_exchange_strong(state, kTaken, std::memory_order_relaxed)) continue;
      slot.key = key;
      make(slot.value);
      slot.state.store(kReady, std::memory_order_release);
      return slot.value;
    }
    make(spare);
    return spare;
  }

 private:
  static constexpr size_t kProbes = 4;
  static constexpr int kEmpty = 0, kTaken = 1, kReady = 2;
  struct Slot {
    std::atomic<int> state{kEmpty};
    Key key{};
    Value value{};
  };
  std::array<Slot, kSlots> slots_;
};

}  // namespace pagetune
