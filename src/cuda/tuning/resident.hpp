// Tuning of strategy `resident`: which plane sizes get a kernel of their own, and its shape. Changes speed, never
// results.
#pragma once

#include <cstddef>

#include "wtconv/problem.hpp"

namespace wtconv::cuda {

struct ResidentShape {
  int height, width, levels, kernel;
  int planes;  // in a block
  int rows;    // of a filter item (bands; the weight gradient's items of level 0 too)
  int blocks;  // that a multiprocessor holds at least, which bounds the registers
};

// The stages of the standard networks at 224 x 224, with the level counts they use. Geometry folded at compile time
// against the same kernel with geometry in its arguments: 1.5 times as fast (docs/cuda.md).
//
// k = 3, 5: best of the feasibility study's variants, NVIDIA H200, 2026-11-30. More planes in flight need fewer
// registers: 96 to 128 without spills were best, 72 spilled to device memory. k = 7: 52 words of taps leave registers
// for fewer blocks.
inline constexpr ResidentShape apply_shapes[] = {
    {56, 56, 5, 3, 1, 7, 4}, {28, 28, 4, 3, 2, 7, 6}, {14, 14, 3, 3, 4, 7, 6},  //
    {56, 56, 5, 5, 1, 7, 3}, {28, 28, 4, 5, 2, 7, 5}, {14, 14, 3, 5, 4, 4, 6},  //
    {56, 56, 5, 7, 1, 7, 2}, {28, 28, 4, 7, 2, 7, 3}, {14, 14, 3, 7, 4, 4, 4},
};

// The weight gradient: every thread keeps a filter's sums (k * k registers) over all planes of a channel; two pyramids.
// Not varied yet.
inline constexpr ResidentShape gradient_shapes[] = {
    {56, 56, 5, 3, 1, 7, 2}, {28, 28, 4, 3, 2, 7, 4}, {14, 14, 3, 3, 4, 7, 6},  //
    {56, 56, 5, 5, 1, 7, 2}, {28, 28, 4, 5, 2, 7, 4}, {14, 14, 3, 5, 4, 7, 6},  //
    {56, 56, 5, 7, 1, 7, 2}, {28, 28, 4, 7, 2, 7, 3}, {14, 14, 3, 7, 4, 7, 4},
};

// Any other plane. 640 threads leave 96 registers each.
inline constexpr int any_threads = 640, any_registers = 96, any_rows = 8;

// Index of the shape made for this problem, or -1.
template <class Shape, std::size_t n>
constexpr int find_shape(const Shape (&shapes)[n], const Problem& p) {
  for (std::size_t i = 0; i < n; ++i) {
    const Shape& s = shapes[i];
    if (s.height == p.height && s.width == p.width && s.levels == p.levels && s.kernel == p.kernel) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace wtconv::cuda
