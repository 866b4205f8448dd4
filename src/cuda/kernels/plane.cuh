// A plane's geometry as kernels see it: a constant of the type, or a kernel argument. Kernels are written once over
// both.
#pragma once

#include "cuda/kernels/dispatch.cuh"
#include "cuda/layout.hpp"

namespace wtconv::cuda {

// Folded into the instructions. min_blocks: blocks a multiprocessor should hold, which bounds the registers.
template <int height, int width, int levels, int kernel, int planes, int rows_per_item, int min_blocks_>
struct FixedPlane {
  static constexpr Layout layout = make_layout(height, width, levels, kernel, planes, rows_per_item);
  static constexpr bool fixed = true;
  static constexpr int max_threads = layout.total.threads, min_blocks = min_blocks_, item_rows = rows_per_item;
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
template <int max_threads_>
struct AnyPlane {
  Layout layout;
  static constexpr bool fixed = false;
  static constexpr int max_threads = max_threads_, min_blocks = 1, item_rows = 8;
  template <int l>
  __device__ __forceinline__ const LevelLayout& at(Int<l>) const {
    return layout.level[l];
  }
  __device__ __forceinline__ const LayoutTotals& total() const { return layout.total; }
};

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
