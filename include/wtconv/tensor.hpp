// Tensor views: memory the caller owns, with arbitrary element strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "wtconv/export.hpp"

namespace WTCONV_EXPORT wtconv {

enum class DType : std::uint8_t { f32, f64, f16, bf16 };

const char* to_string(DType dtype);            // "f32", "f64", "f16", "bf16"
constexpr std::int64_t size_of(DType dtype) {  // bytes per element
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}
// The type sums are accumulated in: f64 for f64, otherwise f32.
constexpr DType compute_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

inline constexpr int max_rank = 4;

// A view of at most four dimensions. Extents and strides are in elements; strides may be zero (inputs only) or
// negative. A view without data is absent: an optional input that is not there, or a gradient nobody asked for.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, max_rank> extents{};
  std::array<std::int64_t, max_rank> strides{};

  explicit operator bool() const { return data != nullptr; }
  // Number of elements.
  std::int64_t size() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= extents[d];
    return n;
  }
  operator BasicTensorView<const void*>() const requires(!std::is_same_v<Pointer, const void*>) {
    return {data, dtype, rank, extents, strides};
  }
  friend bool operator==(const BasicTensorView&, const BasicTensorView&) = default;
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

// Row-major view of the given extents.
TensorView dense(void* data, DType dtype, std::initializer_list<std::int64_t> extents);
ConstTensorView dense(const void* data, DType dtype, std::initializer_list<std::int64_t> extents);
// (B, C, H, W) view whose memory order is B, H, W, C (channels last).
TensorView channels_last(void* data, DType dtype, std::int64_t b, std::int64_t c, std::int64_t h, std::int64_t w);
ConstTensorView channels_last(const void* data, DType dtype, std::int64_t b, std::int64_t c, std::int64_t h,
                              std::int64_t w);

// True if every element lies where a row-major layout puts it (strides of extents of 1 do not count).
bool is_dense(const ConstTensorView& view);
// True if two different indices may address the same element.
bool self_overlaps(const ConstTensorView& view);
// True if the two views may share a byte. Interleaved views that provably do not (two channel slices of one buffer)
// give false.
bool may_overlap(const ConstTensorView& a, const ConstTensorView& b);
// "f32 (2, 3, 8, 8) strides (192, 64, 8, 1)"
std::string to_string(const ConstTensorView& view);

}  // namespace wtconv
