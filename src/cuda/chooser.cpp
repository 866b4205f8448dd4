// Which strategy takes a problem: a pure function of the problem and the device's limits.
#include "cuda/strategy.hpp"

namespace wtconv::cuda {

Decision choose_strategy(const Problem& problem, const DeviceLimits& limits) {
  std::string passed_over;
  for (const Strategy* strategy : {&resident_strategy(), &levels_strategy()}) {
    const std::string why_not = strategy->rejects(problem, limits);
    if (why_not.empty()) {
      return {strategy, std::string(strategy->name()) + ": the fastest that takes this problem" + passed_over};
    }
    passed_over += std::string("; not ") + strategy->name() + ": " + why_not;
  }
  return {nullptr, "no strategy takes this problem" + passed_over};
}

}  // namespace wtconv::cuda
