// Host side of strategy `cluster`: how many blocks share a plane, and the launches.
#include "cuda/tuning/cluster.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cuda/cluster.hpp"
#include "cuda/kernels/bands.hpp"
#include "cuda/kernels/gradient.hpp"
#include "cuda/on_chip.hpp"
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

constexpr int far_too_large = 4096;  // keeps the layouts' arithmetic in range

struct Needs {
  std::size_t bytes = 0;
  int threads = 0;
};

// The smallest cluster whose blocks fit a multiprocessor twice, so that one's barriers are filled by the other; else
// the smallest that fits at all. any: whether planes without a kernel of their own may be taken; measure(band) says
// what a block needs.
template <std::size_t n, class Measure>
Cut choose_cut(const Problem& p, const DeviceLimits& limits, const ClusterShape (&shapes)[n], bool any,
               Measure&& measure) {
  Cut cut;
  if (limits.major < 9) {
    cut.why_not = "clusters need compute capability 9, this is " + std::to_string(limits.major) + "." +
                  std::to_string(limits.minor);
    return cut;
  }
  if (p.height > far_too_large || p.width > far_too_large) {
    cut.why_not = "a plane does not fit the shared memory of " + std::to_string(most_cluster_blocks) + " blocks";
    return cut;
  }
  const auto fits = [&](const Needs& needs, int blocks_each) {
    return blocks_each * (needs.bytes + (blocks_each > 1 ? 1024 : 0)) <=
               std::size_t(blocks_each > 1 ? limits.shared_per_multiprocessor : limits.shared_per_block) &&
           needs.bytes <= std::size_t(limits.shared_per_block);
  };
  if (const int shape = find_shape(shapes, p); shape >= 0) {
    const ResidentShape band = band_shape(shapes[shape]);
    if (fits(measure(band), 1)) return {shapes[shape].cluster, shape, band, {}};
  }
  if (!any || p.levels < any_cluster_levels || p.height * p.width > any_cluster_pixels) {
    cut.why_not = "with geometry from arguments it is not faster ";
    cut.why_not += any ? "beyond " + std::to_string(any_cluster_pixels) + " pixels or below " +
                             std::to_string(any_cluster_levels) + " levels"
                       : "in the weight gradient";
    return cut;
  }
  const int height = int(p.height), unit = band_unit(p.levels), units = (height + unit - 1) / unit;
  if (units < 2) {
    cut.why_not = "its bands are multiples of " + std::to_string(unit) + " rows at " + std::to_string(p.levels) +
                  " levels: one holds the whole plane";
    return cut;
  }
  Needs least;
  for (int each : {2, 1}) {
    for (int blocks = 2; blocks <= std::min(most_cluster_blocks, units); ++blocks) {
      const int rows = band_rows(height, p.levels, blocks);
      if ((blocks - 1) * rows >= height) continue;  // as few rows as with fewer blocks
      const ResidentShape band{rows, int(p.width), p.levels, p.kernel, 1, any_rows, 1};
      least = measure(band);
      if (least.threads <= any_threads && fits(least, each)) return {blocks, -1, band, {}};
    }
  }
  cut.why_not = "a band needs " + std::to_string(least.bytes) + " bytes of shared memory and " +
                std::to_string(least.threads) + " threads with " + std::to_string(most_cluster_blocks) +
                " blocks at most, a block has " + std::to_string(limits.shared_per_block) + " and " +
                std::to_string(any_threads);
  return cut;
}

Layout band_layout(const ResidentShape& s, Use use) {
  return make_layout(s.height, s.width, s.levels, s.kernel, 1, s.rows, use);
}

struct Gradient {
  Cut cut;
  Layout x, dy;
  Work work;  // with as many clusters as there may ever be

  Gradient(const Problem& p, const DeviceLimits& limits) : cut(cut_for_gradient(p, limits)) {
    x = band_layout(cut.band, Use::correlation);
    dy = band_layout(cut.band, Use::correlated);
    const auto at_once = std::int64_t(limits.shared_per_multiprocessor / cluster_gradient_memory(x, dy));
    const std::int64_t most = std::max<std::int64_t>(at_once, 1) * limits.multiprocessors / cut.blocks;
    work = {.per_channel = p.batch, .channels = p.channels};
    work.blocks = std::clamp<std::int64_t>(work.items(), 1, std::max<std::int64_t>(most, 1));
  }
  std::int64_t partial_bytes(const Problem& p) const {
    return 4 * work.slots() * cut.blocks * partial_size(p.kernel, p.levels);
  }
};

cudaError_t launch_apply(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel,
                       [&]<DType dtype, int kernel>() { return launch_cluster_as<dtype, kernel>(run, stream); });
}
cudaError_t launch_gradient(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel, [&]<DType dtype, int kernel>() {
    return launch_cluster_gradient_as<dtype, kernel>(run, stream);
  });
}

class Cluster final : public Strategy {
 public:
  const char* name() const override { return "cluster"; }

  std::string rejects(const Problem& p, const DeviceLimits& limits) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    return cut_for_apply(p, limits).why_not;
  }
  std::string rejects_gradient(const Problem& p, const DeviceLimits& limits) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    return cut_for_gradient(p, limits).why_not;
  }

  std::size_t apply_workspace(const Problem&, const DeviceLimits&) const override { return 0; }
  double apply_traffic(const Problem&, const DeviceLimits&) const override { return 2; }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits& limits) const override {
    return static_cast<std::size_t>(Gradient(p, limits).partial_bytes(p));
  }
  double gradient_traffic(const Problem&, const DeviceLimits&) const override { return 2; }

  Status apply(const ApplyCall& call, Workspace, const DeviceLimits& limits, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const Cut cut = cut_for_apply(p, limits);
    ClusterCall run{.dtype = p.dtype,
                    .kernel = p.kernel,
                    .shape = cut.shape,
                    .band = band_layout(cut.band, Use::filtering),
                    .args = {.in = call.in,
                             .out = call.out,
                             .filters = call.filters,
                             .work = {.per_channel = p.batch, .channels = p.channels},
                             .height = int(p.height),
                             .blocks = cut.blocks,
                             .load_vectors = rows_load_vectors(call.in, p.dtype, p.height, p.width),
                             .vector = store_vector(call.out, p.dtype, p.height, p.width)}};
    if (!run.args.load_vectors || run.args.vector != 4) run.shape = -1;
    return check(launch_apply(run, stream), "cluster: launching the kernel");
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits& limits, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    const Gradient plan(p, limits);
    ClusterGradientCall run{.dtype = p.dtype,
                            .kernel = p.kernel,
                            .shape = plan.cut.shape,
                            .x = plan.x,
                            .dy = plan.dy,
                            .args = {.x = call.x,
                                     .dy = call.dy,
                                     .work = plan.work,
                                     .height = int(p.height),
                                     .blocks = plan.cut.blocks,
                                     .load_vectors_x = rows_load_vectors(call.x, p.dtype, p.height, p.width),
                                     .load_vectors_dy = rows_load_vectors(call.dy, p.dtype, p.height, p.width),
                                     .first_level = call.first_level,
                                     .base = call.base,
                                     .partials = static_cast<float*>(workspace.data)}};
    if (!run.args.load_vectors_x || !run.args.load_vectors_dy) run.shape = -1;
    if (plan.work.items() > 0) {
      const Status s = check(launch_gradient(run, stream), "cluster: launching the weight gradient");
      if (!s.ok()) return s;
    }
    finish.partials[finish.count++] = {.data = workspace.data,
                                       .dtype = DType::f32,
                                       .work = run.args.work,
                                       .first_level = call.first_level,
                                       .levels = p.levels,
                                       .bands = plan.cut.blocks};
    return {};
  }
};

}  // namespace

Cut cut_for_apply(const Problem& p, const DeviceLimits& limits) {
  return choose_cut(p, limits, cluster_shapes, true, [](const ResidentShape& band) {
    const Layout l = band_layout(band, Use::filtering);
    return Needs{cluster_memory(l), l.total.threads};
  });
}

Cut cut_for_gradient(const Problem& p, const DeviceLimits& limits) {
  return choose_cut(p, limits, cluster_gradient_shapes, false, [](const ResidentShape& band) {
    const Layout l = band_layout(band, Use::correlation);
    return Needs{cluster_gradient_memory(l, band_layout(band, Use::correlated)), l.total.threads};
  });
}

std::size_t cluster_memory(const Layout& band) {
  const LayoutTotals& t = band.total;
  return 4 * (std::size_t(t.words) + t.slack + filter_count(t.levels) * filter_words(t.kernel)) +
         8 * std::size_t(t.threads);
}

std::size_t cluster_gradient_memory(const Layout& x, const Layout& dy) {
  return 4 * (std::size_t(gradient_arena_words(x.total, x.total.kernel)) + dy.total.words);
}

const Strategy& cluster_strategy() {
  static const Cluster strategy;
  return strategy;
}

}  // namespace wtconv::cuda
