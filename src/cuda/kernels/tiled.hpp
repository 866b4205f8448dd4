// Arguments of strategy `tiled`, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/arguments.hpp"
#include "cuda/work.hpp"

namespace wtconv::cuda {

// How images are cut into tiles.
struct TileGrid {
  int height = 0, width = 0;  // of the image
  int across = 0, down = 0;   // tiles
  int tiles() const { return across * down; }
};
TileGrid tile_grid(std::int64_t height, std::int64_t width);

struct TiledArgs {
  Image in, out;
  Filters filters;
  TileGrid grid;
  Work work{};  // tiles, in the order channel, batch, tile
  std::int64_t channels = 0;
  int levels = 0;               // the tile's own, at most tile_levels
  const float* deep = nullptr;  // what the levels beyond add, (B, C, h, w) dense at the tile's last level; may be null
  bool load_vectors = false;    // rows of `in` can be read 4 elements at once
  int vector = 1;               // elements of one store, as in ResidentArgs
};
struct TiledCall {
  DType dtype = DType::f32;
  int kernel = 0;
  int multiprocessors = 0;
  TiledArgs args;  // without blocks
};
template <DType dtype, int kernel>
cudaError_t launch_tiled_as(const TiledCall& call, cudaStream_t stream);

struct TiledGradientArgs {
  Image x, dy;
  TileGrid grid;
  Work work{};
  int levels = 0;  // the tile's own, at most tile_levels
  bool load_vectors_x = false, load_vectors_dy = false;
  int first_level = 0;        // the images are LL of this level
  bool base = true;           // sums for the base filter too
  float* partials = nullptr;  // [slot][filter of tile_levels levels][tap], then one sum of dy
};
struct TiledGradientCall {
  DType dtype = DType::f32;
  int kernel = 0;
  TiledGradientArgs args;
};
template <DType dtype, int kernel>
cudaError_t launch_tiled_gradient_as(const TiledGradientCall& call, cudaStream_t stream);

// LL of level `levels` (un-normalised: plain sums of 4^levels pixels) of every plane, to (B, C, h, w) dense f32.
struct PoolArgs {
  DType dtype = DType::f32;
  Image in;
  std::int64_t batch = 0, channels = 0;
  int height = 0, width = 0, levels = 0;
  bool load_vectors = false;
  float* out = nullptr;
};
cudaError_t launch_pool(const PoolArgs& args, cudaStream_t stream);

// Whether rows of the image can be read 4 elements at once.
bool rows_load_vectors(const Image& image, DType dtype, std::int64_t height, std::int64_t width);

}  // namespace wtconv::cuda
