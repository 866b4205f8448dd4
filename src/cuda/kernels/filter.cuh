// The depthwise filter of one item: 4 columns x `rows` rows of outputs in registers, slid over shared memory.
#pragma once

#include "cuda/layout.hpp"

namespace wtconv::cuda {

// Taps of a filter, read as 16-byte vectors.
template <int kernel>
__device__ __forceinline__ void load_taps(float (&taps)[filter_words(kernel)], const float* from) {
#pragma unroll
  for (int i = 0; i < filter_words(kernel) / 4; ++i) {
    const float4 v = reinterpret_cast<const float4*>(from)[i];
    taps[4 * i] = v.x;
    taps[4 * i + 1] = v.y;
    taps[4 * i + 2] = v.z;
    taps[4 * i + 3] = v.w;
  }
}

// What a row of 4 outputs reads: 4 + 2 left words, starting at the border.
template <int kernel>
struct Window {
  static constexpr int pad = kernel / 2, left = (pad + 1) / 2 * 2, words = 4 + 2 * left, first = left - pad;
  static_assert(words % 4 == 0);
  float v[words];
  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < words / 4; ++i) {
      const float4 q = reinterpret_cast<const float4*>(from)[i];
      v[4 * i] = q.x;
      v[4 * i + 1] = q.y;
      v[4 * i + 2] = q.z;
      v[4 * i + 3] = q.w;
    }
  }
};

// sums(r, j) = sum over taps of tap * image(r + i - pad, j + i' - pad). `from`: upper left of the item's window. One
// input row feeds up to `kernel` output rows; `skew` words lie before every eighth row.
template <int kernel, int rows>
__device__ __forceinline__ void filter_item(float (&sums)[rows][4], const float* from, int pitch, int skew,
                                            const float (&taps)[filter_words(kernel)]) {
#pragma unroll
  for (int r = 0; r < rows + kernel - 1; ++r) {
    Window<kernel> in;
    in.load(from + r * pitch + r / 8 * skew);
#pragma unroll
    for (int i = 0; i < kernel; ++i) {
      const int o = r - i;
      if (o < 0 || o >= rows) continue;
#pragma unroll
      for (int k = 0; k < kernel; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float product = taps[i * kernel + k] * in.v[in.first + j + k];
          sums[o][j] = i == 0 && k == 0 ? product : sums[o][j] + product;
        }
      }
    }
  }
}

// Writes an item's results over the band they came from, `height` x `width` of them. 8-byte stores at a 16-byte lane
// stride would conflict two ways: every second group of 8 lanes stores its right half first.
template <int rows>
__device__ __forceinline__ void put_item(const float (&sums)[rows][4], float* to, int pitch, int height, int width,
                                         bool right_first) {
  if (width >= 4 && height >= rows) {
    float* const first = to + (right_first ? 2 : 0);
    float* const second = to + (right_first ? 0 : 2);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float(&s)[4] = sums[r];
      *reinterpret_cast<float2*>(first + r * pitch) = make_float2(right_first ? s[2] : s[0], right_first ? s[3] : s[1]);
      *reinterpret_cast<float2*>(second + r * pitch) =
          make_float2(right_first ? s[0] : s[2], right_first ? s[1] : s[3]);
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < rows; ++r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (r < height && j < width) to[r * pitch + j] = sums[r][j];
    }
  }
}

}  // namespace wtconv::cuda
