// The launchers: one function a kernel family, typed arguments in, cudaError_t out. Free of device code, so that host
// files include it. A launcher leaves no sticky error behind.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/arguments.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

// ok if this build holds code for the current device.
cudaError_t probe_kernels();

// --- levels: any type, kernel size and layout ---------------------------------------------------------------------
//
// The published formulation is level by level launch_filters, which forms the bands it filters, then launch_synthesis
// over all levels and the base filter. What its reformulations do away with are launches of their own: launch_bands,
// launch_scale, launch_synthesis of one level. Images between launches are dense, in the compute type: a level's four
// bands are (B, C, 4, h, w), LL and the base image (B, C, h, w).
struct LevelArgs {
  DType dtype = DType::f32;  // of `in`
  Image in{};                // height x width
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  int kernel = 0, level = 0;
  bool formed = false;  // `in` holds what is to be filtered: the image itself (level 0), or the level's bands
  bool scaled = true;   // the scale is part of the weights
  Filters filters{};
  void* out = nullptr;  // the filtered bands, or base image
  void* low = nullptr;  // LL; may be null
};
// Filters one level: its four bands, which are formed from the image above unless they are given, or the base image.
cudaError_t launch_filters(const LevelArgs& args, cudaStream_t stream);
// `out`: the four bands of `in`, not filtered.
cudaError_t launch_bands(const LevelArgs& args, cudaStream_t stream);
// Multiplies `out`, the filtered bands or base image of height x width, by the scale.
cudaError_t launch_scale(const LevelArgs& args, cudaStream_t stream);

// out = base + the synthesis of some levels, of which `filtered[1]` is the first, in one bit-indexed pass.
struct SynthesisArgs {
  DType dtype = DType::f32;  // of `in` and `out`
  Image in{}, out{};
  Filters filters{};  // weight[0]: base filter, applied to `in`; null: none
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  int kernel = 0, levels = 0;
  const void* filtered[max_levels + 1] = {};
  const void* base = nullptr;  // a base image that is filtered already; may be null
  const void* rest = nullptr;  // what the levels beyond add to the LL of the last; may be null
};
cudaError_t launch_synthesis(const SynthesisArgs& args, cudaStream_t stream);

// Sums of x(p + t) * dy(p) over one level (0: the images themselves) for every tap t, one partial a slot of `work`.
struct LevelGradientArgs {
  DType dtype = DType::f32;
  Image x, dy;  // images of height x width that this level splits, or (`formed`) has been split into
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  int kernel = 0, level = 0, levels = 0;
  bool formed = false;  // they hold the level's bands, (B, C, 4, height, width)
  Work work;
  void* partials = nullptr;                  // [slot][filter][tap], then one sum of dy; compute type
  void *low_x = nullptr, *low_dy = nullptr;  // LL of both, (B, C, h, w); may be null
};
cudaError_t launch_level_gradient(const LevelGradientArgs& args, cudaStream_t stream);

// --- the closing kernel of every backward -------------------------------------------------------------------------

// Partial sums of some levels: (first_level, first_level + levels], and of the base filter where first_level is 0.
struct Partials {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32 or f64
  Work work;
  int first_level = 0, levels = 0;
  int bands = 1;  // partials that lie in each slot, one after the other: strategy cluster leaves one a band
};
inline constexpr int max_partials = 4;  // a strategy splits off two levels at a time

// Adds the partials in the order of the work and turns them into gradients of weights, scales and bias.
struct FinishArgs {
  Filters filters{};
  FilterGradients gradients;
  int kernel = 0, levels = 0;
  std::int64_t channels = 0;
  Partials partials[max_partials] = {};  // by first level
  int count = 0;
};
cudaError_t launch_finish(const FinishArgs& args, cudaStream_t stream);

// Elements of one slot of partials: every filter's taps and the sum of dy.
constexpr std::int64_t partial_size(int kernel, int levels) {
  return std::int64_t{filter_count(levels)} * kernel * kernel + 1;
}

}  // namespace wtconv::cuda
