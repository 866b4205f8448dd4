// Tuning of strategy `registers`. Changes speed, never results.
#pragma once

#include <cstddef>

#include "wtconv/problem.hpp"

namespace wtconv::cuda {

// Planes small enough for one thread's registers. The last stage of the standard networks at 224 x 224.
struct RegisterShape {
  int height, width, levels, kernel;
};
inline constexpr RegisterShape register_shapes[] = {{7, 7, 2, 3}, {7, 7, 2, 5}, {7, 7, 2, 7}};

// A warp is 32 planes of one channel (the taps are the same for all lanes), a block four neighbouring channels: 4 x 49
// elements lie side by side. Three blocks a multiprocessor leave 168 registers: two planes and their bands fit.
inline constexpr int register_channels = 4, register_blocks = 3;

// Fewer planes of a channel leave too many lanes idle: `resident` is faster then. Not measured; a quarter of a warp.
inline constexpr int register_least_batch = 8;

constexpr int find_shape(const RegisterShape (&shapes)[3], const Problem& p) {
  for (std::size_t i = 0; i < 3; ++i) {
    const RegisterShape& s = shapes[i];
    if (s.height == p.height && s.width == p.width && s.levels == p.levels && s.kernel == p.kernel) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace wtconv::cuda
