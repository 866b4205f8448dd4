// The one way from run-time values to template values, and the one way to report a launch.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "cuda/device.hpp"
#include "cuda/kernels/element.cuh"

namespace wtconv::cuda {

template <class T>
struct TypeTag {
  using type = T;
};
template <int V>
struct Int {
  static constexpr int value = V;
  constexpr operator int() const { return V; }
};

// Calls f(TypeTag<T>{}) with the device type of `dtype`.
template <class F>
cudaError_t dispatch_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return std::forward<F>(f)(TypeTag<float>{});
    case DType::f64:
      return std::forward<F>(f)(TypeTag<double>{});
    case DType::f16:
      return std::forward<F>(f)(TypeTag<__half>{});
    case DType::bf16:
      return std::forward<F>(f)(TypeTag<__nv_bfloat16>{});
  }
  return cudaErrorInvalidValue;
}

// Error of the launch just made. cudaGetLastError clears what is not sticky, so the next good call works.
inline cudaError_t launched() { return cudaGetLastError(); }

// The device type of a DType known at compile time.
template <DType dtype>
using DeviceType = std::conditional_t<
    dtype == DType::f64, double,
    std::conditional_t<dtype == DType::f16, __half, std::conditional_t<dtype == DType::bf16, __nv_bfloat16, float>>>;

template <class Kernel>
cudaError_t prepare_persistent(Kernel* kernel, int threads, std::size_t shared, int& per_multiprocessor) {
  return prepare_kernel(reinterpret_cast<const void*>(kernel), 1, threads, shared, per_multiprocessor);
}

}  // namespace wtconv::cuda
