// Bodies of the primitives for one SIMD target; included once per target by primitives.cpp.
#if defined(WTCONV_UNFUSED_PRIMITIVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WTCONV_UNFUSED_PRIMITIVES_INL_H_
#undef WTCONV_UNFUSED_PRIMITIVES_INL_H_
#else
#define WTCONV_UNFUSED_PRIMITIVES_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "unfused/primitives.hpp"

// GCC leaves loops of this size rolled, and their sums in memory.
#undef WTCONV_UNROLL
#if HWY_COMPILER_CLANG
#define WTCONV_UNROLL _Pragma("clang loop unroll_count(16)")
#else
#define WTCONV_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace wtconv::unfused {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::CappedTag<T, vector_bytes / sizeof(T)>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

// A vector's first `n` elements; the rest of a loaded one is zero, and no memory beyond them is touched. Where masked
// operations touch it (SSE4, NEON), the elements pass through an array.
template <class T>
HWY_INLINE Vec<T> load_first(const T* from, std::int64_t n) {
  const Tag<T> d;
  if (n >= std::int64_t(hn::Lanes(d))) return hn::LoadU(d, from);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, std::size_t(n)), d, from);
#endif
}
template <class T>
HWY_INLINE void store_first(Vec<T> v, std::int64_t n, T* to) {
  const Tag<T> d;
  if (n >= std::int64_t(hn::Lanes(d))) return hn::StoreU(v, d, to);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (std::int64_t i = 0; i < n; ++i) to[i] = lanes[i];
#else
  hn::BlendedStore(v, hn::FirstN(d, std::size_t(n)), d, to);
#endif
}

// Planes without gaps between their rows are one long row.
template <class T, class... Planes>
void flatten(Plane<T>& first, Planes&... others) {
  if (first.row != first.w || (... || (others.row != others.w || others.w != first.w))) return;
  first = {first.data, 1, first.h * first.w, first.h * first.w};
  ((others = {others.data, 1, first.w, first.w}), ...);
}

// Rows of `to` become f(row, column, elements), a vector.
template <class T, class F>
HWY_INLINE void map(const Plane<T>& to, const F& f) {
  const std::int64_t n = std::int64_t(hn::Lanes(Tag<T>()));
  for (std::int64_t r = 0; r < to.h; ++r) {
    for (std::int64_t q = 0; q < to.w; q += n) store_first<T>(f(r, q, to.w - q), to.w - q, to.at(r) + q);
  }
}

template <class T>
void zero(Plane<T> to) {
  flatten(to);
  map<T>(to, [](std::int64_t, std::int64_t, std::int64_t) HWY_ATTR { return hn::Zero(Tag<T>()); });
}

template <class T>
void copy(Plane<T> from, Plane<T> to) {
  if (from.h < to.h || from.w < to.w) zero(to);
  to.h = from.h, to.w = from.w;
  flatten(from, to);
  map<T>(to, [&](std::int64_t r, std::int64_t q, std::int64_t n) HWY_ATTR { return load_first(from.at(r) + q, n); });
}

template <class T>
void multiply(Plane<T> x, T scale, Plane<T> to) {
  flatten(x, to);
  const auto s = hn::Set(Tag<T>(), scale);
  map<T>(to, [&](std::int64_t r, std::int64_t q, std::int64_t n)
                 HWY_ATTR { return hn::Mul(s, load_first(x.at(r) + q, n)); });
}

template <class T>
void add(Plane<T> a, Plane<T> b, Plane<T> to) {
  flatten(a, b, to);
  map<T>(to, [&](std::int64_t r, std::int64_t q, std::int64_t n)
                 HWY_ATTR { return hn::Add(load_first(a.at(r) + q, n), load_first(b.at(r) + q, n)); });
}

template <class T>
double sum(Plane<T> x) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d));
  double total = 0;
  for (std::int64_t r = 0; r < x.h; ++r) {
    // In short steps, then in double: the roundings of a long sum of equal terms (the gradient of a mean) all go one
    // way.
    for (std::int64_t q = 0; q < x.w;) {
      auto lanes = hn::Zero(d);
      for (int i = 0; i < 8 && q < x.w; ++i, q += n) lanes = hn::Add(lanes, load_first(x.at(r) + q, x.w - q));
      total += double(hn::GetLane(hn::SumOfLanes(d, lanes)));
    }
  }
  return total;
}

template <class T>
void haar(Plane<T> x, const Plane<T>* bands) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d)), w = bands[0].w;
  const auto half = hn::Set(d, T(0.5));
  for (std::int64_t r = 0; r < bands[0].h; ++r) {
    const T *upper = x.at(2 * r), *lower = x.at(2 * r + 1);
    T *ll = bands[0].at(r), *lh = bands[1].at(r), *hl = bands[2].at(r), *hh = bands[3].at(r);
    // The last vector overlaps the one before it.
    for (std::int64_t q = 0; q < w && w >= n; q = q + n == w ? w : std::min(q + n, w - n)) {
      Vec<T> a, b, c, e;
      hn::LoadInterleaved2(d, upper + 2 * q, a, b);
      hn::LoadInterleaved2(d, lower + 2 * q, c, e);
      // Halved before they are added: a sum that cancels does not overflow on the way.
      b = hn::Mul(half, b), e = hn::Mul(half, e);
      const auto top = hn::MulAdd(half, a, b), bottom = hn::MulAdd(half, c, e);
      const auto top_step = hn::MulSub(half, a, b), bottom_step = hn::MulSub(half, c, e);
      hn::StoreU(hn::Add(top, bottom), d, ll + q);
      hn::StoreU(hn::Sub(top, bottom), d, lh + q);
      hn::StoreU(hn::Add(top_step, bottom_step), d, hl + q);
      hn::StoreU(hn::Sub(top_step, bottom_step), d, hh + q);
    }
    for (std::int64_t q = 0; q < w && w < n; ++q) {
      const T a = T(0.5) * upper[2 * q], b = T(0.5) * upper[2 * q + 1];
      const T c = T(0.5) * lower[2 * q], e = T(0.5) * lower[2 * q + 1];
      const T top = a + b, bottom = c + e, top_step = a - b, bottom_step = c - e;
      ll[q] = top + bottom;
      lh[q] = top - bottom;
      hl[q] = top_step + bottom_step;
      hh[q] = top_step - bottom_step;
    }
  }
}

// One row of the inverse transform, from row r of the bands: 2 w elements. `sign` is +1 in the upper row of a block and
// -1 in the lower one. `add`, where present, is added to LL.
template <class T>
HWY_INLINE void synthesis_step(const Plane<T>* bands, std::int64_t r, T sign, const T* HWY_RESTRICT add,
                               T* HWY_RESTRICT to) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d)), w = bands[0].w;
  const T *ll = bands[0].at(r), *lh = bands[1].at(r), *hl = bands[2].at(r), *hh = bands[3].at(r);
  const auto s = hn::Set(d, sign), half = hn::Set(d, T(0.5));
  for (std::int64_t q = 0; q < w && w >= n; q = q + n == w ? w : std::min(q + n, w - n)) {
    auto low = hn::LoadU(d, ll + q);
    if (add) low = hn::Add(low, hn::LoadU(d, add + q));
    low = hn::Mul(half, hn::MulAdd(s, hn::LoadU(d, lh + q), low));
    const auto high = hn::Mul(half, hn::MulAdd(s, hn::LoadU(d, hh + q), hn::LoadU(d, hl + q)));
    hn::StoreInterleaved2(hn::Add(low, high), hn::Sub(low, high), d, to + 2 * q);
  }
  for (std::int64_t q = 0; q < w && w < n; ++q) {
    const T low = T(0.5) * (ll[q] + (add ? add[q] : T(0)) + sign * lh[q]);
    const T high = T(0.5) * (hl[q] + sign * hh[q]);
    to[2 * q] = low + high;
    to[2 * q + 1] = low - high;
  }
}

template <class T>
void inverse_haar(const Plane<T>* bands, Plane<T> to) {
  for (std::int64_t r = 0; r < to.h; ++r) {
    synthesis_step<T>(bands, r >> 1, r & 1 ? T(-1) : T(1), nullptr, to.at(r));
  }
}

template <class T>
void collapse(const Plane<T>* bands, int levels, Plane<T> base, T* rows, Plane<T> to) {
  T* const buffer[2] = {rows, rows + synthesis_row(to.w)};
  for (std::int64_t r = 0; r < to.h; ++r) {
    const T* sum = nullptr;
    for (int l = levels; l >= 1; --l) {
      synthesis_step<T>(bands + 4 * (l - 1), r >> l, (r >> (l - 1)) & 1 ? T(-1) : T(1), sum, buffer[l & 1]);
      sum = buffer[l & 1];
    }
    const std::int64_t w = to.w;
    add<T>({base.at(r), 1, w, w}, {buffer[1], 1, w, w}, {to.at(r), 1, w, w});
  }
}

// Calls f(r, window) for strips of output rows from r; `window` is what they read of x, with its border of zeros.
template <class T, class F>
HWY_INLINE void for_each_strip(const Plane<T>& x, int k, int before, T* strip, F&& f) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d)), row = strip_row<T>(x.w, k);
  for (std::int64_t r = 0; r < x.h; r += strip_rows) {
    const Plane<T> window{strip, std::min(strip_rows, x.h - r) + k - 1, row, row};
    for (std::int64_t i = 0; i < window.h; ++i) {
      T* const to = window.at(i);
      for (std::int64_t q = 0; q < row; q += n) hn::StoreU(hn::Zero(d), d, to + q);
      const std::int64_t from = r + i - before;
      if (from < 0 || from >= x.h) continue;
      for (std::int64_t q = 0; q < x.w; q += n) hn::StoreU(load_first(x.at(from) + q, x.w - q), d, to + before + q);
    }
    f(r, window);
  }
}

// Output rows r .. r + R of C vectors from column q. K = 0: any k.
template <class T, int K, int R, int C>
HWY_INLINE void convolve_block(const Plane<T>& in, const Filter<T>& f, std::int64_t r, std::int64_t q,
                               std::int64_t columns, T* to, std::int64_t to_row) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d));
  const int k = K ? K : f.k;
  Vec<T> sum[R][C];
  for (int a = 0; a < R; ++a) {
    for (int c = 0; c < C; ++c) sum[a][c] = hn::Set(d, f.bias);
  }
  const T* HWY_RESTRICT x = in.at(r) + q;
  const T* HWY_RESTRICT weight = f.weight;
  // Input row i meets tap row i - a of output row a.
  WTCONV_UNROLL
  for (int i = 0; i < k + R - 1; ++i) {
    WTCONV_UNROLL
    for (int j = 0; j < k; ++j) {
      Vec<T> v[C];
      for (int c = 0; c < C; ++c) v[c] = hn::LoadU(d, x + i * in.row + j + c * n);
      WTCONV_UNROLL
      for (int a = 0; a < R; ++a) {
        if (i - a < 0 || i - a >= k) continue;
        const auto tap = hn::Set(d, weight[(i - a) * k + j]);
        for (int c = 0; c < C; ++c) sum[a][c] = hn::MulAdd(tap, v[c], sum[a][c]);
      }
    }
  }
  for (int a = 0; a < R; ++a) {
    for (int c = 0; c < C; ++c) store_first<T>(sum[a][c], columns - c * n, to + a * to_row + q + c * n);
  }
}

template <class T, int K>
void convolve_k(const Plane<T>& x, const Filter<T>& f, T* strip, const Plane<T>& to) {
  const std::int64_t n = std::int64_t(hn::Lanes(Tag<T>()));
  constexpr int R = K ? 4 : 1;
  for_each_strip<T>(x, f.k, f.before, strip, [&](std::int64_t top, const Plane<T>& in) HWY_ATTR {
    const std::int64_t rows = in.h - f.k + 1;
    for (std::int64_t q = 0; q < to.w;) {
      const std::int64_t left = to.w - q;
      const bool two = left > n;
      const std::int64_t columns = std::min(left, two ? 2 * n : n);
      // The last rows overlap those before them.
      for (std::int64_t r = 0; r < rows && rows >= R; r = r + R == rows ? rows : std::min(r + R, rows - R)) {
        if (two) {
          convolve_block<T, K, R, 2>(in, f, r, q, columns, to.at(top + r), to.row);
        } else {
          convolve_block<T, K, R, 1>(in, f, r, q, columns, to.at(top + r), to.row);
        }
      }
      for (std::int64_t r = 0; r < rows && rows < R; ++r) {
        for (std::int64_t c = 0; c < columns; c += n) {
          convolve_block<T, K, 1, 1>(in, f, r, q + c, columns - c, to.at(top + r), to.row);
        }
      }
      q += columns;
    }
  });
}

template <class T>
void convolve(const Plane<T>& x, const Filter<T>& f, T* strip, const Plane<T>& to) {
  switch (f.k) {
    case 3:
      return convolve_k<T, 3>(x, f, strip, to);
    case 5:
      return convolve_k<T, 5>(x, f, strip, to);
    case 7:
      return convolve_k<T, 7>(x, f, strip, to);
    default:
      return convolve_k<T, 0>(x, f, strip, to);
  }
}

// I rows of J taps from (i, j), over one strip.
template <class T, int I, int J>
HWY_INLINE void correlate_block(const Plane<T>& in, const Plane<T>& g, int k, int i, int j, double* sums) {
  const Tag<T> d;
  const std::int64_t n = std::int64_t(hn::Lanes(d));
  Vec<T> sum[I][J];
  for (int a = 0; a < I; ++a) {
    for (int b = 0; b < J; ++b) sum[a][b] = hn::Zero(d);
  }
  for (std::int64_t r = 0; r < g.h; ++r) {
    const T* HWY_RESTRICT x = in.at(r + i) + j;
    const T* HWY_RESTRICT grow = g.at(r);
    for (std::int64_t q = 0; q < g.w; q += n) {
      const auto v = load_first(grow + q, g.w - q);
      for (int a = 0; a < I; ++a) {
        for (int b = 0; b < J; ++b) sum[a][b] = hn::MulAdd(v, hn::LoadU(d, x + a * in.row + q + b), sum[a][b]);
      }
    }
  }
  for (int a = 0; a < I; ++a) {
    for (int b = 0; b < J; ++b) sums[(i + a) * k + j + b] += double(hn::GetLane(hn::SumOfLanes(d, sum[a][b])));
  }
}

template <class T, int K>
void correlate_k(const Plane<T>& x, const Plane<T>& g, int k, int before, T* strip, double* sums) {
  for_each_strip<T>(x, k, before, strip, [&](std::int64_t top, const Plane<T>& in) HWY_ATTR {
    const Plane<T> rows{g.at(top), in.h - k + 1, g.w, g.row};
    if constexpr (K > 0) {
      constexpr int I = K <= 3 ? K : K <= 5 ? 2 : 1;  // about ten sums stay in registers
      int i = 0;
      for (; i + I <= K; i += I) correlate_block<T, I, K>(in, rows, k, i, 0, sums);
      for (; i < K; ++i) correlate_block<T, 1, K>(in, rows, k, i, 0, sums);
    } else {
      for (int i = 0; i < k; ++i) {
        int j = 0;
        for (; j + 4 <= k; j += 4) correlate_block<T, 1, 4>(in, rows, k, i, j, sums);
        for (; j < k; ++j) correlate_block<T, 1, 1>(in, rows, k, i, j, sums);
      }
    }
  });
}

template <class T>
void correlate(const Plane<T>& x, const Plane<T>& g, int k, int before, T* strip, double* sums) {
  switch (k) {
    case 3:
      return correlate_k<T, 3>(x, g, k, before, strip, sums);
    case 5:
      return correlate_k<T, 5>(x, g, k, before, strip, sums);
    case 7:
      return correlate_k<T, 7>(x, g, k, before, strip, sums);
    default:
      return correlate_k<T, 0>(x, g, k, before, strip, sums);
  }
}

template <class T>
const Primitives<T>* table() {
  static constexpr Primitives<T> p{copy<T>,      haar<T>,     inverse_haar<T>, collapse<T>, convolve<T>,
                                   correlate<T>, multiply<T>, add<T>,          sum<T>};
  return &p;
}
const Primitives<float>* table_f32() { return table<float>(); }
const Primitives<double>* table_f64() { return table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace wtconv::unfused
HWY_AFTER_NAMESPACE();

#endif
