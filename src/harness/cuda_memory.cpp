// Where the CUDA backend's tensors live. Linked into a program, it registers itself with the harness.
#include <cuda_runtime_api.h>

#include <string>

#include "harness/tensors.hpp"

namespace wtconv::harness {
namespace {

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::device_error,
          std::string(what) + " failed: " + cudaGetErrorString(error)};
}

class CudaMemory final : public Memory {
 public:
  Status allocate(std::size_t bytes, void** result) override { return check(cudaMalloc(result, bytes), "cudaMalloc"); }
  void release(void* data) override { cudaFree(data); }
  Status upload(void* device, const void* host, std::size_t bytes, void* stream) override {
    const auto s = static_cast<cudaStream_t>(stream);
    if (Status e = check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s), "copy to the device");
        !e.ok()) {
      return e;
    }
    return check(cudaStreamSynchronize(s), "copy to the device");
  }
  Status download(void* host, const void* device, std::size_t bytes, void* stream) override {
    const auto s = static_cast<cudaStream_t>(stream);
    if (Status e = check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, s), "copy from the device");
        !e.ok()) {
      return e;
    }
    return check(cudaStreamSynchronize(s), "work on the device");
  }
};

[[maybe_unused]] const bool registered = [] {
  static CudaMemory memory;
  register_memory(Device::cuda, &memory);
  return true;
}();

}  // namespace
}  // namespace wtconv::harness
