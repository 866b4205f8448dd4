// Timing in rounds: every round calls each function once, so that what they are compared with met the same machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "wtconv/status.hpp"

namespace wtconv::tool {

struct Timed {
  std::function<Status()> run;
  std::vector<double> seconds{};  // one per round
};

struct Rounds {
  int most = 30;
  int least = 5;
  double seconds = 5;  // stop after `least` rounds once this much time is spent
};
// One untimed warm-up round, then as many as `rounds` says. Throws Error if a function fails.
void time_in_rounds(std::vector<Timed*> functions, const Rounds& rounds, const std::function<void(double)>& progress);

struct Summary {
  double median = 0;
  double spread = 0;  // half the distance between the quartiles, relative to the median
  std::size_t rounds = 0;
};
Summary summarise(std::vector<double> seconds);
// Sum of the i-th elements.
std::vector<double> sums(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace wtconv::tool
