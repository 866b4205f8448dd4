// Host side of strategy `levels`.
#include <algorithm>
#include <array>

#include "cuda/kernels/launch.hpp"
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

constexpr std::int64_t gradient_blocks = 1024;

// An image in device memory, and whether it is the bands of a level.
struct Source {
  Image image;
  DType dtype;
  std::int64_t height, width;
  bool formed = false;
};

// Images between launches: (B, C, h, w) or (B, C, 4, h, w) of a level, dense, in the compute type.
class Intermediate {
 public:
  Intermediate(const Problem& p, Carver& carve) : p_(p), carve_(carve) {}
  void* take(int level, int bands) {
    return carve_.take(p_.batch * p_.channels * bands * p_.height_at(level) * p_.width_at(level) *
                       static_cast<std::int64_t>(size_of(compute_type(p_.dtype))));
  }
  // The first of `bands` images.
  static Source at(const Problem& p, void* data, int level, int bands) {
    const std::int64_t h = p.height_at(level), w = p.width_at(level), plane = bands * h * w;
    return {{.data = data, .batch = p.channels * plane, .channel = plane, .row = w, .column = 1},
            compute_type(p.dtype),
            h,
            w};
  }

 private:
  const Problem& p_;
  Carver& carve_;
};

// The pyramid of an image. Bands are formed by the kernels that need them, which also leave LL for the next level, or
// (not `recomputed`) formed and stored first.
class Pyramid {
 public:
  Pyramid(const Problem& p, const Image& image, bool recomputed, Carver& carve)
      : p_(p), image_{image, p.dtype, p.height, p.width}, recomputed_(recomputed) {
    Intermediate memory(p, carve);
    for (int l = 1; l <= p.levels; ++l) {
      if (recomputed && l == p.levels) continue;
      level_[l] = memory.take(l, bands());
    }
  }
  // What a kernel at this level reads.
  Status source(int level, cudaStream_t stream, Source& result) const {
    result = level <= 1 ? image_ : Intermediate::at(p_, level_[level - 1], level - 1, bands());
    if (level == 0 || recomputed_) return {};
    const LevelArgs args{.dtype = result.dtype,
                         .in = result.image,
                         .batch = p_.batch,
                         .channels = p_.channels,
                         .height = result.height,
                         .width = result.width,
                         .out = level_[level]};
    result = Intermediate::at(p_, level_[level], level, 4);
    result.formed = true;
    return check(launch_bands(args, stream), "levels: launching an analysis");
  }
  // Where it leaves LL; may be null.
  void* low(int level) const { return recomputed_ ? level_[level] : nullptr; }

 private:
  int bands() const { return recomputed_ ? 1 : 4; }
  const Problem& p_;
  Source image_;
  bool recomputed_;
  void* level_[max_levels + 1] = {};
};

struct ApplyMemory {
  Carver carve;
  Pyramid pyramid;
  void* filtered[max_levels + 1] = {};  // [0]: the base image
  void* joined[max_levels + 1] = {};    // R[l]
  ApplyMemory(const Problem& p, const Image& in, const Reformulations& r, void* base)
      : carve(base), pyramid(p, in, r.recompute_analysis, carve) {
    Intermediate memory(p, carve);
    for (int l = base_apart(r) ? 0 : 1; l <= p.levels; ++l) filtered[l] = memory.take(l, l == 0 ? 1 : 4);
    for (int l = 2; l <= p.levels && !r.collapse_synthesis; ++l) joined[l] = memory.take(l - 1, 1);
  }
  // Whether the base filter has a kernel of its own: the synthesis takes it along if it is the last to touch y.
  static bool base_apart(const Reformulations& r) { return !r.collapse_synthesis || !r.fold_scales; }
};

struct GradientMemory {
  Carver carve;
  Work work;
  void* partials;
  Pyramid x, dy;
  GradientMemory(const Problem& p, const Image& x_, const Image& dy_, const Reformulations& r, void* base)
      : carve(base),
        work(work_of(p)),
        partials(carve.take(work.slots() * partial_size(p.kernel, p.levels) *
                            static_cast<std::int64_t>(size_of(compute_type(p.dtype))))),
        x(p, x_, r.recompute_analysis, carve),
        dy(p, dy_, r.recompute_analysis, carve) {}
  static Work work_of(const Problem& p) {
    Work work{.per_channel = p.batch, .channels = p.channels};
    work.blocks = std::clamp<std::int64_t>(work.items(), 1, gradient_blocks);
    return work;
  }
};

class Levels final : public Strategy {
 public:
  explicit Levels(Reformulations switches) : r_(switches) {}

  const char* name() const override { return "levels"; }
  std::string rejects(const Problem&, const DeviceLimits&) const override { return {}; }
  std::string rejects_gradient(const Problem&, const DeviceLimits&) const override { return {}; }

  std::size_t apply_workspace(const Problem& p, const DeviceLimits&) const override {
    return ApplyMemory(p, {}, r_, nullptr).carve.used();
  }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits&) const override {
    return GradientMemory(p, {}, {}, r_, nullptr).carve.used();
  }

  double apply_traffic(const Problem& p, const DeviceLimits&) const override {
    double sum = 2, n = 1;  // n: of a band
    if (ApplyMemory::base_apart(r_)) sum += 2 + scale_traffic(1);
    for (int l = 1; l <= p.levels; ++l) {
      n /= 4;
      sum += analysis_traffic(n, l == p.levels) + 4 * n + scale_traffic(4 * n) + 4 * n;  // filtered, read by synthesis
      if (!r_.collapse_synthesis) sum += (l > 1) * 4 * n + (l < p.levels) * n;           // R[l] written, R[l + 1] read
    }
    return sum;
  }
  double gradient_traffic(const Problem& p, const DeviceLimits&) const override {
    double sum = 2, n = 1;
    for (int l = 1; l <= p.levels; ++l) sum += 2 * analysis_traffic(n /= 4, l == p.levels);
    return sum;
  }

  Status apply(const ApplyCall& call, Workspace workspace, const DeviceLimits&, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const ApplyMemory m(p, call.in, r_, workspace.data);
    for (int l = 0; l <= p.levels; ++l) {
      if (l == 0 && (!m.filtered[0] || !call.filters.weight[0])) continue;
      if (Status s = filter(call, m, l, stream); !s.ok()) return s;
    }
    SynthesisArgs args{.batch = p.batch, .channels = p.channels, .kernel = p.kernel};
    const auto launch = [&] { return check(launch_synthesis(args, stream), "levels: launching a synthesis"); };
    for (int l = p.levels; l > 1 && !r_.collapse_synthesis; --l) {
      const Source to = Intermediate::at(p, m.joined[l], l - 1, 1);
      args.dtype = to.dtype, args.out = to.image, args.height = to.height, args.width = to.width;
      args.levels = 1, args.filtered[1] = m.filtered[l];
      if (Status s = launch(); !s.ok()) return s;
      args.rest = m.joined[l];
    }
    args.dtype = p.dtype, args.in = call.in, args.out = call.out, args.height = p.height, args.width = p.width;
    args.levels = r_.collapse_synthesis ? p.levels : std::min(p.levels, 1);
    std::copy_n(m.filtered + 1, args.levels, args.filtered + 1);
    if (m.filtered[0]) {
      if (call.filters.weight[0]) args.base = m.filtered[0];
    } else {
      args.filters = call.filters;
    }
    return launch();
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits&, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    const GradientMemory m(p, call.x, call.dy, r_, workspace.data);
    finish.partials[finish.count++] = {m.partials, compute_type(p.dtype), m.work, call.first_level, p.levels};
    for (int l = call.base ? 0 : 1; l <= p.levels && m.work.items() > 0; ++l) {
      Source x, dy;
      if (Status s = m.x.source(l, stream, x); !s.ok()) return s;
      if (Status s = m.dy.source(l, stream, dy); !s.ok()) return s;
      const LevelGradientArgs args{.dtype = x.dtype,
                                   .x = x.image,
                                   .dy = dy.image,
                                   .batch = p.batch,
                                   .channels = p.channels,
                                   .height = x.height,
                                   .width = x.width,
                                   .kernel = p.kernel,
                                   .level = l,
                                   .levels = p.levels,
                                   .formed = x.formed,
                                   .work = m.work,
                                   .partials = m.partials,
                                   .low_x = m.x.low(l),
                                   .low_dy = m.dy.low(l)};
      const Status s = check(launch_level_gradient(args, stream), "levels: launching a weight gradient");
      if (!s.ok()) return s;
    }
    return {};
  }

 private:
  // A level whose bands have n elements, which is the last or not: the image above read; bands stored and read again,
  // or LL written.
  double analysis_traffic(double n, bool last) const { return 4 * n + (r_.recompute_analysis ? !last * n : 8 * n); }
  double scale_traffic(double n) const { return r_.fold_scales ? 0 : 2 * n; }

  Status filter(const ApplyCall& call, const ApplyMemory& m, int level, cudaStream_t stream) const {
    const Problem& p = call.problem;
    Source source;
    if (Status s = m.pyramid.source(level, stream, source); !s.ok()) return s;
    LevelArgs args{.dtype = source.dtype,
                   .in = source.image,
                   .batch = p.batch,
                   .channels = p.channels,
                   .height = source.height,
                   .width = source.width,
                   .kernel = p.kernel,
                   .level = level,
                   .formed = source.formed,
                   .scaled = r_.fold_scales,
                   .filters = call.filters,
                   .out = m.filtered[level],
                   .low = level > 0 ? m.pyramid.low(level) : nullptr};
    if (Status s = check(launch_filters(args, stream), "levels: launching a level's filters"); !s.ok()) return s;
    if (r_.fold_scales) return {};
    args.dtype = compute_type(p.dtype), args.height = p.height_at(level), args.width = p.width_at(level);
    return check(launch_scale(args, stream), "levels: launching a scale");
  }

  Reformulations r_;
};

}  // namespace

const Strategy& levels_strategy(const Reformulations& r) {
  static const std::array strategies{Levels({false, false, false}), Levels({true, false, false}),
                                     Levels({false, true, false}),  Levels({true, true, false}),
                                     Levels({false, false, true}),  Levels({true, false, true}),
                                     Levels({false, true, true}),   Levels({true, true, true})};
  return strategies[r.recompute_analysis + 2 * r.collapse_synthesis + 4 * r.fold_scales];
}

}  // namespace wtconv::cuda
