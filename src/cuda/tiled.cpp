// Host side of strategy `tiled`: the levels a tile does itself, and the rest as a problem of its own on the LL image of
// the tile's last level (by `resident` if it fits a block, else by `tiled` again).
#include "cuda/tuning/tiled.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/kernels/gradient.hpp"
#include "cuda/on_chip.hpp"
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

int own_levels(const Problem& p) { return std::min(p.levels, tile_levels); }

// What is left to do on the LL plane of the tile's last level.
Problem deep_problem(const Problem& p) {
  return {.batch = p.batch,
          .channels = p.channels,
          .height = p.height_at(tile_levels),
          .width = p.width_at(tile_levels),
          .kernel = p.kernel,
          .levels = p.levels - own_levels(p),
          .stride = 1,
          .dtype = DType::f32};
}

std::int64_t elements(const Problem& p) { return p.batch * p.channels * p.height * p.width; }

Image dense_image(float* data, const Problem& p) {
  return {.data = data,
          .batch = p.channels * p.height * p.width,
          .channel = p.height * p.width,
          .row = p.width,
          .column = 1};
}

PoolArgs pool_args(const Problem& p, const Image& in, float* out) {
  return {.dtype = p.dtype,
          .in = in,
          .batch = p.batch,
          .channels = p.channels,
          .height = int(p.height),
          .width = int(p.width),
          .levels = tile_levels,
          .load_vectors = rows_load_vectors(in, p.dtype, p.height, p.width),
          .out = out};
}

std::int64_t most_gradient_blocks(const Problem& p, const DeviceLimits& limits) {
  return std::int64_t{gradient_tile_shape(p.kernel).blocks} * limits.multiprocessors;
}

// With as many blocks as it may ever have.
Work gradient_work(const Problem& p, const DeviceLimits& limits) {
  Work work{.per_channel = p.batch * tile_grid(p.height, p.width).tiles(), .channels = p.channels};
  work.blocks = std::clamp<std::int64_t>(work.items(), 1, most_gradient_blocks(p, limits));
  return work;
}

cudaError_t launch_apply(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel,
                       [&]<DType dtype, int kernel>() { return launch_tiled_as<dtype, kernel>(run, stream); });
}
cudaError_t launch_gradient(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel,
                       [&]<DType dtype, int kernel>() { return launch_tiled_gradient_as<dtype, kernel>(run, stream); });
}

class Tiled final : public Strategy {
 public:
  const char* name() const override { return "tiled"; }

  std::string rejects(const Problem& p, const DeviceLimits& limits) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    constexpr std::int64_t limit = std::numeric_limits<int>::max() / 2;
    if (p.height > limit || p.width > limit || p.height > limit / p.width) {
      return "a plane has more than 2^30 pixels";
    }
    if (p.batch > 0 && tile_grid(p.height, p.width).tiles() > limit / p.batch) {
      return "a channel has more than 2^30 tiles";
    }
    // The largest of its kernels, the weight gradient's, must fit.
    const ResidentShape s = gradient_tile_shape(p.kernel);
    const auto make = [&](Use use) { return make_layout(s.height, s.width, s.levels, s.kernel, 1, s.rows, use); };
    const std::size_t bytes = 4 * (std::size_t(gradient_arena_words(make(Use::correlation).total, p.kernel)) +
                                   make(Use::correlated).total.words);
    if (bytes > std::size_t(limits.shared_per_block)) {
      return "a tile needs " + std::to_string(bytes) + " bytes of shared memory, a block has " +
             std::to_string(limits.shared_per_block);
    }
    return {};
  }
  std::string rejects_gradient(const Problem& p, const DeviceLimits& limits) const override {
    return rejects(p, limits);
  }

  std::size_t apply_workspace(const Problem& p, const DeviceLimits& limits) const override {
    const Problem deep = deep_problem(p);
    if (deep.levels == 0) return 0;
    Carver carve(nullptr);
    carve.take(4 * elements(deep));
    carve.take(4 * elements(deep));
    return carve.used() + choose_apply(deep, limits).strategy->apply_workspace(deep, limits);
  }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits& limits) const override {
    Carver carve(nullptr);
    carve.take(4 * gradient_work(p, limits).slots() * partial_size(p.kernel, tile_levels));
    const Problem deep = deep_problem(p);
    if (deep.levels == 0) return carve.used();
    carve.take(4 * elements(deep));
    carve.take(4 * elements(deep));
    return carve.used() + choose_gradient(deep, limits).strategy->gradient_workspace(deep, limits);
  }

  // The image twice (once to pool it), the halo (mostly from the L2 cache, not counted), the result, the LL image
  // written and read, what the deep levels add written and read.
  double apply_traffic(const Problem& p, const DeviceLimits& limits) const override {
    const Problem deep = deep_problem(p);
    if (deep.levels == 0) return 2;
    return 3 + (2 + choose_apply(deep, limits).strategy->apply_traffic(deep, limits)) / 16;
  }
  double gradient_traffic(const Problem& p, const DeviceLimits& limits) const override {
    const Problem deep = deep_problem(p);
    if (deep.levels == 0) return 2;
    return 4 + (2 + choose_gradient(deep, limits).strategy->gradient_traffic(deep, limits)) / 16;
  }

  Status apply(const ApplyCall& call, Workspace workspace, const DeviceLimits& limits,
               cudaStream_t stream) const override {
    const Problem& p = call.problem;
    TiledCall run{.dtype = p.dtype,
                  .kernel = p.kernel,
                  .multiprocessors = limits.multiprocessors,
                  .args = {.in = call.in,
                           .out = call.out,
                           .filters = call.filters,
                           .grid = tile_grid(p.height, p.width),
                           .channels = p.channels,
                           .levels = own_levels(p),
                           .load_vectors = rows_load_vectors(call.in, p.dtype, p.height, p.width),
                           .vector = store_vector(call.out, p.dtype, p.height, p.width)}};
    run.args.work = {.per_channel = p.batch * run.args.grid.tiles(), .channels = p.channels};
    const Problem deep = deep_problem(p);
    if (deep.levels > 0) {
      Carver carve(workspace.data);
      auto* const low = static_cast<float*>(carve.take(4 * elements(deep)));
      auto* const added = static_cast<float*>(carve.take(4 * elements(deep)));
      if (Status s = check(launch_pool(pool_args(p, call.in, low), stream), "tiled: launching the LL image"); !s.ok()) {
        return s;
      }
      const ApplyCall rest{deep, dense_image(low, deep), dense_image(added, deep), beyond(call.filters, tile_levels)};
      const Strategy& strategy = *choose_apply(deep, limits).strategy;
      if (Status s = strategy.apply(rest, carve.rest(workspace.bytes), limits, stream); !s.ok()) return s;
      run.args.deep = added;
    }
    return check(launch_apply(run, stream), "tiled: launching the tiles");
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits& limits, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    Work work = gradient_work(p, limits);
    Carver carve(workspace.data);
    auto* const partials = static_cast<float*>(carve.take(4 * work.slots() * partial_size(p.kernel, tile_levels)));
    work.blocks =
        choose_blocks(work, most_gradient_blocks(p, limits), channels_innermost(call.x) || channels_innermost(call.dy));
    finish.partials[finish.count++] = {partials, DType::f32, work, call.first_level, tile_levels};
    if (work.items() > 0) {
      const TiledGradientCall run{.dtype = p.dtype,
                                  .kernel = p.kernel,
                                  .args = {.x = call.x,
                                           .dy = call.dy,
                                           .grid = tile_grid(p.height, p.width),
                                           .work = work,
                                           .levels = own_levels(p),
                                           .load_vectors_x = rows_load_vectors(call.x, p.dtype, p.height, p.width),
                                           .load_vectors_dy = rows_load_vectors(call.dy, p.dtype, p.height, p.width),
                                           .first_level = call.first_level,
                                           .base = call.base,
                                           .partials = partials}};
      const Status s = check(launch_gradient(run, stream), "tiled: launching the weight gradient");
      if (!s.ok()) return s;
    }
    const Problem deep = deep_problem(p);
    if (deep.levels == 0) return {};
    auto* const low_x = static_cast<float*>(carve.take(4 * elements(deep)));
    auto* const low_dy = static_cast<float*>(carve.take(4 * elements(deep)));
    for (const auto& [image, low] : {std::pair{&call.x, low_x}, {&call.dy, low_dy}}) {
      if (p.batch == 0) break;
      const Status s = check(launch_pool(pool_args(p, *image, low), stream), "tiled: launching an LL image");
      if (!s.ok()) return s;
    }
    const GradientCall rest{.problem = deep,
                            .x = dense_image(low_x, deep),
                            .dy = dense_image(low_dy, deep),
                            .base = false,
                            .first_level = call.first_level + tile_levels};
    return choose_gradient(deep, limits).strategy->gradient(rest, carve.rest(workspace.bytes), limits, stream, finish);
  }
};

}  // namespace

TileGrid tile_grid(std::int64_t height, std::int64_t width) {
  constexpr ResidentShape shape = tile_shape(3);
  return {.height = int(height),
          .width = int(width),
          .across = int((width + shape.width - 1) / shape.width),
          .down = int((height + shape.height - 1) / shape.height)};
}

const Strategy& tiled_strategy() {
  static const Tiled strategy;
  return strategy;
}

}  // namespace wtconv::cuda
