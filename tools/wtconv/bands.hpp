// What single bands contribute to the layer's output, and planes as pictures.
#pragma once

#include <array>
#include <vector>

#include "images/image.hpp"
#include "layer_call.hpp"

namespace wtconv::tool {

inline constexpr std::array<const char*, 4> band_names{"LL", "LH", "HL", "HH"};

// One part of the output: what one band of one level adds to it.
struct Part {
  int level, band;
  bool split;  // the identity's LL of an upper level: shown, but the levels below hold it, so it is not a part of the
               // sum
  std::vector<float> values;
};

// The layer is linear in its scales: with all but one off, its output is that band's contribution, at full size. All
// contributions and `base`, the base filter's, add up to the output. Level by level, LL to HH.
std::vector<Part> contributions(harness::Tensors& tensors, LayerCall& call, bool identity, std::vector<float>& base);

float largest(const std::vector<float>& values);  // absolute

// The first batch entry of (B, C, H, W) values, in colour if it has three channels, else its first channel.
images::Image picture(const float* values, const Problem& problem, float low, float high);

}  // namespace wtconv::tool
