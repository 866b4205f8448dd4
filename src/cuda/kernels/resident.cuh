// Strategy `resident`: whole planes in one block's shared memory; one launch, every pixel read once and written once.
//
// A block keeps one channel (its weights in shared memory) and walks over groups of that channel's planes:
//
//   device memory --copy--> stage --analysis--> pyramid --levels' filters--> pyramid (bands over themselves)
//                             ^                    |                            |
//             next group's copy runs meanwhile     +--base filter--> registers --+ synthesis --> device memory
//
// Four barriers a group. Forward and input gradient are this one kernel. Where channels lie closer together than pixels
// (`together`), the blocks of a cluster take neighbouring channels, copy for one another and keep step with each other:
// an item of the work is then one group of planes for each of them.
#pragma once

#include "cuda/kernels/filter_planes.cuh"
#include "cuda/kernels/neighbours.cuh"
#include "cuda/kernels/resident.hpp"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/matrix.hpp"

namespace wtconv::cuda {

template <class T, int kernel, bool together, class Plane>
__global__ void __launch_bounds__(Plane::max_threads, Plane::min_blocks)
    resident_kernel(const __grid_constant__ ResidentArgs p, const __grid_constant__ Plane plane) {
  if constexpr (together && !has_clusters) return;
  extern __shared__ __align__(128) float memory[];
  const auto total = plane.total();
  const int threads = total.threads;
  const int height = plane.at(Int<0>{}).height, width = plane.at(Int<0>{}).width;
  const int arena_words = total.planes * total.words + total.slack;
  float* const arena = memory;
  float* const filters = arena + arena_words;
  LevelItem* const items = reinterpret_cast<LevelItem*>(filters + filter_count(total.levels) * filter_words(kernel));
  __shared__ __align__(8) std::uint64_t arrived;
  char* const staged = reinterpret_cast<char*>(items + threads);
  auto stage = make_stage<T, together>(plane, staged, &arrived, p.piece, p.whole_words_in);
  auto results = make_results<T, together>(plane, staged, &arrived);

  for (int i = thread_index(); i < arena_words; i += threads) arena[i] = 0.f;
  items[thread_index()] = find_item(plane, thread_index());

  const std::int64_t worker = together ? blockIdx.x / neighbours : blockIdx.x;
  Cursor at(p.work, p.work.first(worker));
  const std::int64_t count = p.work.first(worker + 1) - p.work.first(worker);
  int channel = -1;
  const auto place_of = [&](const Cursor& item) {
    if constexpr (together) return place_in_groups(p.work, item);
    return Place{item.channel, item.group};
  };
  const auto planes_of = [&](const Place& place) {
    return min(total.planes, static_cast<int>(p.batch) - place.item * total.planes);
  };
  const auto fetch = [&](const Cursor& next) {
    const Place place = place_of(next);
    stage.fetch(p.in, place.item * total.planes, planes_of(place), place.channel, p.channels, thread_index(), threads);
  };
  __syncthreads();
  if (count > 0) fetch(at);
  for (std::int64_t n = 0; n < count; ++n) {
    const Place now = place_of(at);
    if (now.channel != channel) {
      channel = now.channel;
      load_filters<kernel>(filters, p.filters, total.levels, min(own_channel<together>(channel), p.channels - 1),
                           thread_index(), threads);
    }
    stage.wait();
    analyse(
        plane, arena, thread_index(), [&](int k, int r, int c, float(&v)[4]) { stage.load_row(k, r, c, v); },
        [&] { stage.between(); });
    deep_analysis(plane, arena, threads);
    stage.analysed();
    at.advance(p.work);
    if (n + 1 < count) fetch(at);
    if constexpr (together) {
      if (p.vector == 1 && thread_index() == 0) results.expect(planes_of(now));
    }
    filter_planes<kernel>(plane, arena, filters, items, p.filters.weight[0] != nullptr,
                          [&](int k, int i, int j, float bias, float(&sums)[base_rows][4]) {
                            const int b = now.item * total.planes + k;
                            const std::int64_t c = own_channel<together>(now.channel);
                            if (b >= p.batch) return;
                            float* const pyramid = arena + k * total.words;
                            const float deep[2] = {bias, bias};
                            add_synthesis(plane, pyramid, i, j, deep, sums);
                            if (p.vector > 1) {
                              if (together && c >= p.channels) return;
                              store_item(sums, plane_of<T>(p.out, b, c), p.out, p.vector, 8 * i, 4 * j, height, width);
                            } else if constexpr (together) {
                              results.send(sums, k, 8 * i, 4 * j);
                            } else {  // over x, which the base filter is done with
                              keep_item(sums, pyramid, plane.at(Int<0>{}).pitch, total, 8 * i, 4 * j, height, width);
                            }
                          });
    if (p.vector > 1) continue;
    if constexpr (together) {
      results.store(p.out, p.whole_words_out, now.item * total.planes, planes_of(now), now.channel, p.channels,
                    thread_index(), threads);
    } else {
      __syncthreads();
      for (int k = 0; k < planes_of(now); ++k) {
        store_plane(plane_of<T>(p.out, now.item * total.planes + k, now.channel), p.out, arena + k * total.words,
                    plane.at(Int<0>{}).pitch, total, 0, 0, height, width, thread_index(), threads);
      }
    }
  }
  if constexpr (together) cluster_sync();  // no block leaves while others may send to it
}

template <DType dtype, int kernel, bool together>
cudaError_t launch_resident_as(const ResidentCall& call, cudaStream_t stream) {
  const auto launch = [&](const auto& plane) {
    const auto entry = &resident_kernel<DeviceType<dtype>, kernel, together, std::decay_t<decltype(plane)>>;
    const LayoutTotals& total = call.layout.total;
    const std::size_t shared = resident_memory(call.layout, dtype, together);
    ResidentArgs args = call.args;
    args.work = {.per_channel = (args.batch + total.planes - 1) / total.planes, .channels = call.args.channels};
    if constexpr (together) {
      int clusters = 0;
      if (cudaError_t e = prepare_clusters(entry, neighbours, total.threads, shared, clusters); e != cudaSuccess) {
        return e;
      }
      args.work = in_groups(args.work, neighbours, clusters, true);
      return launch_clusters(entry, args.work.blocks, neighbours, total.threads, shared, stream, args, plane);
    }
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, total.threads, shared, per_multiprocessor); e != cudaSuccess) {
      return e;
    }
    args.work.blocks = choose_blocks(args.work, per_multiprocessor * call.multiprocessors,
                                     channels_innermost(args.in) || channels_innermost(args.out));
    entry<<<static_cast<unsigned>(args.work.blocks), total.threads, shared, stream>>>(args, plane);
    return launched();
  };
  if (call.shape < 0) return launch(AnyPlane{call.layout});
  return dispatch_shape<kernel, apply_shapes>(call.shape, [&](auto i) {
    constexpr ResidentShape s = apply_shapes[i];
    constexpr Problem problem{
        .height = s.height, .width = s.width, .kernel = s.kernel, .levels = s.levels, .dtype = dtype};
    // Planes of the matrix units come here by clusters only.
    if constexpr (together || matrix_shape(problem) < 0) {
      return launch(FixedPlane<s, Use::filtering>{});
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

template <DType dtype, int kernel>
cudaError_t launch_resident_as(const ResidentCall& call, cudaStream_t stream) {
  return call.together ? launch_resident_as<dtype, kernel, true>(call, stream)
                       : launch_resident_as<dtype, kernel, false>(call, stream);
}

}  // namespace wtconv::cuda
