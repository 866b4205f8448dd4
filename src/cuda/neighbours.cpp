#include "cuda/neighbours.hpp"

#include <cstdlib>
#include <limits>

namespace wtconv::cuda {

bool offsets_are_small(const Image& i, const Problem& p) {
  constexpr std::int64_t limit = std::numeric_limits<int>::max();
  std::int64_t left = limit;
  for (const auto& [stride, extent] : {std::pair{i.row, p.height}, {i.column, p.width}}) {
    if (std::abs(stride) > limit || std::abs(stride) * extent > left) return false;
    left -= std::abs(stride) * extent;
  }
  return true;
}

bool has_whole_words(const Image& i, const Problem& p) {
  if (i.step != 1) return false;
  if (size_of(p.dtype) == 4) return true;
  const auto even = [](std::int64_t v) { return v % 2 == 0; };
  return i.channel == 1 && even(p.channels) && even(i.batch) && even(i.row) && even(i.column) &&
         reinterpret_cast<std::uintptr_t>(i.data) % 4 == 0;
}

bool wants_neighbours(const Image& a, const Image& b, const Problem& p, const DeviceLimits& limits) {
  return limits.major >= 9 && p.channels >= least_neighbours && (channels_innermost(a) || channels_innermost(b)) &&
         offsets_are_small(a, p) && offsets_are_small(b, p);
}

}  // namespace wtconv::cuda
