// Views: layout helpers and the overlap predicates, against brute force.
#include "wtconv/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace wtconv {
namespace {

// Byte addresses of every element, one entry an index.
std::vector<std::int64_t> addresses(const ConstTensorView& v) {
  std::vector<std::int64_t> list;
  std::array<std::int64_t, max_rank> n = {1, 1, 1, 1}, s{};
  for (int d = 0; d < v.rank; ++d) {
    n[d] = v.extents[d];
    s[d] = v.strides[d];
  }
  const auto base = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(v.data));
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) {
          list.push_back(base + (a * s[0] + b * s[1] + c * s[2] + d * s[3]) * size_of(v.dtype));
        }
  return list;
}

bool really_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  std::set<std::int64_t> bytes;
  for (std::int64_t at : addresses(a)) {
    for (std::int64_t i = 0; i < size_of(a.dtype); ++i) bytes.insert(at + i);
  }
  for (std::int64_t at : addresses(b)) {
    for (std::int64_t i = 0; i < size_of(b.dtype); ++i) {
      if (bytes.count(at + i)) return true;
    }
  }
  return false;
}

bool really_self_overlaps(const ConstTensorView& v) {
  std::vector<std::int64_t> list = addresses(v);
  std::sort(list.begin(), list.end());
  return std::adjacent_find(list.begin(), list.end()) != list.end();
}

// Small views somewhere in `memory`, strides of both signs and zero.
ConstTensorView random_view(std::mt19937& random, std::byte* memory) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  ConstTensorView v{.data = memory, .dtype = static_cast<DType>(draw(0, 3)), .rank = draw(1, 4)};
  for (int d = 0; d < v.rank; ++d) {
    v.extents[d] = draw(draw(0, 9) ? 1 : 0, 4);
    v.strides[d] = draw(-1, 12);
    if (draw(0, 4) == 0) v.strides[d] *= draw(-4, 9);
  }
  // Sometimes not at a multiple of the element's size.
  v.data = memory + draw(0, 60) * size_of(v.dtype) + (draw(0, 3) ? 0 : draw(1, 7));
  return v;
}

TEST(MayOverlap, EqualsBruteForceOnSmallViews) {
  std::mt19937 random(5);
  alignas(8) static std::byte memory[4096];
  int overlapping = 0;
  for (int i = 0; i < 20000; ++i) {
    const ConstTensorView a = random_view(random, memory + 2048), b = random_view(random, memory + 2048);
    const bool expected = really_overlap(a, b);
    overlapping += expected;
    ASSERT_EQ(may_overlap(a, b), expected)
        << to_string(a) << " at " << a.data << ", " << to_string(b) << " at " << b.data;
    ASSERT_EQ(may_overlap(b, a), expected);
  }
  EXPECT_GT(overlapping, 2000);
  EXPECT_LT(overlapping, 18000);
}

TEST(SelfOverlaps, NeverMissesAndKnowsSlices) {
  std::mt19937 random(6);
  alignas(8) static std::byte memory[4096];
  int overlapping = 0;
  for (int i = 0; i < 20000; ++i) {
    const ConstTensorView v = random_view(random, memory + 2048);
    const bool expected = really_self_overlaps(v);
    overlapping += expected;
    ASSERT_GE(self_overlaps(v), expected) << to_string(v);
  }
  EXPECT_GT(overlapping, 2000);
  // Slices and permutations of dense buffers, with steps of both signs, are never refused.
  for (int i = 0; i < 5000; ++i) {
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    ConstTensorView v{.data = memory, .dtype = DType::f32, .rank = 4};
    std::array<int, 4> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    std::int64_t stride = 1;
    for (int d : order) {
      const std::int64_t step = draw(1, 3), extent = draw(1, 6);
      v.extents[d] = extent;
      v.strides[d] = stride * step * (draw(0, 1) ? 1 : -1);
      stride *= (extent - 1) * step + draw(1, 3);
    }
    ASSERT_FALSE(self_overlaps(v)) << to_string(v);
    ASSERT_FALSE(really_self_overlaps(v)) << to_string(v);
  }
}

TEST(MayOverlap, TellsInterleavedSlicesApart) {
  // Channel slices of one channels-last buffer: their address ranges cross, their elements do not.
  std::vector<float> memory(2 * 32 * 32 * 64);
  const TensorView whole = channels_last(memory.data(), DType::f32, 2, 64, 32, 32);
  TensorView a = whole, b = whole;
  a.extents[1] = 30;
  b.extents[1] = 34;
  b.data = memory.data() + 30;
  EXPECT_FALSE(may_overlap(a, b));
  b.data = memory.data() + 29;
  EXPECT_TRUE(may_overlap(a, b));
  // Even and odd columns of one plane.
  TensorView even{memory.data(), DType::f32, 4, {2, 3, 100, 50}, {30000, 10000, 100, 2}};
  TensorView odd = even;
  odd.data = memory.data() + 1;
  EXPECT_FALSE(may_overlap(even, odd));
  EXPECT_TRUE(may_overlap(even, even));
  // Absent and empty views overlap nothing.
  EXPECT_FALSE(may_overlap(whole, TensorView{}));
  even.extents[0] = 0;
  EXPECT_FALSE(may_overlap(even, odd));
}

TEST(TensorView, HelpersAndPrinting) {
  float memory[120];
  const TensorView d = dense(memory, DType::f32, {2, 3, 4, 5});
  EXPECT_EQ(d.size(), 120);
  EXPECT_TRUE(is_dense(d));
  EXPECT_EQ(to_string(d), "f32 (2, 3, 4, 5) strides (60, 20, 5, 1)");
  const TensorView n = channels_last(memory, DType::f32, 2, 3, 4, 5);
  EXPECT_EQ(to_string(n), "f32 (2, 3, 4, 5) strides (60, 1, 15, 3)");
  EXPECT_FALSE(is_dense(n));
  // Strides of extents of 1 do not count: one channel is dense in either order.
  EXPECT_TRUE(is_dense(channels_last(memory, DType::f32, 2, 1, 4, 5)));
  TensorView gap = d;
  gap.strides[0] = 61;
  EXPECT_FALSE(is_dense(gap));
  EXPECT_TRUE(is_dense(dense(memory, DType::f16, {7})));
  EXPECT_STREQ(to_string(DType::bf16), "bf16");
  EXPECT_FALSE(bool(TensorView{}));
}

}  // namespace
}  // namespace wtconv
