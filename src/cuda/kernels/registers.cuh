// Strategy `registers`: the smallest planes, one thread a plane, everything between load and store in registers.
// Shared memory only turns planes that lie side by side in device memory into planes that lie in lanes.
#pragma once

#include <algorithm>

#include "cuda/kernels/filter_planes.cuh"
#include "cuda/kernels/launch.hpp"
#include "cuda/kernels/registers.hpp"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/registers.hpp"

namespace wtconv::cuda {

inline constexpr int lanes = 32, register_threads = lanes * register_channels;

// Planes of 32 batch entries x 4 channels in shared memory: a row a batch entry, an odd pitch, so that lanes reading
// their own rows never meet in a bank.
template <int height, int width>
struct PlaneRows {
  static constexpr int size = height * width, pitch = register_channels * size + 1, words = lanes * pitch;

  static constexpr int rounds = (register_channels * size + lanes - 1) / lanes;  // of a warp over a batch entry

  // How the elements of a batch entry's four planes lie: without gaps one plane after the other, or pixel by pixel at
  // one distance. Then the lanes of a warp find their elements without index arithmetic.
  enum class Order { planes, pixels, any };
  __device__ __forceinline__ static Order order(const Image& image) {
    if (image.step != 1) return Order::any;
    if (image.column == 1 && image.row == width && image.channel == size) return Order::planes;
    const bool near = image.column <= 1 << 24 && image.channel >= 0;
    return channels_innermost(image) && near && image.row == width * image.column ? Order::pixels : Order::any;
  }

  // Element i in that order: its word in shared memory, its distance from the first in device memory.
  template <Order order>
  struct Place {
    int channel, word, offset;
    __device__ __forceinline__ Place(int i, const Image& image) {
      if constexpr (order == Order::planes) {
        channel = i / size;
        word = offset = i;
      } else {
        channel = i % register_channels;
        word = channel * size + i / register_channels;
        offset = i / register_channels * static_cast<int>(image.column) + channel * static_cast<int>(image.channel);
      }
    }
  };

  // Calls f(word, channel, r, c) for the elements of a batch entry that the calling lane moves. Neighbouring lanes take
  // neighbouring addresses, whichever of pixels and channels lies closer together.
  template <class F>
  __device__ __forceinline__ static void each(const Image& image, F&& f) {
    const bool channels_inside = channels_innermost(image);
#pragma unroll 1
    for (int i = threadIdx.x % lanes; i < register_channels * size; i += lanes) {
      const int channel = channels_inside ? i % register_channels : i / size;
      const int pixel = channels_inside ? i / register_channels : i % size;
      f(channel * size + pixel, channel, pixel / width, pixel % width);
    }
  }

  template <class T>
  __device__ __forceinline__ static void load(float* to, const Image& image, std::int64_t b0, std::int64_t c0,
                                              std::int64_t batch, std::int64_t channels) {
    const int warp = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const int planes = static_cast<int>(min(std::int64_t{register_channels}, channels - c0));
    const int entries = static_cast<int>(min(std::int64_t{lanes}, batch - b0));
    const auto ordered = [&](auto order) {
      constexpr int flight = 4;  // batch entries whose loads are in flight at once
      static_assert(lanes % (register_channels * flight) == 0);
#pragma unroll 1
      for (int first = warp; first < lanes; first += register_channels * flight) {
        T v[flight][rounds];
#pragma unroll
        for (int n = 0; n < flight; ++n) {
          const int b = first + n * register_channels;
          const T* const from = plane_of<T>(image, b0 + b, c0);
#pragma unroll
          for (int k = 0; k < rounds; ++k) {
            const int i = k * lanes + lane;
            const Place<decltype(order)::value> at(i, image);
            const bool there = b < entries && i < register_channels * size && at.channel < planes;
            v[n][k] = there ? from[at.offset] : narrow<T>(0.f);
          }
        }
#pragma unroll
        for (int n = 0; n < flight; ++n) {
#pragma unroll
          for (int k = 0; k < rounds; ++k) {
            const int i = k * lanes + lane;
            const Place<decltype(order)::value> at(i, image);
            if (i < register_channels * size) to[(first + n * register_channels) * pitch + at.word] = widen(v[n][k]);
          }
        }
      }
    };
    switch (order(image)) {
      case Order::planes:
        return ordered(std::integral_constant<Order, Order::planes>{});
      case Order::pixels:
        return ordered(std::integral_constant<Order, Order::pixels>{});
      case Order::any:
        break;
    }
    for (int b = warp; b < lanes; b += register_channels) {
      each(image, [&](int word, int channel, int r, int c) {
        const std::int64_t at = b < entries && channel < planes ? offset_on_chip(image, r, c) : -1;
        to[b * pitch + word] = at < 0 ? 0.f : widen(plane_of<T>(image, b0 + b, c0 + channel)[at]);
      });
    }
  }
  template <class T>
  __device__ __forceinline__ static void store(const float* from, const Image& image, std::int64_t b0, std::int64_t c0,
                                               std::int64_t batch, std::int64_t channels) {
    const int warp = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const int planes = static_cast<int>(min(std::int64_t{register_channels}, channels - c0));
    const int entries = static_cast<int>(min(std::int64_t{lanes}, batch - b0));
    const auto ordered = [&](auto order) {
      for (int b = warp; b < entries; b += register_channels) {
        T* const to = plane_of<T>(image, b0 + b, c0);
#pragma unroll
        for (int k = 0; k < rounds; ++k) {
          const int i = k * lanes + lane;
          const Place<decltype(order)::value> at(i, image);
          if (i < register_channels * size && at.channel < planes) to[at.offset] = narrow<T>(from[b * pitch + at.word]);
        }
      }
    };
    switch (order(image)) {
      case Order::planes:
        return ordered(std::integral_constant<Order, Order::planes>{});
      case Order::pixels:
        return ordered(std::integral_constant<Order, Order::pixels>{});
      case Order::any:
        break;
    }
    for (int b = warp; b < entries; b += register_channels) {
      each(image, [&](int word, int channel, int r, int c) {
        if (channel >= planes) return;
        const std::int64_t at = offset_on_chip(image, r, c);
        if (at >= 0) plane_of<T>(image, b0 + b, c0 + channel)[at] = narrow<T>(from[b * pitch + word]);
      });
    }
  }

  __device__ __forceinline__ static float* own(float* rows) {
    return rows + threadIdx.x % lanes * pitch + threadIdx.x / lanes * size;
  }
  __device__ __forceinline__ static void read(float (&v)[height][width], const float* own) {
#pragma unroll
    for (int i = 0; i < size; ++i) v[i / width][i % width] = own[i];
  }
  __device__ __forceinline__ static void write(const float (&v)[height][width], float* own) {
#pragma unroll
    for (int i = 0; i < size; ++i) own[i] = v[i / width][i % width];
  }
};

// One band of an image, without Haar's factor.
template <int s, int h, int w>
__device__ __forceinline__ void band_of(const float (&x)[h][w], float (&band)[(h + 1) / 2][(w + 1) / 2]) {
#pragma unroll
  for (int r = 0; r < (h + 1) / 2; ++r) {
#pragma unroll
    for (int c = 0; c < (w + 1) / 2; ++c) {
      const bool right = 2 * c + 1 < w, below = 2 * r + 1 < h;
      const Quad<float> q = haar(x[2 * r][2 * c], right ? x[2 * r][right ? 2 * c + 1 : 0] : 0.f,
                                 below ? x[below ? 2 * r + 1 : 0][2 * c] : 0.f,
                                 right && below ? x[below ? 2 * r + 1 : 0][right ? 2 * c + 1 : 0] : 0.f);
      band[r][c] = q.v[s];
    }
  }
}

// Calls f(tap, r, c, r', c') for every tap and every pair of positions (r, c), (r', c') it connects.
template <int kernel, int h, int w, class Tap, class F>
__device__ __forceinline__ void each_product(Tap&& tap, F&& f) {
  constexpr int pad = kernel / 2;
#pragma unroll
  for (int t = 0; t < kernel * kernel; ++t) {
    const int i = t / kernel - pad, j = t % kernel - pad;
    if (i <= -h || i >= h || j <= -w || j >= w) continue;
    tap(t);
#pragma unroll
    for (int r = 0; r < h; ++r) {
#pragma unroll
      for (int c = 0; c < w; ++c) {
        if (r + i >= 0 && r + i < h && c + j >= 0 && c + j < w) f(t, r, c, r + i, c + j);
      }
    }
  }
}

template <int kernel, int h, int w>
__device__ __forceinline__ void add_filtered(const float (&x)[h][w], const float* taps, float (&y)[h][w]) {
  float weight = 0.f;
  each_product<kernel, h, w>(
      [&](int t) { weight = taps[t]; },
      [&](int, int r, int c, int from_r, int from_c) { y[r][c] = fmaf(weight, x[from_r][from_c], y[r][c]); });
}

// y += all levels of x, the filters of the first at `filters`.
template <int kernel, int levels, int h, int w>
__device__ __forceinline__ void add_levels(const float (&x)[h][w], const float* filters, float (&y)[h][w]) {
  if constexpr (levels > 0) {
    static_for<0, 3>([&](auto s) {
      float band[(h + 1) / 2][(w + 1) / 2], z[(h + 1) / 2][(w + 1) / 2];
      band_of<s>(x, band);
#pragma unroll
      for (int r = 0; r < (h + 1) / 2; ++r) {
#pragma unroll
        for (int c = 0; c < (w + 1) / 2; ++c) z[r][c] = 0.f;
      }
      if constexpr (s == LL) add_levels<kernel, levels - 1>(band, filters + 4 * filter_words(kernel), z);
      add_filtered<kernel>(band, filters + s * filter_words(kernel), z);
#pragma unroll
      for (int r = 0; r < h; ++r) {
#pragma unroll
        for (int c = 0; c < w; ++c) {
          const bool minus = (s & 1 ? r & 1 : 0) != (s & 2 ? c & 1 : 0);
          y[r][c] += minus ? -z[r / 2][c / 2] : z[r / 2][c / 2];
        }
      }
    });
  }
}

template <class T, int kernel, int shape>
__global__ void __launch_bounds__(register_threads, register_blocks)
    registers_kernel(const __grid_constant__ RegistersArgs p) {
  constexpr RegisterShape s = register_shapes[shape];
  using Rows = PlaneRows<s.height, s.width>;
  constexpr int words = filter_count(s.levels) * filter_words(kernel);
  __shared__ float rows[Rows::words];
  __shared__ __align__(16) float filters[register_channels * words];
  const std::int64_t groups = (p.channels + register_channels - 1) / register_channels;
  const std::int64_t c0 = blockIdx.x % groups * register_channels, b0 = blockIdx.x / groups * lanes;
  Rows::template load<T>(rows, p.in, b0, c0, p.batch, p.channels);
  for (int k = 0; k < register_channels && c0 + k < p.channels; ++k) {
    load_filters<kernel>(filters + k * words, p.filters, s.levels, c0 + k, threadIdx.x, register_threads);
  }
  __syncthreads();
  {
    const float* const own_filters = filters + threadIdx.x / lanes * words;
    const float bias = own_filters[kernel * kernel];
    float x[s.height][s.width], y[s.height][s.width];
    Rows::read(x, Rows::own(rows));
#pragma unroll
    for (int i = 0; i < Rows::size; ++i) y[i / s.width][i % s.width] = bias;
    add_filtered<kernel>(x, own_filters, y);
    add_levels<kernel, s.levels>(x, own_filters + filter_words(kernel), y);
    Rows::write(y, Rows::own(rows));
  }
  __syncthreads();
  Rows::template store<T>(rows, p.out, b0, c0, p.batch, p.channels);
}

// Sums over the warp's planes of one filter's products, written by the lanes in the order of the lanes.
template <int kernel, int h, int w>
__device__ __forceinline__ void write_filter_sums(const float (&x)[h][w], const float (&dy)[h][w], float factor,
                                                  float* scratch, float* to) {
  constexpr int taps = kernel * kernel;
  const int lane = threadIdx.x % lanes;
  float sums[taps];
#pragma unroll
  for (int t = 0; t < taps; ++t) sums[t] = 0.f;
  each_product<kernel, h, w>([](int) {}, [&](int t, int r, int c, int from_r,
                                             int from_c) { sums[t] = fmaf(dy[r][c], x[from_r][from_c], sums[t]); });
  __syncwarp();
#pragma unroll
  for (int t = 0; t < taps; ++t) scratch[lane * taps + t] = sums[t];
  __syncwarp();
  for (int t = lane; t < taps; t += lanes) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < lanes; ++i) sum += scratch[i * taps + t];
    to[t] = factor * sum;
  }
}

template <int kernel, int level, int levels, int h, int w>
__device__ __forceinline__ void write_level_sums(const float (&x)[h][w], const float (&dy)[h][w], float* scratch,
                                                 float* to) {
  if constexpr (level <= levels) {
    static_for<0, 3>([&](auto s) {
      float band_x[(h + 1) / 2][(w + 1) / 2], band_dy[(h + 1) / 2][(w + 1) / 2];
      band_of<s>(x, band_x);
      band_of<s>(dy, band_dy);
      write_filter_sums<kernel>(band_x, band_dy, 1.f / (1 << 2 * level), scratch, to + s * kernel * kernel);
      if constexpr (s == LL) {
        write_level_sums<kernel, level + 1, levels>(band_x, band_dy, scratch, to + 4 * kernel * kernel);
      }
    });
  }
}

template <class T, int kernel, int shape>
__global__ void __launch_bounds__(register_threads, 2)
    registers_gradient_kernel(const __grid_constant__ RegistersGradientArgs p) {
  constexpr RegisterShape s = register_shapes[shape];
  constexpr int taps = kernel * kernel;
  static_assert(taps % 2 == 1, "an odd pitch of the scratch avoids bank conflicts");
  using Rows = PlaneRows<s.height, s.width>;
  extern __shared__ __align__(16) float memory[];
  float* const rows_x = memory;
  float* const rows_dy = rows_x + Rows::words;
  const std::int64_t groups = (p.channels + register_channels - 1) / register_channels;
  const std::int64_t c0 = blockIdx.x % groups * register_channels, b0 = blockIdx.x / groups * lanes;
  Rows::template load<T>(rows_x, p.x, b0, c0, p.batch, p.channels);
  Rows::template load<T>(rows_dy, p.dy, b0, c0, p.batch, p.channels);
  __syncthreads();
  const std::int64_t c = c0 + threadIdx.x / lanes;
  float x[s.height][s.width], dy[s.height][s.width];
  Rows::read(x, Rows::own(rows_x));
  Rows::read(dy, Rows::own(rows_dy));
  __syncthreads();  // the rows' memory becomes scratch
  if (c >= p.channels) return;
  float* const scratch = memory + threadIdx.x / lanes * lanes * taps;
  const std::int64_t block = c * p.work.per_channel + b0 / lanes;
  float* const to = p.partials + p.work.slot(block, c) * partial_size(kernel, s.levels);
  write_filter_sums<kernel>(x, dy, 1.f, scratch, to);
  write_level_sums<kernel, 1, s.levels>(x, dy, scratch, to + taps);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < Rows::size; ++i) sum += dy[i / s.width][i % s.width];
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % lanes == 0) to[filter_count(s.levels) * taps] = sum;
}

// A block for every 32 batch entries of four channels.
template <class Args>
unsigned register_grid(const Args& args) {
  return static_cast<unsigned>((args.channels + register_channels - 1) / register_channels *
                               ((args.batch + lanes - 1) / lanes));
}

template <DType dtype, int kernel>
cudaError_t launch_registers_as(const RegistersCall<RegistersArgs>& call, cudaStream_t stream) {
  return dispatch_shape<kernel, register_shapes>(call.shape, [&](auto i) {
    registers_kernel<DeviceType<dtype>, kernel, i>
        <<<register_grid(call.args), register_threads, 0, stream>>>(call.args);
    return launched();
  });
}

template <DType dtype, int kernel>
cudaError_t launch_registers_gradient_as(const RegistersCall<RegistersGradientArgs>& call, cudaStream_t stream) {
  constexpr int taps = kernel * kernel;
  return dispatch_shape<kernel, register_shapes>(call.shape, [&](auto i) {
    constexpr RegisterShape s = register_shapes[i];
    constexpr int words = std::max(2 * PlaneRows<s.height, s.width>::words, register_threads * taps);
    const auto entry = &registers_gradient_kernel<DeviceType<dtype>, kernel, i>;
    int per_multiprocessor = 0;
    if (cudaError_t e = prepare_persistent(entry, register_threads, words * sizeof(float), per_multiprocessor);
        e != cudaSuccess) {
      return e;
    }
    entry<<<register_grid(call.args), register_threads, words * sizeof(float), stream>>>(call.args);
    return launched();
  });
}

}  // namespace wtconv::cuda
