// Which filter item of the levels a thread works on: looked up once a block, kept in shared memory as two words.
#pragma once

#include "cuda/kernels/plane.cuh"

namespace wtconv::cuda {

struct LevelItem {
  unsigned place;  // word offset of the item's window in the block's arena | pitch << 20
  unsigned what;   // filter | rows << 8 | columns << 16 | plane << 20, of the results that count
  __device__ __forceinline__ int offset() const { return place & 0xfffff; }
  __device__ __forceinline__ int pitch() const { return place >> 20; }
  __device__ __forceinline__ int filter() const { return what & 0xff; }
  __device__ __forceinline__ int rows() const { return what >> 8 & 0xff; }
  __device__ __forceinline__ int columns() const { return what >> 16 & 0xf; }
  __device__ __forceinline__ int plane() const { return what >> 20; }
};

// The order of a level's items: plane, row of items, band, column of items. Neighbouring lanes then lie side by side in
// one band or at the same place of the next, which the layout keeps apart in banks.
struct LevelPlace {
  int plane, row, band, column;
  __device__ __forceinline__ LevelPlace(int index, const LevelLayout& level)
      : plane(index / (4 * level.across * level.down)),
        row(index / (4 * level.across) % level.down),
        band(index / level.across % 4),
        column(index % level.across) {}
};

// Item t of the levels; one without rows past the last.
template <class Plane>
__device__ __forceinline__ LevelItem find_item(const Plane& plane, int t) {
  const auto total = plane.total();
  LevelItem item{0, 0};
  each_level<1>(plane, [&](auto l) {
    const auto level = plane.at(l);
    const int bands = 4 * level.across * level.down, index = t - level.first_item;
    if (index < 0 || index >= total.planes * bands) return;
    const LevelPlace at(index, level);
    const int p = at.plane, s = at.band, i = at.row, j = at.column;
    const int offset = p * total.words + level.offset + s * level.band + i * total.rows_per_item * level.pitch + 4 * j;
    const int rows = min(total.rows_per_item, level.height - i * total.rows_per_item);
    const int columns = min(4, level.width - 4 * j);
    item.place = static_cast<unsigned>(offset | level.pitch << 20);
    item.what = static_cast<unsigned>((1 + 4 * (l - 1) + s) | rows << 8 | columns << 16 | p << 20);
  });
  return item;
}

}  // namespace wtconv::cuda
