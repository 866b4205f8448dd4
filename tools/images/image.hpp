// Pictures: PNG and JPEG files, and the idx files of the MNIST family.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wtconv/status.hpp"

namespace wtconv::images {

// Rows of pixels, `channels` bytes each (1: grey, 3: RGB).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 1;
  std::vector<std::uint8_t> pixels;

  std::uint8_t at(int row, int column, int channel = 0) const {
    return pixels[(std::size_t(row) * width + column) * channels + channel];
  }
  friend bool operator==(const Image&, const Image&) = default;
};

inline constexpr int max_side = 16384;
inline constexpr std::int64_t max_pixels = std::int64_t{1} << 26;

// PNG or JPEG in memory. Alpha is dropped, 16-bit samples are reduced to 8.
Status decode_image(std::span<const std::byte> bytes, Image& image);
Status read_image(const std::string& path, Image& image);
Status encode_png(const Image& image, std::vector<std::byte>& bytes);
Status write_png(const std::string& path, const Image& image);

// An idx file of unsigned bytes: its extents (1 to 4) and its values, row-major.
struct Idx {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> values;
};
// idx data in memory, plain or gzip.
Status parse_idx(std::span<const std::byte> bytes, Idx& idx);
Status read_idx(const std::string& path, Idx& idx);

}  // namespace wtconv::images
