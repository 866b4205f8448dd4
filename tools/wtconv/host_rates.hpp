// What this host can do at best: copy bandwidth and multiply-adds per second, measured. The roofline of `bench`.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "wtconv/io_model.hpp"

namespace wtconv::tool {

enum class CopyMethod { memcpy, vector, stream };
const char* to_string(CopyMethod method);  // "memcpy", "vector loop", "streaming stores"

// Copies n bytes in one contiguous share per thread. Pointers are aligned to 64 bytes.
void parallel_copy(CopyMethod method, void* to, const void* from, std::size_t n, int threads);

struct HostRates {
  int threads = 0;
  double bandwidth = 0;  // bytes read plus bytes written per second, by the fastest method
  CopyMethod method = CopyMethod::memcpy;
  double fma_f32 = 0;  // multiply-adds per second
  double fma_f64 = 0;
};

// How the rates are measured, in sentences, for reports.
std::string host_rates_method(std::size_t copy_bytes, int repetitions);
// Bytes copied per pass: 512 MiB, or a sixteenth of the memory if that is less. The buffers are far larger than L2;
// on machines with hundreds of MiB of L3 a part may stay there, as it does for the layer's tensors.
std::size_t default_copy_bytes();

// `progress` is called with a fraction done in 0..1. Throws std::bad_alloc.
HostRates measure_host(int threads, std::size_t copy_bytes, int repetitions,
                       const std::function<void(double)>& progress);

std::string cpu_name();          // from /proc/cpuinfo, or "unknown CPU"
std::string simd_target_name();  // what the multiply-adds ran on: "AVX3", "NEON", ...

Machine to_machine(const HostRates& rates);

}  // namespace wtconv::tool
