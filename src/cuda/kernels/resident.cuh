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

#include <algorithm>

#include "cuda/kernels/filter.cuh"
#include "cuda/kernels/items.cuh"
#include "cuda/kernels/pyramid.cuh"
#include "cuda/kernels/resident.hpp"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/resident.hpp"

namespace wtconv::cuda {

// A channel's filters, scales and the bands' factors folded in. The bias sits behind the base filter's taps.
template <int kernel>
__device__ __forceinline__ void load_filters(float* to, const Filters& filters, int levels, std::int64_t c, int t,
                                             int threads) {
  constexpr int taps = kernel * kernel, words = filter_words(kernel);
  for (int i = t; i < filter_count(levels) * words; i += threads) {
    const int f = i / words, tap = i % words;
    const int level = f == 0 ? 0 : (f - 1) / 4 + 1, band = f == 0 ? 0 : (f - 1) % 4;
    float v = 0.f;
    if (tap < taps) {
      v = ldexpf(folded_weight<float>(filters, kernel, level, band, c, tap), -2 * level);
    } else if (f == 0 && tap == taps) {
      v = folded_bias<float>(filters, c);
    }
    to[i] = v;
  }
}

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
  const int staged = staged_plane<T>(height, width);
  char* const stage = reinterpret_cast<char*>(items + threads);

  for (int i = thread_index(); i < arena_words; i += threads) arena[i] = 0.f;
  items[thread_index()] = find_item(plane, thread_index());

  Cursor at(p.work, p.work.first(blockIdx.x));
  const std::int64_t count = p.work.first(blockIdx.x + 1) - p.work.first(blockIdx.x);
  int channel = -1;
  const auto fetch = [&](const Cursor& next) {
    for (int k = 0; k < total.planes; ++k) {
      const int b = next.group * total.planes + k;
      if (b >= p.batch) break;
      stage_plane(reinterpret_cast<T*>(stage + k * staged), plane_of<T>(p.in, b, next.channel), p.in, height, width,
                  p.piece, thread_index(), threads);
    }
  };
  if (count > 0) fetch(at);
  for (std::int64_t n = 0; n < count; ++n) {
    if (at.channel != channel) {
      load_filters<kernel>(filters, p.filters, total.levels, at.channel, thread_index(), threads);
      channel = at.channel;
    }
    wait_for_copies();
    __syncthreads();
    analyse(plane, arena, thread_index(), [&](int k, int r, int col, float(&v)[4]) {
      load_row(v, reinterpret_cast<const T*>(stage + k * staged) + r * width, col, width);
    });
    deep_analysis(plane, arena, threads);
    __syncthreads();
    const Cursor now = at;
    at.advance(p.work);
    if (n + 1 < count) fetch(at);
    {
      constexpr int rows = Plane::item_rows;
      float sums[rows][4];
      const int t = thread_index();
      const bool works = t < total.level_items;
      if (works) {
        const LevelItem own = items[t];
        float taps[filter_words(kernel)];
        load_taps<kernel>(taps, filters + own.filter() * filter_words(kernel));
        filter_item<kernel, rows>(sums, arena + own.offset(), own.pitch(), 0, taps);
      }
      __syncthreads();
      if (works) {
        const LevelItem own = items[t];
        put_item<rows>(sums, arena + own.offset() + total.pad * own.pitch() + total.left, own.pitch(), own.rows(),
                       own.columns(), t >> 3 & 1);
      }
    }
    {
      float sums[base_rows][4];
      const int t = thread_index();
      const auto base = plane.at(Int<0>{});
      const int in_plane = base.across * base.down;
      const int k = total.planes == 1 ? 0 : t / in_plane, rest = t - k * in_plane;
      const int i = rest / base.across, j = rest - i * base.across;
      const bool works = t < total.base_items;
      float bias = 0.f;
      if (works) {
        float taps[filter_words(kernel)];
        load_taps<kernel>(taps, filters);
        bias = taps[kernel * kernel];
        filter_item<kernel, base_rows>(sums, arena + k * total.words + i * (8 * base.pitch + total.skew) + 4 * j,
                                       base.pitch, total.skew, taps);
      }
      __syncthreads();
      const int b = now.group * total.planes + k;
      float* const pyramid = arena + k * total.words;
      if (works && b < p.batch) {
        const float deep[2] = {bias, bias};
        add_synthesis(plane, pyramid, i, j, deep, sums);
        T* const out = plane_of<T>(p.out, b, now.channel);
#pragma unroll
        for (int r = 0; r < base_rows; ++r) {
          if (height % 8 != 0 && 8 * i + r >= height) continue;
          if (p.vector > 1) {
            store_row(sums[r], out, static_cast<int>(p.out.row), p.vector, 8 * i + r, 4 * j, width);
          } else {  // over x, which the base filter is done with
            float* const to = pyramid + (8 * i + r) * base.pitch + (8 * i + r) / 8 * total.skew + 4 * j;
#pragma unroll
            for (int q = 0; q < 4; ++q) to[q] = sums[r][q];
          }
        }
      }
      if (p.vector == 1) {
        __syncthreads();
        for (int q = 0; q < total.planes; ++q) {
          if (now.group * total.planes + q >= p.batch) break;
          store_plane(plane_of<T>(p.out, now.group * total.planes + q, now.channel), p.out,
                      arena + q * total.words, base.pitch, total.skew, height, width, thread_index(), threads);
        }
      }
    }
  }
}

// Calls f(plane) with the geometry this call's planes get.
template <int kernel, class F>
cudaError_t dispatch_plane(const Layout& layout, F&& f) {
  using Tuning = ResidentTuning<kernel>;
  const auto matches = [&](const Layout& fixed) {
    return fixed.level[0].height == layout.level[0].height && fixed.level[0].width == layout.level[0].width &&
           fixed.total.levels == layout.total.levels;
  };
  if (matches(Tuning::Plane56::layout)) return f(typename Tuning::Plane56{}, Tuning::Plane56::layout);
  if (matches(Tuning::Plane28::layout)) return f(typename Tuning::Plane28{}, Tuning::Plane28::layout);
  if (matches(Tuning::Plane14::layout)) return f(typename Tuning::Plane14{}, Tuning::Plane14::layout);
  return f(ResidentAny{layout}, layout);
}

template <DType dtype, int kernel>
cudaError_t launch_resident_as(const ResidentCall& call, cudaStream_t stream) {
  return dispatch_plane<kernel>(call.any, [&](const auto& plane, const Layout& layout) {
    const auto entry = &resident_kernel<DeviceType<dtype>, kernel, std::decay_t<decltype(plane)>>;
    const std::size_t shared = resident_memory(layout, dtype);
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, layout.total.threads, shared, per_multiprocessor);
        e != cudaSuccess) {
      return e;
    }
    ResidentArgs args = call.args;
    const int planes = layout.total.planes;
    args.work = {.per_channel = (args.batch + planes - 1) / planes, .channels = call.channels};
    args.work.blocks = std::min<std::int64_t>(args.work.items(), per_multiprocessor * call.multiprocessors);
    entry<<<static_cast<unsigned>(args.work.blocks), layout.total.threads, shared, stream>>>(args, plane);
    return launched();
  });
}

}  // namespace wtconv::cuda
