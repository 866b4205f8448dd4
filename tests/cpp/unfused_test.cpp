// Backend `unfused` moves the bytes that the I/O model counts, with and without the published reformulations.
#include <gtest/gtest.h>

#include "wtconv/io_model.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv {
namespace {

double forward_elements(const Problem& p, const Reformulations& switches) {
  const Options options{.backend = "unfused", .threads = 1, .reformulations = switches};
  return find_backend("unfused")->plan(p, Pass::forward, {}, options).elements_moved;
}

TEST(Unfused, MovesWhatTheModelCounts) {
  for (int levels = 1; levels <= 6; ++levels) {
    const Problem p{.batch = 3, .channels = 5, .height = 128, .width = 64, .kernel = 5, .levels = levels};
    EXPECT_EQ(forward_elements(p, {}), forward_traffic(p, Formulation::reference).total()) << levels;
    EXPECT_EQ(forward_elements(p, {true, true, true}), forward_traffic(p, Formulation::published_fused).total())
        << levels;
  }
}

// Where a size is odd, the chain also pads.
TEST(Unfused, MovesWhatTheModelCountsAtOddSizes) {
  const Problem p{.batch = 2, .channels = 3, .height = 21, .width = 7, .kernel = 3, .levels = 3};
  EXPECT_EQ(forward_elements(p, {}), forward_traffic(p, Formulation::reference).total());
  EXPECT_EQ(forward_elements(p, {true, true, true}), forward_traffic(p, Formulation::published_fused).total());
}

TEST(Unfused, EachSwitchSavesTraffic) {
  const Problem p{.batch = 3, .channels = 5, .height = 64, .width = 64, .kernel = 5, .levels = 4};
  const double all = forward_elements(p, {});
  EXPECT_LT(forward_elements(p, {.recompute_analysis = true}), all);
  EXPECT_LT(forward_elements(p, {.collapse_synthesis = true}), all);
  EXPECT_LT(forward_elements(p, {.fold_scales = true}), all);
}

TEST(Unfused, WorkspaceIsAFewTimesX) {
  const Problem p{.batch = 64, .channels = 96, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  const double n = 4.0 * 64 * 96 * 56 * 56;
  const Options options{.backend = "unfused", .threads = 2};
  EXPECT_GE(double(forward_workspace(p, options).bytes), 4 * n);
  EXPECT_LE(double(forward_workspace(p, options).bytes), 6 * n);
  EXPECT_LE(double(backward_workspace(p, {}, options).bytes), 8 * n);
}

}  // namespace
}  // namespace wtconv
