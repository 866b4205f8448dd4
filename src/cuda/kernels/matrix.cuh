// Pieces for the matrix units (mma.sync): Haar's analysis, the depthwise filter and the last synthesis step as products
// of small matrices. Data are the 16 rows of the first operand; the second holds taps or signs.
//
// How the lanes of a warp hold a 16 x 8 result: lane 4 g + q has columns 2 q and 2 q + 1 of rows g and g + 8.
#pragma once

#include "cuda/kernels/transfer.cuh"
#include "cuda/matrix_layout.hpp"

namespace wtconv::cuda {

struct Lane {
  int g, q;
  __device__ __forceinline__ explicit Lane(int t) : g(t >> 2 & 7), q(t & 3) {}
};

// sums += rows * columns; 16-bit elements in pairs. a: rows g, g + 8 of the first half of the inner dimension, then of
// the second.
__device__ __forceinline__ void multiply(float (&sums)[4], __half, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float (&sums)[4], __nv_bfloat16, const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same with 8 elements of f32, of which 11 bits count: f32's range.
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Sign of band s (bit 0: along the rows, bit 1: along the columns) in the lower (right) half.
__device__ __forceinline__ float band_sign(int s, int lower, int right) {
  return (s & lower) ^ (s >> 1 & right) ? -1.f : 1.f;
}

// --- analysis ------------------------------------------------------------------------------------------------------

// Levels 1 and 2 of 16 blocks of 4 x 4 pixels, as means: no sum leaves the range of its terms. Lane q holds row q of
// blocks 2 g and 2 g + 1. Products: [0], [1] are level 1's bands 2 t + (q >> 1), row q & 1, both columns of each block;
// [2] level 2's band q. The signs are exact in any type, the sums are f32.
template <class T>
struct Analysis {
  unsigned signs[3][2];
  __device__ __forceinline__ explicit Analysis(Lane lane) {
#pragma unroll
    for (int t = 0; t < 3; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = lane.q, column = 2 * half + e;  // the pixel
          if (t < 2) {
            const int band = 2 * t + (lane.g >> 2);
            const bool inside = row >> 1 == (lane.g >> 1 & 1) && column >> 1 == (lane.g & 1);
            v[e] = inside ? 0.25f * band_sign(band, row & 1, column & 1) : 0.f;
          } else {
            v[e] = lane.g & 1 ? 0.f : 0.0625f * band_sign(lane.g >> 1, row >> 1, column >> 1);
          }
        }
        signs[t][half] = pack(T{}, v[0], v[1]);
        asm volatile("" : "+r"(signs[t][half]));  // kept, not computed again for every tile
      }
    }
  }
  template <int t>
  __device__ __forceinline__ void run(const unsigned (&pixels)[4], float (&out)[4]) const {
    out[0] = out[1] = out[2] = out[3] = 0.f;
    multiply(out, T{}, pixels, signs[t][0], signs[t][1]);
  }
};

// --- filter --------------------------------------------------------------------------------------------------------

// One filter as the second operand: output n = g is row n / 4, column n % 4 of a patch, the inner dimension its window.
// Pairs 4 and 5 of a window's row (k = 7) are products of their own, two pairs of two rows each.
template <int kernel>
struct Taps {
  static constexpr int rows = kernel + 1;
  static constexpr bool wide = window_pairs(kernel) > 4;
  unsigned main[rows], side[wide ? rows / 2 : 1];
  __device__ __forceinline__ void load(const unsigned* table, Lane lane) {
    const int row = lane.g >> 2, column = lane.g & 3;
    const unsigned* const from = table + (1 - row) * table_row(kernel) + 3 - column;
#pragma unroll
    for (int r = 0; r < rows; ++r) main[r] = from[r * table_row(kernel) + 2 * lane.q];
    if constexpr (wide) {
      const unsigned* const beside = from + (lane.q >> 1) * table_row(kernel) + 2 * (4 + (lane.q & 1));
#pragma unroll
      for (int r = 0; r < rows / 2; ++r) side[r] = beside[2 * r * table_row(kernel)];
    }
  }
};

// The windows of two patches, sliding down two strips. Only the rows that are new are read.
template <class T, int kernel>
class Windows {
 public:
  // Upper left corners of the first windows, counted from the border.
  __device__ __forceinline__ Windows(const T* first, const T* second, int pitch, Lane lane)
      : at_{first + 2 * lane.q, second + 2 * lane.q},
        pitch_(pitch),
        beside_(8 - 2 * lane.q + 2 * (lane.q & 1)),
        lower_(lane.q >> 1) {
#pragma unroll
    for (int r = 0; r < rows - 2; ++r) read(r);
    if constexpr (wide) {
#pragma unroll
      for (int r = 0; r < rows / 2 - 1; ++r) read_side(r);
    }
  }
  // The next 16 patches.
  __device__ __forceinline__ void filter(const Taps<kernel>& taps, float (&sums)[4]) {
    read(rows - 2);
    read(rows - 1);
    if constexpr (wide) read_side(rows / 2 - 1);
    sums[0] = sums[1] = sums[2] = sums[3] = 0.f;
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      multiply(sums, T{}, {main_[0][r], main_[1][r], main_[0][r + 1], main_[1][r + 1]}, taps.main[r], taps.main[r + 1]);
    }
    if constexpr (wide) {
#pragma unroll
      for (int r = 0; r < rows / 2; r += 2) {
        multiply(sums, T{}, {side_[0][r], side_[1][r], side_[0][r + 1], side_[1][r + 1]}, taps.side[r],
                 taps.side[r + 1]);
      }
    }
#pragma unroll
    for (int p = 0; p < 2; ++p) {
#pragma unroll
      for (int r = 0; r < rows - 2; ++r) main_[p][r] = main_[p][r + 2];
      if constexpr (wide) {
#pragma unroll
        for (int r = 0; r < rows / 2 - 1; ++r) side_[p][r] = side_[p][r + 1];
      }
      at_[p] += 2 * pitch_;
    }
  }

 private:
  static constexpr int rows = kernel + 1;
  static constexpr bool wide = window_pairs(kernel) > 4;
  __device__ __forceinline__ void read(int r) {
#pragma unroll
    for (int p = 0; p < 2; ++p) main_[p][r] = *reinterpret_cast<const unsigned*>(at_[p] + r * pitch_);
  }
  __device__ __forceinline__ void read_side(int r) {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      side_[p][r] = *reinterpret_cast<const unsigned*>(at_[p] + beside_ + (2 * r + lower_) * pitch_);
    }
  }
  const T* at_[2];
  int pitch_, beside_, lower_;
  unsigned main_[2][rows], side_[2][wide ? rows / 2 : 1];
};

// A channel's filters. Each is stored with its largest tap scaled into [1/2, 1) by a power of two, so that 16 bits hold
// it whatever its type and size; factors[f] makes up for it and includes the scale. The bias follows the factors. What
// is zero in a table stays so: it is cleared once.
template <class T, int kernel>
__device__ __forceinline__ void load_tables(unsigned* tables, float* factors, const Filters& filters, int levels,
                                            std::int64_t c, int warp, int warps, int lane) {
  constexpr int taps = kernel * kernel, shift = 3 + window_left(kernel) - kernel / 2;
  constexpr int batch = 4;  // filters whose taps are on their way at once
#pragma unroll 1
  for (int first = warp; first < filter_count(levels); first += batch * warps) {
    float tap[batch][2] = {}, scale[batch] = {};
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const int f = first + n * warps, level = (f + 3) / 4, band = f == 0 ? 0 : (f - 1) % 4;
      if (f >= filter_count(levels) || !filters.weight[level]) continue;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if (lane + 32 * m < taps) tap[n][m] = plain_weight<float>(filters, kernel, level, band, c, lane + 32 * m);
      }
      scale[n] = filter_scale<float>(filters, level, band, c);
    }
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const int f = first + n * warps;
      if (f >= filter_count(levels)) break;
      const float larger = fmaxf(fabsf(tap[n][0]), fabsf(tap[n][1]));
      const unsigned largest = __reduce_max_sync(~0u, __float_as_uint(larger));
      const int exponent = min(static_cast<int>(largest >> 23) - 126, 126);  // 2^-exponent is a normal number
      const float unit = __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);
      // Lane i has taps i and 32 + i.
      const unsigned own = pack(T{}, unit * tap[n][0], unit * tap[n][1]), next = __shfl_sync(~0u, own, lane + 1);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int t = lane + 32 * m, row = t / kernel, column = t - row * kernel;
        if (t >= taps) continue;
        const unsigned bits = m == 0 ? own & 0xffff : own >> 16;
        const unsigned beside = m == 0 && lane < 31 ? next << 16 : next & 0xffff0000u;
        unsigned* const pair = tables + f * table_words(kernel) + (row + 1) * table_row(kernel) + column + shift;
        pair[0] = column == kernel - 1 ? bits : bits | beside;
        if (column == 0) pair[-1] = bits << 16;
      }
      // multiply_tf32 drops what follows 11 bits. A little more than the value itself makes that a rounding to the
      // nearest, nearly, and values of 11 bits stay what they are.
      const float nearest = f >= 1 && f <= 4 ? 1.f + 0x1p-12f : 1.f;
      if (lane == 0) factors[f] = nearest * ldexpf(scale[n], exponent - 2 * filters.first_level);
    }
  }
  if (warp == 0 && lane == 0) factors[filter_count(levels)] = filters.weight[0] ? folded_bias<float>(filters, c) : 0.f;
}

}  // namespace wtconv::cuda
