// f16 and bf16 against an independent conversion that computes with values instead of bits.
#include "core/types.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "core/parallel.hpp"

namespace wtconv {
namespace {

struct Format {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format half{5, 10}, bfloat{8, 7};

// The value of a pattern.
double decode(Format f, std::uint32_t bits) {
  const std::uint32_t fraction = bits & ((1u << f.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const double sign = bits >> (f.exponent_bits + f.fraction_bits) ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(double(fraction), 1 - f.bias() - f.fraction_bits);
  return sign * std::ldexp(double(fraction + (1u << f.fraction_bits)), exponent - f.bias() - f.fraction_bits);
}

// The pattern nearest to a value that is not a nan, ties to even.
std::uint32_t encode(Format f, double v) {
  const std::uint32_t sign = std::signbit(v) ? 1u << (f.exponent_bits + f.fraction_bits) : 0u;
  const std::uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
  v = std::abs(v);
  if (std::isinf(v)) return sign | infinity;
  const int smallest = 1 - f.bias();
  const int exponent = v == 0 ? smallest : std::max(std::ilogb(v), smallest);
  // Units of the last place, rounded by the FPU. A carry into the next exponent is what the sum below makes of it.
  const double units = std::nearbyint(std::ldexp(v, f.fraction_bits - exponent));
  const double pattern = units + double(exponent - smallest) * double(1u << f.fraction_bits);
  return sign | (pattern >= double(infinity) ? infinity : static_cast<std::uint32_t>(pattern));
}

template <class T>
constexpr Format format_of = std::is_same_v<T, Half> ? half : bfloat;

template <class T>
class SixteenBits : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(SixteenBits, Types);

TYPED_TEST(SixteenBits, EveryPatternHasItsValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam stored{static_cast<std::uint16_t>(bits)};
    const float value = to_float(stored);
    const double expected = decode(format_of<TypeParam>, bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<TypeParam>(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    ASSERT_EQ(from_float<TypeParam>(value).bits, bits);
  }
}

template <class T>
bool rounds_right(std::uint32_t pattern) {
  const float v = std::bit_cast<float>(pattern);
  const T got = from_float<T>(v);
  if (std::isnan(v)) return std::isnan(to_float(got));
  return got.bits == encode(format_of<T>, v);
}

TYPED_TEST(SixteenBits, RoundsToNearestEvenAroundEveryTie) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double low = decode(format_of<TypeParam>, bits), high = decode(format_of<TypeParam>, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((low + high) / 2);
    const std::uint32_t pattern = std::bit_cast<std::uint32_t>(middle);
    for (std::uint32_t p : {pattern - 2, pattern - 1, pattern, pattern + 1, pattern + 2}) {
      ASSERT_TRUE(rounds_right<TypeParam>(p)) << std::hex << p;
    }
  }
}

TYPED_TEST(SixteenBits, OverflowNansAndSubnormals) {
  const float inf = std::numeric_limits<float>::infinity();
  const float largest = static_cast<float>(decode(format_of<TypeParam>, encode(format_of<TypeParam>, inf) - 1));
  EXPECT_EQ(to_float(from_float<TypeParam>(largest)), largest);
  EXPECT_EQ(to_float(from_float<TypeParam>(inf)), inf);
  EXPECT_EQ(to_float(from_float<TypeParam>(-inf)), -inf);
  EXPECT_EQ(to_float(from_float<TypeParam>(std::numeric_limits<float>::max())), inf);
  // The first float that rounds to infinity, and the one before it.
  const std::uint32_t limit = std::bit_cast<std::uint32_t>(std::is_same_v<TypeParam, Half> ? 65520.0f : 0x1.ffp127f);
  EXPECT_EQ(to_float(from_float<TypeParam>(std::bit_cast<float>(limit))), inf);
  EXPECT_EQ(to_float(from_float<TypeParam>(std::bit_cast<float>(limit - 1))), largest);
  for (std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<float>(nan))))) << nan;
  }
  for (std::uint32_t p : {0u, 1u, 0x007fffffu, 0x00800000u, 0x33000000u, 0x33000001u, 0x387fe000u, 0x387fffffu,
                          0x38800000u, 0x80000000u, 0x80000001u}) {
    EXPECT_TRUE(rounds_right<TypeParam>(p)) << std::hex << p;
  }
}

TYPED_TEST(SixteenBits, RoundsAFloatInAThousand) {
  for (std::uint64_t p = 0; p < 0x100000000u; p += 997) {
    ASSERT_TRUE(rounds_right<TypeParam>(static_cast<std::uint32_t>(p))) << std::hex << p;
  }
}

TYPED_TEST(SixteenBits, NightlyRoundsEveryFloat) {
  std::atomic<std::int64_t> wrong = -1;
  parallel_for(0x10000, thread_count(0), [&](std::int64_t high, int) {
    for (std::uint32_t low = 0; low < 0x10000; ++low) {
      const std::uint32_t p = static_cast<std::uint32_t>(high) << 16 | low;
      if (!rounds_right<TypeParam>(p)) wrong = p;
    }
  });
  EXPECT_EQ(wrong, -1) << "the pattern of a float that is rounded wrongly";
}

TEST(Types, StoreAndLoadThroughDoubleByDType) {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    double memory[2] = {-1, -1};
    store_double(memory, dtype, 1, 1.5);
    EXPECT_EQ(load_double(memory, dtype, 1), 1.5) << to_string(dtype);
    const int digits = dtype == DType::f64 ? 53 : dtype == DType::f32 ? 24 : dtype == DType::f16 ? 11 : 8;
    store_double(memory, dtype, 0, 1 + std::ldexp(1.0, -digits));  // a tie, to even
    EXPECT_EQ(load_double(memory, dtype, 0), 1) << to_string(dtype);
    store_double(memory, dtype, 0, 1 + 3 * std::ldexp(1.0, -digits));  // a tie, to even
    EXPECT_EQ(load_double(memory, dtype, 0), 1 + std::ldexp(4.0, -digits)) << to_string(dtype);
  }
}

}  // namespace
}  // namespace wtconv
