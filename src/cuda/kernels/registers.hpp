// Arguments of strategy `registers`, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/arguments.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

struct RegistersArgs {
  Image in, out;
  Filters filters;
  std::int64_t batch = 0, channels = 0;
};
struct RegistersGradientArgs {
  Image x, dy;
  std::int64_t batch = 0, channels = 0;
  Work work{};  // an item for every 32 planes of a channel, a block for every item
  float* partials = nullptr;
};
template <class Args>
struct RegistersCall {
  DType dtype = DType::f32;
  int kernel = 0, shape = 0;  // index in register_shapes
  Args args;
};

template <DType dtype, int kernel>
cudaError_t launch_registers_as(const RegistersCall<RegistersArgs>& call, cudaStream_t stream);
template <DType dtype, int kernel>
cudaError_t launch_registers_gradient_as(const RegistersCall<RegistersGradientArgs>& call, cudaStream_t stream);

}  // namespace wtconv::cuda
