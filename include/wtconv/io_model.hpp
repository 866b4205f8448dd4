// The I/O model: elements through main memory, multiply-adds, and the time a machine's roofline allows.
//
// Counts are of whole tensors, in elements of x's dtype: N = B C H W for x, and the four bands of level l together are
// 4 B C ceil(H / 2^l) ceil(W / 2^l). Weights are not counted (they are read once and stay in cache), and every
// primitive reads its operands once and writes its result once. The published formulas assume that sizes halve evenly
// (4 h[l] w[l] = h[l-1] w[l-1]) and that the stride is 1; the functions that take a Problem count its real sizes, so
// they agree with the formulas exactly where H and W are multiples of 2^L, and are larger elsewhere.
// All counts are doubles: exact below 2^53, no overflow above.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "wtconv/backend.hpp"
#include "wtconv/export.hpp"
#include "wtconv/problem.hpp"

namespace WTCONV_EXPORT wtconv {

// How the result is reached, as far as main memory sees it.
enum class Formulation {
  reference,        // the plain layer: every primitive materialises its result
  published_fused,  // arXiv 2608.10805: one kernel per level, one synthesis, scales folded
  one_kernel,       // this library: x read once, y written once
};
const char* to_string(Formulation formulation);  // "reference", "published fused", "one kernel"

// The published closed forms, in units of N, for L >= 1.
//   reference:       7 + 43/3 (1 - 4^-L)      17.75, 20.44, 21.11, 21.28, 21.32 for L = 1..5
//   published_fused: 7 + 4/3 (1 - 4^(1-L))     7.00,  8.00,  8.25,  8.31,  8.33
//   one_kernel:      2
double published_factor(Formulation formulation, int levels);

struct Traffic {
  double read = 0;  // elements
  double written = 0;
  double total() const { return read + written; }
  friend Traffic operator+(const Traffic& a, const Traffic& b) { return {a.read + b.read, a.written + b.written}; }
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// Elements a forward moves.
Traffic forward_traffic(const Problem& problem, Formulation formulation);
// Elements a backward must move: dy once, x once if a parameter's gradient is asked for, dx once if it is: 3 N with
// stride 1. The publications give no count for their backward passes, so this is the one-kernel formulation only; what
// a backend moves is in its Plan.
Traffic backward_traffic(const Problem& problem, GradientMask mask = {});

// What splitting planes into tiles of `tile_height` x `tile_width` outputs adds to forward_traffic(one_kernel), when
// the upper `local_levels` are computed inside a tile and a first kernel computes the deeper ones: the halos of
// the tiles, and, if there are deeper levels, x read once more and the synthesis of the deeper levels written and read.
Traffic tiled_extra(const Problem& problem, int local_levels, std::int64_t tile_height, std::int64_t tile_width);

struct Work {
  double multiply_adds = 0;
  double additions = 0;
  double flops() const { return 2 * multiply_adds + additions; }
};

// k^2 multiply-adds for each output of each filter, also where taps meet padding. The reference formulation runs the
// wavelet transforms as convolutions too (4 taps an element, each way); its scale and sum passes are not
// counted, as in the published intensity of 0.74 FLOP/byte for k = 3, L = 5, f32. The other two do a Haar step in
// 8 additions per 2 x 2 block. A stride saves filter work only in the one-kernel formulation.
Work forward_work(const Problem& problem, Formulation formulation);
// One forward's filter work for dx, one for the gradients of weights.
Work backward_work(const Problem& problem, GradientMask mask = {});

// FLOP per byte.
double arithmetic_intensity(const Work& work, const Traffic& traffic, DType dtype);

// A machine's two rates, per second. `bandwidth` counts bytes read plus bytes written.
struct Machine {
  std::string name;
  double bandwidth = 0;
  double fma_f32 = 0;
  double fma_f64 = 0;
  std::string source;  // where the figures come from
};
// RTX A6000, RTX PRO 6000 Blackwell, H200 (data sheet), H200 (measured).
std::span<const Machine> known_machines();

// The least time the two rates allow: the longer of moving the bytes and doing the multiply-adds.
struct Roofline {
  double memory_seconds = 0;
  double arithmetic_seconds = 0;
  bool memory_bound() const { return memory_seconds >= arithmetic_seconds; }
  double seconds() const { return memory_bound() ? memory_seconds : arithmetic_seconds; }
};
// f16 and bf16 are stored in 2 bytes and computed in f32.
Roofline roofline(const Machine& machine, const Traffic& traffic, const Work& work, DType dtype);
// The time of a formulation on a machine, from the counts above.
Roofline predict_forward(const Machine& machine, const Problem& problem, Formulation formulation);
Roofline predict_backward(const Machine& machine, const Problem& problem, GradientMask mask = {});

}  // namespace wtconv
