#include "images/canvas.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "images/files.hpp"

#define STBTT_STATIC
#define STB_TRUETYPE_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_easy_font.h>
#include <stb/stb_truetype.h>
#pragma GCC diagnostic pop

namespace wtconv::images {
namespace {

struct Font {
  std::vector<std::byte> file;
  stbtt_fontinfo info;
};

// Null if the font is not installed.
const Font* font(Weight weight) {
  static const auto load = [](const char* name) -> std::optional<Font> {
    std::optional<Font> font(std::in_place);
    const std::string path = std::string(WTCONV_FONT_FOLDER "/") + name;
    if (!read_file(path, font->file).ok()) return std::nullopt;
    const auto* data = reinterpret_cast<const unsigned char*>(font->file.data());
    if (!stbtt_InitFont(&font->info, data, stbtt_GetFontOffsetForIndex(data, 0))) return std::nullopt;
    return font;
  };
  static const std::optional<Font> regular = load("DejaVuSans.ttf"), bold = load("DejaVuSans-Bold.ttf");
  const std::optional<Font>& wanted = weight == Weight::bold ? bold : regular;
  return wanted ? &*wanted : nullptr;
}

// Calls put(x, y, alpha) for every pixel a text covers, relative to its origin on the baseline; returns its width.
template <class Put>
float walk(const Font& font, std::string_view text, int size, Put put) {
  const float scale = stbtt_ScaleForMappingEmToPixels(&font.info, float(size));
  float x = 0;
  std::vector<unsigned char> bitmap;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int advance = 0, bearing = 0, x0, y0, x1, y1;
    const float shift = x - std::floor(x);
    stbtt_GetCodepointHMetrics(&font.info, text[i], &advance, &bearing);
    stbtt_GetCodepointBitmapBoxSubpixel(&font.info, text[i], scale, scale, shift, 0, &x0, &y0, &x1, &y1);
    const int w = x1 - x0, h = y1 - y0;
    if (w > 0 && h > 0) {
      bitmap.assign(std::size_t(w) * h, 0);
      stbtt_MakeCodepointBitmapSubpixel(&font.info, bitmap.data(), w, h, w, scale, scale, shift, 0, text[i]);
      for (int r = 0; r < h; ++r) {
        for (int c = 0; c < w; ++c) put(int(std::floor(x)) + x0 + c, y0 + r, bitmap[std::size_t(r) * w + c]);
      }
    }
    x += scale * float(advance);
    if (i + 1 < text.size()) x += scale * float(stbtt_GetCodepointKernAdvance(&font.info, text[i], text[i + 1]));
  }
  return x;
}

// The built-in font at a whole multiple of its 12-pixel lines.
template <class Put>
float walk_blocky(std::string_view text, int size, Put put) {
  std::string copy(text);
  const int scale = std::max(1, size / 9), ascent = 8;
  std::vector<float> vertices(text.size() * 300 + 300);
  const int quads = stb_easy_font_print(0, 0, copy.data(), nullptr, vertices.data(), int(vertices.size() * 4));
  for (int q = 0; q < quads; ++q) {
    const float* v = vertices.data() + q * 16;  // four vertices of x, y, z, colour
    for (int y = int(v[1]); y < int(v[9]); ++y) {
      for (int x = int(v[0]); x < int(v[8]); ++x) {
        for (int i = 0; i < scale * scale; ++i) put(x * scale + i % scale, (y - ascent) * scale + i / scale, 255);
      }
    }
  }
  return float(stb_easy_font_width(copy.data()) * scale);
}

template <class Put>
float walk_text(std::string_view text, int size, Weight weight, Put put) {
  const Font* f = font(weight);
  return f ? walk(*f, text, size, put) : walk_blocky(text, size, put);
}

// Also defined for nan (0).
std::uint8_t to_byte(float v) { return v >= 255 ? 255 : v > 0 ? std::uint8_t(v) : 0; }

}  // namespace

Canvas::Canvas(int width, int height, Color background)
    : image_{width, height, 3, std::vector<std::uint8_t>(std::size_t(width) * height * 3)} {
  fill(0, 0, width, height, background);
}

void Canvas::blend(int x, int y, Color color, int alpha) {
  if (x < 0 || y < 0 || x >= image_.width || y >= image_.height) return;
  std::uint8_t* p = image_.pixels.data() + (std::size_t(y) * image_.width + x) * 3;
  const std::array<std::uint8_t, 3> c{color.r, color.g, color.b};
  for (int i = 0; i < 3; ++i) p[i] = std::uint8_t((p[i] * (255 - alpha) + c[i] * alpha + 127) / 255);
}

void Canvas::fill(int x, int y, int width, int height, Color color) {
  for (int r = std::max(y, 0); r < std::min(y + height, image_.height); ++r) {
    for (int c = std::max(x, 0); c < std::min(x + width, image_.width); ++c) blend(c, r, color, 255);
  }
}

void Canvas::frame(int x, int y, int width, int height, Color color) {
  fill(x, y, width, 1, color);
  fill(x, y + height - 1, width, 1, color);
  fill(x, y, 1, height, color);
  fill(x + width - 1, y, 1, height, color);
}

void Canvas::draw(const Image& image, int x, int y, int width, int height) {
  for (int r = 0; r < height; ++r) {
    const int r0 = int(std::int64_t{r} * image.height / height);
    const int r1 = std::max(r0 + 1, int(std::int64_t{r + 1} * image.height / height));
    for (int c = 0; c < width; ++c) {
      const int c0 = int(std::int64_t{c} * image.width / width);
      const int c1 = std::max(c0 + 1, int(std::int64_t{c + 1} * image.width / width));
      std::array<std::int64_t, 3> sum{};
      for (int i = r0; i < r1; ++i) {
        for (int j = c0; j < c1; ++j) {
          for (int k = 0; k < 3; ++k) sum[k] += image.at(i, j, image.channels == 3 ? k : 0);
        }
      }
      const std::int64_t n = std::int64_t{r1 - r0} * (c1 - c0);
      const auto mean = [&](int k) { return std::uint8_t((sum[k] + n / 2) / n); };
      blend(x + c, y + r, {mean(0), mean(1), mean(2)}, 255);
    }
  }
}

void Canvas::text(int x, int y, std::string_view text, int size, Color color, Align align, Weight weight) {
  if (align != Align::left) {
    const int width = text_width(text, size, weight);
    x -= align == Align::right ? width : width / 2;
  }
  walk_text(text, size, weight, [&](int dx, int dy, int alpha) { blend(x + dx, y + dy, color, alpha); });
}

int Canvas::text_width(std::string_view text, int size, Weight weight) {
  return int(std::ceil(walk_text(text, size, weight, [](int, int, int) {})));
}

Image grey(const float* values, int height, int width, float low, float high) {
  Image image{width, height, 1, std::vector<std::uint8_t>(std::size_t(width) * height)};
  const float scale = high > low ? 255.0f / (high - low) : 0.0f;
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = to_byte((values[i] - low) * scale + 0.5f);
  }
  return image;
}

}  // namespace wtconv::images
