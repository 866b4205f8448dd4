// Host side of strategy `resident`.
#include "cuda/kernels/resident.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cuda/kernels/gradient.hpp"
#include "cuda/kernels/launch.hpp"
#include "cuda/kernels/resident_matrix.hpp"
#include "cuda/neighbours.hpp"
#include "cuda/on_chip.hpp"
#include "cuda/strategy.hpp"
#include "cuda/tuning/matrix.hpp"
#include "cuda/tuning/resident.hpp"

namespace wtconv::cuda {
namespace {

bool fits(std::size_t bytes, int threads, int shape, const DeviceLimits& limits) {
  return bytes <= std::size_t(limits.shared_per_block) && (shape >= 0 || threads <= any_threads);
}

std::string does_not_fit(std::size_t bytes, int threads, const DeviceLimits& limits) {
  return "a plane needs " + std::to_string(bytes) + " bytes of shared memory and " + std::to_string(threads) +
         " threads, a block has " + std::to_string(limits.shared_per_block) + " and " + std::to_string(any_threads);
}

constexpr int far_too_large = 4096;  // keeps the layouts' arithmetic in range

constexpr int full_block = 192;  // threads at which a block of several planes is full

// Planes in a block that has no shape of its own: as many as fill it, two blocks a multiprocessor at least.
// measure(planes) gives a block's threads and bytes.
template <class Measure>
int fill_block(const Problem& p, const DeviceLimits& limits, Measure&& measure) {
  int planes = 1;
  for (; planes < std::min<std::int64_t>(p.batch, 16); ++planes) {
    const auto [threads, bytes] = measure(planes + 1);
    if (threads > full_block || 2 * bytes > std::size_t(limits.shared_per_multiprocessor)) break;
  }
  return planes;
}

// Whether blocks of neighbouring channels take these images, with `bytes` of shared memory each.
bool goes_together(const Image& a, const Image& b, const Problem& p, std::size_t bytes, const DeviceLimits& limits) {
  return wants_neighbours(a, b, p, limits) && bytes <= std::size_t(limits.shared_per_block);
}

struct Apply {
  int shape;
  Layout layout;
  std::size_t bytes;
  bool fits;

  Apply(const Problem& p, const DeviceLimits& limits) : shape(find_shape(apply_shapes, p)) {
    const auto make = [&](int planes, int rows) {
      return make_layout(int(p.height), int(p.width), p.levels, p.kernel, planes, rows);
    };
    const auto measure = [&](int planes) {
      const Layout l = make(planes, any_rows);
      return std::pair(l.total.threads, resident_memory(l, p.dtype));
    };
    layout = shape >= 0 ? make(apply_shapes[shape].planes, apply_shapes[shape].rows)
                        : make(fill_block(p, limits, measure), any_rows);
    bytes = resident_memory(layout, p.dtype);
    fits = cuda::fits(bytes, layout.total.threads, shape, limits);
  }
};

// On the matrix units: planes of 16-bit elements with a kernel of their own.
struct MatrixApply {
  int shape;
  MatrixLayout layout{};

  explicit MatrixApply(const Problem& p) : shape(matrix_shape(p)) {
    if (shape >= 0) layout = make_matrix_layout(matrix_shapes[shape]);
  }
  bool taken() const { return shape >= 0; }
};

struct Gradient {
  int shape;
  Layout x, dy;
  Work work;  // with as many blocks as it may ever have
  std::int64_t most_blocks;
  std::size_t bytes;
  bool fits;

  Gradient(const Problem& p, const DeviceLimits& limits) : shape(find_shape(gradient_shapes, p)) {
    const auto make = [&](int planes, int rows, Use use) {
      return make_layout(int(p.height), int(p.width), p.levels, p.kernel, planes, rows, use);
    };
    const auto measure = [&](int planes) {
      const Layout l = make(planes, any_rows, Use::correlation);
      return std::pair(l.total.threads, resident_gradient_memory(l, make(planes, any_rows, Use::correlated), p.dtype));
    };
    const int planes = shape >= 0 ? gradient_shapes[shape].planes : fill_block(p, limits, measure);
    const int rows = shape >= 0 ? gradient_shapes[shape].rows : any_rows;
    x = make(planes, rows, Use::correlation);
    dy = make(planes, rows, Use::correlated);
    bytes = resident_gradient_memory(x, dy, p.dtype);
    const int threads = x.total.threads;
    fits = cuda::fits(bytes, threads, shape, limits);
    // Blocks that surely run at once: the partials are laid out by their number, so it is a function of the limits.
    // A block takes 1 KiB and some rounding besides; one block too many costs a second wave.
    constexpr int reserved = 2048, registers = 65536, most_threads = 2048;
    const int by_registers = shape >= 0 ? gradient_shapes[shape].blocks : registers / (threads * any_registers);
    const int blocks =
        std::min({int(limits.shared_per_multiprocessor / (bytes + reserved)), most_threads / threads, by_registers});
    work = {.per_channel = (p.batch + planes - 1) / planes, .channels = p.channels};
    most_blocks = std::int64_t{std::max(blocks, 1)} * limits.multiprocessors;
    work.blocks = std::clamp<std::int64_t>(work.items(), 1, most_blocks);
  }
  // The work of blocks of neighbouring channels; fewer of them may run at once.
  Work work_together() const { return in_groups(work, neighbours, most_blocks / neighbours, false); }
  std::int64_t partial_bytes(const Problem& p) const {
    return 4 * std::max(work.slots(), work_together().slots()) * partial_size(p.kernel, p.levels);
  }
};

cudaError_t launch_apply(const ResidentCall& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel,
                       [&]<DType dtype, int kernel>() { return launch_resident_as<dtype, kernel>(run, stream); });
}
cudaError_t launch_apply(const MatrixCall& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel, [&]<DType dtype, int kernel>() {
    if constexpr (dtype != DType::f32 && has_matrix_shape(kernel)) {
      return launch_resident_matrix_as<dtype, kernel>(run, stream);
    }
    return cudaErrorInvalidValue;
  });
}
cudaError_t launch_gradient(ResidentGradientCall& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel, [&]<DType dtype, int kernel>() {
    return launch_resident_gradient_as<dtype, kernel>(run, stream);
  });
}

class Resident final : public Strategy {
 public:
  const char* name() const override { return "resident"; }

  std::string rejects(const Problem& p, const DeviceLimits& limits) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    if (p.height > far_too_large || p.width > far_too_large) return "a plane does not fit a block's shared memory";
    const Apply plan(p, limits);
    return plan.fits ? std::string{} : does_not_fit(plan.bytes, plan.layout.total.threads, limits);
  }
  std::string rejects_gradient(const Problem& p, const DeviceLimits& limits) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    if (p.height > far_too_large || p.width > far_too_large) return "a plane does not fit a block's shared memory";
    const Gradient plan(p, limits);
    if (!plan.fits) return does_not_fit(plan.bytes, plan.x.total.threads, limits);
    if (plan.shape < 0 && 2 * plan.bytes > std::size_t(limits.shared_per_multiprocessor)) {
      return "a plane needs " + std::to_string(plan.bytes) +
             " bytes of shared memory: one block a multiprocessor is slow";
    }
    return {};
  }

  std::size_t apply_workspace(const Problem&, const DeviceLimits&) const override { return 0; }
  bool rounds_bands(const Problem& p) const override { return MatrixApply(p).taken(); }
  double apply_traffic(const Problem&, const DeviceLimits&) const override { return 2; }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits& limits) const override {
    return static_cast<std::size_t>(Gradient(p, limits).partial_bytes(p));
  }
  double gradient_traffic(const Problem&, const DeviceLimits&) const override { return 2; }

  Status apply(const ApplyCall& call, Workspace, const DeviceLimits& limits, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const auto launch = [&](const auto& plan, bool together) {
      const ResidentCallOf<std::decay_t<decltype(plan.layout)>> run{
          .dtype = p.dtype,
          .kernel = p.kernel,
          .shape = plan.shape,
          .together = together,
          .layout = plan.layout,
          .multiprocessors = limits.multiprocessors,
          .args = {.in = call.in,
                   .out = call.out,
                   .filters = call.filters,
                   .batch = p.batch,
                   .channels = p.channels,
                   .whole_words_in = has_whole_words(call.in, p),
                   .whole_words_out = has_whole_words(call.out, p),
                   .piece = copy_piece(call.in, p.dtype, p.height, p.width),
                   .vector = store_vector(call.out, p.dtype, p.height, p.width)}};
      return check(launch_apply(run, stream), "resident: launching the kernel");
    };
    const Apply plan(p, limits);
    const bool together = goes_together(call.in, call.out, p, resident_memory(plan.layout, p.dtype, true), limits);
    if (const MatrixApply matrix(p); matrix.taken() && !together) return launch(matrix, false);
    return launch(plan, together);
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits& limits, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    const Gradient plan(p, limits);
    ResidentGradientCall run{
        .dtype = p.dtype,
        .kernel = p.kernel,
        .shape = plan.shape,
        .together = goes_together(call.x, call.dy, p, resident_gradient_memory(plan.x, plan.dy, p.dtype, true), limits),
        .x = plan.x,
        .dy = plan.dy,
        .args = {.x = call.x,
                 .dy = call.dy,
                 .work = plan.work,
                 .batch = p.batch,
                 .channels = p.channels,
                 .whole_words_x = has_whole_words(call.x, p),
                 .whole_words_dy = has_whole_words(call.dy, p),
                 .piece_x = copy_piece(call.x, p.dtype, p.height, p.width),
                 .piece_dy = copy_piece(call.dy, p.dtype, p.height, p.width),
                 .first_level = call.first_level,
                 .base = call.base,
                 .partials = static_cast<float*>(workspace.data)}};
    Work& work = run.args.work;
    if (run.together) {
      work = plan.work_together();
    } else {
      work.blocks = choose_blocks(work, plan.most_blocks, channels_innermost(call.x) || channels_innermost(call.dy));
    }
    if (work.items() > 0) {
      const Status s = check(launch_gradient(run, stream), "resident: launching the weight gradient");
      if (!s.ok()) return s;
    }
    finish.partials[finish.count++] = {workspace.data, DType::f32, work, call.first_level, p.levels};
    return {};
  }
};

}  // namespace

namespace {
std::size_t staged_bytes(const Layout& layout, DType dtype, bool together) {
  const int height = layout.level[0].height, width = layout.level[0].width, planes = layout.total.planes;
  const int element = static_cast<int>(size_of(dtype));
  if (together) return static_cast<std::size_t>(shares_bytes(height, width, planes, element));
  return static_cast<std::size_t>(planes) * ((std::size_t(height) * width * element + 15) / 16 * 16);
}
}  // namespace

std::size_t resident_memory(const Layout& layout, DType dtype, bool together) {
  const LayoutTotals& t = layout.total;
  const std::size_t words = std::size_t(t.planes) * t.words + t.slack + filter_count(t.levels) * filter_words(t.kernel);
  const int results = together ? shares_bytes(layout.level[0].height, layout.level[0].width, t.planes, 4) : 0;
  return 4 * words + 8 * std::size_t(t.threads) + staged_bytes(layout, dtype, together) + results;
}

std::size_t resident_gradient_memory(const Layout& x, const Layout& dy, DType dtype, bool together) {
  return 4 * (std::size_t(gradient_arena_words(x.total, x.total.kernel)) +
              std::size_t(dy.total.planes) * dy.total.words) +
         2 * staged_bytes(x, dtype, together);
}

const Strategy& resident_strategy() {
  static const Resident strategy;
  return strategy;
}

}  // namespace wtconv::cuda
