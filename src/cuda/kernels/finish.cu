// The closing kernel of every backward: partial sums, added in the order of the work, become the gradients of weights,
// scales and bias. With u = scale * weight: dL/dweight = scale * dL/du, dL/dscale = <weight, dL/du>.
#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/launch.hpp"

namespace wtconv::cuda {
namespace {

constexpr int threads = 128;

// One block a filter of a channel, and one for the bias and what it adds to the base scale: all in double, since
// it is little work.
__global__ void __launch_bounds__(threads) finish_kernel(const __grid_constant__ FinishArgs p) {
  __shared__ double products[max_kernel * max_kernel + 1];
  const int taps = p.kernel * p.kernel, filters = filter_count(p.levels);
  const std::int64_t c = blockIdx.x / filters;
  const int f = static_cast<int>(blockIdx.x % filters);
  const int level = f == 0 ? 0 : (f - 1) / 4 + 1, band = f == 0 ? 0 : (f - 1) % 4;
  const std::int64_t row = level == 0 ? c : 4 * c + band;
  int source = 0;
  while (source + 1 < p.count && level > p.partials[source + 1].first_level) ++source;
  const Partials& from = p.partials[source];
  const int filter_there = level == 0 ? 0 : 1 + 4 * (level - from.first_level - 1) + band;
  const std::int64_t size = partial_size(p.kernel, from.levels);
  const Filters& in = p.filters;
  const double scale = load_any<double>(in.scale[level], in.dtype, row);
  // Adds up f(slot) over the partials of channel c: those of the blocks between its first and last item, part by part.
  const auto add_partials = [&](auto&& f) {
    const Work& work = from.work;
    double sum = 0;
    if (work.per_channel == 0) return sum;
    for (std::int64_t at = c / work.together; at < work.channels; at += work.channels / work.parts) {
      const std::int64_t last = work.owner((at + 1) * work.per_channel - 1);
      for (std::int64_t block = work.owner(at * work.per_channel); block <= last; ++block) {
        sum += f(work.slot(block, at, static_cast<int>(c % work.together)));
      }
    }
    return sum;
  };
  const int wanted = taps + (f == 0 ? 1 : 0);  // the base filter's block also adds up dy
  for (int t = threadIdx.x; t < wanted; t += threads) {
    const std::int64_t at = t == taps ? size - 1 : std::int64_t{filter_there} * taps + t;
    const double sum = add_partials([&](std::int64_t slot) {
      double of_slot = 0;
      for (int band = 0; band < from.bands; ++band) {
        of_slot += load_any<double>(from.data, from.dtype, (slot * from.bands + band) * size + at);
      }
      return of_slot;
    });
    if (t == taps) {
      if (p.gradients.bias) store_any(p.gradients.bias, in.dtype, c, scale * sum);
      products[t] = in.bias ? load_any<double>(in.bias, in.dtype, c) * sum : 0.0;
    } else {
      if (p.gradients.weight[level]) store_any(p.gradients.weight[level], in.dtype, row * taps + t, scale * sum);
      products[t] = load_any<double>(in.weight[level], in.dtype, row * taps + t) * sum;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && p.gradients.scale[level]) {
    double dot = 0;
    for (int t = 0; t < wanted; ++t) dot += products[t];
    store_any(p.gradients.scale[level], in.dtype, row, dot);
  }
}

}  // namespace

cudaError_t probe_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, finish_kernel);
}

cudaError_t launch_finish(const FinishArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.channels * filter_count(args.levels));
  finish_kernel<<<blocks, threads, 0, stream>>>(args);
  return launched();
}

}  // namespace wtconv::cuda
