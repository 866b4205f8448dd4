// The readers of pictures and idx files: any bytes give what their header says, or an error with a message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "images/image.hpp"

using namespace wtconv;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  images::Image image;
  if (const Status s = images::decode_image(bytes, image); s.ok()) {
    if (image.pixels.size() != std::size_t(image.width) * image.height * image.channels) std::abort();
  } else if (s.message().empty()) {
    std::abort();
  }
  images::Idx idx;
  if (const Status s = images::parse_idx(bytes, idx); s.ok()) {
    std::size_t count = 1;
    for (const std::int64_t e : idx.extents) count *= static_cast<std::size_t>(e);
    if (idx.values.size() != count) std::abort();
  } else if (s.message().empty()) {
    std::abort();
  }
  return 0;
}
