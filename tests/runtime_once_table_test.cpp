// The table that launches look their tensor maps up in: one value for a key whoever asks, none for another key, and a way on when it is full.
#include "runtime/once_table.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace pagetune {
namespace {

struct Key {
  int id = 0, other = 0;
  bool operator==(const Key&) const = default;
};
struct Value {
  Key made_of;
  int filled[32] = {};
};

template <size_t kSlots>
const Value& look_up(OnceTable<Key, Value, kSlots>& table, Key key, uint64_t hash, Value& spare, int* made = nullptr) {
  return table.find_or_make(key, hash, spare, [&](Value& value) {
    value.made_of = key;
    for (int& x : value.filled) x = key.id, std::this_thread::yield();
    if (made != nullptr) ++*made;
  });
}

// Fault: a value is made at each look-up, or keys of one hash, or that differ in a field beside it, share an entry.
TEST(OnceTable, MakesAValueOnceAndTellsKeysApart) {
  OnceTable<Key, Value, 64> table;
  Value spare;
  int made = 0;
  for (int round = 0; round < 3; ++round) {
    for (const Key key : {Key{1, 0}, {1, 1}, {2, 0}, {2, 1}}) {
      const Value& value = look_up(table, key, 7, spare, &made);
      EXPECT_EQ(value.made_of, key);
      EXPECT_NE(&value, &spare);
    }
  }
  EXPECT_EQ(made, 4);
}

// Fault: a full table gives another key's value, writes over one that is in use, or fails.
TEST(OnceTable, AKeyWithoutRoomIsMadeAnewAndDisturbsNone) {
  OnceTable<Key, Value, 4> table;
  Value spare;
  std::vector<const Value*> held;
  for (int id = 0; id < 4; ++id) held.push_back(&look_up(table, {id, 0}, static_cast<uint64_t>(id), spare));
  int made = 0;
  for (int id = 4; id < 40; ++id) {
    const Value& value = look_up(table, {id, 0}, static_cast<uint64_t>(id), spare, &made);
    EXPECT_EQ(&value, &spare);
    EXPECT_EQ(value.made_of.id, id);
  }
  EXPECT_EQ(made, 36);
  for (int id = 0; id < 4; ++id) EXPECT_EQ(held[static_cast<size_t>(id)]->made_of.id, id);
}

// Fault: what could not be made is taken for a value by the next who asks.
TEST(OnceTable, AFailureLeavesNoEntry) {
  OnceTable<Key, Value, 8> table;
  Value spare;
  for (int i = 0; i < 10; ++i)
    EXPECT_THROW(table.find_or_make(Key{5, 0}, 5, spare, [](Value&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(look_up(table, {5, 0}, 5, spare).made_of.id, 5);
}

// Fault: a thread reads an entry while another fills it.
TEST(OnceTable, ThreadsSeeWholeValues) {
  for (int round = 0; round < 50; ++round) {
    OnceTable<Key, Value, 32> table;
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        Value spare;
        for (int i = 0; i < 400; ++i) {
          const int id = (i * 7 + static_cast<int>(t)) % 48;
          const Value& value = look_up(table, {id, 0}, static_cast<uint64_t>(id) * 5, spare);
          bool whole = value.made_of.id == id;
          for (const int x : value.filled) whole = whole && x == id;
          wrong[t] += whole ? 0 : 1;
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const int count : wrong) ASSERT_EQ(count, 0);
  }
}

}  // namespace
}  // namespace pagetune
