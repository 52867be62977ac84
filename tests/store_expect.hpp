// Comparisons for the tests of the store.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "store_samples.hpp"

namespace pagetune {

inline void expect_same(const Store::Row& a, const Store::Row& b) {
  EXPECT_EQ(a.winner, b.winner);
  EXPECT_EQ(a.environment, b.environment);
  EXPECT_EQ(a.spec, b.spec);
}

inline void expect_same(const std::vector<Store::Row>& a, const std::vector<Store::Row>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) expect_same(a[i], b[i]);
}

}  // namespace pagetune
