// What the strategies that compute on chip share on the host side.
#pragma once

#include <string>

#include "cuda/kernels/launch.hpp"
#include "cuda/kernels/resident.hpp"
#include "cuda/kernels/tiled.hpp"
#include "wtconv/problem.hpp"

namespace wtconv::cuda {

// Empty, or why no on-chip strategy takes the problem.
std::string not_on_chip(const Problem& p);

// Calls launch.operator()<dtype, kernel>(): one unit for each pair.
template <class Launch>
cudaError_t dispatch_unit(DType dtype, int kernel, Launch&& launch) {
  const auto sized = [&]<DType type>() {
    switch (kernel) {
      case 3:
        return launch.template operator()<type, 3>();
      case 5:
        return launch.template operator()<type, 5>();
      case 7:
        return launch.template operator()<type, 7>();
    }
    return cudaErrorInvalidValue;
  };
  switch (dtype) {
    case DType::f32:
      return sized.template operator()<DType::f32>();
    case DType::f16:
      return sized.template operator()<DType::f16>();
    case DType::bf16:
      return sized.template operator()<DType::bf16>();
    case DType::f64:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace wtconv::cuda
