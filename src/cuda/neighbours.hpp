// Blocks of neighbouring channels. Where channels lie closer together than pixels (channels-last), a block that reads
// one channel uses 4 bytes (16-bit: 2) of every 32-byte sector. So the blocks of a thread-block cluster take as many
// neighbouring channels and divide the pixels among themselves: each copies its rows for all of them.
#pragma once

#include "cuda/arguments.hpp"
#include "cuda/device.hpp"

namespace wtconv::cuda {

inline constexpr int neighbours =
    8;  // blocks of a cluster, channels: a sector of f32; larger clusters are not portable

// Fewer channels leave blocks of a cluster idle, and more of a sector is used without clusters. By arithmetic.
inline constexpr int least_neighbours = 5;

// How the rows of a block's planes (one after the other) are divided, and how a share lies in shared memory: one image
// of 4-byte words without gaps for each channel (16-bit on the way in: two channels).
struct Shares {
  int rows = 0;   // of a block
  int image = 0;  // words from image to image
};

// Channels in a word.
constexpr int word_channels(int element_size) { return 4 / element_size; }

constexpr Shares make_shares(int height, int width, int planes, int element_size) {
  Shares s;
  s.rows = (planes * height + neighbours - 1) / neighbours;
  // A warp moves the words of 32 / images pixels: those of an image lie side by side, the images' on other banks.
  const int side_by_side = 32 * word_channels(element_size) / neighbours;
  s.image = (s.rows * width + 3) / 4 * 4;
  s.image += (side_by_side + 32 - s.image % 32) % 32;
  return s;
}

constexpr int shares_bytes(int height, int width, int planes, int element_size) {
  return 4 * make_shares(height, width, planes, element_size).image * neighbours / word_channels(element_size);
}

// Whether offsets inside a plane, and to its neighbouring channels, are small enough for 32-bit arithmetic.
bool offsets_are_small(const Image& image, const Problem& p);

// Whether whole words of the image can be copied: 4-byte elements, or pairs of channels at multiples of 4 bytes.
bool has_whole_words(const Image& image, const Problem& p);

// Whether blocks of neighbouring channels should take a problem with these images.
bool wants_neighbours(const Image& a, const Image& b, const Problem& p, const DeviceLimits& limits);

}  // namespace wtconv::cuda
