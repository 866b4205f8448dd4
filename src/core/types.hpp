// Element types, their conversion to and from the compute type, and the one dispatcher from DType to a type.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "wtconv/tensor.hpp"

namespace wtconv {

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

// What sums of a storage type are kept in.
template <class T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline float to_float(float v) { return v; }
inline double to_float(double v) { return v; }
inline float to_float(BFloat16 v) { return std::bit_cast<float>(std::uint32_t{v.bits} << 16); }
// IEEE binary16 -> binary32, exact. Branch-free, so that compilers vectorise loops over it: the exponent is rebiased
// by a multiplication that also normalises subnormals.
inline float to_float(Half v) {
  const std::uint32_t magnitude = std::uint32_t(v.bits & 0x7fffu) << 13;
  const std::uint32_t sign = std::uint32_t(v.bits & 0x8000u) << 16;
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000u);  // 2^112
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;                 // inf or nan
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

// Round to nearest, ties to even; overflow gives infinity; nan stays nan.
template <class T>
T from_float(ComputeOf<T> v);
template <>
inline float from_float<float>(float v) {
  return v;
}
template <>
inline double from_float<double>(double v) {
  return v;
}
template <>
inline BFloat16 from_float<BFloat16>(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {std::uint16_t(is_nan ? (bits >> 16) | 0x40u : rounded)};
}
template <>
inline Half from_float<Half>(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: rebias, then round the 13 dropped bits to nearest even.
  const std::uint32_t rebased = magnitude - 0x38000000u;
  const std::uint32_t normal = (rebased + 0x0fffu + ((rebased >> 13) & 1u)) >> 13;
  // Subnormal results (magnitude < 2^-14): adding 0.5 lets the FPU round at the right bit.
  const float shifted = std::bit_cast<float>(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // rounds past 65504
  result = magnitude > 0x7f800000u ? 0x7e00u : result;   // nan
  return {std::uint16_t(result | sign)};
}

template <class T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>{}) with the C++ type of `dtype`.
template <class F>
decltype(auto) dispatch_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return std::forward<F>(f)(TypeTag<double>{});
    case DType::f16:
      return std::forward<F>(f)(TypeTag<Half>{});
    case DType::bf16:
      return std::forward<F>(f)(TypeTag<BFloat16>{});
    case DType::f32:
      break;
  }
  return std::forward<F>(f)(TypeTag<float>{});
}

// Element i of a dense array, as double.
inline double load_double(const void* data, DType dtype, std::int64_t i) {
  return dispatch_dtype(
      dtype, [&](auto tag) -> double { return to_float(static_cast<const typename decltype(tag)::type*>(data)[i]); });
}
inline void store_double(void* data, DType dtype, std::int64_t i, double v) {
  dispatch_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // f16 and bf16 round once more from f32: a double that is a tie only after the first rounding may move by one
    // half ulp of f32, far below their own.
    static_cast<T*>(data)[i] = from_float<T>(static_cast<ComputeOf<T>>(v));
  });
}

}  // namespace wtconv
