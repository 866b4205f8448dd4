// Sizes, printing and the range checks of Problem.
#include "wtconv/problem.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <functional>

#include "wtconv/wtconv.hpp"

namespace wtconv {
namespace {

TEST(Problem, SizesHalveByCeiling) {
  const Problem p{.height = 21, .width = 7, .levels = 8};
  const std::int64_t heights[] = {21, 11, 6, 3, 2, 1, 1, 1, 1}, widths[] = {7, 4, 2, 1, 1, 1, 1, 1, 1};
  for (int l = 0; l <= 8; ++l) {
    EXPECT_EQ(p.height_at(l), heights[l]) << l;
    EXPECT_EQ(p.width_at(l), widths[l]) << l;
  }
  for (std::int64_t h = 1; h < 300; ++h) {
    std::int64_t size = h;
    for (int l = 0; l <= 8; ++l, size = (size + 1) / 2) EXPECT_EQ((Problem{.height = h}.height_at(l)), size);
  }
}

TEST(Problem, StrideKeepsEveryNthRowFromTheFirst) {
  EXPECT_EQ((Problem{.height = 7, .width = 8, .stride = 2}.out_height()), 4);
  EXPECT_EQ((Problem{.height = 7, .width = 8, .stride = 2}.out_width()), 4);
  EXPECT_EQ((Problem{.height = 7, .width = 9, .stride = 3}.out_height()), 3);
  EXPECT_EQ((Problem{.height = 1, .width = 9, .stride = INT_MAX}.out_width()), 1);
}

TEST(Problem, PaddingFollowsPyTorchSame) {
  const int before[] = {0, 0, 1, 1, 2, 2, 3, 3};
  for (int k = 1; k <= 8; ++k) EXPECT_EQ(Problem{.kernel = k}.pad_before(), before[k - 1]) << k;
}

TEST(Problem, Prints) {
  EXPECT_EQ(to_string(Problem{.batch = 64, .channels = 96, .height = 56, .width = 28, .kernel = 5, .levels = 4}),
            "n64c96h56w28k5l4_f32");
  EXPECT_EQ(to_string(Problem{.stride = 2, .dtype = DType::bf16}), "n1c1h1w1k5l1_bf16_s2");
}

TEST(Problem, RejectsWhatIsOutOfRangeWithItsValue) {
  const struct {
    std::function<void(Problem&)> spoil;
    const char* message;
  } rejected[] = {
      {[](Problem& p) { p.batch = -1; }, "batch must be at least 0, got -1"},
      {[](Problem& p) { p.channels = 0; }, "channels must be at least 1, got 0"},
      {[](Problem& p) { p.height = 0; }, "height must be at least 1, got 0"},
      {[](Problem& p) { p.width = INT64_MIN; }, "width must be at least 1, got -9223372036854775808"},
      {[](Problem& p) { p.kernel = 0; }, "kernel must be in 1..15, got 0"},
      {[](Problem& p) { p.kernel = 16; }, "kernel must be in 1..15, got 16"},
      {[](Problem& p) { p.levels = -1; }, "levels must be in 0..8, got -1"},
      {[](Problem& p) { p.levels = 9; }, "levels must be in 0..8, got 9"},
      {[](Problem& p) { p.stride = 0; }, "stride must be at least 1, got 0"},
      {[](Problem& p) { p.dtype = static_cast<DType>(9); }, "dtype must be f32, f64, f16 or bf16, got 9"},
      {[](Problem& p) { p.height = INT64_MAX; }, "9223372036854775807"},
      {[](Problem& p) { p.batch = p.channels = 4000000000; }, "4000000000 * 4000000000"},
      {[](Problem& p) { p.channels = INT64_MAX; }, "9223372036854775807"},
      {[](Problem& p) { p.batch = 0, p.width = INT64_MAX / 2; }, "4611686018427387903"},
  };
  for (const auto& r : rejected) {
    Problem p{.batch = 2, .channels = 3, .height = 8, .width = 8};
    ASSERT_TRUE(validate(p).ok());
    r.spoil(p);
    const Status s = validate(p);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument) << r.message;
    EXPECT_NE(s.message().find(r.message), std::string::npos) << s.message();
    // Every front door says the same.
    EXPECT_EQ(can_run(p), s);
    EXPECT_EQ(forward_workspace(p).status, s);
    EXPECT_EQ(backward_workspace(p).status, s);
    EXPECT_EQ(forward(p, {}, {}, {}, {}), s);
    EXPECT_EQ(backward(p, {}, {}, {}, {}, {}), s);
  }
}

TEST(Problem, MaskSaysWhichGradientsAreAskedFor) {
  float memory[1];
  const TensorView v = dense(memory, DType::f32, {1});
  Gradients g;
  EXPECT_EQ(mask_of(g), (GradientMask{.x = false, .base = false, .wavelet = false}));
  g.x = v;
  EXPECT_EQ(mask_of(g), (GradientMask{.x = true, .base = false, .wavelet = false}));
  for (TensorView* base : {&g.parameters.base_weight, &g.parameters.base_bias, &g.parameters.base_scale}) {
    g = {};
    *base = v;
    EXPECT_EQ(mask_of(g), (GradientMask{.x = false, .base = true, .wavelet = false}));
  }
  for (int l = 0; l < max_levels; ++l) {
    g = {};
    (l % 2 ? g.parameters.wavelet_weight : g.parameters.wavelet_scale)[l] = v;
    EXPECT_EQ(mask_of(g), (GradientMask{.x = false, .base = false, .wavelet = true}));
  }
}

TEST(Status, CodesHaveNames) {
  EXPECT_STREQ(to_string(StatusCode::ok), "ok");
  EXPECT_STREQ(to_string(StatusCode::invalid_argument), "invalid argument");
  EXPECT_STREQ(to_string(StatusCode::workspace_too_small), "workspace too small");
  EXPECT_TRUE(Status{}.ok());
  EXPECT_FALSE(Status(StatusCode::device_error, "x").ok());
}

}  // namespace
}  // namespace wtconv
