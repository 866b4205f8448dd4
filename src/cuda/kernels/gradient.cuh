// The weight gradient on chip: one launch reads x and dy once and leaves one partial per block and channel.
//
// Both pyramids are formed in shared memory. An item is 4 columns x `rows` rows of one band of dy; its thread slides
// the k x k window of x's band over them and keeps the k * k sums of products in registers over all planes of its
// channel. When the channel ends, the block adds up the sums of each filter in the order of the items.
#pragma once

#include "cuda/kernels/filter.cuh"
#include "cuda/kernels/gradient.hpp"
#include "cuda/kernels/items.cuh"
#include "cuda/kernels/launch.hpp"
#include "cuda/kernels/neighbours.cuh"
#include "cuda/kernels/pyramid.cuh"
#include "cuda/kernels/transfer.cuh"

namespace wtconv::cuda {

// Where a thread's item lies in both pyramids.
struct GradientItem {
  int x, x_pitch;    // window of x's band: words in the block's arena
  int dy, dy_pitch;  // dy's band
  int filter;        // -1: none
};

template <class PlaneX, class PlaneDy>
__device__ __forceinline__ GradientItem find_gradient_item(const PlaneX& x, const PlaneDy& dy, int t) {
  GradientItem item{0, 0, 0, 0, -1};
  const auto total = x.total();
  const int bases = total.base_items;
  each_level<0>(x, [&](auto l) {
    const auto lx = x.at(l);
    const auto ld = dy.at(l);
    const int in_band = lx.across * lx.down, index = l == 0 ? t : t - bases - lx.first_item;
    if (index < 0 || index >= total.planes * (l == 0 ? in_band : 4 * in_band)) return;
    const LevelPlace at(index, lx);
    const int p = l == 0 ? index / in_band : at.plane, s = l == 0 ? 0 : at.band;
    const int i = l == 0 ? index % in_band / lx.across : at.row, j = at.column;
    const int rows = l == 0 ? total.base_rows : total.rows_per_item;
    item.x = p * total.words + lx.offset + s * lx.band + i * rows * lx.pitch + 4 * j;
    item.x_pitch = lx.pitch;
    item.dy = p * dy.total().words + ld.offset + s * ld.band + i * rows * ld.pitch + 4 * j;
    item.dy_pitch = ld.pitch;
    item.filter = l == 0 ? 0 : 1 + 4 * (l - 1) + s;
  });
  return item;
}

// sums(i, k) += sum over the item of dy(r, j) * x(r + i - pad, j + k - pad); total += sum of dy if asked.
template <int kernel, int rows>
__device__ __forceinline__ void correlate_item(float (&sums)[kernel * kernel], float& total, bool add_total,
                                               const float* x, int x_pitch, const float* dy, int dy_pitch) {
  float g[rows][4];
#pragma unroll
  for (int r = 0; r < rows; ++r) load4(g[r], dy + r * dy_pitch);
#pragma unroll
  for (int r = 0; r < rows + kernel - 1; ++r) {
    Window<kernel> in;
    in.load(x + r * x_pitch);
#pragma unroll
    for (int i = 0; i < kernel; ++i) {
      const int o = r - i;
      if (o < 0 || o >= rows) continue;
#pragma unroll
      for (int k = 0; k < kernel; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i * kernel + k] += in.v[in.first + j + k] * g[o][j];
      }
    }
  }
  if (!add_total) return;
#pragma unroll
  for (int r = 0; r < rows; ++r) total += (g[r][0] + g[r][1]) + (g[r][2] + g[r][3]);
}

// A thread's sums over the planes (or tiles) of a channel.
template <int kernel>
struct GradientSums {
  float tap[kernel * kernel];
  float dy;
  __device__ __forceinline__ void clear() {
    dy = 0.f;
#pragma unroll
    for (int i = 0; i < kernel * kernel; ++i) tap[i] = 0.f;
  }
  template <int rows>
  __device__ __forceinline__ void add(const GradientItem& own, const float* arena_x, const float* arena_dy) {
    if (own.filter < 0) return;
    correlate_item<kernel, rows>(tap, dy, own.filter == 0, arena_x + own.x, own.x_pitch, arena_dy + own.dy,
                                 own.dy_pitch);
  }
};

// Adds up the threads' sums by filter and writes the channel's partial. `scratch`: (kernel^2 + 1) words a thread; left
// zero, as it is found.
template <int kernel, class PlaneX>
__device__ __forceinline__ void write_partial(const PlaneX& x, float* scratch, const GradientSums<kernel>& sums,
                                              int first_level, float* to, int threads) {
  constexpr int taps = kernel * kernel, words = taps + 1;
  const auto total = x.total();
  __syncthreads();
  {
    float* const own = scratch + thread_index() * words;
#pragma unroll
    for (int i = 0; i < taps; ++i) own[i] = sums.tap[i];
    own[taps] = sums.dy;
  }
  __syncthreads();
  // Sums over the items first + p * step + i * stride + j of every plane p, row of items i and column j.
  const auto add = [&](const LevelLayout& level, int first, int step, int stride, int word) {
    float sum = 0.f;
    for (int p = 0; p < total.planes; ++p) {
      for (int i = 0; i < level.down; ++i) {
        for (int j = 0; j < level.across; ++j) sum += scratch[(first + p * step + i * stride + j) * words + word];
      }
    }
    return sum;
  };
  const auto add_base = [&](int word) {
    const LevelLayout level = x.at(Int<0>{});
    return add(level, 0, level.across * level.down, level.across, word);
  };
  for (int t = thread_index(); t < taps; t += threads) to[t] = add_base(t);
  each_level<1>(x, [&](auto l) {
    const LevelLayout level = x.at(l);
    const float factor = ldexpf(1.f, -2 * (first_level + l));  // Haar's, of both pyramids
    for (int t = thread_index(); t < 4 * taps; t += threads) {
      const int s = t / taps, first = total.base_items + level.first_item + s * level.across;
      to[(1 + 4 * (l - 1)) * taps + t] =
          factor * add(level, first, 4 * level.across * level.down, 4 * level.across, t % taps);
    }
  });
  if (thread_index() == 0) to[filter_count(total.levels) * taps] = add_base(taps);
  __syncthreads();
  for (int i = thread_index(); i < threads * words; i += threads) scratch[i] = 0.f;
  __syncthreads();
}

// `together`: as in resident_kernel.
template <class T, int kernel, bool together, class PlaneX, class PlaneDy>
__global__ void __launch_bounds__(PlaneX::max_threads, PlaneX::min_blocks)
    resident_gradient_kernel(const __grid_constant__ ResidentGradientArgs p, const __grid_constant__ PlaneX px,
                             const __grid_constant__ PlaneDy pd) {
  if constexpr (together && !has_clusters) return;
  extern __shared__ __align__(128) float memory[];
  __shared__ __align__(8) std::uint64_t arrived[2];
  const auto total = px.total();
  const int threads = total.threads, height = px.at(Int<0>{}).height, width = px.at(Int<0>{}).width;
  const int stage_bytes =
      together ? shares_bytes(height, width, total.planes, sizeof(T)) : total.planes * staged_plane<T>(height, width);
  const int words_x = gradient_arena_words(total, kernel), words_dy = total.planes * pd.total().words;
  float* const arena_x = memory;
  float* const arena_dy = arena_x + words_x;
  char* const staged = reinterpret_cast<char*>(arena_dy + words_dy);
  auto stage_x = make_stage<T, together>(px, staged, &arrived[0], p.piece_x, p.whole_words_x);
  auto stage_dy = make_stage<T, together>(px, staged + stage_bytes, &arrived[1], p.piece_dy, p.whole_words_dy);
  for (int i = thread_index(); i < words_x + words_dy; i += threads) memory[i] = 0.f;

  GradientItem own = find_gradient_item(px, pd, thread_index());
  if (!p.base && own.filter == 0) own.filter = -1;
  GradientSums<kernel> sums;
  sums.clear();
  const std::int64_t worker = together ? blockIdx.x / neighbours : blockIdx.x;
  Cursor at(p.work, p.work.first(worker));
  const std::int64_t count = p.work.first(worker + 1) - p.work.first(worker);
  const auto place_of = [&](const Cursor& item) {
    if constexpr (together) return place_in_groups(p.work, item);
    return Place{item.channel, item.group};
  };
  const auto fetch = [&](const Cursor& next) {
    const Place place = place_of(next);
    const int first = place.item * total.planes;
    const int planes = min(total.planes, static_cast<int>(p.batch) - first);
    const int t = thread_index();
    stage_x.fetch(p.x, first, planes, place.channel, p.channels, t, threads);
    stage_dy.fetch(p.dy, first, planes, place.channel, p.channels, t, threads);
  };
  __syncthreads();
  if (count > 0) fetch(at);
  for (std::int64_t n = 0; n < count; ++n) {
    stage_x.wait();
    if constexpr (!together) {
      stage_dy.wait();
      __syncthreads();
    }
    // Planes that the batch does not fill hold what an earlier group left: they count as zeros.
    const int planes = min(total.planes, static_cast<int>(p.batch) - place_of(at).item * total.planes);
    const auto load = [&](const auto& stage) {
      return [&](int k, int r, int c, float(&v)[4]) {
        stage.load_row(k, r, c, v);
        if (k >= planes) v[0] = v[1] = v[2] = v[3] = 0.f;
      };
    };
    const int half = (total.analysis_threads + 31) / 32 * 32;
    analyse(px, arena_x, thread_index(), load(stage_x), [] {});
    analyse(pd, arena_dy, thread_index() - half, load(stage_dy), [] {});
    deep_analysis(px, arena_x, threads);
    deep_analysis(pd, arena_dy, threads);
    stage_x.analysed();
    const int channel = at.channel;
    at.advance(p.work);
    const bool more = n + 1 < count;
    if (more) fetch(at);
    sums.template add<PlaneX::item_rows>(own, arena_x, arena_dy);
    if (more && at.channel == channel) continue;
    const std::int64_t slot = p.work.slot(worker, channel, together ? blockIdx.x % neighbours : 0);
    write_partial<kernel>(px, arena_x, sums, p.first_level, p.partials + slot * partial_size(kernel, total.levels),
                          threads);
    sums.clear();
  }
  if constexpr (together) cluster_sync();
}

template <DType dtype, int kernel, bool together>
cudaError_t launch_resident_gradient_as(ResidentGradientCall& call, cudaStream_t stream) {
  const auto launch = [&](const auto& x, const auto& dy) {
    const auto entry = &resident_gradient_kernel<DeviceType<dtype>, kernel, together, std::decay_t<decltype(x)>,
                                                 std::decay_t<decltype(dy)>>;
    const std::size_t shared = resident_gradient_memory(call.x, call.dy, dtype, together);
    const int threads = call.x.total.threads;
    Work& work = call.args.work;
    if constexpr (together) {
      int clusters = 0;
      if (cudaError_t e = prepare_clusters(entry, neighbours, threads, shared, clusters); e != cudaSuccess) return e;
      work.blocks = std::min<std::int64_t>(work.blocks, clusters);
      return launch_clusters(entry, work.blocks, neighbours, threads, shared, stream, call.args, x, dy);
    }
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, threads, shared, per_multiprocessor); e != cudaSuccess) return e;
    entry<<<static_cast<unsigned>(work.blocks), threads, shared, stream>>>(call.args, x, dy);
    return launched();
  };
  if (call.shape < 0) return launch(AnyPlane{call.x}, AnyPlane{call.dy});
  return dispatch_shape<kernel, gradient_shapes>(call.shape, [&](auto i) {
    return launch(FixedPlane<gradient_shapes[i], Use::correlation>{},
                  FixedPlane<gradient_shapes[i], Use::correlated>{});
  });
}

template <DType dtype, int kernel>
cudaError_t launch_resident_gradient_as(ResidentGradientCall& call, cudaStream_t stream) {
  return call.together ? launch_resident_gradient_as<dtype, kernel, true>(call, stream)
                       : launch_resident_gradient_as<dtype, kernel, false>(call, stream);
}

}  // namespace wtconv::cuda
