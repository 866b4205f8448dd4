#include "cuda/device.hpp"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/kernels/launch.hpp"

namespace wtconv::cuda {
namespace {

Status read(int device, DeviceLimits& limits) {
  const auto attribute = [&](int& value, cudaDeviceAttr which) {
    return check(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
  };
  for (const Status& s : {
           attribute(limits.major, cudaDevAttrComputeCapabilityMajor),
           attribute(limits.minor, cudaDevAttrComputeCapabilityMinor),
           attribute(limits.multiprocessors, cudaDevAttrMultiProcessorCount),
           attribute(limits.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin),
           attribute(limits.shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor),
       }) {
    if (!s.ok()) return s;
  }
  if (const cudaError_t e = probe_kernels(); e != cudaSuccess) {
    cudaGetLastError();
    return {StatusCode::unavailable, "this build has no code for compute capability " + std::to_string(limits.major) +
                                         "." + std::to_string(limits.minor) + " (" + cudaGetErrorString(e) + ")"};
  }
  return {};
}

// All that a block may have beside the kernel's static shared memory, so that no later call need raise the limit.
cudaError_t allow_all_shared_memory(const void* kernel, int device) {
  int most = 0;
  cudaFuncAttributes attributes;
  if (cudaError_t e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return e;
  if (cudaError_t e = cudaFuncGetAttributes(&attributes, kernel)) return e;
  most -= static_cast<int>(attributes.sharedSizeBytes);
  if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most)) return e;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

cudaError_t ask_driver(const void* kernel, int device, int blocks, int threads, std::size_t shared, int& at_once) {
  if (cudaError_t e = allow_all_shared_memory(kernel, device)) return e;
  if (blocks == 1) return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, threads, shared);
  cudaLaunchAttribute cluster = cluster_of(blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&at_once, kernel, &config);
}

}  // namespace

cudaLaunchAttribute cluster_of(int blocks) {
  cudaLaunchAttribute a{};
  a.id = cudaLaunchAttributeClusterDimension;
  a.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return a;
}

cudaError_t prepare_kernel(const void* kernel, int blocks, int threads, std::size_t shared, int& at_once) {
  thread_local std::map<std::tuple<const void*, int, int, int, std::size_t>, int> known;
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  const std::tuple key{kernel, device, blocks, threads, shared};
  if (const auto at = known.find(key); e == cudaSuccess && at != known.end()) {
    at_once = at->second;
    return cudaSuccess;
  }
  if (e == cudaSuccess) e = ask_driver(kernel, device, blocks, threads, shared, at_once);
  if (e != cudaSuccess) {
    cudaGetLastError();
    return e;
  }
  if (at_once <= 0) return cudaErrorLaunchOutOfResources;
  known[key] = at_once;
  return cudaSuccess;
}

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::device_error;
  return {code, std::string(what) + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")"};
}

Status current_device(DeviceLimits& limits) {
  struct Entry {
    DeviceLimits limits;
    Status status;
  };
  static std::mutex mutex;
  static std::map<int, Entry> known;
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) {
    cudaGetLastError();
    return {StatusCode::unavailable, std::string("no usable CUDA device: ") + cudaGetErrorString(e)};
  }
  const std::lock_guard lock(mutex);
  auto at = known.find(device);
  if (at == known.end()) {
    Entry entry;
    entry.status = read(device, entry.limits);
    if (entry.status.code() == StatusCode::device_error) {
      // cudaGetDevice answers 0 also where there is no device; the first attribute then fails.
      return {StatusCode::unavailable, "no usable CUDA device: " + entry.status.message()};
    }
    at = known.emplace(device, entry).first;
  }
  limits = at->second.limits;
  return at->second.status;
}

}  // namespace wtconv::cuda
