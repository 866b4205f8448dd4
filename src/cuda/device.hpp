// What the host side must know of the GPU the calling thread works on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "wtconv/status.hpp"

namespace wtconv::cuda {

struct DeviceLimits {
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_per_block = 0;  // bytes a block may ask for
  int shared_per_multiprocessor = 0;
  friend bool operator==(const DeviceLimits&, const DeviceLimits&) = default;
};

// An NVIDIA H200: what a plan is for where there is no GPU.
inline constexpr DeviceLimits h200{
    .major = 9, .minor = 0, .multiprocessors = 132, .shared_per_block = 232448, .shared_per_multiprocessor = 233472};

// The current device's limits, read once per device. `unavailable` where there is none, or where this build holds no
// code for it.
Status current_device(DeviceLimits& limits);

// Readies a kernel for `shared` bytes of dynamic shared memory and says how many of its blocks a multiprocessor holds
// or, for clusters of more than one block, how many clusters the device holds. The driver is asked once for each
// device.
cudaError_t prepare_kernel(const void* kernel, int blocks, int threads, std::size_t shared, int& at_once);
// The launch attribute that makes `blocks` blocks a cluster.
cudaLaunchAttribute cluster_of(int blocks);

// ok, or what a device call reported; the error is cleared, so that the next call can work.
Status check(cudaError_t error, const char* what);

}  // namespace wtconv::cuda
