#include "harness/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "core/parallel.hpp"
#include "core/types.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv::harness {
namespace {

std::string text(double v) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", v);
  return buffer;
}

// Half the distance between neighbours of `dtype` around v.
double half_ulp(double v, DType dtype) {
  int precision = 53, smallest = -1022;  // of the significand; exponent of the smallest normal number
  if (dtype == DType::f32) precision = 24, smallest = -126;
  if (dtype == DType::f16) precision = 11, smallest = -14;
  if (dtype == DType::bf16) precision = 8, smallest = -126;
  const int exponent = v == 0 ? smallest : std::max(std::ilogb(v), smallest);
  return std::ldexp(1.0, exponent - precision);
}

double round_to(double v, DType dtype) {
  double stored = 0;
  store_double(&stored, dtype, 0, v);
  return load_double(&stored, dtype, 0);
}

// One channel of an image, as an image of its own in double.
void copy_channel(const Tensor& from, std::int64_t channel, Tensor& to) {
  const TensorView& v = to.view();
  const std::int64_t plane = v.extents[2] * v.extents[3], channels = from.view().extents[1];
  for (std::int64_t i = 0, n = v.size(); i < n; ++i) {
    to.set(i, from.get((i / plane * channels + channel) * plane + i % plane));
  }
}

struct Judge {
  const Case& c;
  Tensors& tensors;
  const CheckOptions& options;
  bool rounds_bands = false;  // as the backend's plan says

  double u() const { return compute_type(c.problem.dtype) == DType::f64 ? 0x1p-53 : 0x1p-24; }
  double roundings(bool sum) const {
    const Problem& p = c.problem;
    const double n = double(p.batch) * double(p.height) * double(p.width);
    const double count = 4 + 4.0 * p.levels + p.kernel + (sum ? std::sqrt(n) / 4 : 0);
    return (compute_type(p.dtype) == DType::f64 ? 2 : 1) * count;
  }
  // Tolerance per unit of magnitude.
  double slack(bool image) const {
    const double bands = image && rounds_bands ? half_ulp(1, c.problem.dtype) / 2 : 0;
    return roundings(!image) * u() + bands;
  }
};

// What one channel gave for one output.
struct ChannelError {
  TensorError error;
  double sum_of_squares = 0;
  std::int64_t counted = 0, zeros = 0;  // elements whose magnitude is not zero, and how many of them are zero
  double magnitude = 0;                 // largest
};

using ChannelErrors = std::vector<ChannelError>;  // in the order of for_each_output

void compare(const Judge& j, const std::string& name, const Tensor& got, bool is_image, std::int64_t channel,
             const std::vector<double>& expected, const std::vector<double>& magnitude, ChannelErrors& errors) {
  ChannelError e;
  e.error.name = name;
  const TensorView& v = got.view();
  const std::int64_t n = static_cast<std::int64_t>(expected.size());
  const std::int64_t plane = is_image ? v.extents[2] * v.extents[3] : n;
  const bool exact = j.options.fill == Fill::exact;
  const double factor = j.slack(is_image);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = is_image ? (i / plane * v.extents[1] + channel) * plane + i % plane : channel * n + i;
    const double value = got.get(at);
    const double want = exact ? round_to(expected[i], v.dtype) : expected[i];
    const double slack = factor * magnitude[i];
    const double tolerance = exact ? 0 : slack + half_ulp(std::abs(want) + slack, v.dtype);
    // An infinity is right where the storage type overflows.
    const bool overflows = std::isinf(value) && value == round_to(want + std::copysign(slack, want), v.dtype);
    const double error = value == want || overflows ? 0 : std::abs(value - want);
    e.magnitude = std::max(e.magnitude, magnitude[i]);
    if (magnitude[i] != 0) {
      ++e.counted;
      e.zeros += value == 0;
    }
    e.error.max_expected = std::max(e.error.max_expected, std::abs(want));
    if (!(error <= tolerance)) {  // also nan
      if (e.error.wrong++ == 0) {
        e.error.first_wrong = "at " + index_text(v, at) + ": expected " + text(want) + ", got " + text(value);
        if (!exact) e.error.first_wrong += ", error " + text(error) + " over tolerance " + text(tolerance);
      }
    }
    const double finite = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    e.error.max_error = std::max(e.error.max_error, finite);
    e.sum_of_squares += finite * finite;
    if (tolerance > 0) e.error.worst_ratio = std::max(e.error.worst_ratio, finite / tolerance);
  }
  e.error.elements = n;
  errors.push_back(std::move(e));
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.view().size()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = t.get(static_cast<std::int64_t>(i));
  return v;
}

Status run_reference(Tensors& t, bool backward) {
  const Options reference{.backend = "reference"};
  Runner runner(t, reference);
  if (Status s = runner.forward(); !s.ok()) return s;
  return backward ? runner.backward() : Status{};
}

void make_absolute(Tensor& t) {
  for (std::int64_t i = 0, n = t.view().size(); i < n; ++i) t.set(i, std::abs(t.get(i)));
}

// Replaces the inputs by their magnitudes. Haar of |x| with plus signs only is |x|'s LL in all four bands, and their
// synthesis with plus signs only is that of their sum in LL. So LL alone, with the sum of the four |s w|, gives the
// magnitude of the whole, and the reference computes it.
void make_magnitudes(const Tensors& from, Tensors& to) {
  const Problem& p = from.problem;
  for (Tensor* image : {&to.x, &to.dy}) make_absolute(*image);
  const std::int64_t taps = std::int64_t{p.kernel} * p.kernel;
  const double scale = std::abs(from.parameters.base_scale.get(0));
  for (std::int64_t t = 0; t < taps; ++t) {
    to.parameters.base_weight.set(t, scale * std::abs(from.parameters.base_weight.get(t)));
  }
  if (to.parameters.base_bias) to.parameters.base_bias.set(0, scale * std::abs(from.parameters.base_bias.get(0)));
  to.parameters.base_scale.set(0, 1);
  for (int l = 0; l < p.levels; ++l) {
    for (std::int64_t t = 0; t < taps; ++t) {
      double sum = 0;
      for (int band = 0; band < 4; ++band) {
        sum += std::abs(from.parameters.wavelet_scale[l].get(band) *
                        from.parameters.wavelet_weight[l].get(band * taps + t));
      }
      to.parameters.wavelet_weight[l].set(t, sum);
      for (int band = 1; band < 4; ++band) to.parameters.wavelet_weight[l].set(band * taps + t, 0);
    }
    for (int band = 0; band < 4; ++band) to.parameters.wavelet_scale[l].set(band, band == LL ? 1 : 0);
  }
}

// Magnitudes of the gradients of one filter and its scale. `du` is the sum of |x| |dy| per tap, `extra` what the bias
// adds to the scale's.
void filter_magnitudes(const Tensor& weight, const Tensor& scale, const std::vector<double>& du, double extra,
                       std::vector<double>& weight_out, std::vector<double>& scale_out) {
  const std::int64_t taps = static_cast<std::int64_t>(du.size());
  for (std::int64_t row = 0; row < scale.view().size(); ++row) {
    double dot = extra;
    for (std::int64_t t = 0; t < taps; ++t) {
      weight_out.push_back(std::abs(scale.get(row)) * du[static_cast<std::size_t>(t)]);
      dot += std::abs(weight.get(row * taps + t)) * du[static_cast<std::size_t>(t)];
    }
    scale_out.push_back(dot);
  }
}

Status judge_channel(const Judge& j, std::int64_t channel, ChannelErrors& errors) {
  Case single = {.problem = j.c.problem, .bias = j.c.bias};
  single.problem.channels = 1;
  single.problem.dtype = DType::f64;
  const Problem& p = single.problem;
  Tensors expected, magnitude;
  for (Tensors* t : {&expected, &magnitude}) {
    if (Status s = make_tensors(single, *t); !s.ok()) return s;
    copy_channel(j.tensors.x, channel, t->x);
    copy_channel(j.tensors.dy, channel, t->dy);
    for_each_parameter(
        p,
        [&](const std::string&, const Tensor& from, Tensor& to) {
          if (!from) return;
          for (std::int64_t i = 0, n = to.view().size(); i < n; ++i) to.set(i, from.get(channel * n + i));
        },
        j.tensors.parameters, t->parameters);
  }
  make_magnitudes(expected, magnitude);
  if (Status s = run_reference(expected, j.options.backward); !s.ok()) return s;
  if (Status s = run_reference(magnitude, j.options.backward); !s.ok()) return s;

  compare(j, "y", j.tensors.y, true, channel, values(expected.y), values(magnitude.y), errors);
  if (!j.options.backward) return {};
  compare(j, "gradient of x", j.tensors.dx, true, channel, values(expected.dx), values(magnitude.dx), errors);

  std::map<std::string, std::vector<double>> sums;
  const std::vector<double> taps = values(magnitude.gradients.base_weight);
  const double bias_sum = p.batch && single.bias ? magnitude.gradients.base_bias.get(0) : 0.0;
  const double bias = single.bias ? std::abs(expected.parameters.base_bias.get(0)) : 0.0;
  const double scale = std::abs(expected.parameters.base_scale.get(0));
  filter_magnitudes(expected.parameters.base_weight, expected.parameters.base_scale, taps, bias * bias_sum,
                    sums["base_weight"], sums["base_scale"]);
  sums["base_bias"] = {scale * bias_sum};
  for (int l = 0; l < p.levels; ++l) {
    std::vector<double> du = values(magnitude.gradients.wavelet_weight[l]);
    du.resize(du.size() / 4);  // LL's
    const std::string at = "[" + std::to_string(l) + "]";
    filter_magnitudes(expected.parameters.wavelet_weight[l], expected.parameters.wavelet_scale[l], du, 0,
                      sums["wavelet_weight" + at], sums["wavelet_scale" + at]);
  }
  for_each_parameter(
      p,
      [&](const std::string& name, const Tensor& got, const Tensor& want) {
        if (got) compare(j, "gradient of " + name, got, false, channel, values(want), sums[name], errors);
      },
      j.tensors.gradients, expected.gradients);
  return {};
}

void merge(ChannelError& into, const ChannelError& e) {
  TensorError &a = into.error, b = e.error;
  if (a.wrong == 0) a.first_wrong = b.first_wrong;
  a.name = b.name;
  a.elements += b.elements;
  a.wrong += b.wrong;
  a.max_error = std::max(a.max_error, b.max_error);
  a.max_expected = std::max(a.max_expected, b.max_expected);
  a.worst_ratio = std::max(a.worst_ratio, b.worst_ratio);
  into.sum_of_squares += e.sum_of_squares;
  into.counted += e.counted;
  into.zeros += e.zeros;
  into.magnitude = std::max(into.magnitude, e.magnitude);
}

// Why these data check nothing, or empty.
std::string degenerate(const Judge& j, const ChannelError& e, bool is_image) {
  if (j.c.problem.batch == 0) return {};
  if (is_image && e.counted == 0) return e.error.name + " depends on nothing but zeros: such data check nothing";
  if (is_image && e.counted >= 16 && e.zeros * 4 > e.counted * 3) {
    return std::to_string(e.zeros) + " of " + std::to_string(e.counted) + " elements of " + e.error.name +
           " that should not vanish are zero";
  }
  if (j.options.fill == Fill::exact) {
    // The finest grid a partial sum lies on: Haar halves twice per level, scales are at least 1/2.
    const std::size_t bracket = e.error.name.find('[');  // wavelet_weight[l - 1] lies on level l's grid
    int level = is_image ? j.c.problem.levels : 0;
    if (bracket != std::string::npos) level = e.error.name[bracket + 1] - '0' + 1;
    const double grid = std::ldexp(0.5, -2 * level);
    const double most = compute_type(j.c.problem.dtype) == DType::f64 ? 0x1p53 : 0x1p24;
    if (e.magnitude > most * grid) {
      return "the case is too large for the exact check: partial sums of " + e.error.name + " reach " +
             text(e.magnitude) + ", which on a grid of " + text(grid) + " is more than the significand holds";
    }
  }
  return {};
}

}  // namespace

std::string CheckResult::message() const {
  return case_text + ": backend " + (backend.empty() ? "(none)" : backend) + ": " +
         (ok ? "ok" : failure + "\n  rerun: " + rerun);
}

std::string rerun_command(const Case& c, const CheckOptions& o) {
  std::string s = "wtconv check " + to_string(c);
  if (!o.backend.empty()) s += " --backend " + o.backend;
  if (o.fill == Fill::exact) s += " --exact";
  if (o.seed != CheckOptions{}.seed) s += " --seed " + std::to_string(o.seed);
  if (o.threads) s += " --threads " + std::to_string(o.threads);
  if (o.reformulations.recompute_analysis) s += " --recompute-analysis";
  if (o.reformulations.collapse_synthesis) s += " --collapse-synthesis";
  if (o.reformulations.fold_scales) s += " --fold-scales";
  return s;
}

CheckResult judge(const Case& c, Tensors& tensors, const CheckOptions& options) {
  CheckResult result{.case_text = to_string(c), .backend = options.backend, .rerun = rerun_command(c, options)};
  Judge j{c, tensors, options};
  if (const Backend* backend = find_backend(options.backend)) {
    const Options run{.device = backend->device(), .backend = options.backend};
    j.rounds_bands = backend->plan(c.problem, Pass::forward, {}, run).rounds_bands;
  }
  const std::int64_t all = c.problem.channels;
  const std::int64_t judged = options.channels > 0 ? std::min(options.channels, all) : all;
  std::vector<ChannelErrors> errors(static_cast<std::size_t>(judged));
  std::vector<Status> statuses(static_cast<std::size_t>(judged));
  parallel_for(judged, thread_count(options.threads), [&](std::int64_t i, int) {
    // From the first channel to the last.
    const std::int64_t channel = judged > 1 ? i * (all - 1) / (judged - 1) : 0;
    statuses[static_cast<std::size_t>(i)] = judge_channel(j, channel, errors[static_cast<std::size_t>(i)]);
  });
  for (const Status& s : statuses) {
    if (s.ok()) continue;
    result.failure = "the reference failed: " + s.message();
    return result;
  }
  ChannelErrors total(errors[0].size());
  for (const ChannelErrors& channel : errors) {
    for (std::size_t i = 0; i < channel.size(); ++i) merge(total[i], channel[i]);
  }
  const auto fail = [&](const std::string& why) {
    if (result.failure.empty()) result.failure = why;
  };
  for (ChannelError& e : total) {
    TensorError& t = e.error;
    if (t.elements > 0) t.rms_error = std::sqrt(e.sum_of_squares / double(t.elements));
    if (t.wrong > 0) {
      fail(t.name + " " + t.first_wrong + "; " + std::to_string(t.wrong) + " of " + std::to_string(t.elements) +
           " elements are wrong");
    }
    result.tensors.push_back(t);
  }
  for (const ChannelError& e : total) {
    const bool is_image = e.error.name == "y" || e.error.name == "gradient of x";
    if (const std::string why = degenerate(j, e, is_image); !why.empty()) {
      result.unsuitable = result.unsuitable || result.failure.empty();
      fail(why);
    }
  }
  result.ok = result.failure.empty();
  return result;
}

CheckResult check(const Case& c, const CheckOptions& asked) {
  CheckOptions options = asked;
  CheckResult result{.case_text = to_string(c), .backend = options.backend, .rerun = rerun_command(c, options)};
  const auto failed = [&](std::string why) {
    result.failure = std::move(why);
    return result;
  };
  Options run{.threads = options.threads, .stream = options.stream, .reformulations = options.reformulations};
  if (const Backend* named = find_backend(options.backend)) run.device = named->device();
  run.backend = options.backend;
  const Choice choice = choose_backend(c.problem, run);
  if (!choice.backend) return failed(choice.status.message());
  if (!options.backend.empty() && choice.backend->name() != options.backend) {
    return failed("backend " + std::string(choice.backend->name()) + " would run instead");
  }
  options.backend = std::string(choice.backend->name());
  result.backend = options.backend;
  result.rerun = rerun_command(c, options);
  run.backend = options.backend;

  Tensors tensors;
  if (Status s = make_tensors(c, tensors); !s.ok()) return failed(s.message());
  fill(tensors, options.fill, options.seed);
  std::vector<std::size_t> hashes;
  tensors.for_each_input([&](const std::string&, const Tensor& t) { hashes.push_back(t.hash()); });

  Runner runner(tensors, run);
  if (Status s = runner.forward(); !s.ok()) return failed("forward failed: " + s.message());
  if (options.backward) {
    if (Status s = runner.backward(); !s.ok()) return failed("backward failed: " + s.message());
  }
  std::string written;
  std::size_t next = 0;
  tensors.for_each_input([&](const std::string& name, const Tensor& t) {
    if (t.hash() != hashes[next++]) written = "the input " + name + " was written";
  });
  tensors.for_each_output([&](const std::string& name, Tensor& t) {
    if (const std::string d = t.damage(); !d.empty()) written = "written outside " + name + ": " + d;
  });
  if (!written.empty()) return failed(written);
  return judge(c, tensors, options);
}

}  // namespace wtconv::harness
