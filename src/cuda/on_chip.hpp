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

// Calls Launch<dtype, kernel>::run(call, stream): one unit for each pair.
template <template <DType, int> class Launch, class Call>
cudaError_t dispatch_unit(Call& call, cudaStream_t stream) {
  const auto sized = [&]<DType dtype>() {
    switch (call.kernel) {
      case 3:
        return Launch<dtype, 3>::run(call, stream);
      case 5:
        return Launch<dtype, 5>::run(call, stream);
      case 7:
        return Launch<dtype, 7>::run(call, stream);
    }
    return cudaErrorInvalidValue;
  };
  switch (call.dtype) {
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
