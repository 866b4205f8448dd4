// `run`: the layer on one picture, and pictures of what every band contributes.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "bands.hpp"
#include "command.hpp"
#include "images/canvas.hpp"
#include "images/files.hpp"
#include "inputs.hpp"
#include "layer_call.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

using images::Align;
using images::Canvas;
using images::Color;
using images::Image;

constexpr Color ink{30, 34, 42}, faint{120, 126, 138}, paper{255, 255, 255};

struct Arguments {
  ImageArguments images;
  std::int64_t index = 0;
  std::string out = "out/run";
  std::string backend;
  bool random = false;
  std::uint64_t seed = 1;
  int kernel = 5;
  int levels = 3;
  int threads = 0;
  bool json = false;
};

Image overview(const Image& input, const Image& output, const std::vector<Image>& parts,
               const std::vector<std::string>& captions, const std::string& title, const std::string& subtitle,
               int levels) {
  const int scale = std::max(1, 168 / std::max(input.width, input.height));
  const double shrink = std::min(1.0, 220.0 / std::max(input.width, input.height));
  const int w = input.width * scale > 220 ? std::max(1, int(input.width * shrink)) : input.width * scale;
  const int h = input.height * scale > 220 ? std::max(1, int(input.height * shrink)) : input.height * scale;
  constexpr int margin = 28, gap = 14, caption = 22, head = 92, label = 76;
  const int column = w + gap;
  const int width = std::max(
      2 * margin + column + label + 4 * column,
      2 * margin + std::max(Canvas::text_width(title, 22, images::Weight::bold), Canvas::text_width(subtitle, 13)));
  const int rows = std::max(levels, 2);
  Canvas canvas(width, head + rows * (h + caption + gap) + margin, paper);
  canvas.text(margin, 42, title, 22, ink, Align::left, images::Weight::bold);
  canvas.text(margin, 66, subtitle, 13, faint);
  const auto tile = [&](const Image& image, int x, int y, const std::string& name) {
    canvas.draw(image, x, y, w, h);
    canvas.frame(x, y, w, h, {214, 217, 224});
    canvas.text(x, y + h + 16, name, 12, faint);
  };
  tile(input, margin, head, "input");
  tile(output, margin, head + h + caption + gap, "output");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const int level = int(i) / 4, band = int(i) % 4;  // in this order
    const int x = margin + column + label + band * column, y = head + level * (h + caption + gap);
    if (band == 0) canvas.text(x - 14, y + h / 2 + 5, fmt::format("level {}", level + 1), 14, ink, Align::right);
    tile(parts[i], x, y, captions[i]);
  }
  return canvas.image();
}

int run(const Arguments& a) {
  const Planes planes = load_one(a.images, a.index);
  harness::Case c{.problem = {.batch = 1,
                              .channels = planes.channels,
                              .height = planes.height,
                              .width = planes.width,
                              .kernel = a.kernel,
                              .levels = a.levels}};
  require(validate(c.problem));
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(a.out, error);
  if (!fs::is_directory(a.out)) {
    throw Error(fmt::format("cannot make folder '{}': {}", a.out, error ? error.message() : "it is a file"));
  }
  harness::Tensors tensors;
  require(harness::make_tensors(c, tensors));
  set_values(tensors.x, planes.values);
  set_parameters(tensors, a.random ? Preset::random : Preset::identity, a.seed);
  LayerCall call(tensors, a.backend, a.threads, {});
  require(call.forward());
  const std::vector<float> y = get_values(tensors.y);
  std::vector<float> base;
  const std::vector<Part> parts = contributions(tensors, call, !a.random, base);

  std::vector<double> sum(base.begin(), base.end());
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < sum.size() && !part.split; ++i) sum[i] += part.values[i];
  }
  double gap = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) gap = std::max(gap, std::abs(sum[i] - double(y[i])));

  const Image input = picture(planes.values.data(), c.problem, 0, 1);
  // The identity's output is a picture again; random filters give signed values.
  const float peak = largest(y);
  const Image output = a.random ? picture(y.data(), c.problem, -peak, peak) : picture(y.data(), c.problem, 0, 1);
  std::vector<std::pair<std::string, Image>> files{{"input.png", input}, {"output.png", output}};
  std::vector<Image> pictures;
  std::vector<float> peaks;
  std::vector<std::string> captions;
  for (const Part& part : parts) {
    const float m = largest(part.values);
    const bool plain = !a.random && part.band == LL;
    pictures.push_back(picture(part.values.data(), c.problem, plain ? 0 : -m, m));
    peaks.push_back(m);
    captions.push_back(fmt::format("{}  {}", band_names[part.band],
                                   part.split ? "split further below" : fmt::format("peak {:.3g}", m)));
    files.push_back({fmt::format("level{}_{}.png", part.level, band_names[part.band]), pictures.back()});
  }
  const std::string title =
      fmt::format("WTConv, k = {}, L = {}, {} x {}", a.kernel, a.levels, planes.height, planes.width);
  const std::string subtitle =
      a.random
          ? "What each filtered band adds to the output (grey is zero). Random filters."
          : "What each band adds to the output (grey is zero; LL from black). Identity: the bands add up to the input.";
  files.push_back({"overview.png", overview(input, output, pictures, captions, title, subtitle, a.levels)});
  Json written = Json::array();
  for (const auto& [name, image] : files) {
    const std::string path = (fs::path(a.out) / name).string();
    require(images::check_output(path, planes.inputs));
    require(images::write_png(path, image));
    written.push_back(path);
  }
  if (a.json) {
    Json bands = Json::array();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      bands.push_back({{"level", parts[i].level}, {"band", band_names[parts[i].band]}, {"peak", peaks[i]}});
    }
    print_json(Json{{"case", harness::to_string(c)},
                    {"source", planes.source},
                    {"backend", call.backend()},
                    {"preset", a.random ? "random" : "identity"},
                    {"output_peak", peak},
                    {"bands_add_up_to_output_within", gap},
                    {"bands", bands},
                    {"files", written}});
    return success;
  }
  print(styled(harness::to_string(c), Style::bold) + "  " + call.backend() + "\n");
  print(wrapped(planes.source, 0) + "\n");
  Table table({"level", "size", "LL peak", "LH peak", "HL peak", "HH peak"});
  for (int l = 1; l <= a.levels; ++l) {
    std::vector<Cell> cells{fmt::format("{}", l),
                            fmt::format("{} x {}", c.problem.height_at(l), c.problem.width_at(l))};
    for (int band = 0; band < 4; ++band) cells.push_back(fmt::format("{:.4f}", peaks[std::size_t(4 * (l - 1) + band)]));
    table.row(cells);
  }
  print(table.text());
  print(
      fmt::format("\nThe bands' contributions add up to the output within {:.1e} (its peak is {:.3g}).\n", gap, peak));
  print(fmt::format("{} pictures in {}; see ", files.size(), a.out) +
        styled((fs::path(a.out) / "overview.png").string(), Style::accent) + "\n");
  return success;
}

}  // namespace

void add_run(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("run", "Apply the layer to a picture; write pictures of every band and the output");
  const auto a = std::make_shared<Arguments>();
  add_images(*command, a->images, false);
  command->add_option("--index", a->index, "Which image of an idx file")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--out", a->out, "Folder for the pictures, made if it is not there")
      ->capture_default_str()
      ->type_name("FOLDER");
  command->add_option("--kernel", a->kernel, "k")->capture_default_str()->check(CLI::Range(1, max_kernel));
  command->add_option("--levels", a->levels, "L")->capture_default_str()->check(CLI::Range(0, max_levels));
  command->add_flag("--random", a->random,
                    "Random filters, as in a fresh layer (default: identity, which splits the picture into its bands)");
  command->add_option("--seed", a->seed, "Seed of the random filters")->capture_default_str();
  add_backend(*command, a->backend);
  add_threads(*command, a->threads);
  add_json(*command, a->json);
  command->footer("Each picture shows what one band of one level adds to the output; together they are the output.\n");
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
