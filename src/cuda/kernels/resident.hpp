// Arguments of strategy `resident`, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/arguments.hpp"
#include "cuda/layout.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

struct ResidentArgs {
  Image in, out;
  Filters filters;
  Work work{};  // groups of planes
  std::int64_t batch = 0, channels = 0;
  bool whole_words_in = false, whole_words_out = false;  // as has_whole_words (cuda/neighbours.hpp)
  int piece = 0;   // bytes of one asynchronous copy: 16 or 4; 0: element by element
  int vector = 1;  // elements of one store: 4 or 2; 1: element by element
};

template <class PlaneLayout>
struct ResidentCallOf {
  DType dtype = DType::f32;
  int kernel = 0;
  int shape = -1;         // index in the tuning's shapes, -1: geometry from `layout`
  bool together = false;  // by clusters of blocks of neighbouring channels
  PlaneLayout layout;
  int multiprocessors = 0;
  ResidentArgs args;  // without its work
};
using ResidentCall = ResidentCallOf<Layout>;

// One per element type and kernel size, each in a unit of its own.
template <DType dtype, int kernel>
cudaError_t launch_resident_as(const ResidentCall& call, cudaStream_t stream);

// Bytes of dynamic shared memory a block needs.
std::size_t resident_memory(const Layout& layout, DType dtype, bool together = false);

// Largest copy (store) that the strides and the base of planes of height x width allow, in bytes (elements).
int copy_piece(const Image& image, DType dtype, std::int64_t height, std::int64_t width);
int store_vector(const Image& image, DType dtype, std::int64_t height, std::int64_t width);

}  // namespace wtconv::cuda
