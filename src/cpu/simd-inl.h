// Vector types of the target and the transposition between lanes and columns.
#if defined(WTCONV_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WTCONV_CPU_SIMD_INL_H_
#undef WTCONV_CPU_SIMD_INL_H_
#else
#define WTCONV_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace wtconv::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

template <class T>
constexpr std::int64_t lanes_of() {
  return static_cast<std::int64_t>(hn::MaxLanes(Tag<T>()));
}

// Register blocks are sized for 32 vector registers where the target has them.
constexpr bool many_registers = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON;

// Columns of V vectors of V lanes become rows, in log2(V) steps that exchange halves, 128-bit blocks, then lanes.
template <class T>
HWY_INLINE void transpose(Vec<T>* m) {
#if HWY_TARGET == HWY_SCALAR
  (void)m;  // one lane
#else
  const Tag<T> d;
  constexpr int v = static_cast<int>(lanes_of<T>());
  constexpr int block = 16 / sizeof(T);  // lanes of a 128-bit block
  if constexpr (v >= 2 * block) {
#pragma GCC unroll 16
    for (int i = 0; i < v / 2; ++i) {
      const auto a = m[i], b = m[i + v / 2];
      m[i] = hn::ConcatLowerLower(d, b, a);
      m[i + v / 2] = hn::ConcatUpperUpper(d, b, a);
    }
  }
  if constexpr (v >= 4 * block) {
#pragma GCC unroll 16
    for (int i = 0; i < v; ++i) {
      if (i & block) continue;
      const auto a = m[i], b = m[i + block];
      m[i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
      m[i + block] = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
    }
  }
  if constexpr (sizeof(T) == 4 && v >= block) {
    const hn::Repartition<double, Tag<T>> d64;
#pragma GCC unroll 16
    for (int i = 0; i < v; i += 4) {
      const auto a = hn::InterleaveLower(d, m[i], m[i + 1]), b = hn::InterleaveUpper(d, m[i], m[i + 1]);
      const auto c = hn::InterleaveLower(d, m[i + 2], m[i + 3]), e = hn::InterleaveUpper(d, m[i + 2], m[i + 3]);
      const auto a64 = hn::BitCast(d64, a), b64 = hn::BitCast(d64, b);
      const auto c64 = hn::BitCast(d64, c), e64 = hn::BitCast(d64, e);
      m[i] = hn::BitCast(d, hn::InterleaveLower(d64, a64, c64));
      m[i + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, a64, c64));
      m[i + 2] = hn::BitCast(d, hn::InterleaveLower(d64, b64, e64));
      m[i + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, b64, e64));
    }
  } else if constexpr (v >= block) {
#pragma GCC unroll 16
    for (int i = 0; i < v; i += 2) {
      const auto a = m[i], b = m[i + 1];
      m[i] = hn::InterleaveLower(d, a, b);
      m[i + 1] = hn::InterleaveUpper(d, a, b);
    }
  }
#endif
}

}  // namespace wtconv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
