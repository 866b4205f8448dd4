// Strategy `cluster`: a plane in bands of rows, one in each block of a cluster (compute capability 9 and up). One
// launch, every pixel read once and written once.
//
// A band is a plane as `resident` has it, but for its upper and lower border: that holds the neighbours' rows, which
// they store there through distributed shared memory. Bands begin at multiples of 2^levels rows, so analysis and
// synthesis stay within a block.
//
//    block r - 1 |  ...        |
//                |  last rows  | --store--> border above  | block r: analysis of its rows, then its first
//                                           band          | and last rows go to the neighbours; cluster
//                |  first rows | --store--> border below  | barrier; filters, synthesis
//    block r + 1 |  ...        |
//
// A block waits for the others twice a plane. Before it stores borders: all are done with those of the plane before,
// which they say after their filters. Before it filters: its own borders are complete, which the stores say themselves.
#pragma once

#include <algorithm>

#include "cuda/kernels/bands.hpp"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/filter_planes.cuh"
#include "cuda/kernels/gradient.cuh"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/cluster.hpp"

namespace wtconv::cuda {

// The calling block's place. `fixed`: blocks of the cluster, with bands of equal height; 0: from the arguments.
template <int fixed>
struct Band {
  static constexpr bool is_fixed = fixed > 0;
  int blocks, rank, first, height;  // first: row of the image; height: of the image
  template <class Plane>
  __device__ __forceinline__ Band(const Plane& plane, int blocks_, int height_)
      : blocks(fixed ? fixed : blocks_),
        rank(static_cast<int>(blockIdx.x) % blocks),
        first(rank * plane.at(Int<0>{}).height),
        height(fixed ? fixed * plane.at(Int<0>{}).height : height_) {}
  __device__ __forceinline__ std::int64_t cluster() const { return blockIdx.x / static_cast<unsigned>(blocks); }
};

// The borders between the bands of a pyramid: each block stores its first and last rows of every level into the borders
// of the blocks they belong to, 16 bytes at a time, counted by a barrier there. In deep levels those may lie beyond the
// next block.
template <int kernel, class Plane, class Band>
class Borders {
 public:
  __device__ __forceinline__ Borders(const Plane& plane, float* pyramid, std::uint64_t* barrier, const Band& band)
      : plane_(plane), pyramid_(pyramid), barrier_(shared_address(barrier)), band_(band) {
    if (threadIdx.x == 0) make_byte_barrier(barrier_);
  }

  // Called after a barrier of the block, once no block of the cluster reads its borders any more.
  __device__ __forceinline__ void store(int threads) const {
    const unsigned base = shared_address(pyramid_);
    unsigned expected = 0;
    each_level<0>(plane_, [&](auto l) {
      const LevelLayout level = plane_.at(l);
      const int bands = l == 0 ? 1 : 4, skew = l == 0 ? plane_.total().skew : 0;
      const int above = min(pad, band_.rank * level.height);
      const int below = min(pad, (band_.blocks - 1 - band_.rank) * level.height);
      expected += 4 * level.pitch * bands * (above + below);
      // As many threads as a row has vectors share it, or where that is no constant, a warp.
      const int vectors = level.pitch / 4, lanes = Band::is_fixed ? vectors : 32, t = thread_index();
      if (t >= threads / lanes * lanes) return;
      for (int line = t / lanes; line < 2 * bands * pad; line += threads / lanes) {
        const bool down = line & 1;
        const int s = line / 2 / pad;
        const BorderRow row = border_row(level.height, line / 2 % pad, down);
        const int rank = band_.rank + row.hops, from = pad + row.from, to = pad + row.to;
        if (rank < 0 || rank >= band_.blocks) continue;
        const int offset = level.offset + s * level.band;
        const float* const own = pyramid_ + offset + from * level.pitch + from / 8 * skew;
        const unsigned there = remote_address(base + 4 * (offset + to * level.pitch + to / 8 * skew), rank);
        const unsigned count = remote_address(barrier_, rank);
        for (int v = t % lanes; v < vectors; v += lanes) {
          float words[4];
          load4(words, own + 4 * v);
          store_remote<4>(there + 16 * v, words, 0, count);
        }
      }
    });
    if (thread_index() == 0) expect_bytes(barrier_, expected);
  }

  // Returns when the calling thread may read the borders.
  __device__ __forceinline__ void wait() { wait_for_bytes<true>(barrier_, parity_); }

 private:
  static constexpr int pad = kernel / 2;
  const Plane& plane_;
  float* pyramid_;
  unsigned barrier_;
  const Band& band_;
  unsigned parity_ = 0;
};

template <class T, int kernel, int fixed, class Plane>
__global__ void __launch_bounds__(Plane::max_threads, Plane::min_blocks)
    cluster_kernel(const __grid_constant__ ClusterArgs p, const __grid_constant__ Plane plane) {
  if constexpr (!has_clusters) return;
  extern __shared__ __align__(128) float memory[];
  const auto total = plane.total();
  const int threads = total.threads;
  const int rows = plane.at(Int<0>{}).height, width = plane.at(Int<0>{}).width;
  const int arena_words = total.words + total.slack;
  float* const arena = memory;
  float* const filters = arena + arena_words;
  LevelItem* const items = reinterpret_cast<LevelItem*>(filters + filter_count(total.levels) * filter_words(kernel));
  const Band<fixed> band(plane, p.blocks, p.height);
  const bool load_vectors = fixed || p.load_vectors;
  const int vector = fixed ? 4 : p.vector;
  __shared__ __align__(8) std::uint64_t complete;
  Borders<kernel, Plane, Band<fixed>> borders(plane, arena, &complete, band);
  for (int i = thread_index(); i < arena_words; i += threads) arena[i] = 0.f;
  items[thread_index()] = find_item(plane, thread_index());
  cluster_arrive();

  Cursor at(p.work, p.work.first(band.cluster()));
  const auto count = static_cast<int>(p.work.first(band.cluster() + 1) - p.work.first(band.cluster()));
  int channel = -1;
  for (int n = 0; n < count; ++n) {
    if (at.channel != channel) {
      load_filters<kernel>(filters, p.filters, total.levels, at.channel, thread_index(), threads);
      channel = at.channel;
    }
    const T* const in = plane_of<T>(p.in, at.group, channel);
    analyse(
        plane, arena, thread_index(),
        [&](int, int r, int c, float(&v)[8][4]) {
          load_block(v, in, p.in, band.height, width, load_vectors, fixed > 0, band.first + r, c);
        },
        [] { __syncthreads(); });
    deep_analysis(plane, arena, threads);
    __syncthreads();
    cluster_wait();
    borders.store(threads);
    const int batch = at.group;
    at.advance(p.work);
    if (load_vectors && n + 1 < count) {
      prefetch_rows(plane_of<T>(p.in, at.group, at.channel), p.in, band.height, width, band.first, 0, rows, width,
                    thread_index(), threads);
    }
    borders.wait();
    filter_planes<kernel>(plane, arena, filters, items, p.filters.weight[0] != nullptr,
                          [&](int, int i, int j, float bias, float(&sums)[base_rows][4]) {
                            if (band.first + 8 * i >= band.height) return;
                            const float deep[2] = {bias, bias};
                            add_synthesis(plane, arena, i, j, deep, sums);
                            if (vector > 1) {
                              store_item(sums, plane_of<T>(p.out, batch, channel), p.out, vector, band.first + 8 * i,
                                         4 * j, band.height, width);
                            } else {
                              keep_item(sums, arena, plane.at(Int<0>{}).pitch, total, 8 * i, 4 * j, rows, width);
                            }
                          });
    cluster_arrive_relaxed();
    if (vector > 1) continue;
    __syncthreads();
    store_plane(plane_of<T>(p.out, batch, channel), p.out, arena, plane.at(Int<0>{}).pitch, total, band.first, 0,
                min(rows, band.height - band.first), width, thread_index(), threads);
  }
  cluster_wait();
}

template <class T, int kernel, int fixed, class PlaneX, class PlaneDy>
__global__ void __launch_bounds__(PlaneX::max_threads, PlaneX::min_blocks)
    cluster_gradient_kernel(const __grid_constant__ ClusterGradientArgs p, const __grid_constant__ PlaneX px,
                            const __grid_constant__ PlaneDy pd) {
  if constexpr (!has_clusters) return;
  extern __shared__ __align__(128) float memory[];
  const auto total = px.total();
  const int threads = total.threads, rows = px.at(Int<0>{}).height, width = px.at(Int<0>{}).width;
  const int words_x = gradient_arena_words(total, kernel);
  float* const arena_x = memory;
  float* const arena_dy = arena_x + words_x;
  const Band<fixed> band(px, p.blocks, p.height);
  __shared__ __align__(8) std::uint64_t complete;
  Borders<kernel, PlaneX, Band<fixed>> borders(px, arena_x, &complete, band);
  for (int i = thread_index(); i < words_x + pd.total().words; i += threads) memory[i] = 0.f;
  cluster_arrive();

  GradientItem own = find_gradient_item(px, pd, thread_index());
  if (!p.base && own.filter == 0) own.filter = -1;
  GradientSums<kernel> sums;
  sums.clear();
  Cursor at(p.work, p.work.first(band.cluster()));
  const auto count = static_cast<int>(p.work.first(band.cluster() + 1) - p.work.first(band.cluster()));
  for (int n = 0; n < count; ++n) {
    const auto load = [&](const Image& image, bool vectors) {
      return [&band, &image, plane = plane_of<T>(image, at.group, at.channel), width, vectors](int, int r, int c,
                                                                                               float(&v)[8][4]) {
        load_block(v, plane, image, band.height, width, vectors, fixed > 0, band.first + r, c);
      };
    };
    __syncthreads();
    const int half = (total.analysis_threads + 31) / 32 * 32;
    analyse(px, arena_x, thread_index(), load(p.x, fixed || p.load_vectors_x), [] {});
    analyse(pd, arena_dy, thread_index() - half, load(p.dy, fixed || p.load_vectors_dy), [] {});
    deep_analysis(px, arena_x, threads);
    deep_analysis(pd, arena_dy, threads);
    __syncthreads();
    cluster_wait();
    borders.store(threads);
    const int channel = at.channel;
    at.advance(p.work);
    const bool more = n + 1 < count;
    const auto prefetch = [&](const Image& image, bool vectors) {
      if (!more || !vectors) return;
      prefetch_rows(plane_of<T>(image, at.group, at.channel), image, band.height, width, band.first, 0, rows, width,
                    thread_index(), threads);
    };
    prefetch(p.x, fixed || p.load_vectors_x);
    prefetch(p.dy, fixed || p.load_vectors_dy);
    borders.wait();
    sums.template add<PlaneX::item_rows>(own, arena_x, arena_dy);
    if (!more || at.channel != channel) {
      const std::int64_t slot = p.work.slot(band.cluster(), channel) * band.blocks + band.rank;
      write_partial<kernel>(px, arena_x, sums, p.first_level, p.partials + slot * partial_size(kernel, total.levels),
                            threads);
      sums.clear();
      cluster_arrive();
    } else {
      cluster_arrive_relaxed();
    }
  }
  cluster_wait();
}

template <DType dtype, int kernel>
cudaError_t launch_cluster_as(const ClusterCall& call, cudaStream_t stream) {
  const auto launch = [&](auto fixed, const auto& band) {
    const auto entry = &cluster_kernel<DeviceType<dtype>, kernel, fixed, std::decay_t<decltype(band)>>;
    const int threads = call.band.total.threads, blocks = call.args.blocks;
    const std::size_t shared = cluster_memory(call.band);
    int clusters = 0;
    if (cudaError_t e = prepare_clusters(entry, blocks, threads, shared, clusters); e != cudaSuccess) return e;
    ClusterArgs args = call.args;
    args.work.blocks = choose_blocks(args.work, clusters, channels_innermost(args.in) || channels_innermost(args.out));
    return launch_clusters(entry, args.work.blocks, blocks, threads, shared, stream, args, band);
  };
  if (call.shape < 0) return launch(Int<0>{}, AnyPlane{call.band});
  return dispatch_shape<kernel, cluster_shapes>(call.shape, [&](auto i) {
    return launch(Int<cluster_shapes[i].cluster>{}, FixedPlane<band_shape(cluster_shapes[i]), Use::filtering>{});
  });
}

template <DType dtype, int kernel>
cudaError_t launch_cluster_gradient_as(ClusterGradientCall& call, cudaStream_t stream) {
  const auto launch = [&](auto fixed, const auto& x, const auto& dy) {
    const auto entry = &cluster_gradient_kernel<DeviceType<dtype>, kernel, fixed, std::decay_t<decltype(x)>,
                                                std::decay_t<decltype(dy)>>;
    const int threads = call.x.total.threads, blocks = call.args.blocks;
    const std::size_t shared = cluster_gradient_memory(call.x, call.dy);
    int clusters = 0;
    if (cudaError_t e = prepare_clusters(entry, blocks, threads, shared, clusters); e != cudaSuccess) return e;
    Work& work = call.args.work;
    work.blocks = choose_blocks(work, std::min<std::int64_t>(work.blocks, clusters),
                                channels_innermost(call.args.x) || channels_innermost(call.args.dy));
    return launch_clusters(entry, work.blocks, blocks, threads, shared, stream, call.args, x, dy);
  };
  if (call.shape < 0) return launch(Int<0>{}, AnyPlane{call.x}, AnyPlane{call.dy});
  return dispatch_shape<kernel, cluster_gradient_shapes>(call.shape, [&](auto i) {
    constexpr ResidentShape shape = band_shape(cluster_gradient_shapes[i]);
    return launch(Int<cluster_gradient_shapes[i].cluster>{}, FixedPlane<shape, Use::correlation>{},
                  FixedPlane<shape, Use::correlated>{});
  });
}

}  // namespace wtconv::cuda
