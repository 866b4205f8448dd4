// A small raster: boxes, pictures and text on an RGB image.
#pragma once

#include <cstdint>
#include <string_view>

#include "images/image.hpp"

namespace wtconv::images {

struct Color {
  std::uint8_t r = 0, g = 0, b = 0;
};

enum class Align { left, center, right };
enum class Weight { regular, bold };

class Canvas {
 public:
  Canvas(int width, int height, Color background);

  // Everything is clipped to the canvas.
  void fill(int x, int y, int width, int height, Color color);
  void frame(int x, int y, int width, int height, Color color);  // one pixel wide, inside the box
  // A picture resized to width x height: every source pixel a sharp box when it grows, box-averaged when it shrinks.
  void draw(const Image& image, int x, int y, int width, int height);
  // `y` is the baseline. Text is ASCII. Drawn with DejaVu Sans if it is installed, else with a blocky built-in font.
  void text(int x, int y, std::string_view text, int size, Color color, Align align = Align::left,
            Weight weight = Weight::regular);
  static int text_width(std::string_view text, int size, Weight weight = Weight::regular);

  const Image& image() const { return image_; }

 private:
  void blend(int x, int y, Color color, int alpha);  // alpha in 0..255
  Image image_;
};

// A plane of floats as a grey picture: `low` is black, `high` is white.
Image grey(const float* values, int height, int width, float low, float high);

}  // namespace wtconv::images
