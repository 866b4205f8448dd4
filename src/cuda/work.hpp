// How persistent blocks share the planes: work is ordered by channel, then batch, and every block takes one contiguous
// range of it. A block therefore meets few channels, keeps a channel's weights (or weight-gradient sums) on chip, and
// the order of all sums is fixed by the two numbers below.
#pragma once

#include <cstdint>

namespace wtconv::cuda {

struct Work {
  std::int64_t per_channel = 0;  // work items (groups of planes) of one channel
  std::int64_t channels = 0;
  std::int64_t blocks = 1;

  constexpr std::int64_t items() const { return per_channel * channels; }
  // Block i works on [first(i), first(i + 1)).
  constexpr std::int64_t first(std::int64_t block) const {
    const std::int64_t share = items() / blocks, rest = items() % blocks;
    return share * block + (block < rest ? block : rest);
  }
  // The block whose range holds `item`.
  constexpr std::int64_t owner(std::int64_t item) const {
    const std::int64_t share = items() / blocks, rest = items() % blocks;
    return item < rest * (share + 1) ? item / (share + 1) : rest + (item - rest * (share + 1)) / share;
  }
  // Where a block leaves its partial sums of a channel. Going through the work, the block or the channel (or both)
  // advances from one partial to the next, so block + channel never repeats.
  constexpr std::int64_t slot(std::int64_t block, std::int64_t channel) const { return block + channel; }
  constexpr std::int64_t slots() const { return blocks + channels; }
};

// A place in the work, followed without divisions.
struct Cursor {
  int channel, group;
  constexpr Cursor(const Work& work, std::int64_t item)
      : channel(static_cast<int>(work.per_channel > 0 ? item / work.per_channel : 0)),
        group(static_cast<int>(work.per_channel > 0 ? item % work.per_channel : 0)) {}
  constexpr void advance(const Work& work) {
    if (++group == work.per_channel) {
      group = 0;
      ++channel;
    }
  }
};

}  // namespace wtconv::cuda
