// Backend `cpu`: the fused formulation. Each plane is read once and written once; analysis, filters and synthesis
// happen in rings of rows that stay in cache.
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "core/builtin.hpp"
#include "core/finish.hpp"
#include "core/parallel.hpp"
#include "core/types.hpp"
#include "cpu/job.hpp"

namespace wtconv {
namespace {

using cpu::Geometry;
using cpu::Job;

constexpr std::size_t alignment = 4096;  // of each thread's scratch: no page is shared

std::size_t round_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// A call asks three times (size of the workspace, check of it, run), so each thread keeps its last answers: of a tiny
// call the search would be a tenth.
Geometry geometry_for(const Problem& p, bool sums) {
  const cpu::Engine& e = cpu::engine();
  const int lanes = compute_type(p.dtype) == DType::f64 ? e.lanes_f64 : e.lanes_f32;
  thread_local std::optional<Geometry> last[2];
  std::optional<Geometry>& g = last[sums];
  if (!g || g->lanes != lanes || g->problem != p) g = cpu::make_geometry(p, lanes, sums);
  return *g;
}

int threads_for(const Geometry& g, const Options& options) {
  return static_cast<int>(std::min<std::int64_t>(thread_count(options.threads), g.tasks()));
}

struct Memory {
  Memory(const Geometry& g, int threads, bool filters, bool sums)
      : scratch(round_up(g.scratch_bytes(filters, sums))),
        partials(!sums || g.parts() == 1
                     ? 0
                     : static_cast<std::size_t>(g.parts() * g.problem.channels * (g.filters() * g.taps() + 1)) *
                           sizeof(double)),
        total(scratch * static_cast<std::size_t>(threads) + partials + alignment) {}
  std::size_t scratch, partials, total;
};

void run(const Job& job, Workspace workspace, int threads) {
  const Geometry& g = *job.geometry;
  const auto task = g.element_size == 8 ? cpu::engine().run_f64 : cpu::engine().run_f32;
  const Memory memory(g, threads, bool(job.out), bool(job.x));
  auto* base = static_cast<std::byte*>(workspace.data);
  base += (alignment - reinterpret_cast<std::uintptr_t>(base) % alignment) % alignment;
  Job with_partials = job;
  with_partials.partials = reinterpret_cast<double*>(base + memory.scratch * static_cast<std::size_t>(threads));
  parallel_for(g.tasks(), threads, [&](std::int64_t i, int thread) {
    task(with_partials, i, base + memory.scratch * static_cast<std::size_t>(thread));
  });
  if (!job.x || g.parts() == 1) return;
  // Sum the parts of each channel in order.
  parallel_for(g.problem.channels, threads, [&](std::int64_t c, int thread) {
    const std::int64_t sums = g.filters() * g.taps() + 1;
    auto* total = reinterpret_cast<double*>(base + memory.scratch * static_cast<std::size_t>(thread));
    std::memset(total, 0, static_cast<std::size_t>(sums) * sizeof(double));
    for (std::int64_t part = 0; part < g.parts(); ++part) {
      const double* from = with_partials.partials + (part * g.problem.channels + c) * sums;
      for (std::int64_t t = 0; t < sums; ++t) total[t] += from[t];
    }
    job.finish(job.finish_context, c, total);
  });
}

// `sums`: filter by filter, then the sum of dy.
struct Finish {
  const Problem& problem;
  const Parameters& parameters;
  const ParameterSet<TensorView>& to;

  void channel(std::int64_t c, const double* sums) const {
    const int taps = problem.kernel * problem.kernel;
    const double sum_dy = sums[(1 + 4 * problem.levels) * taps];
    finish_filter(problem, parameters, to, 0, c, sums, sum_dy);
    for (int l = 1; l <= problem.levels; ++l) {
      for (int band = 0; band < 4; ++band) {
        finish_filter(problem, parameters, to, l, 4 * c + band, sums += taps, sum_dy);
      }
    }
  }
};

class Cpu final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view description() const override {
    static const std::string text =
        std::string("fused, SIMD (") + cpu::engine().target + "), reads and writes each plane once";
    return text;
  }

  Plan plan(const Problem& p, Pass pass, GradientMask mask, const Options& options) const override {
    const bool sums = pass == Pass::backward && mask.any_parameter();
    const Geometry g = geometry_for(p, sums);
    const bool filters = pass == Pass::forward || mask.x;
    const double n = double(p.batch) * double(p.channels) * double(p.height) * double(p.width);
    const double kept = double(p.batch) * double(p.channels) * double(p.out_height()) * double(p.out_width());
    const double reads = (sums ? 2 : 1) * g.reread();
    return {.strategy = "streamed",
            .reason = cpu::describe(g),
            .workspace = Memory(g, threads_for(g, options), filters, sums).total,
            .elements_moved = reads + (pass == Pass::forward ? n + kept : kept + (sums ? n : 0) + (filters ? n : 0))};
  }

  Status forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                 Workspace workspace, const Options& options) const override {
    const Geometry g = geometry_for(p, false);
    const Job job{.geometry = &g, .in = x, .out = y, .out_stride = p.stride, .parameters = &parameters};
    run(job, workspace, threads_for(g, options));
    return {};
  }

  Status backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const ConstTensorView& dy,
                  const Gradients& gradients, Workspace workspace, const Options& options) const override {
    const Finish finish{p, parameters, gradients.parameters};
    const bool sums = mask_of(gradients).any_parameter();
    const Geometry g = geometry_for(p, sums);
    if (!gradients.x && !sums) return {};
    if (p.batch == 0) {  // no task runs, every sum is zero
      constexpr double zeros[(1 + 4 * max_levels) * max_kernel * max_kernel + 1] = {};
      for (std::int64_t c = 0; c < p.channels; ++c) finish.channel(c, zeros);
      return {};
    }
    const Job job{.geometry = &g,
                  .in = dy,
                  .in_stride = p.stride,
                  .out = gradients.x,
                  .rotated = true,
                  .x = sums ? x : ConstTensorView{},
                  .finish = [](void* context, std::int64_t c,
                               const double* s) { static_cast<const Finish*>(context)->channel(c, s); },
                  .finish_context = const_cast<Finish*>(&finish),
                  .parameters = &parameters};
    run(job, workspace, threads_for(g, options));
    return {};
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu backend;
  return backend;
}

}  // namespace wtconv
