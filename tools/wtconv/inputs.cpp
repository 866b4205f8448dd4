#include "inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "command.hpp"
#include "images/image.hpp"

namespace wtconv::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* fashion_mnist = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz";

std::string idx_path(const ImageArguments& a) {
  if (!a.idx.empty()) return a.idx;
  if (!fs::exists(fashion_mnist)) {
    throw Error(
        fmt::format("Fashion-MNIST is not at {}; install Debian's package dataset-fashion-mnist, or give --image "
                    "or --idx",
                    fashion_mnist));
  }
  return fashion_mnist;
}

images::Idx read_images(const std::string& path) {
  images::Idx idx;
  require(images::read_idx(path, idx));
  if (idx.extents.size() != 3 || std::find(idx.extents.begin(), idx.extents.end(), 0) != idx.extents.end()) {
    throw Error(fmt::format("'{}' does not hold pictures: its rank is {}, not 3 (count, height, width), or it is empty",
                            path, idx.extents.size()));
  }
  return idx;
}

// Names of the pictures in a folder, in order.
std::vector<std::string> files_of(const std::string& folder) {
  if (!fs::is_directory(folder)) throw Error(fmt::format("'{}' is not a folder", folder));
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string extension = entry.path().extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    if (extension == ".png" || extension == ".jpg" || extension == ".jpeg") files.push_back(entry.path().string());
  }
  if (files.empty()) throw Error(fmt::format("folder '{}' holds no .png, .jpg or .jpeg file", folder));
  std::sort(files.begin(), files.end());
  return files;
}

Planes from_files(const std::vector<std::string>& files) {
  std::vector<images::Image> pictures(files.size());
  Planes p;
  for (std::size_t i = 0; i < files.size(); ++i) {
    images::Image& image = pictures[i];
    require(images::read_image(files[i], image));
    if (i && (image.width != pictures[0].width || image.height != pictures[0].height)) {
      throw Error(fmt::format("'{}' is {} x {}, but '{}' is {} x {}: all pictures of a batch must have one size",
                              files[i], image.width, image.height, files[0], pictures[0].width, pictures[0].height));
    }
    p.channels = std::max<std::int64_t>(p.channels, image.channels);
  }
  p.batch = std::int64_t(files.size());
  p.height = pictures[0].height;
  p.width = pictures[0].width;
  p.inputs = files;
  p.source =
      files.size() == 1 ? files[0] : fmt::format("{} pictures, {} to {}", files.size(), files.front(), files.back());
  p.source += p.channels == 1 ? ", grey" : ", red, green and blue as channels";
  for (const images::Image& image : pictures) {
    for (int c = 0; c < p.channels; ++c) {  // a grey picture among coloured ones is repeated
      for (int i = 0; i < image.height; ++i) {
        for (int j = 0; j < image.width; ++j) {
          p.values.push_back(float(image.at(i, j, std::min(c, image.channels - 1))) / 255);
        }
      }
    }
  }
  return p;
}

Planes from_idx(const std::string& path, std::int64_t first, std::int64_t batch, std::int64_t channels) {
  const images::Idx idx = read_images(path);
  const std::int64_t count = idx.extents[0];
  if (first >= count) throw Error(fmt::format("there is no image {} in '{}', it holds {}", first, path, count));
  Planes p;
  p.channels = std::min(channels, count - first);
  p.height = idx.extents[1];
  p.width = idx.extents[2];
  p.batch = (count - first) / p.channels;
  if (batch > 0) p.batch = std::min(batch, p.batch);
  p.inputs = {path};
  const std::int64_t used = p.batch * p.channels;
  p.source = used == 1 ? fmt::format("image {} of {}", first, path)
                       : fmt::format("{} images of {}, {} different ones as the channels of each batch entry", used,
                                     path, p.channels);
  const std::uint8_t* from = idx.values.data() + first * p.height * p.width;
  for (std::int64_t i = 0; i < used * p.height * p.width; ++i) p.values.push_back(float(from[i]) / 255);
  return p;
}

}  // namespace

void add_images(CLI::App& command, ImageArguments& a, bool folder) {
  auto* group = command.add_option_group("Pictures", "One of these (default: --fashion-mnist)");
  group->add_flag("--fashion-mnist", a.fashion_mnist, "Debian's Fashion-MNIST test images");
  group->add_option("--image", a.files, folder ? "PNG or JPEG file; may be given more than once" : "PNG or JPEG file")
      ->type_name("FILE")
      ->allow_extra_args(false);
  if (folder) group->add_option("--folder", a.folder, "All PNG and JPEG files of a folder")->type_name("FOLDER");
  group->add_option("--idx", a.idx, "An idx file of bytes (count, height, width), plain or gzip")->type_name("FILE");
  group->require_option(0, 1);
}

Planes load_batch(const ImageArguments& a, std::int64_t batch, std::int64_t channels) {
  if (a.files.empty() && a.folder.empty()) return from_idx(idx_path(a), 0, batch, channels);
  std::vector<std::string> files = a.folder.empty() ? a.files : files_of(a.folder);
  if (batch > 0 && std::int64_t(files.size()) > batch) files.resize(std::size_t(batch));
  return from_files(files);
}

Planes load_one(const ImageArguments& a, std::int64_t index) {
  if (a.files.empty()) return from_idx(idx_path(a), index, 1, 1);
  if (a.files.size() > 1) throw Error(fmt::format("one picture at a time, got also '{}'", a.files[1]));
  return from_files(a.files);
}

void set_values(harness::Tensor& tensor, const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(std::int64_t(i), values[i]);
}

std::vector<float> get_values(const harness::Tensor& tensor) {
  std::vector<float> values(std::size_t(tensor.view().size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(tensor.get(std::int64_t(i)));
  return values;
}

void set_parameters(harness::Tensors& t, Preset preset, std::uint64_t seed) {
  const Problem& p = t.problem;
  const bool identity = preset == Preset::identity;
  std::mt19937_64 generator(seed);
  const auto uniform = [&](double bound) { return bound * (double(generator() >> 11) * 0x1p-52 - 1); };
  const double bound = 1.0 / p.kernel;  // nn.Conv2d: 1 / sqrt(k k) for weights and bias
  const std::int64_t taps = std::int64_t{p.kernel} * p.kernel, centre = std::int64_t{p.pad_before()} * (p.kernel + 1);
  const auto weights = [&](harness::Tensor& w) {
    for (std::int64_t i = 0; i < w.view().size(); ++i) w.set(i, identity ? double(i % taps == centre) : uniform(bound));
  };
  weights(t.parameters.base_weight);
  for (std::int64_t c = 0; c < p.channels; ++c) {
    if (t.parameters.base_bias) t.parameters.base_bias.set(c, identity ? 0 : uniform(bound));
    t.parameters.base_scale.set(c, identity && p.levels > 0 ? 0 : 1);
  }
  for (int l = 1; l <= p.levels; ++l) {
    weights(t.parameters.wavelet_weight[l - 1]);
    for (std::int64_t row = 0; row < 4 * p.channels; ++row) {
      const bool used = row % 4 != LL || l == p.levels;
      t.parameters.wavelet_scale[l - 1].set(row, identity ? double(used) : 0.1);
    }
  }
}

}  // namespace wtconv::tool
