// Vector kernels of the cpu backend: every vector holds one pixel (or band coefficient) of `lanes` independent images,
// so borders, Haar steps and filters need no shuffles and no lane idles at odd sizes.
//
// Compiled once per target (Highway's foreach_target), hence the unusual include guard.
#if defined(WTCONV_CPU_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WTCONV_CPU_KERNELS_INL_H_
#undef WTCONV_CPU_KERNELS_INL_H_
#else
#define WTCONV_CPU_KERNELS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/transfer-inl.h"
#include "wtconv/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace wtconv::HWY_NAMESPACE {

// ------------------------------------------------------------------------------------------------- Haar analysis

// Bands of one row of blocks from rows `top` and `bottom` of the finer image; null is a row of zeros below the image.
// Every pointer is to the row's first column; the finer rows are readable (zero) one column past their width.
template <class T>
void haar_row(const T* top, const T* bottom, std::int64_t width, T* ll, T* lh, T* hl, T* hh) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  const auto half = hn::Set(d, T(0.5));
  for (std::int64_t j = 0; j < width * v; j += v) {
    const auto ta = hn::Load(d, top + 2 * j), tb = hn::Load(d, top + 2 * j + v);
    // Halved before they are added: a sum that cancels does not overflow on the way.
    const auto th = hn::Mul(tb, half);
    const auto s = hn::MulAdd(ta, half, th), t = hn::MulSub(ta, half, th);
    auto u = hn::Zero(d), w = hn::Zero(d);
    if (bottom) {
      const auto ba = hn::Load(d, bottom + 2 * j), bb = hn::Load(d, bottom + 2 * j + v);
      const auto bh = hn::Mul(bb, half);
      u = hn::MulAdd(ba, half, bh);
      w = hn::MulSub(ba, half, bh);
    }
    hn::Store(hn::Add(s, u), d, ll + j);
    hn::Store(hn::Sub(s, u), d, lh + j);
    hn::Store(hn::Add(t, w), d, hl + j);
    hn::Store(hn::Sub(t, w), d, hh + j);
  }
}

// ------------------------------------------------------------------------------------------------- synthesis

// Two rows of R[l] from one row of the four filtered bands (plus R[l+1], may be null). The factor 1/2 of every level
// is part of the weights. `bottom` may be null: a row that does not exist. width is that of R[l].
template <class T>
void synthesis_row(const T* const z[4], const T* coarser, std::int64_t width, T* top, T* bottom) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  for (std::int64_t j = 0; 2 * j < width; ++j) {
    auto ll = hn::Load(d, z[0] + j * v);
    if (coarser) ll = hn::Add(ll, hn::Load(d, coarser + j * v));
    const auto lh = hn::Load(d, z[1] + j * v), hl = hn::Load(d, z[2] + j * v), hh = hn::Load(d, z[3] + j * v);
    const auto a = hn::Add(ll, lh), b = hn::Sub(ll, lh), c = hn::Add(hl, hh), e = hn::Sub(hl, hh);
    const bool pair = 2 * j + 1 < width;
    hn::Store(hn::Add(a, c), d, top + 2 * j * v);
    if (pair) hn::Store(hn::Sub(a, c), d, top + (2 * j + 1) * v);
    if (bottom) {
      hn::Store(hn::Add(b, e), d, bottom + 2 * j * v);
      if (pair) hn::Store(hn::Sub(b, e), d, bottom + (2 * j + 1) * v);
    }
  }
}

// ------------------------------------------------------------------------------------------------- filter

// Filters `rows` rows of `width` columns. in: rows + k - 1 input rows, null where the row lies outside the image, else
// pointing to the first tap of output column 0. Output rows follow each other, width vectors apart:
// out(r) = init + filtered (+ add[r], unless add is null). weights: k * k vectors.
template <class T>
struct FilterCall {
  int kernel;
  int rows;
  std::int64_t width;
  const T* const* in;
  const T* weights;
  T* out;
  Prefetcher<T>* prefetchers[2];
  bool zero_halo;           // the columns beside the row are zeros
  const T* init = nullptr;  // one vector; null is zero
  const T* const* add = nullptr;
};

// One block of NR rows x NC columns, accumulated in registers; each input vector is loaded once and serves up to
// NR * min(K, NC) multiply-adds. Alone: the block is the whole row and what lies beside it is zero, so that taps there
// are left out (of the multiply-adds of a 4 x 4 image under k = 5, half).
template <int K, int NR, int NC, bool Alone, class T>
HWY_INLINE void filter_block(const FilterCall<T>& call, std::int64_t row, std::int64_t column) {
  const Tag<T> d;
  constexpr int v = static_cast<int>(lanes_of<T>());
  Vec<T> sum[NR][NC];
  const Vec<T> first = call.init ? hn::Load(d, call.init) : hn::Zero(d);
#pragma GCC unroll 16
  for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 16
    for (int o = 0; o < NC; ++o) sum[r][o] = first;
  }
  // Input row i is tap row i - r of output row r.
  const auto input_row = [&](auto use0, auto use1, int i) HWY_ATTR {
    constexpr bool uses[2] = {decltype(use0)::value, decltype(use1)::value};
    const T* in = call.in[row + i];
    if (!in) return;
    in += column * v;
    Vec<T> w[NR][K];
#pragma GCC unroll 16
    for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 16
      for (int t = 0; t < K; ++t) w[r][t] = uses[r] ? hn::Load(d, call.weights + ((i - r) * K + t) * v) : hn::Zero(d);
    }
#pragma GCC unroll 32
    for (int j = Alone ? K / 2 : 0; j < (Alone ? K / 2 + NC : NC + K - 1); ++j) {
      const auto x = hn::Load(d, in + j * v);
#pragma GCC unroll 16
      for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 16
        for (int t = 0; t < K; ++t) {
          if (uses[r] && j - t >= 0 && j - t < NC) sum[r][j - t] = hn::MulAdd(w[r][t], x, sum[r][j - t]);
        }
      }
    }
  };
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  if constexpr (NR == 1) {
    for (int i = 0; i < K; ++i) input_row(yes, no, i);
  } else {
    input_row(yes, no, 0);
    for (int i = 1; i < K; ++i) input_row(yes, yes, i);
    input_row(no, yes, K);
  }
#pragma GCC unroll 16
  for (int r = 0; r < NR; ++r) {
    T* const out = call.out + ((row + r) * call.width + column) * v;
    if (call.add) {
      const T* const add = call.add[row + r] + column * v;
#pragma GCC unroll 16
      for (int o = 0; o < NC; ++o) sum[r][o] = hn::Add(sum[r][o], hn::Load(d, add + o * v));
    }
#pragma GCC unroll 16
    for (int o = 0; o < NC; ++o) hn::Store(sum[r][o], d, out + o * v);
  }
}

// `blocks` blocks side by side.
template <int K, int NR, int NC, bool Alone, class T>
void filter_blocks(const FilterCall<T>& call, std::int64_t row, std::int64_t column, std::int64_t blocks) {
  for (; blocks > 0; --blocks, column += NC) {
    for (Prefetcher<T>* p : call.prefetchers) p->during(NR * NC);
    filter_block<K, NR, NC, Alone>(call, row, column);
  }
}

// Rows from `row` on, NR at a time; returns the first row not done. Columns go in blocks of at most 8, as equal as
// they can be: 14 = 7 + 7, 28 = 4 * 7.
template <int K, int NR, class T>
std::int64_t filter_rows(const FilterCall<T>& call, std::int64_t row) {
  using Blocks = void (*)(const FilterCall<T>&, std::int64_t, std::int64_t, std::int64_t);
  constexpr auto table = []<bool Alone, int... NC>(std::bool_constant<Alone>, std::integer_sequence<int, NC...>) {
    return std::array<Blocks, sizeof...(NC)>{&filter_blocks<K, NR, NC + 1, Alone, T>...};
  };
  constexpr std::make_integer_sequence<int, 8> sizes{};
  static constexpr auto beside = table(std::false_type{}, sizes), alone = table(std::true_type{}, sizes);
  const std::int64_t blocks = (call.width + 7) / 8, size = (call.width + blocks - 1) / blocks;
  const std::int64_t full = call.width - (size - 1) * blocks;  // the others are one column narrower
  const auto& of_size = blocks == 1 && call.zero_halo ? alone : beside;
  for (; row + NR <= call.rows; row += NR) {
    of_size[size - 1](call, row, 0, full);
    if (full < blocks) of_size[size - 2](call, row, full * size, blocks - full);
  }
  return row;
}

// Two rows share their input; with 16 registers (or 49 taps) one row is all that fits.
template <int K, class T>
void filter_kernel(const FilterCall<T>& call) {
  std::int64_t row = 0;
  if constexpr (many_registers && K <= 5) row = filter_rows<K, 2>(call, row);
  filter_rows<K, 1>(call, row);
}

// Any k: up to eight columns, one tap at a time.
template <int NC, class T>
void filter_block_generic(const FilterCall<T>& call, std::int64_t row, std::int64_t column) {
  const Tag<T> d;
  constexpr int v = static_cast<int>(lanes_of<T>());
  const int k = call.kernel;
  Vec<T> sum[NC];
  for (int o = 0; o < NC; ++o) sum[o] = call.init ? hn::Load(d, call.init) : hn::Zero(d);
  for (int i = 0; i < k; ++i) {
    const T* in = call.in[row + i];
    if (!in) continue;
    for (int t = 0; t < k; ++t) {
      const auto w = hn::Load(d, call.weights + (i * k + t) * v);
#pragma GCC unroll 8
      for (int o = 0; o < NC; ++o) sum[o] = hn::MulAdd(w, hn::Load(d, in + (column + o + t) * v), sum[o]);
    }
  }
  for (int o = 0; o < NC; ++o) {
    if (call.add) sum[o] = hn::Add(sum[o], hn::Load(d, call.add[row] + (column + o) * v));
    hn::Store(sum[o], d, call.out + (row * call.width + column + o) * v);
  }
}

template <class T>
void filter(const FilterCall<T>& call) {
  switch (call.kernel) {
    case 3:
      return filter_kernel<3>(call);
    case 5:
      return filter_kernel<5>(call);
    case 7:
      return filter_kernel<7>(call);
    default:
      break;
  }
  for (std::int64_t row = 0; row < call.rows; ++row) {
    std::int64_t column = 0;
    for (; column + 8 <= call.width; column += 8) {
      for (Prefetcher<T>* p : call.prefetchers) p->during(8);
      filter_block_generic<8>(call, row, column);
    }
    for (; column < call.width; ++column) filter_block_generic<1>(call, row, column);
  }
}

// ------------------------------------------------------------------------------------------------- weight gradient

// sums(i, t) += sum over rows and columns of in(row + i, column + t) * g(row, column): `rows` rows of g, and
// in[row + i] points to the first tap of column 0 (a row of zeros where it is outside). sums: k * k vectors.
template <class T>
struct CorrelateCall {
  int kernel;
  std::int64_t rows;
  std::int64_t width;
  const T* const* in;  // rows + k - 1 pointers
  const T* const* g;   // rows pointers
  T* sums;
  Prefetcher<T>* prefetchers[2];
};

// Tap rows [first, first + N) with their sums in registers over all rows and columns.
template <int K, int N, class T>
void correlate_rows(const CorrelateCall<T>& call, int first) {
  const Tag<T> d;
  constexpr int v = static_cast<int>(lanes_of<T>());
  Vec<T> sum[N][K];
  T* const sums = call.sums + first * K * v;
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int t = 0; t < K; ++t) sum[i][t] = hn::Load(d, sums + (i * K + t) * v);
  }
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (Prefetcher<T>* p : call.prefetchers) p->during(static_cast<int>(call.width * N / K));
    const T* g = call.g[row];
    const T* const* in = call.in + row + first;
    const auto columns = [&](auto size, std::int64_t column) HWY_ATTR {
      constexpr int nc = decltype(size)::value;
      Vec<T> gv[nc];
#pragma GCC unroll 16
      for (int o = 0; o < nc; ++o) gv[o] = hn::Load(d, g + (column + o) * v);
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        const T* x = in[i] + column * v;
#pragma GCC unroll 32
        for (int j = 0; j < nc + K - 1; ++j) {
          const auto xv = hn::Load(d, x + j * v);
#pragma GCC unroll 16
          for (int t = 0; t < K; ++t) {
            if (j - t >= 0 && j - t < nc) sum[i][t] = hn::MulAdd(gv[j - t], xv, sum[i][t]);
          }
        }
      }
    };
    std::int64_t column = 0;
    for (; column + 4 <= call.width; column += 4) columns(std::integral_constant<int, 4>{}, column);
    for (; column < call.width; ++column) columns(std::integral_constant<int, 1>{}, column);
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int t = 0; t < K; ++t) hn::Store(sum[i][t], d, sums + (i * K + t) * v);
  }
}

template <class T>
void correlate_generic(const CorrelateCall<T>& call) {
  const Tag<T> d;
  constexpr int v = static_cast<int>(lanes_of<T>());
  const int k = call.kernel;
  for (int i = 0; i < k; ++i) {
    for (int t = 0; t < k; ++t) {
      auto sum = hn::Load(d, call.sums + (i * k + t) * v);
      for (std::int64_t row = 0; row < call.rows; ++row) {
        const T* g = call.g[row];
        const T* x = call.in[row + i] + t * v;
        for (std::int64_t j = 0; j < call.width * v; j += v) {
          sum = hn::MulAdd(hn::Load(d, g + j), hn::Load(d, x + j), sum);
        }
      }
      hn::Store(sum, d, call.sums + (i * k + t) * v);
    }
  }
}

template <class T>
void correlate(const CorrelateCall<T>& call) {
  switch (call.kernel) {
    case 3:
      return correlate_rows<3, 3>(call, 0);
    case 5:
      if constexpr (many_registers) return correlate_rows<5, 5>(call, 0);
      correlate_rows<5, 2>(call, 0);
      correlate_rows<5, 2>(call, 2);
      return correlate_rows<5, 1>(call, 4);
    case 7:
      if constexpr (many_registers) {
        correlate_rows<7, 3>(call, 0);
        correlate_rows<7, 3>(call, 3);
        return correlate_rows<7, 1>(call, 6);
      }
      for (int i = 0; i < 7; ++i) correlate_rows<7, 1>(call, i);
      return;
    default:
      return correlate_generic(call);
  }
}

}  // namespace wtconv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
