// What a block needs, by the tuning tables: for the tests of their limits and for scripts/tune.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cuda/kernels/bands.hpp"
#include "cuda/kernels/gradient.hpp"
#include "cuda/kernels/resident.hpp"
#include "cuda/layout.hpp"
#include "cuda/tuning/cluster.hpp"
#include "cuda/tuning/matrix.hpp"
#include "cuda/tuning/resident.hpp"
#include "cuda/tuning/tiled.hpp"

namespace wtconv::cuda {

struct Needs {
  int threads = 0;
  std::size_t shared = 0;  // bytes of dynamic shared memory
  int blocks = 1;          // that a multiprocessor should hold

  // Most registers of a thread with which that many do: what the launch bounds leave the compiler.
  int registers() const { return std::min(255, 65536 / (blocks * threads) / 8 * 8); }
};

inline Layout layout_of(const ResidentShape& s, Use use) {
  return make_layout(s.height, s.width, s.levels, s.kernel, s.planes, s.rows, use);
}

inline Needs apply_needs(const ResidentShape& s, DType dtype) {
  const Layout l = layout_of(s, Use::filtering);
  return {l.total.threads, resident_memory(l, dtype), s.blocks};
}
inline Needs gradient_needs(const ResidentShape& s, DType dtype) {
  const Layout x = layout_of(s, Use::correlation);
  return {x.total.threads, resident_gradient_memory(x, layout_of(s, Use::correlated), dtype), s.blocks};
}
inline Needs matrix_needs(const MatrixShape& s, DType) {
  const MatrixTotals t = make_matrix_layout(s).total;
  return {32 * t.warps, static_cast<std::size_t>(t.shared), s.blocks};
}
// What a block keeps of bands and tiles does not depend on the elements' type: nothing is staged.
inline Needs cluster_needs(const ClusterShape& s, DType) {
  const Layout l = layout_of(band_shape(s), Use::filtering);
  return {l.total.threads, cluster_memory(l), s.blocks};
}
inline Needs cluster_gradient_needs(const ClusterShape& s, DType) {
  const Layout x = layout_of(band_shape(s), Use::correlation);
  return {x.total.threads, cluster_gradient_memory(x, layout_of(band_shape(s), Use::correlated)), s.blocks};
}
inline Needs tile_needs(int kernel) {
  const ResidentShape s = tile_shape(kernel);
  const Layout l = layout_of(s, Use::filtering);
  return {l.total.threads, cluster_memory(l), s.blocks};
}
inline Needs gradient_tile_needs(int kernel) {
  const ResidentShape s = gradient_tile_shape(kernel);
  const Layout x = layout_of(s, Use::correlation);
  return {x.total.threads, cluster_gradient_memory(x, layout_of(s, Use::correlated)), s.blocks};
}

}  // namespace wtconv::cuda
