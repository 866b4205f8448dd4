// How a plane of 16-bit elements lies in shared memory for the matrix units, and how its filtering is cut into items.
// Like layout.hpp one constexpr function, evaluated at compile time for the networks' planes and on the host for
// others.
//
// An image of level l (x itself at 0, a band at l >= 1) keeps its zero border. The border right of a row is the one
// left of the next:
//
//      left   width, padded to 4
//      +-----+----------------------+   pad rows of zeros
//      |zero | patch | patch | ...  |   a patch is 2 rows x 4 columns of outputs, a row of a 16 x 8 product; a strip is
//      |     |  0    |  1    |      |   a column of `steps` patches: the window of the next one shares all but 2 rows
//      +-----+----------------------+   pad rows of zeros, then the next image
//
// An item is 16 strips of one filter: a warp's work. Columns and segments are counted with powers of two, so that lanes
// find their strips without divisions. Rows past the last may be read, into results that are dropped.
#pragma once

#include <cstdint>

#include "wtconv/problem.hpp"

namespace wtconv::cuda {

// One level. Offsets are bytes in a plane's memory; pitches and bands count elements (f32 in results).
struct MatrixLevel {
  int height = 0, width = 0;
  int offset = 0, pitch = 0, band = 0;  // the image, or four bands
  int across = 0, down = 0;             // patches
  int steps = 1, segments = 0;          // patches in a strip; strips below each other
  int columns_log = 0, chunks = 1;      // of an item: its strips side by side; items side by side
  int segments_log = 0;                 // of what an item counts with: a power of two covers the segments
  int items = 0;                        // of one filter, over the block's planes
  int results = 0, result_pitch = 0, result_band = 0;  // levels >= 1: filtered bands
  int low = 0, low_pitch = 0;  // levels >= 1: LL, later what the levels beyond give to this level's LL
};

struct MatrixTotals {
  int kernel = 0, levels = 0;
  int planes = 1, warps = 1;             // of a block
  int pad = 0;                           // border rows
  int plane = 0;                         // bytes from plane to plane
  int pairs_across = 0, pairs_down = 0;  // the analysis works on pairs of 4 x 4 pixels side by side,
  int pairs_log = 0, pair_chunks = 1;    // eight at a time: so many side by side, the rest below each other;
  int tiles = 0;                         // so many times a plane
  int filters = 0;                       // words of the filters' table
  int shared = 0;                        // bytes of a block
};

struct MatrixLayout {
  MatrixTotals total;
  MatrixLevel level[max_levels + 1];
};

// Border columns, in elements: a window of 8 (k = 7: 12) columns starts 2 (4) columns left of its patch.
inline constexpr int matrix_left = 4;

// The taps of a filter as words of two: every pair of neighbours in a row that a fragment holds, zeros around. A row
// of zeros above and below serves the second row of a patch.
constexpr int window_pairs(int kernel) { return kernel == 7 ? 6 : 4; }
constexpr int window_left(int kernel) { return kernel == 7 ? 4 : 2; }
constexpr int table_row(int kernel) { return 2 * window_pairs(kernel) + 2; }
constexpr int table_words(int kernel) { return (kernel + 2) * table_row(kernel); }

// The exponent of the smallest power of two that is not less.
constexpr int covering_log(int n) {
  int log = 0;
  while (1 << log < n) ++log;
  return log;
}

// Cuts a level into items: few that all warps share evenly. Costs are instructions, counted in the machine code.
constexpr void cut(MatrixLevel& v, int bands, int planes, int warps) {
  v.columns_log = v.across < 16 ? covering_log(v.across) : 4;
  v.chunks = (v.across + 15) / 16;
  std::int64_t least = -1;
  for (int steps = 1; steps <= 8; ++steps) {
    const int segments = (v.down + steps - 1) / steps, log = covering_log(segments);
    const std::int64_t units = planes == 1 ? segments : std::int64_t{planes} << log;
    const std::int64_t of_filter = ((units << v.columns_log) + 15) / 16 * v.chunks;
    const std::int64_t items = bands * of_filter, rounds = (items + warps - 1) / warps;
    const std::int64_t cost = (rounds * warps + items) * (20 * steps + 50);
    if (least < 0 || cost < least) {
      least = cost;
      v.steps = steps;
      v.segments = segments;
      v.segments_log = log;
      v.items = static_cast<int>(of_filter);
    }
  }
}

// Where the strip of an item's row (0..15) lies: columns first, then segments, then planes. One that is not taken
// stands at the last one beside, to be read and dropped: the same words, so no bank is read twice for it.
struct Strip {
  int plane = 0, row = 0, column = 0;  // of the first patch, in patches
  bool taken = false;
  constexpr Strip(const MatrixLevel& level, int planes, int item, int item_row) {
    int chunk = 0;
    if (level.chunks > 1) {
      chunk = item % level.chunks;
      item /= level.chunks;
    }
    const int index = 16 * item + item_row;
    column = 16 * chunk + (index & ((1 << level.columns_log) - 1));
    int segment = index >> level.columns_log;
    if (planes > 1) {
      plane = segment >> level.segments_log;
      segment &= (1 << level.segments_log) - 1;
    }
    taken = column < level.across && segment < level.segments && (planes == 1 || plane < planes);
    column = column < level.across ? column : level.across - 1;
    segment = segment < level.segments ? segment : level.segments - 1;
    plane = plane < planes ? plane : planes - 1;
    row = segment * level.steps;
  }
};

constexpr MatrixLayout make_matrix_layout(int height, int width, int levels, int kernel, int planes, int warps) {
  MatrixLayout out{};
  MatrixTotals& t = out.total;
  t.kernel = kernel;
  t.levels = levels;
  t.planes = planes;
  t.warps = warps;
  t.pad = kernel / 2;
  t.pairs_across = (width + 7) / 8;
  t.pairs_down = (height + 3) / 4;
  t.pairs_log = t.pairs_across < 8 ? covering_log(t.pairs_across) : 3;
  t.pair_chunks = (t.pairs_across + 7) / 8;
  const int pair_rows = 8 >> t.pairs_log;
  t.tiles = (t.pairs_down + pair_rows - 1) / pair_rows * t.pair_chunks;
  t.filters = (1 + 4 * levels) * table_words(kernel);
  const auto aligned = [](int bytes) { return (bytes + 15) / 16 * 16; };
  int offset = 0;
  for (int l = 0; l <= levels; ++l) {
    MatrixLevel& v = out.level[l];
    const int bands = l == 0 ? 1 : 4;
    v.height = l == 0 ? height : (out.level[l - 1].height + 1) / 2;
    v.width = l == 0 ? width : (out.level[l - 1].width + 1) / 2;
    v.across = (v.width + 3) / 4;
    v.down = (v.height + 1) / 2;
    cut(v, bands, planes, l == 0 || warps == 1 ? warps : warps - 1);
    v.pitch = 4 * v.across + matrix_left;
    int rows = 2 * v.down + 2 * t.pad;
    // The analysis stores whole blocks of 4 x 4 pixels.
    const int written = ((4 * t.pairs_down) >> l) + t.pad;
    if (l <= 2 && written > rows) rows = written;
    v.band = rows * v.pitch;
    // A warp of the analysis stores rows of several bands at once: on different banks.
    while ((l == 1 || l == 2) && v.band % 64 != 16) v.band += 4;
    v.offset = offset;
    // What is read past the last band must not be what another warp writes meanwhile.
    const int past = 2 * (v.segments * v.steps - v.down) * v.pitch;
    offset = aligned(offset + 2 * (bands * v.band + past + 2 * matrix_left));
  }
  for (int l = 1; l <= levels; ++l) {
    MatrixLevel& v = out.level[l];
    v.results = offset;
    v.result_pitch = 4 * v.across;
    v.result_band = 2 * v.down * v.result_pitch;
    // 16 lanes read 8 neighbouring words of each of the four bands at once.
    while (l == 1 && v.result_band % 32 != 8) v.result_band += 4;
    offset = aligned(offset + 4 * 4 * v.result_band);
  }
  // The sums for level 1's LL lie over the LL of the levels, which have been used by then.
  int deep = offset;
  for (int l = 1; l <= levels; ++l) {
    MatrixLevel& v = out.level[l];
    v.low_pitch = (v.width + 1) / 2 * 2;
    v.low = l == 1 ? offset : deep;
    const int end = v.low + 4 * v.low_pitch * ((v.height + 1) / 2 * 2);
    if (l > 1) deep = end;
    if (levels > 1 && end > t.plane) t.plane = aligned(end);
  }
  if (levels < 2) t.plane = offset;
  // Planes whose windows a warp reads at once lie on different banks.
  const int at_once = levels < 1 ? 1 : 8 >> (out.level[1].columns_log + out.level[1].segments_log);
  while (planes > 1 && at_once > 1 && t.plane % 128 != 128 / at_once) t.plane += 16;
  const int factors = 4 * levels + 2;  // and the bias
  t.shared = planes * (t.plane + aligned(2 * height * width)) + aligned(4 * (t.filters + factors));
  return out;
}

}  // namespace wtconv::cuda
