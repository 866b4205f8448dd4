// Arguments of strategy `cluster`, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/arguments.hpp"
#include "cuda/layout.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

// A row of a band that belongs into the border of another one.
struct BorderRow {
  int hops = 0;  // to the other block
  int from = 0;  // row of this band
  int to = 0;    // the same row as the other band counts: negative above it, its height and more below
};
// The row that other bands of the same height have at a distance of `away` rows from theirs: down, above their first,
// else below their last.
constexpr BorderRow border_row(int height, int away, bool down) {
  int hops = 1, within = away;
  for (; within >= height; within -= height) ++hops;
  return down ? BorderRow{hops, height - 1 - within, -1 - away} : BorderRow{-hops, within, height + away};
}

struct ClusterArgs {
  Image in, out;
  Filters filters;
  Work work{};  // planes, shared by clusters
  int height = 0;
  int blocks = 0;             // of a cluster: the bands of a plane
  bool load_vectors = false;  // rows of `in` can be read 4 elements at once
  int vector = 1;             // elements of one store, as in ResidentArgs
};
struct ClusterCall {
  DType dtype = DType::f32;
  int kernel = 0;
  int shape = -1;  // index in cluster_shapes, -1: geometry from `band`
  Layout band;
  ClusterArgs args;  // without the number of clusters
};

struct ClusterGradientArgs {
  Image x, dy;
  Work work{};
  int height = 0, blocks = 0;
  bool load_vectors_x = false, load_vectors_dy = false;
  int first_level = 0;        // the images are LL of this level
  bool base = true;           // sums for the base filter too
  float* partials = nullptr;  // [slot][block of the cluster][filter][tap], then one sum of dy
};
struct ClusterGradientCall {
  DType dtype = DType::f32;
  int kernel = 0;
  int shape = -1;  // index in cluster_gradient_shapes, -1: geometry from the layouts
  Layout x, dy;
  ClusterGradientArgs
      args;  // work.blocks: the most clusters there may be; the launcher lowers it to those that run at once
};

// One of each per element type and kernel size, in a unit of its own.
template <DType dtype, int kernel>
cudaError_t launch_cluster_as(const ClusterCall& call, cudaStream_t stream);
template <DType dtype, int kernel>
cudaError_t launch_cluster_gradient_as(ClusterGradientCall& call, cudaStream_t stream);

// Bytes of dynamic shared memory a block needs.
std::size_t cluster_memory(const Layout& band);
std::size_t cluster_gradient_memory(const Layout& x, const Layout& dy);

}  // namespace wtconv::cuda
