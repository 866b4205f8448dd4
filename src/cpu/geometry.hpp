// How the cpu backend lays a problem out: which images share a vector, how many rows are in flight, what a task is.
// Pure host arithmetic: it decides speed and memory, never results.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "wtconv/problem.hpp"

namespace wtconv::cpu {

// A vector has `lanes` lanes. Each lane works on its own image: one strip of columns of one plane.
// lane = (batch * lane_channels + channel) * strips + strip, all three powers of two with product `lanes`.
//
// A group of lanes is processed in bands of `band_rows` rows of x, top to bottom. Rings of rows keep what later rows
// still need: the filter's halo at each level, and the rows that the deeper levels look ahead. So x is read once, and
// what a thread holds does not grow with the height.
struct Geometry {
  Problem problem;
  int lanes = 1;
  int element_size = 4;  // of the compute type

  int strips = 1, lane_channels = 1, lane_batches = 1;
  std::int64_t channel_groups = 1, batch_groups = 1;

  int halo = 1;                                         // columns on each side of a row, and rows of lookahead
  std::int64_t band_rows = 2;                           // even
  int group_rows = 2;                                   // rows of level 1 filtered at a time, even
  std::array<std::int64_t, max_levels + 1> width{};     // columns of a strip at each level
  std::array<std::int64_t, max_levels + 1> capacity{};  // rows a ring keeps at each level

  // A task is one group of channels, one chunk of the batch groups, one segment of the rows.
  std::int64_t chunks = 1, segments = 1;
  std::int64_t segment_rows = 1;  // a multiple of 2^levels
  std::int64_t tasks() const { return channel_groups * chunks * segments; }
  // Partial sums per channel of a weight gradient.
  std::int64_t parts() const { return chunks * segments; }

  // Vectors from one row to the next in a ring at `level`.
  std::int64_t pitch(int level) const { return width[level] + 2 * halo; }
  std::int64_t height(int level) const { return problem.height_at(level); }
  int filters() const { return 1 + 4 * problem.levels; }
  // Place of a filter among those of its channel: the base, then level by level and band by band.
  int filter_index(int level, int band) const { return level == 0 ? 0 : 4 * level - 3 + band; }
  int taps() const { return problem.kernel * problem.kernel; }
  // Rows of x that must have been read before the rows of y above `end` can be made: every level works in groups of
  // rows and its filters reach `halo` rows further.
  std::int64_t rows_needed(std::int64_t end) const;
  // Rows of a level filtered at a time: fewer at the deeper ones, which would otherwise run far ahead.
  int group_rows_at(int level) const { return std::max(2, (group_rows >> (level - 1)) & ~1); }
  // Rows of R[level + 1], which has the size of level `level`, kept between two levels: what one group makes and what
  // the next reads.
  std::int64_t synthesis_rows() const { return 4 * group_rows; }
  int out_rows = 2;  // rows of y made and written at a time, even, at most 2 * group_rows

  static constexpr int most_rows = 16;  // of out_rows()

  // Bytes of scratch memory of one thread.
  std::size_t pyramid_bytes() const;
  std::size_t scratch_bytes(bool filters, bool sums) const;
  // Elements of x read more than once, because segments overlap in their halos.
  double reread() const;
};

// sums: weight gradients are wanted, whose partial sums grow with the number of tasks.
Geometry make_geometry(const Problem& problem, int lanes, bool sums);
// "16 channels x 1 batch entry x 1 strip in 16 lanes, ..."
std::string describe(const Geometry& geometry);

}  // namespace wtconv::cpu
