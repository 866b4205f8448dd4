// The cpu backend's choice of layout, a pure function: what a thread holds stays bounded, and tasks suffice.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/geometry.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv {
namespace {

std::vector<Problem> problems() {
  std::vector<Problem> list;
  for (int levels : {0, 1, 3, 5, 8}) {
    for (std::int64_t width : {1, 7, 56, 255, 1024, 2048, 16384, 1 << 20}) {
      for (std::int64_t height : {1, 7, 224, 2048}) {
        for (std::int64_t channels : {1, 3, 64, 768}) {
          list.push_back({.batch = 2, .channels = channels, .height = height, .width = width, .levels = levels});
        }
      }
    }
  }
  return list;
}

TEST(CpuGeometry, EveryPlaneHasItsLaneAndEveryRowItsTask) {
  for (int lanes : {1, 4, 8, 16}) {
    for (const Problem& p : problems()) {
      for (bool sums : {false, true}) {
        const cpu::Geometry g = cpu::make_geometry(p, lanes, sums);
        ASSERT_EQ(g.strips * g.lane_channels * g.lane_batches, lanes) << to_string(p);
        ASSERT_GE(g.width[0] * g.strips, p.width) << to_string(p);
        ASSERT_GE(g.channel_groups * g.lane_channels, p.channels) << to_string(p);
        ASSERT_GE(g.batch_groups * g.lane_batches, p.batch) << to_string(p);
        ASSERT_GE(g.segments * g.segment_rows, p.height) << to_string(p);
        ASSERT_LE(g.out_rows, cpu::Geometry::most_rows) << to_string(p);
        ASSERT_EQ(g.segment_rows % (std::int64_t{1} << p.levels), 0) << to_string(p);
        ASSERT_TRUE(g.strips == 1 || g.width[0] % (std::int64_t{1} << p.levels) == 0) << to_string(p);
      }
    }
  }
}

// Wide rows are cut into about as many strips as there are lanes (fewer where strips, multiples of 2^L, would be mostly
// empty): what a thread holds grows with a strip's width, not with the plane's.
TEST(CpuGeometry, WidePlanesAreCutIntoStrips) {
  for (const Problem& p : problems()) {
    if (p.width < 2048) continue;
    const cpu::Geometry g = cpu::make_geometry(p, 16, false);
    if (g.scratch_bytes(true, false) > (std::size_t{4} << 20)) {
      EXPECT_GE(g.strips, 8) << to_string(p) << ": " << cpu::describe(g);
    }
  }
}

TEST(CpuGeometry, ManyThreadsFindWork) {
  EXPECT_GE(
      cpu::make_geometry({.batch = 64, .channels = 96, .height = 56, .width = 56, .levels = 5}, 16, false).tasks(), 64);
  EXPECT_GE(
      cpu::make_geometry({.batch = 1, .channels = 3, .height = 2160, .width = 3840, .levels = 3}, 16, true).tasks(), 8);
}

}  // namespace
}  // namespace wtconv
