// A plane's geometry as kernels see it: a constant of the type, or a kernel argument. Kernels are written once over
// both.
#pragma once

#include <iterator>
#include <utility>

#include "cuda/kernels/dispatch.cuh"
#include "cuda/layout.hpp"
#include "cuda/tuning/resident.hpp"

namespace wtconv::cuda {

// Folded into the instructions.
template <ResidentShape shape, Use use>
struct FixedPlane {
  static constexpr Layout layout =
      make_layout(shape.height, shape.width, shape.levels, shape.kernel, shape.planes, shape.rows, use);
  static constexpr int max_threads = layout.total.threads, min_blocks = shape.blocks, item_rows = shape.rows;
  template <int l>
  __device__ __forceinline__ static constexpr LevelLayout at(Int<l>) {
    constexpr LevelLayout v = layout.level[l];
    return v;
  }
  __device__ __forceinline__ static constexpr LayoutTotals total() {
    constexpr LayoutTotals v = layout.total;
    return v;
  }
};

// Read from the kernel's arguments: any size. Its levels are a loop, not unrolled.
struct AnyPlane {
  Layout layout;
  static constexpr int max_threads = any_threads, min_blocks = 1, item_rows = any_rows;
  __device__ __forceinline__ const LevelLayout& at(int l) const { return layout.level[l]; }
  __device__ __forceinline__ const LayoutTotals& total() const { return layout.total; }
};

// Calls f(Int<i>{}) for the shape of that index among those for this kernel size.
template <int kernel, const auto& shapes, class F>
cudaError_t dispatch_shape(int index, F&& f) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    cudaError_t result = cudaErrorInvalidValue;
    const auto one = [&](auto at) {
      if constexpr (shapes[at].kernel == kernel) {
        if (index == at) result = f(at);
      }
    };
    (one(Int<static_cast<int>(i)>{}), ...);
    return result;
  }
  (std::make_index_sequence<std::size(shapes)>{});
}

// f(Int<first>{}), ..., f(Int<last>{})
template <int first, int last, class F>
__device__ __forceinline__ void static_for(F&& f) {
  if constexpr (first <= last) {
    f(Int<first>{});
    static_for<first + 1, last>(f);
  }
}

// f(l) for the plane's levels from `first` on: an Int<l> where they are constants, else an int.
template <int first, class Plane, class F>
__device__ __forceinline__ void each_level(const Plane& plane, F&& f) {
  if constexpr (std::is_empty_v<Plane>) {
    static_for<first, max_levels>([&](auto l) {
      if (l <= plane.total().levels) f(l);
    });
  } else {
#pragma unroll 1
    for (int l = first; l <= plane.total().levels; ++l) f(l);
  }
}

// The level before l.
template <int l>
__device__ __forceinline__ constexpr Int<l - 1> before(Int<l>) {
  return {};
}
__device__ __forceinline__ int before(int l) { return l - 1; }

// threadIdx.x, read again at every call. Otherwise index arithmetic is hoisted out of a persistent block's loop into
// registers that the filters need (nvcc 13.0 spills them).
__device__ __forceinline__ int thread_index() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}

}  // namespace wtconv::cuda
