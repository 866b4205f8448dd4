#include "images/image.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <memory>

#include "images/files.hpp"

namespace wtconv::images {
namespace {

Status bad(std::string why) { return {StatusCode::invalid_argument, std::move(why)}; }

// A reader of bytes with the path put in front of what its parser says.
template <class Parse, class T>
Status read_with(Parse parse, const std::string& path, T& result) {
  std::vector<std::byte> bytes;
  if (Status s = read_file(path, bytes); !s.ok()) return s;
  if (Status s = parse(bytes, result); !s.ok()) return {s.code(), "cannot read '" + path + "': " + s.message()};
  return {};
}

// The header comes first: an absurd size is refused before anything is allocated for it.
Status check_size(std::int64_t width, std::int64_t height) {
  if (width >= 1 && height >= 1 && width <= max_side && height <= max_side && width * height <= max_pixels) return {};
  return bad("it is " + std::to_string(width) + " x " + std::to_string(height) + ", at most " +
             std::to_string(max_side) + " a side and " + std::to_string(max_pixels) + " pixels are taken");
}

Status decode_jpeg(std::span<const std::byte> bytes, Image& image) {
  const std::unique_ptr<void, decltype(&tjDestroy)> jpeg(tjInitDecompress(), &tjDestroy);
  const auto corrupt = [&] {
    return bad(std::string("truncated or corrupt JPEG (") + tjGetErrorStr2(jpeg.get()) + ")");
  };
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(jpeg.get(), data, bytes.size(), &width, &height, &subsampling, &colours)) return corrupt();
  if (width < 1 || height < 1) return bad("truncated or corrupt JPEG (it holds no picture)");
  if (Status s = check_size(width, height); !s.ok()) return s;
  const int channels = colours == TJCS_GRAY ? 1 : 3;
  Image result{width, height, channels, std::vector<std::uint8_t>(std::size_t(width) * height * channels)};
  if (tjDecompress2(jpeg.get(), data, bytes.size(), result.pixels.data(), width, 0, height,
                    channels == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_STOPONWARNING)) {
    return corrupt();
  }
  image = std::move(result);
  return {};
}

Status decode_png(std::span<const std::byte> bytes, Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype(&png_image_free)> owner(&png, &png_image_free);
  const auto corrupt = [&] { return bad(std::string("truncated or corrupt PNG (") + png.message + ")"); };
  if (!png_image_begin_read_from_memory(&png, bytes.data(), bytes.size())) return corrupt();
  if (Status s = check_size(png.width, png.height); !s.ok()) return s;
  // Read with alpha and drop it: asked for none, libpng would blend with a background.
  const int channels = png.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // samples of 16 bits are as gamma-encoded as those of 8
  png.format = channels == 3 ? PNG_FORMAT_RGBA : PNG_FORMAT_GA;
  std::vector<std::uint8_t> pixels(PNG_IMAGE_SIZE(png));
  if (!png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr)) return corrupt();
  auto to = pixels.begin();
  for (auto from = pixels.begin(); from != pixels.end(); from += channels + 1) to = std::copy_n(from, channels, to);
  pixels.erase(to, pixels.end());
  image = {static_cast<int>(png.width), static_cast<int>(png.height), channels, std::move(pixels)};
  return {};
}

}  // namespace

Status decode_image(std::span<const std::byte> bytes, Image& image) {
  constexpr std::uint8_t png_start[] = {0x89, 'P', 'N', 'G'}, jpeg_start[] = {0xff, 0xd8, 0xff};
  const auto starts_with = [&](std::span<const std::uint8_t> start) {
    return bytes.size() >= start.size() && std::ranges::equal(std::as_bytes(start), bytes.first(start.size()));
  };
  image = {};
  if (bytes.empty()) return bad("it is empty");
  if (starts_with(png_start)) return decode_png(bytes, image);
  if (starts_with(jpeg_start)) return decode_jpeg(bytes, image);
  return bad("neither PNG nor JPEG");
}

Status read_image(const std::string& path, Image& image) { return read_with(decode_image, path, image); }

Status encode_png(const Image& image, std::vector<std::byte>& bytes) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  bytes.resize(size);
  if (!png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr)) {
    bytes.clear();
    return bad("cannot encode a picture of " + std::to_string(image.width) + " x " + std::to_string(image.height) +
               " (" + png.message + ")");
  }
  bytes.resize(size);
  return {};
}

Status write_png(const std::string& path, const Image& image) {
  std::vector<std::byte> bytes;
  if (Status s = encode_png(image, bytes); !s.ok()) return s;
  return write_file(path, bytes);
}

Status parse_idx(std::span<const std::byte> bytes, Idx& idx) {
  idx = {};
  std::vector<std::byte> plain;
  if (Status s = gunzip(bytes, plain); !s.ok()) return s;
  if (plain.size() < 4) return bad("idx header truncated: " + std::to_string(plain.size()) + " bytes");
  const auto byte = [&](std::size_t i) { return std::to_integer<std::uint32_t>(plain[i]); };
  if (byte(0) != 0 || byte(1) != 0) return bad("not an idx file: it does not start with two zero bytes");
  if (byte(2) != 0x08) return bad("idx type " + std::to_string(byte(2)) + " is not 8 (unsigned byte)");
  const std::uint32_t rank = byte(3);
  if (rank < 1 || rank > 4) return bad("idx rank must be in 1..4, got " + std::to_string(rank));
  const std::size_t header = 4 + 4 * std::size_t{rank};
  if (plain.size() < header) return bad("idx header truncated: " + std::to_string(plain.size()) + " bytes");
  const std::size_t present = plain.size() - header;
  std::size_t count = 1;
  std::string extents;
  for (std::uint32_t d = 0; d < rank; ++d) {
    const std::size_t at = 4 + 4 * d;
    const std::uint32_t extent = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    extents += (d ? " x " : "") + std::to_string(extent);
    idx.extents.push_back(extent);
    // Saturates instead of overflowing; nothing that large can be present.
    count = extent != 0 && count > max_file_bytes / extent ? max_file_bytes + 1 : count * extent;
  }
  if (count != present) {
    idx = {};
    return bad("idx header says " + extents + " values, the file holds " + std::to_string(present));
  }
  const auto* first = reinterpret_cast<const std::uint8_t*>(plain.data()) + header;
  idx.values.assign(first, first + present);
  return {};
}

Status read_idx(const std::string& path, Idx& idx) { return read_with(parse_idx, path, idx); }

}  // namespace wtconv::images
