#include "bands.hpp"

#include <algorithm>
#include <cmath>

#include "command.hpp"
#include "images/canvas.hpp"
#include "inputs.hpp"

namespace wtconv::tool {

images::Image picture(const float* values, const Problem& p, float low, float high) {
  const int h = int(p.height), w = int(p.width), channels = p.channels == 3 ? 3 : 1;
  images::Image image{w, h, channels, std::vector<std::uint8_t>(std::size_t(h) * w * channels)};
  for (int c = 0; c < channels; ++c) {
    const images::Image plane = images::grey(values + std::size_t(c) * h * w, h, w, low, high);
    for (std::size_t i = 0; i < plane.pixels.size(); ++i) image.pixels[i * channels + c] = plane.pixels[i];
  }
  return image;
}

float largest(const std::vector<float>& values) {
  float m = 0;
  for (float v : values) m = std::max(m, std::abs(v));
  return m;
}

std::vector<Part> contributions(harness::Tensors& t, LayerCall& call, bool identity, std::vector<float>& base) {
  const Problem& p = t.problem;
  std::vector<std::vector<float>> scales;
  for (int l = 1; l <= p.levels; ++l) scales.push_back(get_values(t.parameters.wavelet_scale[l - 1]));
  const std::vector<float> base_scale = get_values(t.parameters.base_scale);
  const auto off = [](std::vector<float> v) { return std::vector<float>(v.size(), 0.0f); };
  for (int l = 1; l <= p.levels; ++l) set_values(t.parameters.wavelet_scale[l - 1], off(scales[l - 1]));
  require(call.forward());
  base = get_values(t.y);
  set_values(t.parameters.base_scale, off(base_scale));
  std::vector<Part> parts;
  for (int l = 1; l <= p.levels; ++l) {
    for (int band = 0; band < 4; ++band) {
      std::vector<float> only = off(scales[l - 1]);
      const bool split = identity && band == LL && l < p.levels;
      for (std::size_t row = band; row < only.size(); row += 4) only[row] = split ? 1 : scales[l - 1][row];
      set_values(t.parameters.wavelet_scale[l - 1], only);
      require(call.forward());
      parts.push_back({l, band, split, get_values(t.y)});
    }
    set_values(t.parameters.wavelet_scale[l - 1], off(scales[l - 1]));
  }
  for (int l = 1; l <= p.levels; ++l) set_values(t.parameters.wavelet_scale[l - 1], scales[l - 1]);
  set_values(t.parameters.base_scale, base_scale);
  return parts;
}

}  // namespace wtconv::tool
