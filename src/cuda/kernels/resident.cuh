// Strategy `resident`: whole planes in one block's shared memory; one launch, every pixel read once and written once.
//
// A block keeps one channel (its weights in shared memory) and walks over groups of that channel's planes:
//
//   device memory --copy--> stage --analysis--> pyramid --levels' filters--> pyramid (bands over themselves)
//                             ^                    |                            |
//             next group's copy runs meanwhile     +--base filter--> registers --+ synthesis --> device memory
//
// Four barriers a group. Forward and input gradient are this one kernel.
#pragma once

#include "cuda/kernels/filter_planes.cuh"
#include "cuda/kernels/resident.hpp"
#include "cuda/kernels/transfer.cuh"

namespace wtconv::cuda {

template <class T, int kernel, class Plane>
__global__ void __launch_bounds__(Plane::max_threads, Plane::min_blocks)
    resident_kernel(const __grid_constant__ ResidentArgs p, const __grid_constant__ Plane plane) {
  extern __shared__ __align__(128) float memory[];
  const auto total = plane.total();
  const int threads = total.threads;
  const int height = plane.at(Int<0>{}).height, width = plane.at(Int<0>{}).width;
  const int arena_words = total.planes * total.words + total.slack;
  float* const arena = memory;
  float* const filters = arena + arena_words;
  LevelItem* const items = reinterpret_cast<LevelItem*>(filters + filter_count(total.levels) * filter_words(kernel));
  __shared__ __align__(8) std::uint64_t arrived;
  Stage<T> stage(reinterpret_cast<char*>(items + threads), &arrived, height, width, p.piece);

  for (int i = thread_index(); i < arena_words; i += threads) arena[i] = 0.f;
  items[thread_index()] = find_item(plane, thread_index());

  Cursor at(p.work, p.work.first(blockIdx.x));
  const std::int64_t count = p.work.first(blockIdx.x + 1) - p.work.first(blockIdx.x);
  int channel = -1;
  const auto fetch = [&](const Cursor& next) {
    const int first = next.group * total.planes;
    const int planes = min(total.planes, static_cast<int>(p.batch) - first);
    stage.fetch(
        planes, [&](int k) { return plane_of<T>(p.in, first + k, next.channel); }, p.in, thread_index(), threads);
  };
  __syncthreads();
  if (count > 0) fetch(at);
  for (std::int64_t n = 0; n < count; ++n) {
    if (at.channel != channel) {
      load_filters<kernel>(filters, p.filters, total.levels, at.channel, thread_index(), threads);
      channel = at.channel;
    }
    stage.wait();
    analyse(
        plane, arena, thread_index(),
        [&](int k, int r, int c, float(&v)[4]) { load_row(v, stage.plane(k) + r * width, c, width); },
        [] { __syncthreads(); });
    deep_analysis(plane, arena, threads);
    __syncthreads();
    const Cursor now = at;
    at.advance(p.work);
    if (n + 1 < count) fetch(at);
    filter_planes<kernel>(plane, arena, filters, items, p.filters.weight[0] != nullptr,
                          [&](int k, int i, int j, float bias, float(&sums)[base_rows][4]) {
                            const int b = now.group * total.planes + k;
                            if (b >= p.batch) return;
                            float* const pyramid = arena + k * total.words;
                            const float deep[2] = {bias, bias};
                            add_synthesis(plane, pyramid, i, j, deep, sums);
                            if (p.vector > 1) {
                              store_item(sums, plane_of<T>(p.out, b, now.channel), p.out, p.vector, 8 * i, 4 * j,
                                         height, width);
                            } else {  // over x, which the base filter is done with
                              keep_item(sums, pyramid, plane.at(Int<0>{}).pitch, total, 8 * i, 4 * j, height, width);
                            }
                          });
    if (p.vector > 1) continue;
    __syncthreads();
    for (int k = 0; k < total.planes; ++k) {
      const int b = now.group * total.planes + k;
      if (b >= p.batch) break;
      store_plane(plane_of<T>(p.out, b, now.channel), p.out, arena + k * total.words, plane.at(Int<0>{}).pitch, total,
                  0, 0, height, width, thread_index(), threads);
    }
  }
}

template <DType dtype, int kernel>
cudaError_t launch_resident_as(const ResidentCall& call, cudaStream_t stream) {
  const auto launch = [&](const auto& plane) {
    const auto entry = &resident_kernel<DeviceType<dtype>, kernel, std::decay_t<decltype(plane)>>;
    const LayoutTotals& total = call.layout.total;
    const std::size_t shared = resident_memory(call.layout, dtype);
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, total.threads, shared, per_multiprocessor); e != cudaSuccess) {
      return e;
    }
    ResidentArgs args = call.args;
    args.work = {.per_channel = (args.batch + total.planes - 1) / total.planes, .channels = call.channels};
    args.work.blocks = choose_blocks(args.work, per_multiprocessor * call.multiprocessors,
                                     channels_innermost(args.in) || channels_innermost(args.out));
    entry<<<static_cast<unsigned>(args.work.blocks), total.threads, shared, stream>>>(args, plane);
    return launched();
  };
  if (call.shape < 0) return launch(AnyPlane{call.layout});
  return dispatch_shape<kernel, apply_shapes>(
      call.shape, [&](auto i) { return launch(FixedPlane<apply_shapes[i], Use::filtering>{}); });
}

}  // namespace wtconv::cuda
