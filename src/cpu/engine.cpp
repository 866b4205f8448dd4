// The engine of every instruction set, and the choice among them at run time.
#include <new>

// One vector type per target that can live in an array: scalable vectors cannot.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wtconv::HWY_NAMESPACE {

const cpu::Engine& engine_of_target() {
  static const cpu::Engine engine{static_cast<int>(lanes_of<float>()), static_cast<int>(lanes_of<double>()),
                                  hwy::TargetName(HWY_TARGET), &run_task<float>, &run_task<double>};
  return engine;
}

}  // namespace wtconv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wtconv {

HWY_EXPORT(engine_of_target);

const cpu::Engine& cpu::engine() { return HWY_DYNAMIC_DISPATCH(engine_of_target)(); }

}  // namespace wtconv
#endif
