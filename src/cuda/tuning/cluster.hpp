// Tuning of strategy `cluster`. Changes speed, never results.
#pragma once

#include "cuda/tuning/resident.hpp"

namespace wtconv::cuda {

// Blocks that every GPU with clusters takes.
inline constexpr int most_cluster_blocks = 8;

// Rows of a band are a multiple of this: analysis and synthesis then never cross into the next band.
constexpr int band_unit(int levels) { return 1 << (levels > 3 ? levels : 3); }

// Rows of a band where `blocks` share a plane. The last band may be shorter or, of few units, empty.
constexpr int band_rows(int height, int levels, int blocks) {
  const int unit = band_unit(levels), units = (height + unit - 1) / unit;
  return (units + blocks - 1) / blocks * unit;
}

// What clusters take with geometry from arguments: forward and input gradient, planes up to so many pixels with at
// least so many levels: there as fast as `tiled` or nearly so, in one launch and less traffic. NVIDIA H200, 2026-12-01,
// 8 x 64 planes, k5, f32, ms, cluster / tiled (of a build where tiled was some 10% slower than it is): forward 128x128
// 5 levels 0.091 / 0.096, 150x150 0.214 / 0.276, 160x160 0.153 / 0.157, 192x192 0.194 / 0.176, 224x224 0.328 / 0.265,
// 128x128 2 levels 0.061 / 0.055; weight gradient 128x128 5 levels 0.121 / 0.111, 160x160 0.198 / 0.173, 224x224 0.340
// / 0.280.
inline constexpr int any_cluster_pixels = 160 * 160, any_cluster_levels = 3;

// Planes with kernels of their own: geometry folded at compile time, rows read and written in vectors. The bands are of
// equal height.
struct ClusterShape {
  int height, width, levels, kernel;
  int cluster;  // blocks that share a plane
  int rows;     // of a filter item
  int blocks;   // that a multiprocessor holds at least
};
constexpr ResidentShape band_shape(const ClusterShape& s) {
  return {s.height / s.cluster, s.width, s.levels, s.kernel, 1, s.rows, s.blocks};
}
inline constexpr ClusterShape cluster_shapes[] = {
    {128, 128, 3, 3, 4, 8, 4}, {256, 256, 3, 3, 8, 8, 2},  //
    {128, 128, 3, 5, 4, 8, 4}, {256, 256, 3, 5, 8, 8, 2},  //
    {128, 128, 3, 7, 4, 8, 2}, {256, 256, 3, 7, 8, 8, 1},
};
inline constexpr ClusterShape cluster_gradient_shapes[] = {
    {128, 128, 3, 3, 4, 8, 2}, {256, 256, 3, 3, 8, 8, 1},  //
    {128, 128, 3, 5, 4, 8, 2}, {256, 256, 3, 5, 8, 8, 1},  //
    {128, 128, 3, 7, 4, 8, 1}, {256, 256, 3, 7, 8, 8, 1},
};

}  // namespace wtconv::cuda
