// Strategy `levels`: the published formulation. One fused kernel a level (bands recomputed from the image above, never
// stored unfiltered), one bit-indexed synthesis, filtered bands through device memory. Slow beside the on-chip
// strategies, but it takes every kernel size, level count, type and layout, and is the baseline they are measured by.
// Each of its reformulations can be left out: then bands are stored, scales are a pass, levels are joined one by one.
#include <algorithm>

#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/launch.hpp"

namespace wtconv::cuda {
namespace {

constexpr int tile_w = 32, tile_h = 8, threads = tile_w * tile_h;
// Blocks walk over tiles, so that the grid never limits an extent.
constexpr std::int64_t max_blocks = 1 << 15;

// A tile of positions in one plane of an h x w grid.
struct Tiles {
  std::int64_t across, down, planes;
  __host__ __device__ Tiles(std::int64_t h, std::int64_t w, std::int64_t n)
      : across((w + tile_w - 1) / tile_w), down((h + tile_h - 1) / tile_h), planes(n) {}
  __host__ __device__ std::int64_t per_plane() const { return across * down; }
  __host__ __device__ std::int64_t count() const { return per_plane() * planes; }
  __device__ void locate(std::int64_t tile, std::int64_t& plane, std::int64_t& r, std::int64_t& q) const {
    plane = tile / per_plane();
    const std::int64_t rest = tile % per_plane();
    r = rest / across * tile_h;
    q = rest % across * tile_w;
  }
};

// Shared memory of a tile with its halo, one image.
__host__ __device__ constexpr int halo_w(int kernel) { return tile_w + kernel - 1; }
__host__ __device__ constexpr int halo_h(int kernel) { return tile_h + kernel - 1; }
__host__ __device__ constexpr int halo_size(int kernel) { return halo_w(kernel) * halo_h(kernel); }

// Bands at positions [r0, r0 + rows) x [q0, q0 + cols) of the image's level, into four planes of shared memory.
template <class T, class A>
__device__ void load_bands(const T* plane, const Image& image, std::int64_t height, std::int64_t width, std::int64_t r0,
                           std::int64_t q0, int rows, int cols, A* to) {
  const std::int64_t h = (height + 1) / 2, w = (width + 1) / 2;
  for (int i = threadIdx.x; i < rows * cols; i += threads) {
    const std::int64_t r = r0 + i / cols, q = q0 + i % cols;
    Quad<A> band{};
    if (r >= 0 && q >= 0 && r < h && q < w) {
      band = haar<A>(pixel(plane, image, 2 * r, 2 * q, height, width),
                     pixel(plane, image, 2 * r, 2 * q + 1, height, width),
                     pixel(plane, image, 2 * r + 1, 2 * q, height, width),
                     pixel(plane, image, 2 * r + 1, 2 * q + 1, height, width));
    }
    for (int s = 0; s < 4; ++s) to[s * rows * cols + i] = band.v[s] / 2;
  }
}

template <class T, class A>
__device__ void load_image(const T* plane, const Image& image, std::int64_t height, std::int64_t width, std::int64_t r0,
                           std::int64_t q0, int rows, int cols, A* to) {
  for (int i = threadIdx.x; i < rows * cols; i += threads) {
    to[i] = pixel(plane, image, r0 + i / cols, q0 + i % cols, height, width);
  }
}

// Sum over the k x k window whose top left corner is `from`.
template <class A>
__device__ A filter(const A* from, int pitch, const A* weight, int kernel) {
  A sum = 0;
  for (int i = 0; i < kernel; ++i) {
    for (int j = 0; j < kernel; ++j) sum += weight[i * kernel + j] * from[i * pitch + j];
  }
  return sum;
}

// What a tile of level `level` filters: the image itself, bands that are stored, or bands formed from the image above.
template <class T, class A, class Args>
__device__ void load_level(const Args& p, const T* plane, const Image& image, std::int64_t r0, std::int64_t q0,
                           int rows, int cols, A* to) {
  if (p.level > 0 && !p.formed) {
    load_bands<T, A>(plane, image, p.height, p.width, r0, q0, rows, cols, to);
    return;
  }
  for (int s = 0; s < (p.level == 0 ? 1 : 4); ++s) {
    load_image<T, A>(plane + s * p.height * p.width, image, p.height, p.width, r0, q0, rows, cols,
                     to + s * rows * cols);
  }
}

// Height or width of a level's bands (of the image, at level 0).
template <class Args>
__host__ __device__ std::int64_t extent(const Args& p, std::int64_t of_image) {
  return p.level == 0 || p.formed ? of_image : (of_image + 1) / 2;
}

template <class T>
__global__ void __launch_bounds__(threads) filter_kernel(const __grid_constant__ LevelArgs p) {
  using A = ComputeOf<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int bands = p.level == 0 ? 1 : 4;
  A* images = reinterpret_cast<A*>(memory);
  A* weights = images + bands * halo_size(p.kernel);
  const std::int64_t h = extent(p, p.height), w = extent(p, p.width);
  const Tiles tiles(h, w, p.batch * p.channels);
  const int pad = pad_before(p.kernel, p.filters.rotated), taps = p.kernel * p.kernel;
  const int row = threadIdx.x / tile_w, column = threadIdx.x % tile_w, pitch = halo_w(p.kernel);
  for (std::int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    std::int64_t plane, r0, q0;
    tiles.locate(tile, plane, r0, q0);
    const std::int64_t c = plane % p.channels;
    __syncthreads();
    for (int i = threadIdx.x; i < bands * taps; i += threads) {
      weights[i] = p.scaled ? folded_weight<A>(p.filters, p.kernel, p.level, i / taps, c, i % taps)
                            : plain_weight<A>(p.filters, p.kernel, p.level, i / taps, c, i % taps);
    }
    load_level(p, plane_of<T>(p.in, plane / p.channels, c), p.in, r0 - pad, q0 - pad, halo_h(p.kernel), pitch, images);
    __syncthreads();
    const std::int64_t r = r0 + row, q = q0 + column;
    if (r >= h || q >= w) continue;
    A bias = 0;
    if (p.level == 0 && p.filters.bias) {
      bias = p.scaled ? folded_bias<A>(p.filters, c) : load_any<A>(p.filters.bias, p.filters.dtype, c);
    }
    A* out = static_cast<A*>(p.out) + plane * bands * h * w + r * w + q;
    for (int s = 0; s < bands; ++s) {
      out[s * h * w] =
          filter(images + s * halo_size(p.kernel) + row * pitch + column, pitch, weights + s * taps, p.kernel) + bias;
    }
    if (p.low) static_cast<A*>(p.low)[(plane * h + r) * w + q] = images[(row + pad) * pitch + column + pad];
  }
}

template <class T>
__global__ void __launch_bounds__(threads) bands_kernel(const __grid_constant__ LevelArgs p) {
  using A = ComputeOf<T>;
  __shared__ A bands[4 * threads];
  const std::int64_t h = (p.height + 1) / 2, w = (p.width + 1) / 2;
  const Tiles tiles(h, w, p.batch * p.channels);
  for (std::int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    std::int64_t plane, r0, q0;
    tiles.locate(tile, plane, r0, q0);
    load_bands<T, A>(plane_of<T>(p.in, plane / p.channels, plane % p.channels), p.in, p.height, p.width, r0, q0, tile_h,
                     tile_w, bands);
    // A thread stores what it has loaded itself.
    const std::int64_t r = r0 + threadIdx.x / tile_w, q = q0 + threadIdx.x % tile_w;
    if (r >= h || q >= w) continue;
    for (int s = 0; s < 4; ++s)
      static_cast<A*>(p.out)[((plane * 4 + s) * h + r) * w + q] = bands[s * threads + threadIdx.x];
  }
}

template <class A>
__global__ void __launch_bounds__(threads) scale_kernel(const __grid_constant__ LevelArgs p) {
  const std::int64_t filters = p.channels * (p.level == 0 ? 1 : 4), count = p.batch * filters * p.height * p.width;
  for (std::int64_t i = blockIdx.x * std::int64_t{threads} + threadIdx.x; i < count;
       i += gridDim.x * std::int64_t{threads}) {
    static_cast<A*>(p.out)[i] *=
        load_any<A>(p.filters.scale[p.level], p.filters.dtype, i / (p.height * p.width) % filters);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) synthesis_kernel(const __grid_constant__ SynthesisArgs p) {
  using A = ComputeOf<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  A* image = reinterpret_cast<A*>(memory);
  A* weights = image + halo_size(p.kernel);
  const bool base_filter = p.filters.weight[0] != nullptr;
  const Tiles tiles(p.height, p.width, p.batch * p.channels);
  const int pad = pad_before(p.kernel, p.filters.rotated), taps = p.kernel * p.kernel;
  const int row = threadIdx.x / tile_w, column = threadIdx.x % tile_w, pitch = halo_w(p.kernel);
  for (std::int64_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    std::int64_t plane, r0, q0;
    tiles.locate(tile, plane, r0, q0);
    const std::int64_t b = plane / p.channels, c = plane % p.channels;
    if (base_filter) {
      __syncthreads();
      for (int i = threadIdx.x; i < taps; i += threads) weights[i] = folded_weight<A>(p.filters, p.kernel, 0, 0, c, i);
      load_image<T, A>(plane_of<T>(p.in, b, c), p.in, p.height, p.width, r0 - pad, q0 - pad, halo_h(p.kernel), pitch,
                       image);
      __syncthreads();
    }
    const std::int64_t r = r0 + row, q = q0 + column;
    if (r >= p.height || q >= p.width) continue;
    const std::int64_t at = offset_in_plane(p.out, r, q);
    if (at < 0) continue;
    A sum = 0, factor = 1;
    if (base_filter) {
      sum = filter(image + row * pitch + column, pitch, weights, p.kernel) + folded_bias<A>(p.filters, c);
    } else if (p.base) {
      sum = static_cast<const A*>(p.base)[(plane * p.height + r) * p.width + q];
    }
    std::int64_t h = p.height, w = p.width;
    for (int l = 1; l <= p.levels; ++l) {
      h = (h + 1) / 2;
      w = (w + 1) / 2;
      factor /= 2;
      const A* z = static_cast<const A*>(p.filtered[l]) + plane * 4 * h * w + (r >> l) * w + (q >> l);
      const A vertical = (r >> (l - 1)) & 1 ? -1 : 1, horizontal = (q >> (l - 1)) & 1 ? -1 : 1;
      sum += factor * (z[0] + vertical * z[h * w] + horizontal * (z[2 * h * w] + vertical * z[3 * h * w]));
      if (l == p.levels && p.rest) {
        sum += factor * static_cast<const A*>(p.rest)[(plane * h + (r >> l)) * w + (q >> l)];
      }
    }
    plane_of<T>(p.out, b, c)[at] = narrow<T>(sum);
  }
}

// A thread keeps the sums of a few (filter, tap) pairs; where there are fewer pairs than threads, the rows of a tile
// are shared out among groups of threads, added in order at the end. 4 * 15 * 15 pairs are at most `max_sums` rounds.
constexpr int max_sums = (4 * max_kernel * max_kernel + threads - 1) / threads;

template <class T>
__global__ void __launch_bounds__(threads) level_gradient_kernel(const __grid_constant__ LevelGradientArgs p) {
  using A = ComputeOf<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  const int bands = p.level == 0 ? 1 : 4, taps = p.kernel * p.kernel, pairs = bands * taps;
  A* const y = reinterpret_cast<A*>(memory);
  A* const g = y + bands * halo_size(p.kernel);
  const int groups = pairs < threads ? threads / pairs : 1;
  const int group = pairs < threads ? threadIdx.x / pairs : 0;
  const int first_pair = pairs < threads ? threadIdx.x % pairs : threadIdx.x;
  const bool sums_dy = p.level == 0;
  const std::int64_t h = extent(p, p.height), w = extent(p, p.width);
  const Tiles tiles(h, w, 1);
  const int pad = pad_before(p.kernel, false), pitch = halo_w(p.kernel);
  A* partials = static_cast<A*>(p.partials);
  const std::int64_t slot_size = partial_size(p.kernel, p.levels);
  const int filters_before = p.level == 0 ? 0 : filter_count(p.level - 1);

  std::int64_t item = p.work.first(blockIdx.x);
  const std::int64_t end = p.work.first(blockIdx.x + 1);
  while (item < end) {
    const std::int64_t c = item / p.work.per_channel;
    const std::int64_t stop = min(end, (c + 1) * p.work.per_channel);
    A sums[max_sums] = {};
    A total = 0;  // of dy, over this thread's positions
    for (; item < stop; ++item) {
      const std::int64_t b = item % p.work.per_channel;
      const T* x = plane_of<T>(p.x, b, c);
      const T* dy = plane_of<T>(p.dy, b, c);
      for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
        std::int64_t plane, r0, q0;
        tiles.locate(tile, plane, r0, q0);
        __syncthreads();
        load_level(p, x, p.x, r0 - pad, q0 - pad, halo_h(p.kernel), pitch, y);
        load_level(p, dy, p.dy, r0, q0, tile_h, tile_w, g);
        __syncthreads();
        const int row = threadIdx.x / tile_w, column = threadIdx.x % tile_w;
        if (p.low_x && r0 + row < h && q0 + column < w) {
          const std::int64_t at = ((b * p.channels + c) * h + r0 + row) * w + q0 + column;
          static_cast<A*>(p.low_x)[at] = y[(row + pad) * pitch + column + pad];
          static_cast<A*>(p.low_dy)[at] = g[threadIdx.x];
        }
        if (sums_dy) total += g[threadIdx.x];
          // A tile is summed on its own first: short sums keep the error small.
#pragma unroll
        for (int n = 0; n < max_sums; ++n) {
          const int pair = first_pair + n * threads;
          if (group >= groups || pair >= pairs) continue;
          const int s = pair / taps, tap = pair % taps;
          const A* from = y + s * halo_size(p.kernel) + tap / p.kernel * pitch + tap % p.kernel;
          const A* with = g + s * tile_h * tile_w;
          A sum = 0;
          for (int i = group; i < tile_h; i += groups) {
            for (int j = 0; j < tile_w; ++j) sum += from[i * pitch + j] * with[i * tile_w + j];
          }
          sums[n] += sum;
        }
      }
    }
    A* to = partials + p.work.slot(blockIdx.x, c) * slot_size + filters_before * taps;
    if (groups == 1) {
#pragma unroll
      for (int n = 0; n < max_sums; ++n) {
        const int pair = first_pair + n * threads;
        if (group == 0 && pair < pairs) to[pair] = sums[n];
      }
    } else {
      __syncthreads();
      if (group < groups) y[threadIdx.x] = sums[0];
      __syncthreads();
      if (threadIdx.x < pairs) {
        A sum = 0;
        for (int i = 0; i < groups; ++i) sum += y[i * pairs + threadIdx.x];
        to[threadIdx.x] = sum;
      }
    }
    if (sums_dy) {
      __syncthreads();
      y[threadIdx.x] = total;
      __syncthreads();
      if (threadIdx.x == 0) {
        A sum = 0;
        for (int i = 0; i < threads; ++i) sum += y[i];
        partials[(p.work.slot(blockIdx.x, c) + 1) * slot_size - 1] = sum;
      }
    }
  }
}

unsigned grid_for(std::int64_t count) { return static_cast<unsigned>(std::min(count, max_blocks)); }

}  // namespace

cudaError_t launch_filters(const LevelArgs& args, cudaStream_t stream) {
  const Tiles tiles(extent(args, args.height), extent(args, args.width), args.batch * args.channels);
  const int bands = args.level == 0 ? 1 : 4;
  return dispatch_dtype(args.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::size_t shared = sizeof(ComputeOf<T>) * bands * (halo_size(args.kernel) + args.kernel * args.kernel);
    filter_kernel<T><<<grid_for(tiles.count()), threads, shared, stream>>>(args);
    return launched();
  });
}

cudaError_t launch_bands(const LevelArgs& args, cudaStream_t stream) {
  const Tiles tiles((args.height + 1) / 2, (args.width + 1) / 2, args.batch * args.channels);
  return dispatch_dtype(args.dtype, [&](auto tag) {
    bands_kernel<typename decltype(tag)::type><<<grid_for(tiles.count()), threads, 0, stream>>>(args);
    return launched();
  });
}

cudaError_t launch_scale(const LevelArgs& args, cudaStream_t stream) {
  const std::int64_t count = args.batch * args.channels * (args.level == 0 ? 1 : 4) * args.height * args.width;
  const unsigned blocks = grid_for((count + threads - 1) / threads);
  if (args.dtype == DType::f64) {
    scale_kernel<double><<<blocks, threads, 0, stream>>>(args);
  } else {
    scale_kernel<float><<<blocks, threads, 0, stream>>>(args);
  }
  return launched();
}

cudaError_t launch_synthesis(const SynthesisArgs& args, cudaStream_t stream) {
  const Tiles tiles(args.height, args.width, args.batch * args.channels);
  return dispatch_dtype(args.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::size_t shared = sizeof(ComputeOf<T>) * (halo_size(args.kernel) + args.kernel * args.kernel);
    synthesis_kernel<T><<<grid_for(tiles.count()), threads, shared, stream>>>(args);
    return launched();
  });
}

cudaError_t launch_level_gradient(const LevelGradientArgs& args, cudaStream_t stream) {
  const int bands = args.level == 0 ? 1 : 4;
  return dispatch_dtype(args.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::size_t shared = sizeof(ComputeOf<T>) * std::max(bands * (halo_size(args.kernel) + threads), threads);
    level_gradient_kernel<T><<<static_cast<unsigned>(args.work.blocks), threads, shared, stream>>>(args);
    return launched();
  });
}

}  // namespace wtconv::cuda
