// What host code hands to kernels: plain aggregates, passed by value.
#pragma once

#include <cstdint>

#include "wtconv/problem.hpp"
#include "wtconv/tensor.hpp"

namespace wtconv::cuda {

// A (B, C, H, W) image in device memory. With step > 1 only the rows and columns that step divides are stored (the
// output of a strided layer): the others read as zero and are not written.
struct Image {
  void* data = nullptr;
  std::int64_t batch = 0, channel = 0, row = 0, column = 0;  // strides in elements
  int step = 1;
};

// Whether channels lie closer together than pixels.
constexpr bool channels_innermost(const Image& image) { return image.channel < image.column; }

// The layer's parameters as the kernels read them. Entry 0 is the base filter (null: none), entry l the four bands of
// level l, which is the layer's level first_level + l: deep levels may be a problem of their own, on an LL image.
struct Filters {
  const void* weight[max_levels + 1] = {};
  const void* scale[max_levels + 1] = {};
  const void* bias = nullptr;
  DType dtype = DType::f32;
  int first_level = 0;
  bool rotated = false;  // by 180 degrees, padding sides swapped: the input gradient
};

// Where the closing kernel writes parameter gradients; null where nobody asked.
struct FilterGradients {
  void* weight[max_levels + 1] = {};
  void* scale[max_levels + 1] = {};
  void* bias = nullptr;
};

// The levels beyond `level`, without a base: what is left to do on LL[level].
constexpr Filters beyond(const Filters& f, int level) {
  Filters rest{.dtype = f.dtype, .first_level = f.first_level + level, .rotated = f.rotated};
  for (int l = 1; l + level <= max_levels; ++l) {
    rest.weight[l] = f.weight[l + level];
    rest.scale[l] = f.scale[l + level];
  }
  return rest;
}

// Number of k x k filters of a channel: base, then level by level LL, LH, HL, HH.
constexpr int filter_count(int levels) { return 1 + 4 * levels; }

// Zeros above and left of the image.
constexpr int pad_before(int kernel, bool rotated) { return rotated ? kernel / 2 : (kernel - 1) / 2; }

}  // namespace wtconv::cuda
