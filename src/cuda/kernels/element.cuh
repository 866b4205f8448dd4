// Elements on the device: storage types, their conversion to and from the type sums are kept in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/arguments.hpp"

namespace wtconv::cuda {

// What sums of a storage type are kept in.
template <class T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
__device__ __forceinline__ T narrow(ComputeOf<T> v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(v);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(v);
  } else {
    return v;
  }
}

// Element i of an array whose type is known at run time: for parameters, which are read rarely.
template <class A>
__device__ __forceinline__ A load_any(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f64:
      return static_cast<A>(static_cast<const double*>(data)[i]);
    case DType::f16:
      return static_cast<A>(widen(static_cast<const __half*>(data)[i]));
    case DType::bf16:
      return static_cast<A>(widen(static_cast<const __nv_bfloat16*>(data)[i]));
    default:
      return static_cast<A>(static_cast<const float*>(data)[i]);
  }
}
__device__ __forceinline__ void store_any(void* data, DType dtype, std::int64_t i, double v) {
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(data)[i] = v;
      break;
    case DType::f16:
      static_cast<__half*>(data)[i] = narrow<__half>(static_cast<float>(v));
      break;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(data)[i] = narrow<__nv_bfloat16>(static_cast<float>(v));
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(v);
  }
}

// Offset of row r, column q of a plane, or -1 where the image does not keep it.
__device__ __forceinline__ std::int64_t offset_in_plane(const Image& image, std::int64_t r, std::int64_t q) {
  if (image.step == 1) return r * image.row + q * image.column;
  if (r % image.step != 0 || q % image.step != 0) return -1;
  return r / image.step * image.row + q / image.step * image.column;
}

template <class T>
__device__ __forceinline__ T* plane_of(const Image& image, std::int64_t b, std::int64_t c) {
  return static_cast<T*>(image.data) + b * image.batch + c * image.channel;
}

// Pixel (r, q) of a plane of height x width, zero outside.
template <class T>
__device__ __forceinline__ ComputeOf<T> pixel(const T* plane, const Image& image, std::int64_t r, std::int64_t q,
                                              std::int64_t height, std::int64_t width) {
  if (r < 0 || q < 0 || r >= height || q >= width) return 0;
  const std::int64_t at = offset_in_plane(image, r, q);
  return at < 0 ? ComputeOf<T>(0) : widen(plane[at]);
}

// One tap of filter `level`, `band` of channel c.
template <class A>
__device__ __forceinline__ A plain_weight(const Filters& f, int kernel, int level, int band, std::int64_t c, int tap) {
  const int taps = kernel * kernel;
  const std::int64_t row = level == 0 ? c : 4 * c + band;
  return load_any<A>(f.weight[level], f.dtype, row * taps + (f.rotated ? taps - 1 - tap : tap));
}
template <class A>
__device__ __forceinline__ A filter_scale(const Filters& f, int level, int band, std::int64_t c) {
  return load_any<A>(f.scale[level], f.dtype, level == 0 ? c : 4 * c + band);
}

// scale * weight.
template <class A>
__device__ __forceinline__ A folded_weight(const Filters& f, int kernel, int level, int band, std::int64_t c, int tap) {
  return filter_scale<A>(f, level, band, c) * plain_weight<A>(f, kernel, level, band, c, tap);
}

template <class A>
__device__ __forceinline__ A folded_bias(const Filters& f, std::int64_t c) {
  return f.bias ? load_any<A>(f.scale[0], f.dtype, c) * load_any<A>(f.bias, f.dtype, c) : A(0);
}

// Haar's step on a block [a b; c d], without its factor 1/2. The step is its own inverse (times 1/4).
template <class A>
struct Quad {
  A v[4];
};
template <class A>
__device__ __forceinline__ Quad<A> haar(A a, A b, A c, A d) {
  const A top = a + b, bottom = c + d, left = a - b, right = c - d;
  return {{top + bottom, top - bottom, left + right, left - right}};
}

}  // namespace wtconv::cuda
