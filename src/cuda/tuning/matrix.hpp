// Tuning of strategy `resident` for 16-bit elements: which planes go to the matrix units. Changes speed, and how 16-bit
// results are rounded.
#pragma once

#include "cuda/matrix_layout.hpp"
#include "cuda/tuning/resident.hpp"
#include "wtconv/problem.hpp"

namespace wtconv::cuda {

// false: all 16-bit planes by the kernels that compute in scalar f32.
inline constexpr bool matrix_units = true;

struct MatrixShape {
  int height, width, levels, kernel;
  int planes;  // in a block
  int warps;
  int blocks;  // that a multiprocessor holds at least, which bounds the registers
};

// The stages of the standard networks at 224 x 224. About 3136 pixels a block fill the rows of the products. k = 3 is
// left to scalar f32: taps are a third of its instructions there.
inline constexpr MatrixShape matrix_shapes[] = {
    {56, 56, 5, 5, 1, 8, 4}, {28, 28, 4, 5, 4, 8, 3}, {14, 14, 3, 5, 16, 8, 2},
    {56, 56, 5, 7, 1, 8, 3}, {28, 28, 4, 7, 4, 8, 3}, {14, 14, 3, 7, 8, 4, 4},
};

constexpr MatrixLayout make_matrix_layout(const MatrixShape& s) {
  return make_matrix_layout(s.height, s.width, s.levels, s.kernel, s.planes, s.warps);
}

constexpr bool has_matrix_shape(int kernel) {
  for (const MatrixShape& s : matrix_shapes) {
    if (matrix_units && s.kernel == kernel) return true;
  }
  return false;
}

// Index of the shape that takes this problem, or -1.
constexpr int matrix_shape(const Problem& p) {
  return matrix_units && (p.dtype == DType::f16 || p.dtype == DType::bf16) ? find_shape(matrix_shapes, p) : -1;
}

// A block has 99 KiB on every GPU of compute capability 8 and up, so these planes never need another kernel.
static_assert([] {
  for (const MatrixShape& s : matrix_shapes) {
    if (make_matrix_layout(s).total.shared > 99 * 1024 - 64) return false;
  }
  return true;
}());

}  // namespace wtconv::cuda
