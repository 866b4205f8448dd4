// Strategy `tiled`: planes of any size. A block filters one tile with base and the upper levels, its border formed from
// a halo of pixels read besides; what deeper levels add comes ready-made at the resolution of the tile's last level.
// From the pyramid on, this is the resident kernel.
#pragma once

#include "cuda/kernels/filter_planes.cuh"
#include "cuda/kernels/gradient.cuh"
#include "cuda/kernels/tiled.hpp"
#include "cuda/kernels/transfer.cuh"
#include "cuda/tuning/tiled.hpp"

namespace wtconv::cuda {

// Where a work item lies.
struct TilePlace {
  int batch, row, column;  // of the tile's first pixel
  template <class Plane>
  __device__ __forceinline__ TilePlace(const TileGrid& grid, const Plane& plane, int group) {
    const int tiles = grid.across * grid.down, tile = group % tiles;
    batch = group / tiles;
    row = tile / grid.across * plane.at(Int<0>{}).height;
    column = tile % grid.across * plane.at(Int<0>{}).width;
  }
};

template <class T, int kernel, class Plane>
__global__ void __launch_bounds__(Plane::max_threads, Plane::min_blocks)
    tiled_kernel(const __grid_constant__ TiledArgs p, const __grid_constant__ Plane plane) {
  extern __shared__ __align__(128) float memory[];
  constexpr auto total = Plane::layout.total;
  constexpr int threads = total.threads, arena_words = total.words + total.slack;
  constexpr int tile_height = Plane::layout.level[0].height, tile_width = Plane::layout.level[0].width;
  float* const arena = memory;
  float* const filters = arena + arena_words;
  LevelItem* const items = reinterpret_cast<LevelItem*>(filters + filter_count(total.levels) * filter_words(kernel));
  for (int i = thread_index(); i < arena_words; i += threads) arena[i] = 0.f;
  items[thread_index()] = find_item(plane, thread_index());

  Cursor at(p.work, p.work.first(blockIdx.x));
  const std::int64_t count = p.work.first(blockIdx.x + 1) - p.work.first(blockIdx.x);
  int channel = -1;
  for (std::int64_t n = 0; n < count; ++n, at.advance(p.work)) {
    if (at.channel != channel) {
      load_filters<kernel>(filters, p.filters, total.levels, at.channel, thread_index(), threads);
      channel = at.channel;
    }
    const TilePlace place(p.grid, plane, at.group);
    const T* const in = plane_of<T>(p.in, place.batch, at.channel);
    __syncthreads();
    analyse_tile(plane, arena, p.levels, threads, [&](int r, int c, float(&v)[8][4]) {
      load_block(v, in, p.in, p.grid.height, p.grid.width, p.load_vectors, false, place.row + r, place.column + c);
    });
    __syncthreads();
    if (Cursor next = at; p.load_vectors && n + 1 < count) {
      next.advance(p.work);
      const TilePlace next_place(p.grid, plane, next.group);
      const int halo = tile_halo(plane);
      prefetch_rows(plane_of<T>(p.in, next_place.batch, next.channel), p.in, p.grid.height, p.grid.width,
                    next_place.row - halo, next_place.column - halo, tile_height + 2 * halo, tile_width + 2 * halo,
                    thread_index(), threads);
    }
    T* const out = plane_of<T>(p.out, place.batch, at.channel);
    filter_planes<kernel>(
        plane, arena, filters, items, p.filters.weight[0] != nullptr,
        [&](int, int i, int j, float bias, float(&sums)[base_rows][4]) {
          const int r = place.row + 8 * i, c = place.column + 4 * j;
          if (r >= p.grid.height || c >= p.grid.width) return;
          float deep[2] = {bias, bias};
          if (p.deep) {
            const int h = (p.grid.height + 3) / 4, w = (p.grid.width + 3) / 4;
            const float* const from = p.deep + (place.batch * p.channels + at.channel) * h * w + r / 4 * w + c / 4;
            deep[0] += from[0];
            if (r / 4 + 1 < h) deep[1] += from[w];
          }
          add_synthesis(plane, arena, i, j, deep, sums);
          if (p.vector > 1) {
            store_item(sums, out, p.out, p.vector, r, c, p.grid.height, p.grid.width);
          } else {
            keep_item(sums, arena, plane.at(Int<0>{}).pitch, total, 8 * i, 4 * j, tile_height, tile_width);
          }
        });
    if (p.vector > 1) continue;
    __syncthreads();
    store_plane(out, p.out, arena, plane.at(Int<0>{}).pitch, total, place.row, place.column,
                min(tile_height, p.grid.height - place.row), min(tile_width, p.grid.width - place.column),
                thread_index(), threads);
  }
}

template <class T, int kernel, class PlaneX, class PlaneDy>
__global__ void __launch_bounds__(PlaneX::max_threads, PlaneX::min_blocks)
    tiled_gradient_kernel(const __grid_constant__ TiledGradientArgs p, const __grid_constant__ PlaneX px,
                          const __grid_constant__ PlaneDy pd) {
  extern __shared__ __align__(128) float memory[];
  constexpr auto total = PlaneX::layout.total;
  constexpr int threads = total.threads, words_x = gradient_arena_words(total, kernel);
  float* const arena_x = memory;
  float* const arena_dy = arena_x + words_x;
  for (int i = thread_index(); i < words_x + pd.total().words; i += threads) memory[i] = 0.f;

  GradientItem own = find_gradient_item(px, pd, thread_index());
  if (!p.base && own.filter == 0) own.filter = -1;
  GradientSums<kernel> sums;
  sums.clear();
  Cursor at(p.work, p.work.first(blockIdx.x));
  const std::int64_t count = p.work.first(blockIdx.x + 1) - p.work.first(blockIdx.x);
  for (std::int64_t n = 0; n < count; ++n) {
    const TilePlace place(p.grid, px, at.group);
    const T* const x = plane_of<T>(p.x, place.batch, at.channel);
    const T* const dy = plane_of<T>(p.dy, place.batch, at.channel);
    __syncthreads();
    analyse_tile(px, arena_x, p.levels, threads, [&](int r, int c, float(&v)[8][4]) {
      load_block(v, x, p.x, p.grid.height, p.grid.width, p.load_vectors_x, false, place.row + r, place.column + c);
    });
    analyse_tile(pd, arena_dy, p.levels, threads, [&](int r, int c, float(&v)[8][4]) {
      load_block(v, dy, p.dy, p.grid.height, p.grid.width, p.load_vectors_dy, false, place.row + r, place.column + c);
    });
    __syncthreads();
    sums.template add<PlaneX::item_rows>(own, arena_x, arena_dy);
    const int channel = at.channel;
    at.advance(p.work);
    if (n + 1 < count && at.channel == channel) continue;
    write_partial<kernel>(px, arena_x, sums, p.first_level,
                          p.partials + p.work.slot(blockIdx.x, channel) * partial_size(kernel, total.levels), threads);
    sums.clear();
  }
}

template <DType dtype, int kernel>
cudaError_t launch_tiled_as(const TiledCall& call, cudaStream_t stream) {
  using Plane = FixedPlane<tile_shape(kernel), Use::filtering>;
  const auto entry = &tiled_kernel<DeviceType<dtype>, kernel, Plane>;
  constexpr LayoutTotals total = Plane::layout.total;
  const std::size_t shared =
      sizeof(float) * (total.words + total.slack + filter_count(total.levels) * filter_words(kernel)) +
      sizeof(LevelItem) * total.threads;
  int per_multiprocessor = 0;
  if (cudaError_t e = prepare_persistent(entry, total.threads, shared, per_multiprocessor); e != cudaSuccess) return e;
  TiledArgs args = call.args;
  args.work.blocks = choose_blocks(args.work, per_multiprocessor * call.multiprocessors,
                                   channels_innermost(args.in) || channels_innermost(args.out));
  entry<<<static_cast<unsigned>(args.work.blocks), total.threads, shared, stream>>>(args, Plane{});
  return launched();
}

template <DType dtype, int kernel>
cudaError_t launch_tiled_gradient_as(const TiledGradientCall& call, cudaStream_t stream) {
  using PlaneX = FixedPlane<gradient_tile_shape(kernel), Use::correlation>;
  using PlaneDy = FixedPlane<gradient_tile_shape(kernel), Use::correlated>;
  const auto entry = &tiled_gradient_kernel<DeviceType<dtype>, kernel, PlaneX, PlaneDy>;
  constexpr LayoutTotals total = PlaneX::layout.total;
  const std::size_t shared = sizeof(float) * (gradient_arena_words(total, kernel) + PlaneDy::layout.total.words);
  int per_multiprocessor = 0;
  if (cudaError_t e = prepare_persistent(entry, total.threads, shared, per_multiprocessor); e != cudaSuccess) return e;
  entry<<<static_cast<unsigned>(call.args.work.blocks), total.threads, shared, stream>>>(call.args, PlaneX{},
                                                                                         PlaneDy{});
  return launched();
}

}  // namespace wtconv::cuda
