// Arguments of the on-chip weight gradient, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/arguments.hpp"
#include "cuda/layout.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

struct ResidentGradientArgs {
  Image x, dy;
  Work work{};  // groups of planes
  std::int64_t batch = 0, channels = 0;
  bool whole_words_x = false, whole_words_dy = false;  // as has_whole_words (cuda/neighbours.hpp)
  int piece_x = 0, piece_dy = 0;                       // as in ResidentArgs
  int first_level = 0;                                 // the images are LL of this level
  bool base = true;                                    // sums for the base filter too
  float* partials = nullptr;                           // [slot][filter][tap], then one sum of dy
};

struct ResidentGradientCall {
  DType dtype = DType::f32;
  int kernel = 0;
  int shape = -1;         // index in gradient_shapes, -1: geometry from the layouts
  bool together = false;  // by clusters of blocks of neighbouring channels
  Layout x, dy;
  ResidentGradientArgs args;
};

// One per element type and kernel size, each in a unit of its own. Lowers the work's blocks to what runs at once.
template <DType dtype, int kernel>
cudaError_t launch_resident_gradient_as(ResidentGradientCall& call, cudaStream_t stream);

// Words of x's pyramids; a channel's sums pass through the same memory.
constexpr int gradient_arena_words(const LayoutTotals& x, int kernel) {
  const int pyramids = x.planes * x.words + x.slack, sums = x.threads * (kernel * kernel + 1);
  return ((pyramids > sums ? pyramids : sums) + 3) / 4 * 4;
}

// Bytes of dynamic shared memory a block needs.
std::size_t resident_gradient_memory(const Layout& x, const Layout& dy, DType dtype, bool together = false);

}  // namespace wtconv::cuda
