// The plane-level bodies of the chain's primitives, compiled once per SIMD target and chosen at run time.
#pragma once

#include <cstdint>

namespace wtconv::unfused {

// One image: h rows of w elements, `row` elements apart.
template <class T>
struct Plane {
  T* data;
  std::int64_t h, w, row;
  T* at(std::int64_t r) const { return data + r * row; }
};

template <class T>
struct Filter {
  const T* weight;  // k x k
  T bias;
  int k;
  int before;  // zeros above and left of the image
};

// Planes hold T = float or double. Outputs do not overlap inputs.
template <class T>
struct Primitives {
  // What `from` does not cover at the bottom and right is zero.
  void (*copy)(Plane<T> from, Plane<T> to);
  // Bands LL, LH, HL, HH of an image of even size.
  void (*haar)(Plane<T> x, const Plane<T>* bands);
  // Its inverse; `to` has twice the bands' size.
  void (*inverse_haar)(const Plane<T>* bands, Plane<T> to);
  // to = base + R[1], in one pass over to's rows that reads bit l-1 of y and x as the sign at level l.
  // `bands` holds 4 planes a level, finest first; `rows` has room for two rows of synthesis_row() elements.
  void (*collapse)(const Plane<T>* bands, int levels, Plane<T> base, T* rows, Plane<T> to);
  // to(r, q) = bias + sum over (i, j) of weight(i, j) x(r + i - before, q + j - before).
  void (*convolve)(const Plane<T>& x, const Filter<T>& filter, T* strip, const Plane<T>& to);
  // sums(i, j) += sum over (r, q) of x(r + i - before, q + j - before) g(r, q): the convolution's weight gradient.
  void (*correlate)(const Plane<T>& x, const Plane<T>& g, int k, int before, T* strip, double* sums);
  void (*multiply)(Plane<T> x, T scale, Plane<T> to);
  void (*add)(Plane<T> a, Plane<T> b, Plane<T> to);
  double (*sum)(Plane<T> x);
};

template <class T>
const Primitives<T>& primitives();

// The convolution and the correlation copy the rows they need, with their zero border, into `strip`.
inline constexpr std::int64_t strip_rows = 32;
inline constexpr std::int64_t vector_bytes = 64;  // the longest vector used
template <class T>
std::int64_t strip_row(std::int64_t w, int k) {
  constexpr std::int64_t n = vector_bytes / sizeof(T);
  return (w + k - 1 + n - 1) / n * n + n;  // a vector that starts at the last element may read past it
}
template <class T>
std::int64_t strip_elements(std::int64_t w, int k) {
  return (strip_rows + k - 1) * strip_row<T>(w, k);
}
inline std::int64_t synthesis_row(std::int64_t w) { return (w + 1) / 2 * 2; }

}  // namespace wtconv::unfused
