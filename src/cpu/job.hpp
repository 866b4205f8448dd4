// What a call hands to the vector engine, and what the engine offers: the seam between host code and dispatched code.
#pragma once

#include <cstdint>

#include "cpu/geometry.hpp"

namespace wtconv::cpu {

// One call: y = filter(in), where `in` is x in the forward pass and dy in the backward pass (with every kernel
// rotated), and, when sums are wanted, the correlations of x with `in` that give the weight gradients.
struct Job {
  const Geometry* geometry;
  ConstTensorView in;    // x, or dy
  int in_stride = 1;     // `in` holds every in_stride-th row and column; the others are zero
  TensorView out{};      // y or dx; absent if not wanted
  int out_stride = 1;    // every out_stride-th row and column is kept
  bool rotated = false;  // kernels rotated by 180 degrees, padding sides swapped, no bias

  ConstTensorView x{};         // for the sums; absent if not wanted
  double* partials = nullptr;  // [parts][channels][filters * taps + 1], if geometry->parts() > 1
  // Called once per channel with all its sums, in order base, then level by level and band by band, and the sum of dy
  // last; only if geometry->parts() == 1.
  void (*finish)(void* context, std::int64_t channel, const double* sums) = nullptr;
  void* finish_context = nullptr;

  const Parameters* parameters;
};

struct Engine {
  int lanes_f32;
  int lanes_f64;
  const char* target;
  void (*run_f32)(const Job& job, std::int64_t task, void* scratch);
  void (*run_f64)(const Job& job, std::int64_t task, void* scratch);
};

// The engine for this machine's instruction set.
const Engine& engine();

}  // namespace wtconv::cpu
