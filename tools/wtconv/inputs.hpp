// Real images as the layer's input, and the layer's parameters.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/tensors.hpp"

namespace wtconv::tool {

// Where pictures come from. Nothing given means Fashion-MNIST.
struct ImageArguments {
  std::vector<std::string> files;
  std::string folder;
  std::string idx;
  bool fashion_mnist = false;
};
void add_images(CLI::App& command, ImageArguments& arguments, bool folder);

// Pictures as (B, C, H, W) values in 0..1.
struct Planes {
  std::int64_t batch = 0, channels = 0, height = 0, width = 0;
  std::vector<float> values;
  std::string source;               // what was read and how it became planes, one sentence
  std::vector<std::string> inputs;  // files that were read: outputs may not overwrite them

  const float* plane(std::int64_t b, std::int64_t c) const {
    return values.data() + (b * channels + c) * height * width;
  }
};

// A batch for the layer. Images of an idx file have one channel: `channels` different ones become the channels of one
// batch entry, image b * channels + c at (b, c). Photographs keep their own channels, and all must be of one size.
// `batch` and `channels` are at most; 0 takes what there is. Throws Error.
Planes load_batch(const ImageArguments& arguments, std::int64_t batch, std::int64_t channels);
// One picture: the only file, or image `index` of an idx file.
Planes load_one(const ImageArguments& arguments, std::int64_t index);

void set_values(harness::Tensor& tensor, const std::vector<float>& values);
std::vector<float> get_values(const harness::Tensor& tensor);

enum class Preset {
  identity,  // kernels of a single 1, base off, details on and LL on the last level: y = x, split into its bands
  random,    // what a fresh nn.Conv2d holds; wavelet scales 0.1, as in a fresh WTConv2d
};
void set_parameters(harness::Tensors& tensors, Preset preset, std::uint64_t seed);

}  // namespace wtconv::tool
