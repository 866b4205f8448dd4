// Host side of strategy `levels`.
#include <algorithm>

#include "cuda/kernels/launch.hpp"
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

constexpr std::int64_t gradient_blocks = 1024;

Image dense_planes(void* data, std::int64_t channels, std::int64_t h, std::int64_t w) {
  return {.data = data, .batch = channels * h * w, .channel = h * w, .row = w, .column = 1};
}

// Bands in device memory, all in the compute type.
struct ApplyMemory {
  void* filtered[max_levels + 1] = {};
  void* low[max_levels + 1] = {};  // [l]: LL of level l, for level l + 1
  std::size_t bytes;
  ApplyMemory(const Problem& p, void* base) {
    Carver carve(base);
    for (int l = 1; l <= p.levels; ++l) {
      const std::int64_t band = p.batch * p.channels * p.height_at(l) * p.width_at(l) * size_of(compute_type(p.dtype));
      filtered[l] = carve.take(4 * band);
      if (l < p.levels) low[l] = carve.take(band);
    }
    bytes = carve.used();
  }
};

struct GradientMemory {
  Work work;
  void* partials;
  void *low_x[max_levels + 1] = {}, *low_dy[max_levels + 1] = {};
  std::size_t bytes;
  GradientMemory(const Problem& p, void* base) {
    work = {.per_channel = p.batch, .channels = p.channels};
    work.blocks = std::clamp<std::int64_t>(work.items(), 1, gradient_blocks);
    const std::int64_t size = size_of(compute_type(p.dtype));
    Carver carve(base);
    partials = carve.take(work.slots() * partial_size(p.kernel, p.levels) * size);
    for (int l = 1; l < p.levels; ++l) {
      const std::int64_t band = p.batch * p.channels * p.height_at(l) * p.width_at(l) * size;
      low_x[l] = carve.take(band);
      low_dy[l] = carve.take(band);
    }
    bytes = carve.used();
  }
};

class Levels final : public Strategy {
 public:
  const char* name() const override { return "levels"; }
  std::string rejects(const Problem&, const DeviceLimits&) const override { return {}; }
  std::string rejects_gradient(const Problem&, const DeviceLimits&) const override { return {}; }

  std::size_t apply_workspace(const Problem& p, const DeviceLimits&) const override {
    return ApplyMemory(p, nullptr).bytes;
  }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits&) const override {
    return GradientMemory(p, nullptr).bytes;
  }

  // Per level of n elements: the image above is read (4 n), bands and LL written (4 n + n), bands read again (4 n).
  double apply_traffic(const Problem& p, const DeviceLimits&) const override {
    double sum = 2, n = 1;
    for (int l = 1; l <= p.levels; ++l) sum += (n /= 4) * (13 - (l == p.levels));
    return sum;
  }
  // Per level both images above are read and both LL written; level 0 reads both.
  double gradient_traffic(const Problem& p, const DeviceLimits&) const override {
    double sum = 2, n = 1;
    for (int l = 1; l <= p.levels; ++l) sum += (n /= 4) * (10 - 2 * (l == p.levels));
    return sum;
  }

  Status apply(const ApplyCall& call, Workspace workspace, const DeviceLimits&, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const ApplyMemory m(p, workspace.data);
    LevelArgs level{.dtype = p.dtype,
                    .in = call.in,
                    .filters = call.filters,
                    .batch = p.batch,
                    .channels = p.channels,
                    .height = p.height,
                    .width = p.width,
                    .kernel = p.kernel};
    SynthesisArgs synthesis{.dtype = p.dtype,
                            .in = call.in,
                            .out = call.out,
                            .filters = call.filters,
                            .batch = p.batch,
                            .channels = p.channels,
                            .height = p.height,
                            .width = p.width,
                            .kernel = p.kernel,
                            .levels = p.levels};
    for (int l = 1; l <= p.levels; ++l) {
      level.level = l;
      level.filtered = m.filtered[l];
      level.low = m.low[l];
      synthesis.filtered[l] = m.filtered[l];
      if (Status s = check(launch_level(level, stream), "levels: launching a level"); !s.ok()) return s;
      level.dtype = compute_type(p.dtype);
      level.height = p.height_at(l);
      level.width = p.width_at(l);
      level.in = dense_planes(m.low[l], p.channels, level.height, level.width);
    }
    return check(launch_synthesis(synthesis, stream), "levels: launching the synthesis");
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits&, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    const GradientMemory m(p, workspace.data);
    LevelGradientArgs args{.dtype = p.dtype,
                           .x = call.x,
                           .dy = call.dy,
                           .batch = p.batch,
                           .channels = p.channels,
                           .height = p.height,
                           .width = p.width,
                           .kernel = p.kernel,
                           .levels = p.levels,
                           .work = m.work,
                           .partials = m.partials};
    for (int l = 0; l <= p.levels && m.work.items() > 0; ++l) {
      args.level = l;
      args.low_x = m.low_x[l];
      args.low_dy = m.low_dy[l];
      if (Status s = check(launch_level_gradient(args, stream), "levels: launching a weight gradient"); !s.ok()) {
        return s;
      }
      if (l == 0) continue;  // level 1 splits x itself
      args.dtype = compute_type(p.dtype);
      args.height = p.height_at(l);
      args.width = p.width_at(l);
      args.x = dense_planes(m.low_x[l], p.channels, args.height, args.width);
      args.dy = dense_planes(m.low_dy[l], p.channels, args.height, args.width);
    }
    finish.partials[finish.count++] = {m.partials, compute_type(p.dtype), m.work, call.first_level, p.levels};
    return {};
  }
};

}  // namespace

const Strategy& levels_strategy() {
  static const Levels strategy;
  return strategy;
}

}  // namespace wtconv::cuda
