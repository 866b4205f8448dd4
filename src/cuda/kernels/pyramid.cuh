// Analysis and synthesis of a pyramid in shared memory, each in one phase.
//
// Bands carry Haar's factors un-applied: a band of level l is 2^l times the operator's, which the weights make up for
// by 4^-l (once for the analysis, once for the synthesis).
#pragma once

#include "cuda/kernels/plane.cuh"

namespace wtconv::cuda {

// Which results of the analysis belong to a pyramid: row r, columns c and c + 1 of level l. A whole plane keeps what
// lies inside; its border stays zero.
struct KeepPlane {
  int height;
  __device__ __forceinline__ bool row(int l, int r) const { return height % 8 == 0 || r << l < height; }
  __device__ __forceinline__ bool columns(int, int) const { return true; }
};

// Stores 8 rows x 4 columns of pixels at (r0, c), multiples of (8, 4), and their bands of levels 1 and 2. `low` gets
// the two LL of level 2, above each other.
template <class Plane, class Keep>
__device__ __forceinline__ void store_block(const Plane& plane, float* pyramid, int r0, int c, const float (&v)[8][4],
                                            const Keep& keep, float (&low)[2]) {
  const auto t = plane.total();
  {
    const int pitch = plane.at(Int<0>{}).pitch;
    float* const to = pyramid + (r0 + t.pad) * pitch + (r0 >> 3) * t.skew + c + t.left;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (!keep.row(0, r0 + k)) continue;
      float* const row = to + k * pitch + (k + t.pad) / 8 * t.skew;
      if (t.left % 4 == 0) {
        if (keep.columns(0, c)) *reinterpret_cast<float4*>(row) = make_float4(v[k][0], v[k][1], v[k][2], v[k][3]);
      } else {
        if (keep.columns(0, c)) reinterpret_cast<float2*>(row)[0] = make_float2(v[k][0], v[k][1]);
        if (keep.columns(0, c + 2)) reinterpret_cast<float2*>(row)[1] = make_float2(v[k][2], v[k][3]);
      }
    }
  }
  low[0] = low[1] = 0.f;
  if (t.levels < 1) return;
  float low1[4][2];
  {
    const auto level = plane.at(Int<1>{});
    float* const to = pyramid + level.offset + ((r0 >> 1) + t.pad) * level.pitch + (c >> 1) + t.left;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Quad<float> a = haar(v[2 * k][0], v[2 * k][1], v[2 * k + 1][0], v[2 * k + 1][1]);
      const Quad<float> b = haar(v[2 * k][2], v[2 * k][3], v[2 * k + 1][2], v[2 * k + 1][3]);
      low1[k][0] = a.v[0];
      low1[k][1] = b.v[0];
      if (!keep.row(1, (r0 >> 1) + k) || !keep.columns(1, c >> 1)) continue;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        *reinterpret_cast<float2*>(to + s * level.band + k * level.pitch) = make_float2(a.v[s], b.v[s]);
      }
    }
  }
  if (t.levels < 2) return;
  const auto level = plane.at(Int<2>{});
  float* const to = pyramid + level.offset + ((r0 >> 2) + t.pad) * level.pitch + (c >> 2) + t.left;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const Quad<float> a = haar(low1[2 * k][0], low1[2 * k][1], low1[2 * k + 1][0], low1[2 * k + 1][1]);
    low[k] = a.v[0];
    if (!keep.row(2, (r0 >> 2) + k) || !keep.columns(2, c >> 2)) continue;
#pragma unroll
    for (int s = 0; s < 4; ++s) to[s * level.band + k * level.pitch] = a.v[s];
  }
}

// One more level across lanes. Two lanes side by side (lane ^ 1 << (l - 3)) and two above each other hold the LL of
// level l - 1 of a block's quarters; level 3 has its upper and lower half in one lane already. Sum and difference down
// the columns are formed first; then the left lane stores LL and LH, the right lane HL and HH.
template <class Plane, int l>
__device__ __forceinline__ void store_across_lanes(const Plane& plane, float* pyramid, Int<l>, int r0, int c,
                                                   int lane_c, int lane_r, bool inside, float top, float bottom,
                                                   float& low) {
  const auto level = plane.at(Int<l>{});
  const auto t = plane.total();
  constexpr int step = 1 << (l - 3);
  const bool right = lane_c & step;
  const float sum = top + bottom, difference = top - bottom;
  const float other_sum = __shfl_xor_sync(~0u, sum, step), other_difference = __shfl_xor_sync(~0u, difference, step);
  const float sign = right ? -1.f : 1.f;
  const float a = fmaf(sign, sum, other_sum), b = fmaf(sign, difference, other_difference);
  low = sum + other_sum;
  const bool stores = inside && (lane_c & (step - 1)) == 0 && (lane_r & (step - 1)) == 0;
  if (!stores) return;
  float* const to =
      pyramid + level.offset + (right ? 2 * level.band : 0) + ((r0 >> l) + t.pad) * level.pitch + (c >> l) + t.left;
  to[0] = a;
  to[level.band] = b;
}

// The whole analysis of a block's planes. Threads [0, analysis_threads rounded up to warps) take part, `t` is the
// calling thread's index among them; load(plane, r, c, v) gives 4 pixels of a row, or 8 rows of them. between() is
// called by every thread after its loads and before its stores. Followed by deep_analysis, then a barrier.
template <class Plane, class Load, class Between>
__device__ __forceinline__ void analyse(const Plane& plane, float* arena, int t, Load&& load, Between&& between) {
  const auto total = plane.total();
  if (t < 0 || t >= (total.analysis_threads + 31) / 32 * 32) {
    between();
    return;
  }
  const int lanes_across = total.tile / 4, lanes = lanes_across * (total.tile / 8);
  const int tiles = total.tiles_across * total.tiles_down;
  const int tile = t / lanes, lane = t % lanes, p = tile / tiles, in_plane = tile % tiles;
  const int lane_c = lane % lanes_across, lane_r = lane / lanes_across;
  const int r0 = in_plane / total.tiles_across * total.tile + lane_r * 8;
  const int c = in_plane % total.tiles_across * total.tile + lane_c * 4;
  const int height = plane.at(Int<0>{}).height, width = plane.at(Int<0>{}).width;
  const bool taken = t < total.analysis_threads;
  const bool inside = taken && r0 < height && c < width;
  float v[8][4];
  constexpr bool by_block = std::is_invocable_v<Load, int, int, int, float(&)[8][4]>;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if constexpr (!by_block) {
      if (inside && (height % 8 == 0 || r0 + k < height)) {
        load(p, r0 + k, c, v[k]);
        continue;
      }
    }
    v[k][0] = v[k][1] = v[k][2] = v[k][3] = 0.f;
  }
  if constexpr (by_block) {
    if (inside) load(p, r0, c, v);
  }
  between();
  float* const pyramid = arena + p * total.words;
  float low2[2] = {0.f, 0.f};
  if (inside) store_block(plane, pyramid, r0, c, v, KeepPlane{height}, low2);
  // A lane pair stores for both: the left one may be inside where the right one is not.
  if (total.levels < 3) return;
  float low;
  store_across_lanes(plane, pyramid, Int<3>{}, r0, c, lane_c, lane_r, taken && r0 < height && (c & ~7) < width, low2[0],
                     low2[1], low);
  if (total.levels < 4 || total.tile < 16) return;
  float other = __shfl_xor_sync(~0u, low, lanes_across);
  bool lower = lane_r & 1;
  store_across_lanes(plane, pyramid, Int<4>{}, r0, c, lane_c, lane_r, taken && r0 < height && (c & ~15) < width,
                     lower ? other : low, lower ? low : other, low);
  if (total.levels < 5 || total.tile < 32) return;
  other = __shfl_xor_sync(~0u, low, 2 * lanes_across);
  lower = lane_r & 2;
  store_across_lanes(plane, pyramid, Int<5>{}, r0, c, lane_c, lane_r, taken && r0 < height && (c & ~31) < width,
                     lower ? other : low, lower ? low : other, low);
}

// Levels that do not fit a warp's tile, from the LL band above, a barrier each. Those planes are tiny.
template <class Plane>
__device__ __forceinline__ void deep_analysis(const Plane& plane, float* arena, int threads) {
  const auto total = plane.total();
  each_level<4>(plane, [&](auto l) {
    if (l <= shuffle_levels(total.tile)) return;
    const auto to = plane.at(l), from = plane.at(before(l));
    __syncthreads();
    const int size = to.height * to.width;
    for (int i = thread_index(); i < total.planes * size; i += threads) {
      float* const pyramid = arena + i / size * total.words;
      const int r = i % size / to.width, c = i % to.width;
      const float* low = pyramid + from.offset + (2 * r + total.pad) * from.pitch + 2 * c + total.left;
      const bool right = 2 * c + 1 < from.width, below = 2 * r + 1 < from.height;
      const Quad<float> q =
          haar(low[0], right ? low[1] : 0.f, below ? low[from.pitch] : 0.f, right && below ? low[from.pitch + 1] : 0.f);
      float* const band = pyramid + to.offset + (r + total.pad) * to.pitch + c + total.left;
      for (int s = 0; s < 4; ++s) band[s * to.band] = q.v[s];
    }
  });
}

// A tile keeps its inside and a border as wide as the filters reach: real values there, zeros only outside the image.
// Bands beyond the problem's levels stay zero.
template <class Plane>
struct KeepTile {
  const Plane& plane;
  int levels;
  // Run-time level, but a constant wherever this is called: the branches fold.
  __device__ __forceinline__ bool row(int l, int r) const {
    const int height = plane.at(Int<0>{}).height >> l;
    return l <= levels && r >= -plane.total().pad && r < height + plane.total().pad;
  }
  __device__ __forceinline__ bool columns(int l, int c) const {
    const int width = plane.at(Int<0>{}).width >> l;
    return c >= -plane.total().left && c < width + plane.total().left;
  }
};

// Pixels around a tile that its analysis needs: the border of its deepest level, in whole blocks of 8.
template <class Plane>
__device__ __forceinline__ constexpr int tile_halo(const Plane& plane) {
  return ((plane.total().pad << plane.total().levels) + 7) / 8 * 8;
}

// The analysis of a tile of at most two levels, `levels` of them, with its border; load(r, c, v) gives 8 rows x 4
// columns at coordinates that start at the tile and may be negative.
template <class Plane, class Load>
__device__ __forceinline__ void analyse_tile(const Plane& plane, float* pyramid, int levels, int threads, Load&& load) {
  const int halo = tile_halo(plane);
  const int across = (plane.at(Int<0>{}).width + 2 * halo) / 4, down = (plane.at(Int<0>{}).height + 2 * halo) / 8;
#pragma unroll 1
  for (int i = thread_index(); i < across * down; i += threads) {
    const int r0 = i / across * 8 - halo, c = i % across * 4 - halo;
    float v[8][4];
    load(r0, c, v);
    float low[2];
    store_block(plane, pyramid, r0, c, v, KeepTile<Plane>{plane, levels}, low);
  }
}

// Adds the synthesis of all filtered bands to an item of 8 rows x 4 columns at (8 i, 4 j), in closed form. deep[m]:
// what the upper and lower 4 rows get besides.
template <class Plane>
__device__ __forceinline__ void add_synthesis(const Plane& plane, const float* pyramid, int i, int j,
                                              const float (&deep)[2], float (&sums)[8][4]) {
  const auto total = plane.total();
  float coarse[2] = {deep[0], deep[1]};
  if (total.levels >= 3) {
    float common = 0.f;
    each_level<4>(plane, [&](auto l) {
      const auto level = plane.at(l);
      const float* z =
          pyramid + level.offset + ((i >> (l - 3)) + total.pad) * level.pitch + (j >> (l - 2)) + total.left;
      const float vertical = i >> (l - 4) & 1 ? -1.f : 1.f, horizontal = j >> (l - 3) & 1 ? -1.f : 1.f;
      const float a = fmaf(vertical, z[level.band], z[0]), b = fmaf(vertical, z[3 * level.band], z[2 * level.band]);
      common += fmaf(horizontal, b, a);
    });
    const auto level = plane.at(Int<3>{});
    const float* z = pyramid + level.offset + (i + total.pad) * level.pitch + j / 2 + total.left;
    const float horizontal = j & 1 ? -1.f : 1.f;
    const float a = fmaf(horizontal, z[2 * level.band], z[0]);
    const float b = fmaf(horizontal, z[3 * level.band], z[level.band]);
    coarse[0] += common + a + b;
    coarse[1] += common + a - b;
  }
  float fine[4][2];  // what the 2 x 2 blocks get from above level 1
  if (total.levels >= 2) {
    const auto level = plane.at(Int<2>{});
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float* z = pyramid + level.offset + (2 * i + m + total.pad) * level.pitch + j + total.left;
      const Quad<float> q = haar(z[0] + coarse[m], z[2 * level.band], z[level.band], z[3 * level.band]);
      fine[2 * m][0] = q.v[0];
      fine[2 * m + 1][0] = q.v[1];
      fine[2 * m][1] = q.v[2];
      fine[2 * m + 1][1] = q.v[3];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) fine[k][0] = fine[k][1] = coarse[k / 2];
  }
  if (total.levels >= 1) {
    const auto level = plane.at(Int<1>{});
    const float* z = pyramid + level.offset + (4 * i + total.pad) * level.pitch + 2 * j + total.left;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float2 band[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) band[s] = *reinterpret_cast<const float2*>(z + s * level.band + k * level.pitch);
      const Quad<float> a = haar(band[0].x + fine[k][0], band[2].x, band[1].x, band[3].x);
      const Quad<float> b = haar(band[0].y + fine[k][1], band[2].y, band[1].y, band[3].y);
      sums[2 * k][0] += a.v[0];
      sums[2 * k + 1][0] += a.v[1];
      sums[2 * k][1] += a.v[2];
      sums[2 * k + 1][1] += a.v[3];
      sums[2 * k][2] += b.v[0];
      sums[2 * k + 1][2] += b.v[1];
      sums[2 * k][3] += b.v[2];
      sums[2 * k + 1][3] += b.v[3];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[k][n] += fine[k / 2][n / 2];
    }
  }
}

}  // namespace wtconv::cuda
