// The end of a weight gradient: from the sums over pixels to the gradients of one filter and of what multiplies it.
#pragma once

#include <cstdint>

#include "core/types.hpp"
#include "wtconv/problem.hpp"

namespace wtconv {

// With u = scale * weight: dL/dweight = scale * dL/du, dL/dscale = <weight, dL/du>; the base scale multiplies the bias,
// too. `row` is the filter's place at its level (c, or 4c + band), `sums` is dL/du (k * k), `sum_dy` the sum of the
// channel's dy, needed at level 0 if there is a bias. Gradients that `to` lacks are left out.
inline void finish_filter(const Problem& problem, const Parameters& parameters, const ParameterSet<TensorView>& to,
                          int level, std::int64_t row, const double* sums, double sum_dy) {
  const std::int64_t taps = std::int64_t{problem.kernel} * problem.kernel;
  const ConstTensorView &weight = parameters.weight(level), &scale = parameters.scale(level);
  const ConstTensorView bias = level == 0 ? parameters.base_bias : ConstTensorView{};
  const TensorView &to_weight = to.weight(level), &to_scale = to.scale(level);
  const double s = load_double(scale.data, scale.dtype, row);
  double dot = bias ? load_double(bias.data, bias.dtype, row) * sum_dy : 0;
  for (std::int64_t t = 0; t < taps; ++t) {
    if (to_weight) store_double(to_weight.data, to_weight.dtype, row * taps + t, s * sums[t]);
    dot += load_double(weight.data, weight.dtype, row * taps + t) * sums[t];
  }
  if (to_scale) store_double(to_scale.data, to_scale.dtype, row, dot);
  if (bias && to.base_bias) store_double(to.base_bias.data, to.base_bias.dtype, row, s * sum_dy);
}

}  // namespace wtconv
