// What the CUDA backend decides on the host: strategies, layouts in shared memory, the division of work. No GPU.
#include <gtest/gtest.h>

#include <set>

#include "cuda/layout.hpp"
#include "cuda/strategy.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {
namespace {

TEST(CudaChooser, NamesItsChoiceAndWhyNotTheOthers) {
  const auto strategy = [](const Problem& p) { return std::string(choose_apply(p, h200).strategy->name()); };
  const Problem stage{.batch = 64, .channels = 96, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  EXPECT_EQ(strategy(stage), "resident");
  Problem p = stage;
  p.kernel = 4;
  EXPECT_EQ(strategy(p), "levels");
  EXPECT_NE(choose_apply(p, h200).reason.find("not 4"), std::string::npos) << choose_apply(p, h200).reason;
  p = stage;
  p.dtype = DType::f64;
  EXPECT_EQ(strategy(p), "levels");
}

// Every word of a layout belongs to one image, and no item reads past the arena.
TEST(CudaLayout, ImagesDoNotOverlapAndReadsStayInside) {
  for (int kernel : {3, 5, 7}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {7, 7}, {14, 14}, {15, 17}, {28, 28}, {33, 31}, {56, 56}, {3, 200}}) {
      for (int levels : {0, 1, 3, 5, 8}) {
        for (int planes : {1, 3}) {
          const Layout y = make_layout(h, w, levels, kernel, planes, 7);
          const LayoutTotals& t = y.total;
          std::set<int> taken;
          for (int l = 0; l <= levels; ++l) {
            const LevelLayout& v = y.level[l];
            EXPECT_EQ(v.pitch % 4, 0);
            EXPECT_EQ(v.offset % 4, 0);
            EXPECT_EQ(v.band % 4, 0);
            for (int s = 0; s < (l == 0 ? 1 : 4); ++s) {
              for (int r = 0; r < v.height + 2 * t.pad; ++r) {
                for (int c = 0; c < v.width + 2 * t.pad; ++c) {
                  const int skew = l == 0 ? r / 8 * t.skew : 0;
                  const int at = v.offset + s * v.band + r * v.pitch + skew + t.left - t.pad + c;
                  EXPECT_TRUE(taken.insert(at).second) << "level " << l << " row " << r << " column " << c;
                  EXPECT_LT(at, t.words);
                }
              }
              const int rows = l == 0 ? base_rows : t.rows_per_item;
              const int last_row = v.down * rows + 2 * t.pad - 1;
              const int read = v.offset + s * v.band + last_row * v.pitch + (l == 0 ? last_row / 8 * t.skew : 0) +
                               4 * v.across + 2 * t.left;
              EXPECT_LE(read, t.words + t.slack);
            }
          }
          EXPECT_EQ(t.threads % 32, 0);
          EXPECT_GE(t.threads, t.level_items);
          EXPECT_GE(t.threads, t.base_items);
          EXPECT_GE(t.threads, t.analysis_threads);
        }
      }
    }
  }
}

TEST(CudaWork, CoversEveryItemOnceAndSlotsAreUnique) {
  for (const auto& [per_channel, channels, blocks] :
       {std::tuple<int, int, int>{64, 96, 528}, {3, 5, 4}, {1, 7, 7}, {16, 3, 48}, {5, 1, 2}, {7, 11, 1}}) {
    const Work work{.per_channel = per_channel, .channels = channels, .blocks = blocks};
    std::set<std::int64_t> slots;
    std::int64_t expected = 0;
    for (std::int64_t block = 0; block < work.blocks; ++block) {
      EXPECT_EQ(work.first(block), expected);
      std::int64_t last_channel = -1;
      Cursor at(work, work.first(block));
      for (; expected < work.first(block + 1); ++expected, at.advance(work)) {
        EXPECT_EQ(work.owner(expected), block);
        EXPECT_EQ(at.channel, expected / per_channel);
        EXPECT_EQ(at.group, expected % per_channel);
        if (at.channel != last_channel) {
          last_channel = at.channel;
          EXPECT_TRUE(slots.insert(work.slot(block, at.channel)).second);
          EXPECT_LT(work.slot(block, at.channel), work.slots());
        }
      }
    }
    EXPECT_EQ(expected, work.items());
  }
}

TEST(CudaWork, LockstepGivesEveryChannelAsManyBlocks) {
  const Work work{.per_channel = 64, .channels = 96};
  EXPECT_EQ(choose_blocks(work, 396, false), 396);
  EXPECT_EQ(choose_blocks(work, 396, true), 384);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 2, .channels = 3}, 660, true), 6);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 0, .channels = 3}, 660, false), 1);
  EXPECT_EQ(choose_blocks(Work{.per_channel = 9, .channels = 1000}, 660, true), 660);
}

}  // namespace
}  // namespace wtconv::cuda
