// From a pyramid in shared memory to results in registers: every filter, then the synthesis. Shared by all strategies.
#pragma once

#include "cuda/kernels/filter.cuh"
#include "cuda/kernels/items.cuh"
#include "cuda/kernels/pyramid.cuh"

namespace wtconv::cuda {

// A channel's filters, scales and the bands' factors folded in. The bias sits behind the base filter's taps.
template <int kernel>
__device__ __forceinline__ void load_filters(float* to, const Filters& filters, int levels, std::int64_t c, int t,
                                             int threads) {
  constexpr int taps = kernel * kernel, words = filter_words(kernel);
  for (int i = t; i < filter_count(levels) * words; i += threads) {
    const int f = i / words, tap = i % words;
    const int level = f == 0 ? 0 : (f - 1) / 4 + 1, band = f == 0 ? 0 : (f - 1) % 4;
    float v = 0.f;
    if (!filters.weight[level]) {
      v = 0.f;
    } else if (tap < taps) {
      v = ldexpf(folded_weight<float>(filters, kernel, level, band, c, tap), -2 * (filters.first_level + level));
    } else if (f == 0 && tap == taps) {
      v = folded_bias<float>(filters, c);
    }
    to[i] = v;
  }
}

// Filters the levels in place and the base into registers, then calls finish(plane, i, j, bias, sums) for each item of
// 8 rows x 4 columns at (8 i, 4 j): it adds the synthesis and stores. Two rounds, so that a few warps serve a plane and
// many planes are in flight. Called after a barrier; ends without one.
template <int kernel, class Plane, class Finish>
__device__ __forceinline__ void filter_planes(const Plane& plane, float* arena, const float* filters,
                                              const LevelItem* items, bool has_base, Finish&& finish) {
  const auto total = plane.total();
  {
    constexpr int rows = Plane::item_rows;
    float sums[rows][4];
    const int t = thread_index();
    const bool works = t < total.level_items;
    if (works) {
      const LevelItem own = items[t];
      float taps[filter_words(kernel)];
      load_taps<kernel>(taps, filters + own.filter() * filter_words(kernel));
      filter_item<kernel, rows>(sums, arena + own.offset(), own.pitch(), 0, taps);
    }
    __syncthreads();
    if (works) {
      const LevelItem own = items[t];
      put_item<rows>(sums, arena + own.offset() + total.pad * own.pitch() + total.left, own.pitch(), own.rows(),
                     own.columns(), t >> 3 & 1);
    }
  }
  float sums[base_rows][4];
  const int t = thread_index();
  const auto base = plane.at(Int<0>{});
  const int in_plane = base.across * base.down;
  const int k = total.planes == 1 ? 0 : t / in_plane, rest = t - k * in_plane;
  const int i = rest / base.across, j = rest - i * base.across;
  const bool works = t < total.base_items;
  float bias = 0.f;
  if (works && has_base) {
    float taps[filter_words(kernel)];
    load_taps<kernel>(taps, filters);
    bias = taps[kernel * kernel];
    filter_item<kernel, base_rows>(sums, arena + k * total.words + i * (8 * base.pitch + total.skew) + 4 * j,
                                   base.pitch, total.skew, taps);
  } else {
#pragma unroll
    for (int r = 0; r < base_rows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = 0.f;
  }
  __syncthreads();
  if (works) finish(k, i, j, bias, sums);
}

}  // namespace wtconv::cuda
