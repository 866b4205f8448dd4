// Strategy `resident` for 16-bit elements: analysis, filters and the last synthesis step on the matrix units.
//
// A block keeps one channel and walks over groups of its planes, as in resident.cuh:
//
//   device memory --copy--> stage --products with signs--> X[0], bands of levels 1 and 2 (16 bits), LL[2] (f32)
//   one warp: levels 3.. from LL[2]      the others: filters of levels 1 and 2
//   filters of levels 3..; then the sum of levels 2.. for level 1's LL (f32)
//   base filter, plus that sum, plus the product of level 1's results with signs --> device memory
//
// What is rounded: bands to 16 bits (as means: none leaves the range of its terms), level 1's results to 11 bits (in
// f32's range), y. All sums are f32. A nan or an infinity reaches the whole patch it lies in.
#pragma once

#include "cuda/kernels/matrix.cuh"
#include "cuda/kernels/plane.cuh"
#include "cuda/kernels/resident_matrix.hpp"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/matrix.hpp"

namespace wtconv::cuda {

// Geometry folded into the instructions.
template <MatrixShape shape>
struct FixedMatrix {
  static constexpr MatrixLayout layout = make_matrix_layout(shape);
  static constexpr int max_threads = 32 * shape.warps, min_blocks = shape.blocks;
  template <int l>
  __device__ __forceinline__ static constexpr MatrixLevel at(Int<l>) {
    constexpr MatrixLevel v = layout.level[l];
    return v;
  }
  __device__ __forceinline__ static constexpr MatrixTotals total() {
    constexpr MatrixTotals v = layout.total;
    return v;
  }
};

// Eight pixels of a row from column c on, in pairs; zero from `width` on.
template <class T>
__device__ __forceinline__ void load_pixels(unsigned (&v)[4], const T* row, int c, int width) {
  if (width % 8 == 0) {
    const uint4 q = *reinterpret_cast<const uint4*>(row + c);
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
  } else if (width % 4 == 0) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint2 q = c + 4 * n < width ? *reinterpret_cast<const uint2*>(row + c + 4 * n) : make_uint2(0, 0);
      v[2 * n] = q.x, v[2 * n + 1] = q.y;
    }
  } else if (width % 2 == 0) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      v[n] = c + 2 * n < width ? *reinterpret_cast<const unsigned*>(row + c + 2 * n) : 0u;
    }
  } else {
    const auto bits = reinterpret_cast<const unsigned short*>(row);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const unsigned low = c + 2 * n < width ? bits[c + 2 * n] : 0u;
      const unsigned high = c + 2 * n + 1 < width ? bits[c + 2 * n + 1] : 0u;
      v[n] = low | high << 16;
    }
  }
}

// Level 0, levels 1 and 2 and level 2's LL in f32 from the staged planes. Rows and columns past the image come out
// as zeros and fall on the border, or on rows that the layout holds for them.
template <class T, class Plane>
__device__ __forceinline__ void analyse_pixels(const Plane& plane, char* arena, const Stage<T>& stage,
                                               const Analysis<T>& analysis, int warp, Lane lane) {
  const auto t = plane.total();
  const auto x = plane.at(Int<0>{});
  const int in_lane_r = lane.g >> t.pairs_log, in_lane_c = lane.g & ((1 << t.pairs_log) - 1);
#pragma unroll 1
  for (int tile = warp; tile < t.planes * t.tiles; tile += t.warps) {
    const int p = t.planes == 1 ? 0 : tile / t.tiles, in_plane = tile - p * t.tiles;
    const int group = t.pair_chunks == 1 ? in_plane : in_plane / t.pair_chunks;
    const int r = (group << (3 - t.pairs_log)) + in_lane_r, c = 8 * (in_plane - group * t.pair_chunks) + in_lane_c;
    const bool taken = r < t.pairs_down && c < t.pairs_across;
    unsigned pixels[4] = {0, 0, 0, 0};
    const int row = 4 * r + lane.q;
    if (taken && (x.height % 4 == 0 || row < x.height)) {
      load_pixels(pixels, stage.plane(p) + row * x.width, 8 * c, x.width);
    }
    char* const memory = arena + p * t.plane;
    if (taken) {
      T* const to = reinterpret_cast<T*>(memory + x.offset) + (row + t.pad) * x.pitch + 8 * c + matrix_left;
      reinterpret_cast<uint2*>(to)[0] = make_uint2(pixels[0], pixels[1]);
      reinterpret_cast<uint2*>(to)[1] = make_uint2(pixels[2], pixels[3]);
    }
    if (t.levels < 1) continue;
    const unsigned a[4] = {pixels[0], pixels[2], pixels[1], pixels[3]};
    float low[4], high[4];
    analysis.template run<0>(a, low);
    analysis.template run<1>(a, high);
    if (taken) {
      const auto level = plane.at(Int<1>{});
      T* const to = reinterpret_cast<T*>(memory + level.offset) + (lane.q >> 1) * level.band +
                    (2 * r + (lane.q & 1) + t.pad) * level.pitch + 4 * c + matrix_left;
      *reinterpret_cast<uint2*>(to) = make_uint2(pack(T{}, low[0], low[1]), pack(T{}, low[2], low[3]));
      *reinterpret_cast<uint2*>(to + 2 * level.band) =
          make_uint2(pack(T{}, high[0], high[1]), pack(T{}, high[2], high[3]));
    }
    if (t.levels < 2) continue;
    analysis.template run<2>(a, low);
    if (taken) {
      const auto level = plane.at(Int<2>{});
      T* const to = reinterpret_cast<T*>(memory + level.offset) + lane.q * level.band + (r + t.pad) * level.pitch +
                    2 * c + matrix_left;
      *reinterpret_cast<unsigned*>(to) = pack(T{}, low[0], low[2]);
      if (t.levels > 2 && lane.q == 0) {
        float* const ll = reinterpret_cast<float*>(memory + level.low) + r * level.low_pitch + 2 * c;
        *reinterpret_cast<float2*>(ll) = make_float2(low[0], low[2]);
      }
    }
  }
}

// Levels 3 and deeper from level 2's LL, by one warp.
template <class T, class Plane>
__device__ __forceinline__ void analyse_deep(const Plane& plane, char* arena, int lane) {
  const auto t = plane.total();
  static_for<3, max_levels>([&](auto l) {
    if (l > t.levels) return;
    const auto to = plane.at(l);
    const auto from = plane.at(Int<decltype(l)::value - 1>{});
    const int in_plane = to.height * to.width;
    for (int i = lane; i < t.planes * in_plane; i += 32) {
      const int p = i / in_plane, rest = i - p * in_plane, r = rest / to.width, c = rest - r * to.width;
      char* const memory = arena + p * t.plane;
      const float* const low = reinterpret_cast<const float*>(memory + from.low) + 2 * r * from.low_pitch + 2 * c;
      const bool right = from.width % 2 == 0 || 2 * c + 1 < from.width;
      const bool below = from.height % 2 == 0 || 2 * r + 1 < from.height;
      const float2 top = *reinterpret_cast<const float2*>(low);
      const float2 bottom = below ? *reinterpret_cast<const float2*>(low + from.low_pitch) : make_float2(0.f, 0.f);
      const Quad<float> q =
          haar(0.25f * top.x, right ? 0.25f * top.y : 0.f, 0.25f * bottom.x, right ? 0.25f * bottom.y : 0.f);
      T* const band = reinterpret_cast<T*>(memory + to.offset) + (r + t.pad) * to.pitch + c + matrix_left;
#pragma unroll
      for (int s = 0; s < 4; ++s) band[s * to.band] = narrow<T>(q.v[s]);
      if (l < t.levels) reinterpret_cast<float*>(memory + to.low)[r * to.low_pitch + c] = q.v[0];
    }
    __syncwarp();
  });
}

// Filters the bands of levels first..last; warp `worker` of `workers` takes its share.
template <class T, int kernel, int first, int last, class Plane>
__device__ __forceinline__ void filter_levels(const Plane& plane, char* arena, const unsigned* tables,
                                              const float* factors, int worker, int workers, Lane lane) {
  const auto t = plane.total();
  int done = 0;  // items of the levels before: who comes next
  static_for<first, last>([&](auto l) {
    if (l > t.levels) return;
    const auto level = plane.at(l);
    int start = (worker - done) % workers;
    if (start < 0) start += workers;
    done += 4 * level.items;
#pragma unroll 1
    for (int item = start; item < 4 * level.items; item += workers) {
      const int s = item & 3, f = 4 * l - 3 + s;
      Taps<kernel> taps;
      taps.load(tables + f * table_words(kernel), lane);
      const float factor = factors[f];
      const Strip strip[2] = {Strip(level, t.planes, item >> 2, lane.g), Strip(level, t.planes, item >> 2, lane.g + 8)};
      const T* from[2];
      float* to[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        char* const memory = arena + strip[n].plane * t.plane;
        from[n] = reinterpret_cast<const T*>(memory + level.offset) + s * level.band + 2 * strip[n].row * level.pitch +
                  4 * strip[n].column + matrix_left - window_left(kernel);
        to[n] = reinterpret_cast<float*>(memory + level.results) + s * level.result_band +
                (2 * strip[n].row + (lane.q >> 1)) * level.result_pitch + 4 * strip[n].column + 2 * (lane.q & 1);
      }
      Windows<T, kernel> windows(from[0], from[1], level.pitch, lane);
#pragma unroll
      for (int i = 0; i < level.steps; ++i) {
        float sums[4];
        windows.filter(taps, sums);
#pragma unroll
        for (int n = 0; n < 4; ++n) sums[n] *= factor;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const bool inside = level.down % level.steps == 0 || strip[n].row + i < level.down;
          if (strip[n].taken && inside) {
            *reinterpret_cast<float2*>(to[n] + 2 * i * level.result_pitch) = make_float2(sums[2 * n], sums[2 * n + 1]);
          }
        }
      }
    }
  });
}

// What levels 2 and deeper give to level 1's LL, in closed form, a position of level 2 at a time.
template <class Plane>
__device__ __forceinline__ void sum_levels(const Plane& plane, char* arena, int thread, int threads) {
  const auto t = plane.total();
  const auto two = plane.at(Int<2>{}), one = plane.at(Int<1>{});
  const int in_plane = two.height * two.width;
#pragma unroll 1
  for (int index = thread; index < t.planes * in_plane; index += threads) {
    const int p = index / in_plane, rest = index - p * in_plane, i = rest / two.width, j = rest - i * two.width;
    char* const memory = arena + p * t.plane;
    float common = 0.f;
    static_for<3, max_levels>([&](auto l) {
      if (l > t.levels) return;
      const auto level = plane.at(l);
      const float* const z =
          reinterpret_cast<const float*>(memory + level.results) + (i >> (l - 2)) * level.result_pitch + (j >> (l - 2));
      const float vertical = i >> (l - 3) & 1 ? -1.f : 1.f, horizontal = j >> (l - 3) & 1 ? -1.f : 1.f;
      const float a = fmaf(vertical, z[level.result_band], z[0]);
      const float b = fmaf(vertical, z[3 * level.result_band], z[2 * level.result_band]);
      common += fmaf(horizontal, b, a);
    });
    const float* const z = reinterpret_cast<const float*>(memory + two.results) + i * two.result_pitch + j;
    const Quad<float> q = haar(z[0] + common, z[2 * two.result_band], z[two.result_band], z[3 * two.result_band]);
    float* const to = reinterpret_cast<float*>(memory + one.low) + 2 * i * one.low_pitch + 2 * j;
    *reinterpret_cast<float2*>(to) = make_float2(q.v[0], q.v[2]);
    *reinterpret_cast<float2*>(to + one.low_pitch) = make_float2(q.v[1], q.v[3]);
  }
}

// Two pixels side by side at (r, c), c even.
template <bool vector, class T>
__device__ __forceinline__ void store_pair(T* plane, const Image& image, int r, int c, int width, float a, float b) {
  if constexpr (vector) {
    if (width % 4 == 0 || c < width) store2(plane + (r * static_cast<int>(image.row) + c), a, b);
  } else {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::int64_t at = c + n < width ? offset_on_chip(image, r, c + n) : -1;
      if (at >= 0) plane[at] = narrow<T>(n == 0 ? a : b);
    }
  }
}

// The base filter and all that the levels give; output(k) is plane k of the group in device memory, or null.
template <class T, int kernel, bool vector, class Plane, class Output>
__device__ __forceinline__ void filter_base(const Plane& plane, char* arena, const unsigned* tables,
                                            const float* factors, const Image& image, int warp, Lane lane,
                                            Output&& output) {
  const auto t = plane.total();
  const auto x = plane.at(Int<0>{});
  const auto one = plane.at(Int<1>{});
  const int orow = lane.g >> 2, ocolumn = lane.g & 3;
  const float sign = band_sign(lane.q, orow, ocolumn & 1);
  const float left = ocolumn < 2 ? sign : 0.f, right = ocolumn < 2 ? 0.f : sign;
#pragma unroll 1
  for (int item = warp; item < x.items; item += t.warps) {
    Taps<kernel> taps;
    taps.load(tables, lane);
    const float factor = factors[0], bias = factors[filter_count(t.levels)];
    const Strip strip[2] = {Strip(x, t.planes, item, lane.g), Strip(x, t.planes, item, lane.g + 8)};
    const T* from[2];
    const float *results[2], *low[2];
    T* to[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      char* const memory = arena + strip[n].plane * t.plane;
      from[n] = reinterpret_cast<const T*>(memory + x.offset) + 2 * strip[n].row * x.pitch + 4 * strip[n].column +
                matrix_left - window_left(kernel);
      results[n] = reinterpret_cast<const float*>(memory + one.results) + lane.q * one.result_band +
                   strip[n].row * one.result_pitch + 2 * strip[n].column;
      low[n] = reinterpret_cast<const float*>(memory + one.low) + strip[n].row * one.low_pitch + 2 * strip[n].column +
               (lane.q & 1);
      to[n] = strip[n].taken ? output(strip[n].plane) : nullptr;
    }
    Windows<T, kernel> windows(from[0], from[1], x.pitch, lane);
#pragma unroll(vector ? 8 : 1)
    for (int i = 0; i < x.steps; ++i) {
      float sums[4];
      windows.filter(taps, sums);
      float more[2] = {bias, bias};
      if (t.levels >= 2) {
        more[0] += low[0][i * one.low_pitch];
        more[1] += low[1][i * one.low_pitch];
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[n] = fmaf(sums[n], factor, more[n / 2]);
      if (t.levels >= 1) {
        const float2 a = *reinterpret_cast<const float2*>(results[0] + i * one.result_pitch);
        const float2 b = *reinterpret_cast<const float2*>(results[1] + i * one.result_pitch);
        multiply_tf32(sums, {a.x, b.x, a.y, b.y}, left, right);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int r = 2 * (strip[n].row + i) + (lane.q >> 1), c = 4 * strip[n].column + 2 * (lane.q & 1);
        const bool inside = x.down % x.steps == 0 && x.height % 2 == 0 ? true : r < x.height;
        if (to[n] && inside) store_pair<vector>(to[n], image, r, c, x.width, sums[2 * n], sums[2 * n + 1]);
      }
    }
  }
}

// Copies planes word by word, for a Stage that copies such pieces: of many small planes, whose own pieces are too few
// to keep every thread busy.
template <class T>
__device__ __forceinline__ void fetch_words(char* staged, const Image& image, int first, int planes, int channel,
                                            int height, int width, int t, int threads) {
  const int words = height * width * static_cast<int>(sizeof(T)) / 4;
#pragma unroll 4
  for (int i = t; i < planes * words; i += threads) {
    const int k = i / words, word = i - k * words;
    const char* const from = reinterpret_cast<const char*>(plane_of<T>(image, first + k, channel));
    copy_async<4>(staged + k * staged_plane<T>(height, width) + 4 * word, from + 4 * word);
  }
}

template <class T, int kernel, class Plane>
__global__ void __launch_bounds__(Plane::max_threads, Plane::min_blocks)
    resident_matrix_kernel(const __grid_constant__ ResidentArgs p, const __grid_constant__ Plane plane) {
  extern __shared__ __align__(128) char bytes[];
  const auto total = plane.total();
  const int threads = 32 * total.warps;
  const int height = plane.at(Int<0>{}).height, width = plane.at(Int<0>{}).width;
  char* const arena = bytes;
  unsigned* const tables = reinterpret_cast<unsigned*>(arena + total.planes * total.plane);
  float* const factors = reinterpret_cast<float*>(tables + total.filters);
  __shared__ __align__(8) std::uint64_t arrived;
  char* const staged = reinterpret_cast<char*>(tables + (total.filters + filter_count(total.levels) + 1 + 3) / 4 * 4);
  Stage<T> stage(staged, &arrived, height, width, p.piece);

  for (int i = thread_index(); i < total.planes * total.plane / 4 + total.filters; i += threads) {
    reinterpret_cast<unsigned*>(arena)[i] = 0;
  }
  const Analysis<T> analysis{Lane(thread_index())};

  Cursor at(p.work, p.work.first(blockIdx.x));
  const std::int64_t count = p.work.first(blockIdx.x + 1) - p.work.first(blockIdx.x);
  int channel = -1;
  const auto fetch = [&](const Cursor& next) {
    const int first = next.group * total.planes, planes = min(total.planes, static_cast<int>(p.batch) - first);
    if (total.planes > 1 && p.piece == 4) {
      fetch_words<T>(staged, p.in, first, planes, next.channel, height, width, thread_index(), threads);
    } else {
      stage.fetch(p.in, first, planes, next.channel, p.channels, thread_index(), threads);
    }
  };
  __syncthreads();
  if (count > 0) fetch(at);
#pragma unroll 1
  for (std::int64_t n = 0; n < count; ++n) {
    const int warp = __shfl_sync(~0u, thread_index() >> 5, 0);
    const Lane lane(thread_index());
    if (at.channel != channel) {
      load_tables<T, kernel>(tables, factors, p.filters, total.levels, at.channel, warp, total.warps,
                             thread_index() & 31);
      channel = at.channel;
    }
    stage.wait();
    analyse_pixels(plane, arena, stage, analysis, warp, lane);
    __syncthreads();
    const Cursor now = at;
    at.advance(p.work);
    if (n + 1 < count) fetch(at);
    if (total.levels >= 3) {
      const bool deep = warp == 0;
      if (deep) analyse_deep<T>(plane, arena, thread_index() & 31);
      // The deep levels' warp filters only if it is alone.
      if (!deep || total.warps == 1) {
        filter_levels<T, kernel, 1, 2>(plane, arena, tables, factors, max(warp - 1, 0), max(total.warps - 1, 1), lane);
      }
      __syncthreads();
      filter_levels<T, kernel, 3, max_levels>(plane, arena, tables, factors, warp, total.warps, lane);
    } else {
      filter_levels<T, kernel, 1, 2>(plane, arena, tables, factors, warp, total.warps, lane);
    }
    __syncthreads();
    if (total.levels >= 2) {
      sum_levels(plane, arena, thread_index(), threads);
      __syncthreads();
    }
    const auto output = [&](int k) {
      const int b = now.group * total.planes + k;
      return b < p.batch ? plane_of<T>(p.out, b, now.channel) : nullptr;
    };
    if (p.vector > 1) {
      filter_base<T, kernel, true>(plane, arena, tables, factors, p.out, warp, lane, output);
    } else {
      filter_base<T, kernel, false>(plane, arena, tables, factors, p.out, warp, lane, output);
    }
    __syncthreads();
  }
}

template <DType dtype, int kernel>
cudaError_t launch_resident_matrix_as(const MatrixCall& call, cudaStream_t stream) {
  const auto launch = [&](const auto& plane) {
    const auto entry = &resident_matrix_kernel<DeviceType<dtype>, kernel, std::decay_t<decltype(plane)>>;
    const MatrixTotals& total = call.layout.total;
    const auto shared = static_cast<std::size_t>(total.shared);
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, 32 * total.warps, shared, per_multiprocessor); e != cudaSuccess) {
      return e;
    }
    ResidentArgs args = call.args;
    args.work = {.per_channel = (args.batch + total.planes - 1) / total.planes, .channels = args.channels};
    args.work.blocks = choose_blocks(args.work, per_multiprocessor * call.multiprocessors,
                                     channels_innermost(args.in) || channels_innermost(args.out));
    entry<<<static_cast<unsigned>(args.work.blocks), 32 * total.warps, shared, stream>>>(args, plane);
    return launched();
  };
  return dispatch_shape<kernel, matrix_shapes>(call.shape,
                                               [&](auto i) { return launch(FixedMatrix<matrix_shapes[i]>{}); });
}

}  // namespace wtconv::cuda
