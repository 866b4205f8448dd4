#include "host_rates.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host_rates.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/aligned_allocator.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace wtconv::tool::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `steps` rounds of 14 independent chains a = a * m + b: enough for two ports at a latency of up to 7. The chains
// start at different values, or the compiler would merge them, and converge to b / (1 - m), so they stay normal. The
// result only keeps the compiler from dropping the work.
template <class T>
double FmaChains(std::int64_t steps, T m, T b) {
  const hn::ScalableTag<T> d;
  const auto vm = hn::Set(d, m), vb = hn::Set(d, b);
  auto a0 = hn::Set(d, T(1)), a1 = hn::Set(d, T(2)), a2 = hn::Set(d, T(3)), a3 = hn::Set(d, T(4));
  auto a4 = hn::Set(d, T(5)), a5 = hn::Set(d, T(6)), a6 = hn::Set(d, T(7)), a7 = hn::Set(d, T(8));
  auto a8 = hn::Set(d, T(9)), a9 = hn::Set(d, T(10)), a10 = hn::Set(d, T(11)), a11 = hn::Set(d, T(12));
  auto a12 = hn::Set(d, T(13)), a13 = hn::Set(d, T(14));
  for (std::int64_t i = 0; i < steps; ++i) {
    a0 = hn::MulAdd(a0, vm, vb);
    a1 = hn::MulAdd(a1, vm, vb);
    a2 = hn::MulAdd(a2, vm, vb);
    a3 = hn::MulAdd(a3, vm, vb);
    a4 = hn::MulAdd(a4, vm, vb);
    a5 = hn::MulAdd(a5, vm, vb);
    a6 = hn::MulAdd(a6, vm, vb);
    a7 = hn::MulAdd(a7, vm, vb);
    a8 = hn::MulAdd(a8, vm, vb);
    a9 = hn::MulAdd(a9, vm, vb);
    a10 = hn::MulAdd(a10, vm, vb);
    a11 = hn::MulAdd(a11, vm, vb);
    a12 = hn::MulAdd(a12, vm, vb);
    a13 = hn::MulAdd(a13, vm, vb);
  }
  const auto low = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), a6));
  const auto high = hn::Add(hn::Add(hn::Add(a7, a8), hn::Add(a9, a10)), hn::Add(hn::Add(a11, a12), a13));
  return double(hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high))));
}
double FmaF32(std::int64_t steps, double m) { return FmaChains<float>(steps, float(m), float(1 - m)); }
#if HWY_HAVE_FLOAT64
double FmaF64(std::int64_t steps, double m) { return FmaChains<double>(steps, m, 1 - m); }
std::size_t LanesF64() { return hn::Lanes(hn::ScalableTag<double>()); }
#else
double FmaF64(std::int64_t steps, double m) {
  double a = 1;
  for (std::int64_t i = 0; i < steps; ++i) a = a * m + (1 - m);
  return a;
}
std::size_t LanesF64() { return 1; }
#endif
std::size_t LanesF32() { return hn::Lanes(hn::ScalableTag<float>()); }

template <bool streaming>
void CopyLoop(std::uint8_t* HWY_RESTRICT to, const std::uint8_t* HWY_RESTRICT from, std::size_t n) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (std::size_t j = 0; j < 4; ++j) {
      const auto v = hn::Load(d, from + i + j * lanes);
      if constexpr (streaming) {
        hn::Stream(v, d, to + i + j * lanes);
      } else {
        hn::Store(v, d, to + i + j * lanes);
      }
    }
  }
  if constexpr (streaming) hwy::FlushStream();
  std::memcpy(to + i, from + i, n - i);
}
void CopyVector(std::uint8_t* to, const std::uint8_t* from, std::size_t n) { CopyLoop<false>(to, from, n); }
void CopyStream(std::uint8_t* to, const std::uint8_t* from, std::size_t n) { CopyLoop<true>(to, from, n); }

std::int64_t Target() { return HWY_TARGET; }

}  // namespace wtconv::tool::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wtconv::tool {
namespace {

HWY_EXPORT(FmaF32);
HWY_EXPORT(FmaF64);
HWY_EXPORT(LanesF32);
HWY_EXPORT(LanesF64);
HWY_EXPORT(CopyVector);
HWY_EXPORT(CopyStream);
HWY_EXPORT(Target);

constexpr int chains = 14;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A machine that others share is only ever slowed down, so the fastest repetition is its rate.
template <class F>
double fastest(int repetitions, F&& run) {
  double best = 0;
  for (int r = 0; r < repetitions; ++r) {
    const double begin = now();
    run();
    const double seconds = now() - begin;
    if (r == 0 || seconds < best) best = seconds;
  }
  return best;
}

// Multiply-adds per second of all threads together.
double fma_rate(int threads, int repetitions, double (*run)(std::int64_t, double), std::size_t lanes) {
  constexpr std::int64_t steps = 4'000'000;
  volatile double m = 0.75, sink = 0;  // opaque to the compiler
  const double seconds = fastest(repetitions, [&] {
    std::vector<double> sums(threads);
    parallel_for(threads, threads, [&](std::int64_t task, int) { sums[task] = run(steps, m); });
    for (double s : sums) sink = sink + s;
  });
  return double(threads) * double(steps) * chains * double(lanes) / seconds;
}

}  // namespace

const char* to_string(CopyMethod method) {
  switch (method) {
    case CopyMethod::memcpy:
      return "memcpy";
    case CopyMethod::vector:
      return "vector loop";
    case CopyMethod::stream:
      break;
  }
  return "streaming stores";
}

void parallel_copy(CopyMethod method, void* to, const void* from, std::size_t n, int threads) {
  auto* const t = static_cast<std::uint8_t*>(to);
  const auto* const f = static_cast<const std::uint8_t*>(from);
  const std::size_t share = ((n + threads - 1) / threads + 4095) / 4096 * 4096;
  parallel_for(threads, threads, [&](std::int64_t task, int) {
    const std::size_t begin = std::min(n, std::size_t(task) * share), size = std::min(n - begin, share);
    switch (method) {
      case CopyMethod::memcpy:
        std::memcpy(t + begin, f + begin, size);
        break;
      case CopyMethod::vector:
        HWY_DYNAMIC_DISPATCH(CopyVector)(t + begin, f + begin, size);
        break;
      case CopyMethod::stream:
        HWY_DYNAMIC_DISPATCH(CopyStream)(t + begin, f + begin, size);
        break;
    }
  });
}

std::string host_rates_method(std::size_t copy_bytes, int repetitions) {
  return "copy: " + std::to_string(copy_bytes >> 20) +
         " MiB of non-zero data from one buffer to another, one contiguous share per thread, by memcpy, a vector loop "
         "and streaming stores; bytes read plus bytes written over the time of the fastest of " +
         std::to_string(repetitions) + " repetitions of the fastest method. Multiply-adds: " + std::to_string(chains) +
         " independent vector chains per thread on the best SIMD target (" + simd_target_name() + "), fastest of " +
         std::to_string(repetitions) + ".";
}

std::size_t default_copy_bytes() {
  const std::size_t memory = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGESIZE));
  return std::min(std::size_t{512} << 20, memory / 16) / 4096 * 4096;
}

HostRates measure_host(int threads, std::size_t copy_bytes, int repetitions,
                       const std::function<void(double)>& progress) {
  HostRates rates{.threads = threads};
  const auto from = hwy::AllocateAligned<std::uint32_t>(copy_bytes / 4);
  const auto to = hwy::AllocateAligned<std::uint32_t>(copy_bytes / 4);
  if (!from || !to) throw std::bad_alloc();
  const std::size_t words = copy_bytes / 4;
  for (std::size_t i = 0; i < words; ++i) from[i] = std::uint32_t(i * 2654435761u) | 1u;
  for (const CopyMethod method : {CopyMethod::memcpy, CopyMethod::vector, CopyMethod::stream}) {
    const double seconds =
        fastest(repetitions, [&] { parallel_copy(method, to.get(), from.get(), copy_bytes, threads); });
    const double rate = 2 * double(copy_bytes) / seconds;
    if (rate > rates.bandwidth) {
      rates.bandwidth = rate;
      rates.method = method;
    }
    progress(0.2 * (1 + int(method)));
  }
  rates.fma_f32 = fma_rate(threads, repetitions, HWY_DYNAMIC_DISPATCH(FmaF32), HWY_DYNAMIC_DISPATCH(LanesF32)());
  progress(0.8);
  rates.fma_f64 = fma_rate(threads, repetitions, HWY_DYNAMIC_DISPATCH(FmaF64), HWY_DYNAMIC_DISPATCH(LanesF64)());
  progress(1);
  return rates;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const std::size_t at = line.find(": ");
      if (at != std::string::npos) return line.substr(at + 2);
    }
  }
  return "unknown CPU";
}

std::string simd_target_name() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(Target)()); }

Machine to_machine(const HostRates& rates) {
  return {cpu_name() + ", " + std::to_string(rates.threads) + (rates.threads == 1 ? " thread" : " threads"),
          rates.bandwidth, rates.fma_f32, rates.fma_f64, "measured by this tool"};
}

}  // namespace wtconv::tool
#endif  // HWY_ONCE
