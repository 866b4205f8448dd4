// Every backend against the reference in double (random data) and bit for bit (exact data), on the case files, on all
// small sizes, and on random cases.
#include <gtest/gtest.h>

#include <random>

#include "backends.hpp"

namespace wtconv::tests {
namespace {

using harness::Case;

void run_file(const BackendUnderTest& backend, const char* name) {
  std::vector<Case> cases;
  const Status s = harness::read_cases(std::string(WTCONV_CASES "/") + name, cases);
  ASSERT_TRUE(s.ok()) << s.message();
  for (const Case& c : cases) expect_ok(backend, c);
}

class Backends : public EachBackend {};
class Variants : public EachBackend {};
WTCONV_EACH_BACKEND(Backends);
WTCONV_EACH_VARIANT(Variants);

TEST_P(Variants, SmokeCases) { run_file(GetParam(), "smoke.txt"); }
TEST_P(Backends, CiCases) { run_file(GetParam(), "ci.txt"); }
TEST_P(Variants, NightlyCases) {
  run_file(GetParam(), "ci.txt");
  run_file(GetParam(), "nightly.txt");
}

// Heights and widths 1..33 with 0..6 levels; kernel, dtype and layout change along the way.
void run_sizes(const BackendUnderTest& backend, int every) {
  std::mt19937 random(3);
  int next = 0;
  for (int h = 1; h <= 33; ++h) {
    for (int w = 1; w <= 33; ++w) {
      for (int l = 0; l <= 6; ++l) {
        const Case c{.problem = {.batch = 1 + next % 2,
                                 .channels = 1 + next % 3,
                                 .height = h,
                                 .width = w,
                                 .kernel = 1 + static_cast<int>(random() % 7),
                                 .levels = l,
                                 .stride = next % 5 == 0 ? 2 : 1,
                                 .dtype = random() % 4 == 0 ? DType::f64 : DType::f32},
                     .channels_last = next % 7 == 0,
                     .sliced = next % 11 == 0};
        // A stride that shares no factor with the loops' extents visits every size, level and parity.
        if (next++ % every == 0) expect_ok(backend, c, 1 + static_cast<std::uint64_t>(next));
        if (testing::Test::HasFailure()) return;  // one failing size is enough
      }
    }
  }
}

TEST_P(Backends, SampledSizes) { run_sizes(GetParam(), 37); }
TEST_P(Variants, NightlyEverySize) { run_sizes(GetParam(), 1); }

Case random_case(std::mt19937& random) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Case c{.problem = {.batch = draw(1, 3),
                     .channels = draw(1, draw(0, 3) ? 5 : 40),
                     .height = draw(1, draw(0, 3) ? 20 : 70),
                     .width = draw(1, draw(0, 3) ? 20 : 70),
                     .kernel = draw(0, 1) ? 3 + 2 * draw(0, 2) : draw(1, 15),
                     .levels = draw(0, 4) ? draw(0, 4) : draw(5, 8),
                     .stride = draw(0, 3) ? 1 : draw(2, 5),
                     .dtype = static_cast<DType>(draw(0, 3))},
         .channels_last = draw(0, 3) == 0,
         .bias = draw(0, 3) > 0,
         .offset = draw(0, 3) == 0,
         .sliced = draw(0, 3) == 0,
         .strided = draw(0, 5) == 0,
         .expanded = draw(0, 7) == 0};
  c.f32_parameters = size_of(c.problem.dtype) == 2 && draw(0, 1) == 1;
  return c;
}

void run_random(const BackendUnderTest& backend, int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  int unsuitable = 0;  // eight levels and many taps: partial sums outgrow f32's significand
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    expect_ok(backend, random_case(random), seed + static_cast<std::uint64_t>(i), &unsuitable);
  }
  EXPECT_LT(unsuitable, count / 20);
}

TEST_P(Backends, RandomCases) { run_random(GetParam(), 150, 11); }
TEST_P(Variants, NightlyRandomCases) { run_random(GetParam(), 3000, 12); }

}  // namespace
}  // namespace wtconv::tests
