// What the host side must know of the GPU the calling thread works on.
#pragma once

#include <cuda_runtime_api.h>

#include "wtconv/status.hpp"

namespace wtconv::cuda {

struct DeviceLimits {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_per_block = 0;  // bytes a block may ask for
  int shared_per_multiprocessor = 0;
};

// An NVIDIA H200: what a plan is for where there is no GPU.
inline constexpr DeviceLimits h200{
    .major = 9, .minor = 0, .multiprocessors = 132, .shared_per_block = 232448, .shared_per_multiprocessor = 233472};

// The current device's limits, read once per device. `unavailable` where there is none, or where this build holds no
// code for it.
Status current_device(DeviceLimits& limits);

// ok, or what a device call reported; the error is cleared, so that the next call can work.
Status check(cudaError_t error, const char* what);

}  // namespace wtconv::cuda
