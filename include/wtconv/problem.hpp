// What is computed: the operator's sizes, its parameters and its gradients.
//
// WTConv (Finder, Amoyal, Treister, Freifeld, ECCV 2024), for x of shape (B, C, H, W):
//
//   X[0] = x
//   for l = 1..L:
//     Y[l] = haar(X[l-1] zero-padded at bottom/right to even size)    bands LL, LH, HL, HH
//     Z[l] = wavelet_scale[l] * (Y[l] (*) wavelet_weight[l])          per channel and band, 'same' zero padding
//     X[l] = Y[l].LL
//   R[L+1] = 0
//   for l = L..1:
//     R[l] = crop(inverse_haar(Z[l].LL + R[l+1], Z[l].LH, Z[l].HL, Z[l].HH))
//   y = base_scale * (x (*) base_weight + base_bias) + R[1], every stride-th row and column kept
//
// (*) is cross-correlation. Of the k-1 zeros of padding, (k-1)/2 go to the top/left (PyTorch's 'same').
// Haar of a block [a b; c d]: LL, LH, HL, HH = (a+b+c+d, a+b-c-d, a-b+c-d, a-b-c+d) / 2, its own inverse.
// Sizes halve by ceiling: 7 -> 4 -> 2.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "wtconv/export.hpp"
#include "wtconv/status.hpp"
#include "wtconv/tensor.hpp"

namespace WTCONV_EXPORT wtconv {

inline constexpr int max_levels = 8;
inline constexpr int max_kernel = 15;

// Rows of a wavelet weight: row 4c + band.
enum Band { LL, LH, HL, HH };

// An aggregate, made for designated initialisers: Problem{.batch = 64, .channels = 96, .height = 56, .width = 56}.
// The memory layout of x and y is not part of it: it is read from their views.
struct Problem {
  std::int64_t batch = 1;     // B >= 0
  std::int64_t channels = 1;  // C >= 1
  std::int64_t height = 1;    // H >= 1
  std::int64_t width = 1;     // W >= 1
  int kernel = 5;             // k in 1..15, odd or even
  int levels = 1;             // L in 0..8
  int stride = 1;             // of the output, >= 1
  DType dtype = DType::f32;   // of x, y, dy and dx

  std::int64_t out_height() const { return (height + stride - 1) / stride; }
  std::int64_t out_width() const { return (width + stride - 1) / stride; }
  // Height and width of a band at level l >= 1 (of x at l = 0): ceil(H / 2^l).
  std::int64_t height_at(int level) const { return ((height - 1) >> level) + 1; }
  std::int64_t width_at(int level) const { return ((width - 1) >> level) + 1; }
  // Zeros above (left of) the image under PyTorch's 'same' padding; kernel - 1 - pad_before() go below (right).
  int pad_before() const { return (kernel - 1) / 2; }

  friend bool operator==(const Problem&, const Problem&) = default;
};

// invalid_argument with the first value that is out of range, also when x would have more than 2^48 elements.
Status validate(const Problem& problem);
// "n64c96h56w56k5l5_f32", with "_s2" when the stride is not 1: the case grammar's head.
std::string to_string(const Problem& problem);

// Views of the layer's parameters. All share one dtype: the problem's, or f32 where the problem is f16 or bf16.
// All are dense (row-major). `wavelet_weight[l - 1]` belongs to level l.
template <class View>
struct ParameterSet {
  View base_weight{};                             // (C, 1, k, k)
  View base_bias{};                               // (C), may be absent
  View base_scale{};                              // (C)
  std::array<View, max_levels> wavelet_weight{};  // (4C, 1, k, k), row 4c + band
  std::array<View, max_levels> wavelet_scale{};   // (4C)

  // Of one level; level 0 is the base.
  const View& weight(int level) const { return level == 0 ? base_weight : wavelet_weight[level - 1]; }
  const View& scale(int level) const { return level == 0 ? base_scale : wavelet_scale[level - 1]; }
};
using Parameters = ParameterSet<ConstTensorView>;

// Where gradients go; an absent view's gradient is not computed, and work that only it needs is skipped.
// `x` has the problem's dtype and any strides that do not overlap; the others are dense with the parameters' dtype.
struct Gradients {
  TensorView x{};
  ParameterSet<TensorView> parameters{};
};

// Which gradients a backward call computes, for workspace queries and plans.
struct GradientMask {
  bool x = true;
  bool base = true;     // any of base_weight, base_bias, base_scale
  bool wavelet = true;  // any wavelet_weight or wavelet_scale
  bool any_parameter() const { return base || wavelet; }
  friend bool operator==(const GradientMask&, const GradientMask&) = default;
};
GradientMask mask_of(const Gradients& gradients);

}  // namespace wtconv
