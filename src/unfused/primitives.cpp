#include "unfused/primitives.hpp"

// SSE4 is the first x86 target with what the bodies need at full speed; older processors run the scalar one.
#define HWY_DISABLED_TARGETS HWY_SSSE3
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
  static const Primitives<float>& p = *HWY_DYNAMIC_DISPATCH(table_f32)();
  return p;
}
template <>
const Primitives<double>& primitives<double>() {
  static const Primitives<double>& p = *HWY_DYNAMIC_DISPATCH(table_f64)();
  return p;
}

}  // namespace wtconv::unfused
#endif
