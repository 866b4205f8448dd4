// `compare`, the main job: a batch of real images through two backends, forward and backward. Same answer? At what
// time, extra memory and traffic? As a table and a picture.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "bands.hpp"
#include "command.hpp"
#include "harness/check.hpp"
#include "images/canvas.hpp"
#include "images/files.hpp"
#include "inputs.hpp"
#include "layer_call.hpp"
#include "terminal.hpp"
#include "timing.hpp"

namespace wtconv::tool {
namespace {

using images::Align;
using images::Canvas;
using images::Color;
using images::Image;

constexpr const char* default_out = "out/compare.png";

struct Arguments {
  ImageArguments images;
  std::string baseline = "unfused";
  std::string backend;
  std::string host_file;
  std::string out = default_out;
  std::string dtype = "f32";
  std::int64_t batch = 256;
  std::int64_t channels = 32;
  int kernel = 5;
  int levels = 3;
  int threads = 0;
  std::uint64_t seed = 1;
  Rounds rounds;
  bool json = false;
};

// One backend's part in the comparison.
struct Contestant {
  std::unique_ptr<LayerCall> call;
  Timed forward, backward;
  harness::CheckResult judged;
  std::vector<std::pair<std::string, std::vector<double>>> outputs;  // y and every gradient
  Plan plans[2];

  const std::string& name() const { return call->backend(); }
  double seconds(int pass) const {  // forward, backward, step
    if (pass == 2) return summarise(sums(forward.seconds, backward.seconds)).median;
    return summarise(pass == 0 ? forward.seconds : backward.seconds).median;
  }
  std::size_t workspace(int pass) const { return pass == 0 ? call->forward_workspace() : call->backward_workspace(); }
  double bytes(int pass, DType dtype) const { return plans[pass].elements_moved * double(size_of(dtype)); }
};

// How two answers differ in one group of tensors.
struct Difference {
  std::string what;
  double largest = 0;  // absolute value in the baseline's answer
  double max = 0, rms = 0;
  double of_tolerance[2] = {0, 0};  // of each contestant against the reference
  bool same = true;
};

std::vector<Difference> differences(const Contestant& a, const Contestant& b) {
  std::vector<Difference> groups{{"y"}, {"gradient of x"}, {"gradients of weights"}};
  const auto group_of = [&](const std::string& name) -> Difference& {
    return groups[name == "y" ? 0 : name == "gradient of x" ? 1 : 2];
  };
  double sum[3] = {}, count[3] = {};
  for (std::size_t t = 0; t < a.outputs.size(); ++t) {
    Difference& d = group_of(a.outputs[t].first);
    const std::size_t g = std::size_t(&d - groups.data());
    const std::vector<double>&va = a.outputs[t].second, &vb = b.outputs[t].second;
    for (std::size_t i = 0; i < va.size(); ++i) {
      const double e = std::abs(va[i] - vb[i]);
      d.largest = std::max(d.largest, std::abs(va[i]));
      d.max = std::max(d.max, e);
      if (std::isnan(e)) d.same = false;
      sum[g] += e * e;
    }
    count[g] += double(va.size());
  }
  for (int side = 0; side < 2; ++side) {
    for (const harness::TensorError& e : (side ? b : a).judged.tensors) {
      Difference& d = group_of(e.name);
      d.of_tolerance[side] = std::max(d.of_tolerance[side], e.worst_ratio);
      d.same = d.same && e.wrong == 0;
    }
  }
  for (int g = 0; g < 3; ++g) groups[g].rms = count[g] > 0 ? std::sqrt(sum[g] / count[g]) : 0;
  return groups;
}

// The layer's parts on one batch entry's first one or three channels, with the parameters of those channels.
std::vector<Part> sample_parts(const harness::Tensors& all, const Planes& planes, const std::string& backend) {
  harness::Case c{.problem = all.problem};
  c.problem.batch = 1;
  c.problem.channels = planes.channels == 3 ? 3 : 1;
  c.problem.dtype = DType::f32;
  harness::Tensors t;
  require(harness::make_tensors(c, t));
  set_values(t.x, {planes.values.begin(), planes.values.begin() + t.x.view().size()});
  harness::for_each_parameter(
      c.problem,
      [](const std::string&, harness::Tensor& to, const harness::Tensor& from) {
        for (std::int64_t i = 0; i < to.view().size(); ++i) to.set(i, from.get(i));
      },
      t.parameters, all.parameters);
  LayerCall call(t, backend, 0, {});
  std::vector<float> base;
  return contributions(t, call, false, base);
}

// ---- the picture

constexpr Color ink{30, 34, 42}, faint{112, 118, 130}, paper{255, 255, 255}, line{222, 225, 231};
constexpr Color baseline_color{168, 174, 186}, backend_color{38, 104, 214}, good{24, 132, 72}, bad{190, 36, 40};
constexpr int margin = 40, tile = 84, gap = 8, page = 1200;

// A group of two bars with their values.
struct Bars {
  std::string name;
  double values[2];
  std::string texts[2];
};

void draw_bars(Canvas& canvas, int x, int y, const std::string& title, const std::vector<Bars>& groups) {
  constexpr int label = 82, room = 330, height = 15, step = 46;
  canvas.text(x, y, title, 14, ink, Align::left, images::Weight::bold);
  double top = 0;
  for (const Bars& g : groups) top = std::max({top, g.values[0], g.values[1]});
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Bars& g = groups[i];
    const int at = y + 16 + int(i) * step;
    canvas.text(x, at + height + 6, g.name, 13, faint);
    for (int side = 0; side < 2; ++side) {
      const int width = top > 0 ? std::max(2, int(std::lround(g.values[side] / top * room))) : 2;
      const int bar = at + side * (height + 3);
      canvas.fill(x + label, bar, width, height, side ? backend_color : baseline_color);
      std::string text = g.texts[side];
      if (side && g.values[1] > 0 && g.values[0] > 0) {
        const double ratio = g.values[0] / g.values[1];
        text += ratio >= 10      ? fmt::format("   {:.0f}x less", ratio)
                : ratio >= 1.005 ? fmt::format("   {:.1f}x less", ratio)
                                 : "";
      }
      canvas.text(x + label + width + 8, bar + 12, text, 12, side ? backend_color : faint);
    }
  }
}

Image draw(const harness::Tensors& tensors, const Planes& planes, const std::vector<float>& y,
           const std::vector<Part>& parts, const Contestant& a, const Contestant& b,
           const std::vector<Difference>& answers, const std::string& machine, bool same) {
  const Problem& p = tensors.problem;
  const int samples = int(std::min<std::int64_t>(p.batch, 10));
  const int strip = 118 + 2 * (tile + gap);                    // where the lower half begins
  const int bands_height = 40 + p.levels * (tile + gap + 14);  // left column
  const int bars_height = 3 * 46 + 2 * 46 + 2 * 46 + 3 * 50;   // right column
  Canvas canvas(page, strip + 50 + std::max(bands_height, bars_height) + 64, paper);
  const double speedup = a.seconds(2) / b.seconds(2);
  canvas.text(margin, 48, fmt::format("WTConv: one training step {:.1f}x faster, same answer", speedup), 26, ink,
              Align::left, images::Weight::bold);
  if (!same) {
    canvas.fill(0, 0, page, 60, paper);
    canvas.text(margin, 48, "WTConv: the answers differ", 26, bad, Align::left, images::Weight::bold);
  }
  canvas.text(margin, 76,
              fmt::format("x = ({}, {}, {}, {}) of real images, k = {}, L = {}, {}.  {}", p.batch, p.channels, p.height,
                          p.width, p.kernel, p.levels, to_string(p.dtype), machine),
              14, faint);

  const Problem shown{.channels = planes.channels == 3 ? 3 : 1, .height = p.height, .width = p.width};
  const std::int64_t entry = p.channels * p.height * p.width;
  const std::int64_t used = shown.channels * p.height * p.width;
  const auto fit = [&](const Image& image, int x, int top) {
    const double scale = double(tile) / std::max(image.width, image.height);
    const int w = std::max(1, int(image.width * scale)), h = std::max(1, int(image.height * scale));
    canvas.draw(image, x + (tile - w) / 2, top + (tile - h) / 2, w, h);
    canvas.frame(x + (tile - w) / 2, top + (tile - h) / 2, w, h, line);
  };
  constexpr int label = 74;
  canvas.text(margin, 118 + tile / 2 + 5, "input", 14, ink);
  canvas.text(margin, 118 + tile + gap + tile / 2 + 5, "output", 14, ink);
  for (int s = 0; s < samples; ++s) {
    const int x = margin + label + s * (tile + gap + 14);
    fit(picture(planes.values.data() + s * entry, shown, 0, 1), x, 118);
    const std::vector<float> out(y.begin() + s * entry, y.begin() + s * entry + used);
    const float peak = largest(out);
    fit(picture(out.data(), shown, -peak, peak), x, 118 + tile + gap);
  }

  // Left: what every band of the first image adds.
  const int top = strip + 50;
  canvas.fill(margin, strip + 14, page - 2 * margin, 1, line);
  canvas.text(margin, top, "What each band adds to the first output", 14, ink, Align::left, images::Weight::bold);
  for (const Part& part : parts) {
    const int x = margin + label + part.band * (tile + gap + 14), at = top + 34 + (part.level - 1) * (tile + gap + 14);
    const float peak = largest(part.values);
    fit(picture(part.values.data(), shown, -peak, peak), x, at);
    if (part.level == 1) canvas.text(x + tile / 2, at - 7, band_names[part.band], 12, faint, Align::center);
    if (part.band == 0) canvas.text(margin, at + tile / 2 + 5, fmt::format("level {}", part.level), 13, faint);
  }

  // Right: the bars.
  const int column = 600;
  const auto key = [&](int x, const std::string& name, Color color) {
    canvas.fill(x, top - 12, 14, 14, color);
    canvas.text(x + 20, top, name, 14, ink);
    return x + 20 + Canvas::text_width(name, 14) + 24;
  };
  key(key(column, a.name(), baseline_color), b.name(), backend_color);
  const char* passes[] = {"forward", "backward", "step"};
  std::vector<Bars> time, moved, extra;
  for (int pass = 0; pass < 3; ++pass) {
    time.push_back({passes[pass],
                    {a.seconds(pass), b.seconds(pass)},
                    {seconds_text(a.seconds(pass)), seconds_text(b.seconds(pass))}});
    if (pass == 2) break;
    const double am = a.bytes(pass, p.dtype), bm = b.bytes(pass, p.dtype);
    moved.push_back({passes[pass], {am, bm}, {bytes_text(am), bytes_text(bm)}});
    const double aw = double(a.workspace(pass)), bw = double(b.workspace(pass));
    extra.push_back({passes[pass], {aw, bw}, {bytes_text(aw), bytes_text(bw)}});
  }
  int at = top + 40;
  draw_bars(canvas, column, at, "Time", time);
  at += 3 * 46 + 46;
  draw_bars(canvas, column, at, "Bytes through main memory (model)", moved);
  at += 2 * 46 + 46;
  draw_bars(canvas, column, at, "Extra memory (workspace)", extra);

  const int foot = canvas.image().height - 26;
  std::string errors;
  for (const Difference& d : answers) {
    errors += fmt::format("{}{} {:.1e} of {:.3g}", errors.empty() ? "" : ",  ", d.what, d.max, d.largest);
  }
  canvas.text(margin, foot,
              fmt::format("{}  Largest differences: {}", same ? "Same answer." : "NOT the same answer.", errors), 13,
              same ? good : bad);
  return canvas.image();
}

// ---- the table

std::string ratio_text(double baseline, double ours) {
  return ours > 0 && baseline > 0 ? fmt::format("{:.2f}x", baseline / ours) : "-";
}

void print_answers(const std::vector<Difference>& answers, const Contestant& a, const Contestant& b,
                   std::int64_t judged, std::int64_t channels) {
  Table table({"same answer?", "largest", "max diff", "rms diff", a.name() + "*", b.name() + "*", "same"});
  for (const Difference& d : answers) {
    table.row({d.what,
               fmt::format("{:.3g}", d.largest),
               fmt::format("{:.1e}", d.max),
               fmt::format("{:.1e}", d.rms),
               fmt::format("{:.0f}%", 100 * d.of_tolerance[0]),
               fmt::format("{:.0f}%", 100 * d.of_tolerance[1]),
               {d.same ? "yes" : "NO", d.same ? Style::good : Style::bad}});
  }
  print(table.text());
  print(
      wrapped(fmt::format("* largest error against the double-precision reference, in percent of the tolerance of that "
                          "element; judged on {} of {} channels",
                          judged, channels),
              0));
  for (const Contestant* k : {&a, &b}) {
    if (!k->judged.ok) print(styled(k->judged.message(), Style::bad) + "\n");
  }
}

Json to_json(const Contestant& k, const Problem& p, const Roofline floors[3], double copy) {
  Json j{{"backend", k.name()}, {"ok", k.judged.ok}, {"failure", k.judged.failure}};
  const char* passes[] = {"forward", "backward", "step"};
  for (int pass = 0; pass < 3; ++pass) {
    Json& one = j[passes[pass]];
    one = {{"median_seconds", k.seconds(pass)},
           {"ratio_to_copy", k.seconds(pass) / copy},
           {"of_roofline", floors[pass].seconds() / k.seconds(pass)}};
    if (pass == 2) break;
    one["strategy"] = k.plans[pass].strategy;
    one["workspace_bytes"] = k.workspace(pass);
    one["bytes_moved"] = k.bytes(pass, p.dtype);
  }
  return j;
}

int run(const Arguments& a) {
  if (a.out == default_out) {
    std::error_code ignored;  // the check below says what is wrong
    std::filesystem::create_directories(std::filesystem::path(default_out).parent_path(), ignored);
  }
  require(images::check_output(a.out));
  const Planes planes = load_batch(a.images, a.batch, a.channels);
  require(images::check_output(a.out, planes.inputs));
  harness::Case c;
  c.problem = {.batch = planes.batch,
               .channels = planes.channels,
               .height = planes.height,
               .width = planes.width,
               .kernel = a.kernel,
               .levels = a.levels};
  for (DType d : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    if (a.dtype == to_string(d)) c.problem.dtype = d;
  }
  const Problem& p = c.problem;
  require(validate(p));

  harness::Tensors tensors;
  require(harness::make_tensors(c, tensors));
  harness::fill(tensors, harness::Fill::random, a.seed);  // dy stays random
  set_values(tensors.x, planes.values);
  set_parameters(tensors, Preset::random, a.seed);

  Contestant sides[2];
  sides[0].call = std::make_unique<LayerCall>(tensors, a.baseline, a.threads, Reformulations{});
  sides[1].call = std::make_unique<LayerCall>(tensors, a.backend, a.threads, Reformulations{});
  if (sides[0].name() == sides[1].name()) {
    throw Error(
        fmt::format("'{}' is both sides of the comparison; choose another --baseline or --backend", sides[0].name()));
  }
  std::vector<float> y;
  {
    Progress progress("checking the answers");
    for (int side = 0; side < 2; ++side) {
      Contestant& k = sides[side];
      progress.update(side * 0.5, k.name());
      require(k.call->forward());
      require(k.call->backward());
      k.judged =
          harness::judge(c, tensors, {.backend = k.name(), .threads = a.threads, .channels = judged_channels(p)});
      tensors.for_each_output([&](const std::string& name, harness::Tensor& t) {
        std::vector<double> values(std::size_t(t.view().size()));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = t.get(std::int64_t(i));
        k.outputs.push_back({name, std::move(values)});
      });
      for (int pass = 0; pass < 2; ++pass) k.plans[pass] = k.call->plan(Pass(pass));
    }
    y = get_values(tensors.y);
  }
  const std::vector<Difference> answers = differences(sides[0], sides[1]);
  const bool same = sides[0].judged.ok && sides[1].judged.ok && answers[0].same && answers[1].same && answers[2].same;
  for (Contestant& k : sides) k.outputs.clear();

  const Machine host = host_machine(a.threads, a.host_file, Effort::quick);
  CopyCall copy(std::size_t(tensors.x.view().size() * size_of(p.dtype)), a.threads);
  Timed copy_time{[&] { return copy.run(); }};
  std::vector<Timed*> timed{&copy_time};
  for (Contestant& k : sides) {
    k.forward.run = [&k] { return k.call->forward(); };
    k.backward.run = [&k] { return k.call->backward(); };
    timed.push_back(&k.forward);
    timed.push_back(&k.backward);
  }
  {
    Progress progress("timing");
    time_in_rounds(timed, a.rounds, [&](double f) { progress.update(f); });
  }
  const double copy_seconds = summarise(copy_time.seconds).median;
  Roofline floors[3] = {predict_forward(host, p, Formulation::one_kernel), predict_backward(host, p), {}};
  floors[2] = {floors[0].seconds() + floors[1].seconds(), 0};

  const std::vector<Part> parts = sample_parts(tensors, planes, a.backend);
  require(images::write_png(a.out, draw(tensors, planes, y, parts, sides[0], sides[1], answers, host.name, same)));

  if (a.json) {
    Json differences_json = Json::array();
    for (const Difference& d : answers) {
      differences_json.push_back({{"tensors", d.what},
                                  {"largest", d.largest},
                                  {"max_difference", d.max},
                                  {"rms_difference", d.rms},
                                  {"baseline_of_tolerance", d.of_tolerance[0]},
                                  {"backend_of_tolerance", d.of_tolerance[1]},
                                  {"same", d.same}});
    }
    print_json(Json{{"case", harness::to_string(c)},
                    {"source", planes.source},
                    {"same_answer", same},
                    {"differences", differences_json},
                    {"copy_seconds", copy_seconds},
                    {"load_average", load_average()},
                    {"baseline", to_json(sides[0], p, floors, copy_seconds)},
                    {"backend", to_json(sides[1], p, floors, copy_seconds)},
                    {"picture", a.out}});
    return same ? success : check_failed;
  }
  print(styled("WTConv on real images", Style::bold) +
        fmt::format(": x is ({}, {}, {}, {}), {}; k = {}, L = {}, {}\n", p.batch, p.channels, p.height, p.width,
                    bytes_text(double(tensors.x.view().size() * size_of(p.dtype))), p.kernel, p.levels,
                    to_string(p.dtype)));
  print(wrapped(planes.source, 0) + "\n");
  print_answers(answers, sides[0], sides[1], judged_channels(p), p.channels);
  print("\n");
  const Contestant &base = sides[0], &best = sides[1];
  Table table({"", base.name(), best.name(), "ratio"});
  const char* passes[] = {"forward", "backward", "step"};
  for (int pass = 0; pass < 3; ++pass) {
    table.row({fmt::format("time, {}", passes[pass]),
               seconds_text(base.seconds(pass)),
               {seconds_text(best.seconds(pass)), Style::accent},
               {ratio_text(base.seconds(pass), best.seconds(pass)), Style::bold}});
  }
  for (int pass = 0; pass < 3; ++pass) {
    table.row({fmt::format("of the host's roofline, {}", passes[pass]),
               fmt::format("{:.0f}%", 100 * floors[pass].seconds() / base.seconds(pass)),
               fmt::format("{:.0f}%", 100 * floors[pass].seconds() / best.seconds(pass)), ""});
  }
  for (int pass = 0; pass < 2; ++pass) {
    table.row({fmt::format("extra memory, {}", passes[pass]), bytes_text(double(base.workspace(pass))),
               bytes_text(double(best.workspace(pass))),
               ratio_text(double(base.workspace(pass)), double(best.workspace(pass)))});
  }
  for (int pass = 0; pass < 2; ++pass) {
    table.row({fmt::format("bytes moved (model), {}", passes[pass]), bytes_text(base.bytes(pass, p.dtype)),
               bytes_text(best.bytes(pass, p.dtype)),
               ratio_text(base.bytes(pass, p.dtype), best.bytes(pass, p.dtype))});
  }
  print(table.text());
  print(wrapped(fmt::format("Medians of {} rounds; a copy of x takes {} in the same rounds. {}.",
                            copy_time.seconds.size(), seconds_text(copy_seconds), host.name),
                0));
  print(busy_warning());
  print("\n" + (same ? styled("Same answer", Style::good) : styled("The answers differ", Style::bad)) +
        fmt::format("; a step is {:.1f}x faster. Picture: ", base.seconds(2) / best.seconds(2)) +
        styled(a.out, Style::accent) + "\n");
  return same ? success : check_failed;
}

}  // namespace

void add_compare(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "compare", "The main job: real images, forward and backward, unfused against the fastest backend");
  const auto a = std::make_shared<Arguments>();
  add_images(*command, a->images, true);
  command->add_option("--out", a->out, "The picture (PNG)")->capture_default_str()->type_name("FILE");
  command->add_option("--baseline", a->baseline, "Backend to compare with")->capture_default_str()->type_name("NAME");
  add_backend(*command, a->backend);
  command->add_option("--batch", a->batch, "At most this many batch entries")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--channels", a->channels,
                   "Channels made of different images, for idx files; photographs keep their own")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--kernel", a->kernel, "k")->capture_default_str()->check(CLI::Range(1, max_kernel));
  command->add_option("--levels", a->levels, "L")->capture_default_str()->check(CLI::Range(0, max_levels));
  command->add_option("--dtype", a->dtype, "Type of x and y")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16"}));
  command->add_option("--seed", a->seed, "Seed of the filters and of dy")->capture_default_str();
  command->add_option("--seconds", a->rounds.seconds, "Time to spend on timing, about")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_threads(*command, a->threads);
  add_host_file(*command, a->host_file);
  add_json(*command, a->json);
  command->footer("Filters are those of a fresh layer; dy is random. Exit code 1 if the answers differ.\n");
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
