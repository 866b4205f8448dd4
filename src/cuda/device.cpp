#include "cuda/device.hpp"

#include <map>
#include <mutex>
#include <string>

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

}  // namespace

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
