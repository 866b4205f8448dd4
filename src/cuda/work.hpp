// How persistent blocks share the planes: work is ordered by channel, then batch, and every block takes one contiguous
// range of it. A block therefore meets few channels, keeps a channel's weights (or weight-gradient sums) on chip, and
// the order of all sums is fixed by the two numbers below.
//
// Where blocks of neighbouring channels go together (cuda/neighbours.hpp), a block stands for a cluster of them and a
// channel for a group of channels in one of several parts of the batch: in_groups.
#pragma once

#include <algorithm>
#include <cstdint>

namespace wtconv::cuda {

struct Work {
  std::int64_t per_channel = 0;  // work items (groups of planes) of one channel
  std::int64_t channels = 0;
  std::int64_t blocks = 1;
  int together = 1;  // blocks of a cluster, channels of a group
  int parts = 1;     // of the batch

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
  constexpr std::int64_t slot(std::int64_t block, std::int64_t channel, int member = 0) const {
    return (block + channel) * together + member;
  }
  constexpr std::int64_t slots() const { return (blocks + channels) * together; }
  constexpr int groups() const { return static_cast<int>(channels) / parts; }
};

// The same work for `most` clusters of blocks of neighbouring channels. Clusters that run side by side do better to
// read the same pixels, for what lies beside a group's channels in memory belongs to the next group: `cut` divides the
// batch into about as many parts as there are clusters for each group, to be gone through part by part. 7% faster
// forward; the weight gradient, which writes partial sums for every part, 8% slower (NVIDIA H200, 2026-12-01,
// n64c96h56w56k5l5_f32_nhwc). The last group may have fewer channels, the last part fewer items.
constexpr Work in_groups(Work work, int together, std::int64_t most, bool cut) {
  const std::int64_t groups = (work.channels + together - 1) / together, items = work.per_channel;
  std::int64_t parts = cut && groups > 0 ? (most + groups / 2) / groups : 1;
  parts = std::clamp<std::int64_t>(parts, 1, std::max<std::int64_t>(items, 1));
  work.per_channel = (items + parts - 1) / parts;
  parts = work.per_channel > 0 ? (items + work.per_channel - 1) / work.per_channel : 1;
  work.channels = groups * parts;
  work.together = together;
  work.parts = static_cast<int>(parts);
  work.blocks = std::clamp<std::int64_t>(work.items(), 1, std::max<std::int64_t>(most, 1));
  return work;
}

// The number of blocks where `most` run at once. In lockstep (images with channels innermost, whose neighbouring
// channels share sectors of memory) every channel gets the same number of blocks, so that all channels of an image are
// worked on at the same time and meet in the L2 cache: 0.51 ms instead of 1.24 (NVIDIA H200, 2026-11-30,
// n64c96h56w56k5l5_f32_nhwc). Elsewhere an even share is better by 2%.
constexpr std::int64_t choose_blocks(const Work& work, std::int64_t most, bool lockstep) {
  const std::int64_t items = work.items();
  if (items <= most) return items > 0 ? items : 1;
  const std::int64_t each = most / work.channels;  // blocks a channel
  return lockstep && each > 0 ? each * work.channels : most;
}

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

// What an item is: which group of planes of which channel (or group of channels).
struct Place {
  int channel, item;
};
constexpr Place place_in_groups(const Work& work, const Cursor& at) {
  const int groups = work.groups(), part = at.channel / groups;
  return {at.channel - part * groups, part * static_cast<int>(work.per_channel) + at.group};
}

}  // namespace wtconv::cuda
