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

// Read from the kernel's arguments: any size.
struct AnyPlane {
  Layout layout;
  static constexpr int max_threads = any_threads, min_blocks = 1, item_rows = any_rows;
  template <int l>
  __device__ __forceinline__ const LevelLayout& at(Int<l>) const {
    return layout.level[l];
  }
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

// threadIdx.x, read again at every call. Otherwise index arithmetic is hoisted out of a persistent block's loop into
// registers that the filters need (nvcc 13.0 spills them).
__device__ __forceinline__ int thread_index() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}

}  // namespace wtconv::cuda
