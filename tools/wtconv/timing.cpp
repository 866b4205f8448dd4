#include "timing.hpp"

#include <algorithm>
#include <chrono>

#include "command.hpp"

namespace wtconv::tool {

void time_in_rounds(std::vector<Timed*> functions, const Rounds& rounds, const std::function<void(double)>& progress) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  for (Timed* f : functions) require(f->run());
  const auto begin = Clock::now();
  for (int round = 0; round < rounds.most; ++round) {
    if (round >= rounds.least && since(begin) > rounds.seconds) break;
    for (Timed* f : functions) {
      const auto start = Clock::now();
      const Status s = f->run();
      f->seconds.push_back(since(start));
      require(s);
    }
    const double by_count = double(round + 1) / rounds.most, by_time = since(begin) / rounds.seconds;
    progress(std::min(1.0, std::max(by_count, std::min(by_time, double(round + 1) / rounds.least))));
  }
}

Summary summarise(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double q) {
    const double at = q * double(seconds.size() - 1);
    const std::size_t i = std::size_t(at);
    const double next = i + 1 < seconds.size() ? seconds[i + 1] : seconds[i];
    return seconds[i] + (at - double(i)) * (next - seconds[i]);
  };
  const double median = quantile(0.5);
  return {median, (quantile(0.75) - quantile(0.25)) / 2 / median, seconds.size()};
}

std::vector<double> sums(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = a[i] + b[i];
  return result;
}

}  // namespace wtconv::tool
