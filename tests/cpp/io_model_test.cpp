// The I/O model against the published numbers, hand counts and a brute-force count of tiles.
#include "wtconv/io_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace wtconv {
namespace {

constexpr Formulation all_formulations[] = {Formulation::reference, Formulation::published_fused,
                                            Formulation::one_kernel};

double elements(const Problem& p) { return double(p.batch * p.channels * p.height * p.width); }

TEST(IoModel, PublishedFactorsToTheDigit) {
  const double reference[] = {17.75, 20.44, 21.11, 21.28, 21.32}, fused[] = {7.00, 8.00, 8.25, 8.31, 8.33};
  for (int l = 1; l <= 5; ++l) {
    EXPECT_NEAR(published_factor(Formulation::reference, l), reference[l - 1], 0.005) << l;
    EXPECT_NEAR(published_factor(Formulation::published_fused, l), fused[l - 1], 0.005) << l;
    EXPECT_EQ(published_factor(Formulation::one_kernel, l), 2) << l;
  }
}

TEST(IoModel, EvenHalvingGivesThePublishedFactorsExactly) {
  for (int l = 1; l <= max_levels; ++l) {
    const Problem p{.batch = 3, .channels = 5, .height = 3 << l, .width = 1 << l, .levels = l};
    for (Formulation f : all_formulations) {
      EXPECT_NEAR(forward_traffic(p, f).total(), published_factor(f, l) * elements(p), 1e-9 * elements(p))
          << to_string(f) << " L " << l;
    }
    EXPECT_EQ(backward_traffic(p).total(), 3 * elements(p));
  }
}

// Odd sizes are counted as they are: more than the formula, by what rounding up and padding copies add.
TEST(IoModel, OddSizesByHand) {
  const Problem p{.height = 7, .width = 7, .kernel = 3, .levels = 2};  // bands of 4 x 4 and 2 x 2
  // Base 7 * 49; level 1: pad (49 + 64), 43 * 16; level 2: no pad, 43 * 4.
  EXPECT_EQ(forward_traffic(p, Formulation::reference).total(), 343 + 113 + 688 + 172);
  // Base 2 * 49; level 1: 49 + 64 + 16 (LL); level 2: 16 + 16; synthesis: 64 + 16 + 49, written 49.
  EXPECT_EQ(forward_traffic(p, Formulation::published_fused).total(), 98 + 129 + 32 + 178);
  EXPECT_EQ(forward_traffic(p, Formulation::one_kernel), (Traffic{49, 49}));
  for (int l = 1; l <= 4; ++l) {
    const Problem odd{.height = 21, .width = 9, .levels = l};
    for (Formulation f : all_formulations) {
      EXPECT_GE(forward_traffic(odd, f).total(), published_factor(f, l) * elements(odd)) << to_string(f) << " L " << l;
    }
  }
}

TEST(IoModel, StrideAndMasks) {
  const Problem p{.batch = 2, .channels = 3, .height = 9, .width = 10, .levels = 2, .stride = 2};
  const double n = 2 * 3 * 9 * 10, out = 2 * 3 * 5 * 5;
  EXPECT_EQ(forward_traffic(p, Formulation::one_kernel), (Traffic{n, out}));
  EXPECT_EQ(backward_traffic(p), (Traffic{n + out, n}));
  EXPECT_EQ(backward_traffic(p, {.x = true, .base = false, .wavelet = false}), (Traffic{out, n}));
  EXPECT_EQ(backward_traffic(p, {.x = false, .base = false, .wavelet = true}), (Traffic{n + out, 0}));
  EXPECT_EQ(backward_traffic(p, {.x = false, .base = false, .wavelet = false}), Traffic{});
}

TEST(IoModel, PublishedIntensity) {
  const Problem p{.height = 1024, .width = 1024, .kernel = 3, .levels = 5};
  const double intensity = arithmetic_intensity(forward_work(p, Formulation::reference),
                                                forward_traffic(p, Formulation::reference), DType::f32);
  EXPECT_NEAR(intensity, 0.74, 0.005);
  EXPECT_NEAR(arithmetic_intensity(forward_work(p, Formulation::reference), forward_traffic(p, Formulation::reference),
                                   DType::f16),
              2 * intensity, 1e-12);
}

TEST(IoModel, WorkByHand) {
  const Problem p{.batch = 2, .height = 7, .width = 7, .kernel = 3, .levels = 2};
  // Outputs of filters: 49 of x, 4 * 16 and 4 * 4 of bands; Haar: 8 additions for each of 16 + 4 blocks, twice.
  EXPECT_EQ(forward_work(p, Formulation::one_kernel).multiply_adds, 2 * 9 * (49 + 64 + 16));
  EXPECT_EQ(forward_work(p, Formulation::one_kernel).additions, 2 * 2 * 8 * 20);
  EXPECT_EQ(forward_work(p, Formulation::reference).multiply_adds, 2 * (9 * (49 + 80) + 2 * 4 * 80));
  const double forward = forward_work(p, Formulation::one_kernel).multiply_adds;
  EXPECT_EQ(backward_work(p).multiply_adds, 2 * forward);
  EXPECT_EQ(backward_work(p, {.x = true, .base = false, .wavelet = false}).multiply_adds, forward);
  EXPECT_EQ(backward_work(p, {.x = false, .base = true, .wavelet = false}).multiply_adds, 2 * 9 * 49);
  EXPECT_EQ(backward_work(p, {.x = false, .base = false, .wavelet = false}).flops(), 0);
}

// Rows of x that the outputs [begin, end) of a tile depend on, tap by tap and level by level.
std::int64_t rows_by_force(std::int64_t extent, std::int64_t begin, std::int64_t end, int kernel, int local_levels) {
  std::set<std::int64_t> rows;
  const std::int64_t pad = (kernel - 1) / 2;
  for (std::int64_t r = begin; r < end; ++r) {
    rows.insert(r);
    for (int l = 0; l <= local_levels; ++l) {
      for (int i = 0; i < kernel; ++i) {
        const std::int64_t row = (r >> l) + i - pad;
        for (std::int64_t q = row * (1 << l); q < (row + 1) * (1 << l); ++q) {
          if (q >= 0 && q < extent) rows.insert(q);
        }
      }
    }
  }
  return std::int64_t(rows.size());
}

TEST(IoModel, TilesCountWhatTheirOutputsDependOn) {
  for (int kernel : {1, 2, 3, 5, 8}) {
    for (int local : {0, 1, 2}) {
      const Problem p{.batch = 2, .channels = 3, .height = 29, .width = 40, .kernel = kernel, .levels = 4};
      const std::int64_t th = 8, tw = 12;
      double read = 0;
      for (std::int64_t r = 0; r < p.height; r += th) {
        for (std::int64_t q = 0; q < p.width; q += tw) {
          read += double(rows_by_force(p.height, r, std::min(r + th, p.height), kernel, local) *
                         rows_by_force(p.width, q, std::min(q + tw, p.width), kernel, local));
        }
      }
      const double planes = 6, n = elements(p), deep = planes * double(p.height_at(local) * p.width_at(local));
      const Traffic extra = tiled_extra(p, local, th, tw);
      EXPECT_EQ(extra.read, planes * read - n + n + deep) << "k " << kernel << " m " << local;
      EXPECT_EQ(extra.written, deep);
    }
  }
  // All levels inside, one tile: nothing is read twice.
  const Problem p{.height = 32, .width = 32, .levels = 2};
  EXPECT_EQ(tiled_extra(p, 2, 32, 32), Traffic{});
}

TEST(IoModel, RooflineTakesTheLongerTime) {
  const Machine m{"test", 100, 10, 5, ""};
  const Traffic bytes_400{60, 40};
  EXPECT_EQ(roofline(m, bytes_400, {.multiply_adds = 10}, DType::f32).seconds(), 4);
  EXPECT_TRUE(roofline(m, bytes_400, {.multiply_adds = 10}, DType::f32).memory_bound());
  EXPECT_EQ(roofline(m, bytes_400, {.multiply_adds = 50}, DType::f32).seconds(), 5);
  EXPECT_FALSE(roofline(m, bytes_400, {.multiply_adds = 50}, DType::f32).memory_bound());
  EXPECT_EQ(roofline(m, bytes_400, {.multiply_adds = 50}, DType::f64).seconds(), 10);  // 8 s of memory
  EXPECT_EQ(roofline(m, bytes_400, {.multiply_adds = 0}, DType::f64).seconds(), 8);
  EXPECT_EQ(roofline(m, bytes_400, {.multiply_adds = 0}, DType::bf16).seconds(), 2);
}

TEST(IoModel, KnownMachinesAreUsable) {
  std::set<std::string> names;
  for (const Machine& m : known_machines()) {
    EXPECT_TRUE(names.insert(m.name).second) << m.name;
    EXPECT_GT(m.bandwidth, 1e11) << m.name;
    EXPECT_GT(m.fma_f32, m.fma_f64) << m.name;
    EXPECT_FALSE(m.source.empty()) << m.name;
    const Problem p{.batch = 64, .channels = 96, .height = 56, .width = 56, .kernel = 3, .levels = 5};
    EXPECT_LT(predict_forward(m, p, Formulation::one_kernel).seconds(),
              predict_forward(m, p, Formulation::published_fused).seconds());
    EXPECT_LT(predict_forward(m, p, Formulation::published_fused).seconds(),
              predict_forward(m, p, Formulation::reference).seconds());
  }
  for (const char* name : {"RTX A6000", "RTX PRO 6000", "H200"}) EXPECT_TRUE(names.count(name)) << name;
}

TEST(IoModel, LargestProblemsDoNotOverflow) {
  const Problem p{.batch = std::int64_t{1} << 40, .channels = 1 << 12, .kernel = max_kernel, .levels = max_levels};
  for (Formulation f : all_formulations) {
    EXPECT_GT(forward_traffic(p, f).total(), 1e15);
    EXPECT_TRUE(std::isfinite(forward_work(p, f).flops()));
  }
  EXPECT_EQ(forward_traffic({.batch = 0}, Formulation::reference), Traffic{});
}

}  // namespace
}  // namespace wtconv
