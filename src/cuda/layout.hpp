// How the pyramid of a plane (or tile) lies in shared memory, and how its filtering is cut into items.
//
// One constexpr function computes it: at compile time for the plane sizes the standard networks use (every address
// then folds into an instruction), on the host at run time for all others. Tests check it without a GPU.
//
// An image of level l (x itself at 0, a band at l >= 1) is stored with its zero border:
//
//        left          width, padded to 4      left
//      +------+------------------------------+------+   pad rows of zeros
//      |      | item 0 | item 1 | ...        |      |
//      | zero |--------+--------+            | zero |   an item is 4 columns x rows_per_item rows of outputs; a
//      |      | item n | ...                 |      |   thread slides down it and reads each input row as aligned
//      +------+------------------------------+------+   16-byte vectors: that is why `left` is even and pitch % 4 == 0
//
// Rows below the border may be read (by the last item of a column of items), but only into results that are dropped.
#pragma once

#include <cstdint>

#include "wtconv/problem.hpp"

namespace wtconv::cuda {

// One level. All offsets and pitches in words of 4 bytes.
struct LevelLayout {
  int height = 0, width = 0;  // of the filtered part
  int pitch = 0;              // from row to row
  int offset = 0;             // of the level's first word (upper left corner of the border of band 0)
  int band = 0;               // from band to band
  int across = 0, down = 0;   // items of one band
  int first_item = 0;         // levels >= 1: among the block's level items
};

struct LayoutTotals {
  int kernel = 0, levels = 0;
  int planes = 1;         // in a block
  int pad = 0, left = 0;  // border rows; border columns, rounded up to even
  int base_rows = 8;      // of an item of level 0
  int rows_per_item = 8;  // of an item of a band
  int skew = 0;           // words put in before every eighth row of level 0, so that items start on different banks
  int words = 0;          // one plane's pyramid
  int slack = 0;          // words after the last plane that are read, never used
  int tile = 32;          // analysis: tile x tile pixels share their levels by shuffles inside a warp
  int tiles_across = 0, tiles_down = 0;
  int analysis_threads = 0, level_items = 0, base_items = 0;
  int threads = 0;  // enough for any of the three, in whole warps
};

struct Layout {
  LayoutTotals total;
  LevelLayout level[max_levels + 1];
};

// Words of one filter's taps in shared memory; one word more for the bias, rounded up to 16 bytes.
constexpr int filter_words(int kernel) { return (kernel * kernel + 4) / 4 * 4; }

// An item of level 0 in the forward: one block of level 3, so that the synthesis of all levels fits its thread.
constexpr int base_rows = 8;

// What a pyramid is for.
enum class Use {
  filtering,    // filtered, bands over themselves, level 0 into registers
  correlation,  // read by the weight gradient's items: x
  correlated,   // the other factor: dy. Without border; rows and columns that pad items are zeros
};

constexpr Layout make_layout(int height, int width, int levels, int kernel, int planes, int rows_per_item,
                             Use use = Use::filtering) {
  Layout out{};
  LayoutTotals& t = out.total;
  t.kernel = kernel;
  t.levels = levels;
  t.planes = planes;
  t.pad = use == Use::correlated ? 0 : kernel / 2;
  t.left = (t.pad + 1) / 2 * 2;
  t.base_rows = use == Use::filtering ? base_rows : rows_per_item;
  t.rows_per_item = rows_per_item;
  int offset = 0, first_item = 0;
  for (int l = 0; l <= levels; ++l) {
    LevelLayout& v = out.level[l];
    const int rows = l == 0 ? t.base_rows : rows_per_item;
    v.height = l == 0 ? height : (out.level[l - 1].height + 1) / 2;
    v.width = l == 0 ? width : (out.level[l - 1].width + 1) / 2;
    v.across = (v.width + 3) / 4;
    v.down = (v.height + rows - 1) / rows;
    v.pitch = v.across * 4 + 2 * t.left;
    int stored_rows = use == Use::correlated ? v.down * rows : v.height + 2 * t.pad;
    if (l == 0 && use == Use::filtering) {
      t.skew = v.across * 4 % 32;
      // The base filter runs while the levels' results are put back: what its last items read must be its own.
      stored_rows = v.down * rows + 2 * t.pad;
      v.band = stored_rows * v.pitch + (stored_rows / 8 + 1) * t.skew;
    } else {
      // Items that a warp works on at once should start on different banks. Of x in the weight gradient those are rows
      // of items: at most 8 words a row are spent on it.
      for (int extra = 0; l == 0 && extra <= 8; extra += 4) {
        if (use != Use::correlated && (v.pitch + extra) / 4 * rows % 8 == v.across % 8) {
          v.pitch += extra;
          break;
        }
      }
      // The analysis stores whole groups of 8 rows of x.
      const int written = (((height + 7) / 8 * 8) >> l) + t.pad;
      if (written > stored_rows) stored_rows = written;
      v.band = stored_rows * v.pitch;
      // Of the levels those are a row of items of all four bands, one band after the other.
      while (l > 0 && v.band / 4 % 8 != v.across % 8) v.band += 4;
    }
    if (l > 0) {
      v.first_item = first_item;
      first_item += planes * 4 * v.across * v.down;
    }
    v.offset = offset;
    offset += v.band * (l == 0 ? 1 : 4);
  }
  t.words = offset;
  // Where a band is one item wide, 8 lanes reach from one plane into the next.
  while (planes > 1 && t.words / 4 % 8 != 4) t.words += 4;
  for (int l = 0; l <= levels; ++l) {
    const LevelLayout& v = out.level[l];
    const int rows = l == 0 ? t.base_rows : rows_per_item;
    const int start = v.offset + (l == 0 ? 0 : 3 * v.band);
    const int read = (v.down * rows + 2 * t.pad) * v.pitch + (l == 0 ? (v.down + 1) * t.skew : 0);
    if (start + read - t.words > t.slack) t.slack = start + read - t.words;
  }
  t.slack = (t.slack + 3) / 4 * 4;
  const int longest = height > width ? height : width;
  t.tile = longest > 16 ? 32 : longest > 8 ? 16 : 8;
  t.tiles_across = (width + t.tile - 1) / t.tile;
  t.tiles_down = (height + t.tile - 1) / t.tile;
  t.analysis_threads = planes * t.tiles_across * t.tiles_down * (t.tile / 8) * (t.tile / 4);
  t.level_items = first_item;
  t.base_items = planes * out.level[0].across * out.level[0].down;
  int threads = t.level_items > t.base_items ? t.level_items : t.base_items;
  int analysis = t.analysis_threads;
  if (use != Use::filtering) {  // all items at once, and two pyramids at once
    threads = t.level_items + t.base_items;
    analysis = 2 * ((analysis + 31) / 32 * 32);
  }
  if (analysis > threads) threads = analysis;
  t.threads = (threads + 31) / 32 * 32;
  return out;
}

// Levels whose tile lies inside one warp's tile of pixels: 3 for 8 x 8, 4 for 16 x 16, 5 for 32 x 32.
constexpr int shuffle_levels(int tile) { return tile == 32 ? 5 : tile == 16 ? 4 : 3; }

}  // namespace wtconv::cuda
