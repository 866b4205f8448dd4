// Tuning of strategy `resident`: which plane sizes get a kernel of their own, and its shape. Changes speed, never
// results.
#pragma once

#include "cuda/kernels/plane.cuh"

namespace wtconv::cuda {

// The stages of the standard networks at 224 x 224, with the level counts they use. Geometry folded at compile time
// against the same kernel with geometry in its arguments (AnyPlane): see docs/cuda.md.
//
// planes a block, rows an item, blocks a multiprocessor: best of the study's variants, NVIDIA H200, 2026-11-30. More
// planes in flight need fewer registers: 96 to 127 without spills were best, 72 spilled to device memory.
template <int kernel>
struct ResidentTuning;
template <>
struct ResidentTuning<3> {
  using Plane56 = FixedPlane<56, 56, 5, 3, 1, 7, 4>;
  using Plane28 = FixedPlane<28, 28, 4, 3, 2, 7, 6>;
  using Plane14 = FixedPlane<14, 14, 3, 3, 4, 7, 6>;
};
template <>
struct ResidentTuning<5> {
  using Plane56 = FixedPlane<56, 56, 5, 5, 1, 7, 3>;
  using Plane28 = FixedPlane<28, 28, 4, 5, 2, 7, 5>;
  using Plane14 = FixedPlane<14, 14, 3, 5, 4, 4, 6>;
};
// Not measured yet: 52 words of taps leave room for fewer blocks.
template <>
struct ResidentTuning<7> {
  using Plane56 = FixedPlane<56, 56, 5, 7, 1, 7, 2>;
  using Plane28 = FixedPlane<28, 28, 4, 7, 2, 7, 3>;
  using Plane14 = FixedPlane<14, 14, 3, 7, 4, 4, 4>;
};

// Any other plane: as many threads as it has items. 640 threads leave 96 registers each, enough for k = 7.
inline constexpr int resident_max_threads = 640;
using ResidentAny = AnyPlane<resident_max_threads>;

}  // namespace wtconv::cuda
