// The backends under test: every host backend the registry holds, on every instruction set of this machine that it is
// compiled for, and each setting of `unfused`'s switches.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <ostream>
#include <string>
#include <vector>

#include "cpu/job.hpp"
#include "harness/check.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv::tests {

// These must be there and must be able to run, or Registry.HasTheExpectedBackends fails. Others that register are
// tested all the same.
inline constexpr const char* expected_backends[] = {"cpu", "unfused", "reference"};

struct BackendUnderTest {
  std::string backend;
  Reformulations reformulations{};
  std::int64_t target = 0;    // Highway's bit of the best instruction set that may be used; 0: this machine's best
  std::string target_name{};  // of the set that `cpu` takes then

  std::string name() const {
    std::string s = backend;
    if (target) s += "_" + target_name;
    if (reformulations.recompute_analysis) s += "_recompute";
    if (reformulations.collapse_synthesis) s += "_collapse";
    if (reformulations.fold_scales) s += "_fold";
    return s;
  }
  Options options(int threads = 0) const {
    return {.backend = backend, .threads = threads, .reformulations = reformulations};
  }
  harness::CheckOptions check_options() const { return {.backend = backend, .reformulations = reformulations}; }
};
inline std::ostream& operator<<(std::ostream& out, const BackendUnderTest& b) { return out << b.name(); }

// Instruction sets worse than `target` stay allowed: a backend that is not compiled for it takes the next.
inline void allow_targets_up_to(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(0);
  if (target) hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~(target - 1));
  hwy::GetChosenTarget().DeInit();
}

// Those of the whole list that the longer tests of every change run: no single switches, and the instruction sets of
// the backend that is chosen first.
inline bool in_short_list(const BackendUnderTest& b) {
  const Reformulations& r = b.reformulations;
  const int switches = r.recompute_analysis + r.collapse_synthesis + r.fold_scales;
  return b.backend == "unfused" ? !b.target && switches % 3 == 0 : true;
}

inline std::vector<BackendUnderTest> backends_under_test(bool all = true) {
  std::vector<BackendUnderTest> list;
  for (const Backend* b : backends()) {
    const std::string name(b->name());
    if (b->device() != Device::host) continue;
    list.push_back({name});
    if (name == "reference") continue;
    for (int bits = 1; bits < 8 && name == "unfused"; ++bits) {
      list.push_back({name, {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0}});
    }
    // HWY_TARGETS leaves out what a compiler cannot build; bits below are better sets.
    std::string seen = cpu::engine().target;
    for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      allow_targets_up_to(target);
      if (const std::string used = cpu::engine().target; seen.find(used) == std::string::npos) {
        seen += " " + used;
        list.push_back({name, {}, target, used});
      }
    }
    allow_targets_up_to(0);
  }
  if (!all) std::erase_if(list, [](const BackendUnderTest& b) { return !in_short_list(b); });
  return list;
}

// Base of the tests that run once for each backend.
class EachBackend : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { allow_targets_up_to(GetParam().target); }
  void TearDown() override { allow_targets_up_to(0); }
};

#define WTCONV_INSTANTIATE(suite, all)                                                              \
  INSTANTIATE_TEST_SUITE_P(Each, suite, testing::ValuesIn(wtconv::tests::backends_under_test(all)), \
                           [](const auto& info) { return info.param.name(); })
#define WTCONV_EACH_BACKEND(suite) WTCONV_INSTANTIATE(suite, false)  // the short list
#define WTCONV_EACH_VARIANT(suite) WTCONV_INSTANTIATE(suite, true)

// Runs harness::check with random and with exact data; a failure holds the command that reruns it. `unsuitable`: counts
// the exact checks that the case is too large for, which otherwise fail.
inline void expect_ok(const BackendUnderTest& backend, const harness::Case& c, std::uint64_t seed = 1,
                      int* unsuitable = nullptr) {
  for (harness::Fill fill : {harness::Fill::random, harness::Fill::exact}) {
    harness::CheckOptions options = backend.check_options();
    options.fill = fill;
    options.seed = seed;
    const harness::CheckResult result = harness::check(c, options);
    const bool tolerated = unsuitable && fill == harness::Fill::exact && result.unsuitable;
    if (tolerated) ++*unsuitable;
    EXPECT_TRUE(result.ok || tolerated) << backend << ": " << result.message();
  }
}

inline harness::Case parsed(const std::string& text) {
  harness::Case c;
  const Status s = harness::parse_case(text, c);
  EXPECT_TRUE(s.ok()) << s.message();
  return c;
}

// Tensors of a case, filled.
inline harness::Tensors tensors_of(const harness::Case& c, harness::Fill fill = harness::Fill::random,
                                   std::uint64_t seed = 1) {
  harness::Tensors t;
  const Status s = harness::make_tensors(c, t);
  EXPECT_TRUE(s.ok()) << s.message();
  harness::fill(t, fill, seed);
  return t;
}

inline std::string rerun(const BackendUnderTest& backend, const harness::Case& c) {
  return "\n  see also: " + harness::rerun_command(c, backend.check_options());
}

}  // namespace wtconv::tests
