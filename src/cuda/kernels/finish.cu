// The closing kernel of every backward: partial sums, added in the order of the work, become the gradients of weights,
// scales and bias. With u = scale * weight: dL/dweight = scale * dL/du, dL/dscale = <weight, dL/du>.
#include <algorithm>

#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/launch.hpp"

namespace wtconv::cuda {
namespace {

constexpr int threads = 256, max_elements = 1024;
constexpr std::int64_t enough_blocks = 1024, max_blocks = 1 << 20;

// The rows of partials that hold a channel's sums: of the blocks between its first and its last item.
struct Rows {
  std::int64_t first;
  int count, step;
};
__device__ Rows rows_of(const Partials& from, std::int64_t c) {
  const Work& work = from.work;
  if (work.per_channel == 0) return {0, 0, 1};
  const std::int64_t at = c / work.together, first = work.owner(at * work.per_channel);
  const auto blocks = static_cast<int>(work.owner((at + 1) * work.per_channel - 1) - first + 1);
  return {work.slot(first, at, static_cast<int>(c % work.together)) * from.bands, blocks * from.bands, work.together};
}

// Every groups-th row from `group` on, in order.
template <class A>
__device__ double add_rows(const Partials& from, const Rows& rows, std::int64_t size, std::int64_t at, int group,
                           int groups) {
  const A* const column = static_cast<const A*>(from.data) + rows.first * size + at;
  double sum = 0;
#pragma unroll 8
  for (int i = group; i < rows.count; i += groups) sum += column[i * rows.step * size];
  return sum;
}

// What a sum belongs to.
struct Element {
  int level, source;
  std::int64_t row;  // of the weights at that level
  std::int64_t at;   // in a row of partials
};

// A block takes a few filters of a channel, neighbouring threads neighbouring taps. Where that leaves threads, several
// groups of them share the rows. All in double, since it is little work.
__global__ void __launch_bounds__(threads) finish_kernel(const __grid_constant__ FinishArgs p, int each) {
  __shared__ Rows rows[max_partials];
  __shared__ double sums[max_elements + 1];
  const int taps = p.kernel * p.kernel, filters = filter_count(p.levels), parts = (filters + each - 1) / each;
  const Filters& in = p.filters;
  for (std::int64_t block = blockIdx.x; block < p.channels * parts; block += gridDim.x) {
    const std::int64_t c = block / parts;
    const int first = static_cast<int>(block % parts) * each, count = min(each, filters - first);
    const int elements = count * taps + (first == 0);  // beside the base filter's, the sum of dy
    const int lanes = min(elements, threads), groups = threads / lanes;
    const auto locate = [&](int e) {
      const bool of_dy = e == count * taps;
      const int f = of_dy ? 0 : first + e / taps, band = f == 0 ? 0 : (f - 1) % 4;
      Element to{.level = f == 0 ? 0 : (f - 1) / 4 + 1, .source = 0};
      while (to.source + 1 < p.count && to.level > p.partials[to.source + 1].first_level) ++to.source;
      const Partials& from = p.partials[to.source];
      const int filter_there = f == 0 ? 0 : 1 + 4 * (to.level - from.first_level - 1) + band;
      to.row = f == 0 ? c : 4 * c + band;
      to.at = of_dy ? partial_size(p.kernel, from.levels) - 1 : filter_there * taps + e % taps;
      return to;
    };
    const auto wanted = [&](int level) {
      return p.gradients.weight[level] || p.gradients.scale[level] || (level == 0 && p.gradients.bias);
    };
    __syncthreads();
    if (threadIdx.x < p.count) rows[threadIdx.x] = rows_of(p.partials[threadIdx.x], c);
    __syncthreads();
    const int group = threadIdx.x / lanes;
    for (int e = threadIdx.x % lanes; e < elements && group < groups; e += lanes) {
      const Element from = locate(e);
      if (!wanted(from.level)) continue;
      const Partials& partials = p.partials[from.source];
      const std::int64_t size = partial_size(p.kernel, partials.levels);
      sums[group * elements + e] = partials.dtype == DType::f64
                                       ? add_rows<double>(partials, rows[from.source], size, from.at, group, groups)
                                       : add_rows<float>(partials, rows[from.source], size, from.at, group, groups);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < elements; e += threads) {
      const Element to = locate(e);
      if (!wanted(to.level)) continue;
      double sum = sums[e];
      for (int g = 1; g < groups; ++g) sum += sums[g * elements + e];
      const double scale = load_any<double>(in.scale[to.level], in.dtype, to.row);
      if (e == count * taps) {
        if (p.gradients.bias) store_any(p.gradients.bias, in.dtype, c, scale * sum);
        sums[e] = in.bias ? load_any<double>(in.bias, in.dtype, c) * sum : 0.0;
      } else {
        const std::int64_t at = to.row * taps + e % taps;
        if (p.gradients.weight[to.level]) store_any(p.gradients.weight[to.level], in.dtype, at, scale * sum);
        sums[e] = load_any<double>(in.weight[to.level], in.dtype, at) * sum;
      }
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int f = threadIdx.x / 32; f < count; f += threads / 32) {
      const Element to = locate(f * taps);
      if (!p.gradients.scale[to.level]) continue;
      double dot = first + f == 0 && lane == 0 ? sums[count * taps] : 0.0;
      for (int t = lane; t < taps; t += 32) dot += sums[f * taps + t];
      for (int away = 16; away > 0; away /= 2) dot += __shfl_down_sync(0xffffffffu, dot, away);
      if (lane == 0) store_any(p.gradients.scale[to.level], in.dtype, to.row, dot);
    }
  }
}

}  // namespace

cudaError_t probe_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, finish_kernel);
}

cudaError_t launch_finish(const FinishArgs& args, cudaStream_t stream) {
  for (int i = 0; i < args.count; ++i) {
    // What rows_of relies on.
    const Partials& from = args.partials[i];
    if (from.work.parts != 1 || (from.work.together > 1 && from.bands > 1)) return cudaErrorInvalidValue;
  }
  const int filters = filter_count(args.levels), most = max_elements / (args.kernel * args.kernel);
  const auto parts = static_cast<int>(std::clamp<std::int64_t>(enough_blocks / args.channels, 1, filters));
  const int each = std::min((filters + parts - 1) / parts, most);
  const std::int64_t blocks = args.channels * ((filters + each - 1) / each);
  finish_kernel<<<static_cast<unsigned>(std::min(blocks, max_blocks)), threads, 0, stream>>>(args, each);
  return launched();
}

}  // namespace wtconv::cuda
