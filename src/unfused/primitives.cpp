#include "unfused/primitives.hpp"

// Below SSE4 the scalar target runs. SVE vectors cannot be kept in arrays; such processors run the NEON one.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "unfused/primitives.cpp"
// clang-format off: must come first
#include "hwy/foreach_target.h"
// clang-format on
#include "unfused/primitives-inl.h"

#if HWY_ONCE
namespace wtconv::unfused {

HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);

template <>
const Primitives<float>& primitives<float>() {
  return *HWY_DYNAMIC_DISPATCH(table_f32)();
}
template <>
const Primitives<double>& primitives<double>() {
  return *HWY_DYNAMIC_DISPATCH(table_f64)();
}

}  // namespace wtconv::unfused
#endif
