// Tuning of strategy `tiled`. Changes speed, never results.
#pragma once

#include "cuda/tuning/resident.hpp"

namespace wtconv::cuda {

// Levels a tile does itself; deeper ones are done before, on the LL plane of the last (1/16 of the pixels). Problems of
// fewer levels take the same kernels, whose filters of the others are zero: kernels of their own would be 10% of the
// binary.
inline constexpr int tile_levels = 2;

// 64 x 64: at k = 5 the analysis reads 80 x 80 pixels, 1.56 times the tile, mostly from the L2 cache; a smaller tile
// reads more, a larger one leaves room for fewer blocks. A row of 16 items spans all banks twice: no skew. Not varied
// yet.
constexpr ResidentShape tile_shape(int kernel) {
  return {64, 64, tile_levels, kernel, 1, 8, kernel == 3 ? 4 : kernel == 5 ? 3 : 2};
}
constexpr ResidentShape gradient_tile_shape(int kernel) { return {64, 64, tile_levels, kernel, 1, 8, 2}; }

}  // namespace wtconv::cuda
