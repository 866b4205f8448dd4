#include "images/image.hpp"

#include <climits>
#include <memory>

#include "images/files.hpp"

#define STBI_NO_STDIO
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_MAX_DIMENSIONS 16384
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

static_assert(STBI_MAX_DIMENSIONS == wtconv::images::max_side);

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

}  // namespace

Status decode_image(std::span<const std::byte> bytes, Image& image) {
  image = {};
  if (bytes.empty()) return bad("it is empty");
  if (bytes.size() > INT_MAX) return bad("it is larger than 2 GiB");
  const auto* data = reinterpret_cast<const stbi_uc*>(bytes.data());
  const int size = static_cast<int>(bytes.size());
  // The header first: an absurd size is refused before anything is allocated for it.
  int width = 0, height = 0, channels = 0;
  if (!stbi_info_from_memory(data, size, &width, &height, &channels)) {
    return bad(std::string("neither PNG nor JPEG (") + stbi_failure_reason() + ")");
  }
  if (width < 1 || height < 1 || width > max_side || height > max_side || std::int64_t{width} * height > max_pixels) {
    return bad("it is " + std::to_string(width) + " x " + std::to_string(height) + ", at most " +
               std::to_string(max_side) + " a side and " + std::to_string(max_pixels) + " pixels are taken");
  }
  const int wanted = channels <= 2 ? 1 : 3;
  const std::unique_ptr<stbi_uc, decltype(&stbi_image_free)> pixels(
      stbi_load_from_memory(data, size, &width, &height, &channels, wanted), &stbi_image_free);
  if (!pixels) return bad(std::string("truncated or corrupt picture (") + stbi_failure_reason() + ")");
  image = {width, height, wanted, {pixels.get(), pixels.get() + std::size_t(width) * height * wanted}};
  return {};
}

Status read_image(const std::string& path, Image& image) { return read_with(decode_image, path, image); }

Status encode_png(const Image& image, std::vector<std::byte>& bytes) {
  bytes.clear();
  const auto append = [](void* context, void* data, int size) {
    auto* to = static_cast<std::vector<std::byte>*>(context);
    const auto* from = static_cast<const std::byte*>(data);
    to->insert(to->end(), from, from + size);
  };
  if (!stbi_write_png_to_func(append, &bytes, image.width, image.height, image.channels, image.pixels.data(),
                              image.width * image.channels)) {
    return bad("cannot encode a picture of " + std::to_string(image.width) + " x " + std::to_string(image.height));
  }
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
