// Which strategy takes a problem: a pure function of the problem and the device's limits.
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

template <class Rejects>
Decision choose(Rejects&& rejects) {
  std::string passed_over;
  for (const Strategy* strategy :
       {&registers_strategy(), &resident_strategy(), &cluster_strategy(), &tiled_strategy(), &levels_strategy()}) {
    const std::string why_not = rejects(*strategy);
    if (why_not.empty()) {
      return {strategy, std::string(strategy->name()) + ": the first that takes this problem" + passed_over};
    }
    passed_over += std::string("; not ") + strategy->name() + ": " + why_not;
  }
  return {nullptr, "no strategy takes this problem" + passed_over};
}

}  // namespace

Decision choose_apply(const Problem& p, const DeviceLimits& limits) {
  return choose([&](const Strategy& s) { return s.rejects(p, limits); });
}

Decision choose_gradient(const Problem& p, const DeviceLimits& limits) {
  return choose([&](const Strategy& s) { return s.rejects_gradient(p, limits); });
}

}  // namespace wtconv::cuda
