// Host side of strategy `registers`.
#include "cuda/kernels/registers.hpp"

#include <limits>

#include "cuda/on_chip.hpp"
#include "cuda/strategy.hpp"
#include "cuda/tuning/registers.hpp"

namespace wtconv::cuda {
namespace {

constexpr int lanes = 32;

Work gradient_work(const Problem& p) {
  Work work{.per_channel = (p.batch + lanes - 1) / lanes, .channels = p.channels};
  work.blocks = work.items();
  return work;
}

cudaError_t launch_apply(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel,
                       [&]<DType dtype, int kernel>() { return launch_registers_as<dtype, kernel>(run, stream); });
}
cudaError_t launch_gradient(auto& run, cudaStream_t stream) {
  return dispatch_unit(run.dtype, run.kernel, [&]<DType dtype, int kernel>() {
    return launch_registers_gradient_as<dtype, kernel>(run, stream);
  });
}

class Registers final : public Strategy {
 public:
  const char* name() const override { return "registers"; }

  std::string rejects(const Problem& p, const DeviceLimits&) const override {
    if (std::string s = not_on_chip(p); !s.empty()) return s;
    if (find_shape(register_shapes, p) < 0) return "no kernel for this plane and number of levels";
    if (p.batch < register_least_batch) {
      return "a warp takes 32 planes of a channel, the batch has " + std::to_string(p.batch);
    }
    if (gradient_work(p).items() > std::numeric_limits<int>::max()) return "more than 2^31 blocks";
    return {};
  }
  std::string rejects_gradient(const Problem& p, const DeviceLimits& limits) const override {
    return rejects(p, limits);
  }

  std::size_t apply_workspace(const Problem&, const DeviceLimits&) const override { return 0; }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits&) const override {
    return static_cast<std::size_t>(4 * gradient_work(p).slots() * partial_size(p.kernel, p.levels));
  }
  double apply_traffic(const Problem&, const DeviceLimits&) const override { return 2; }
  double gradient_traffic(const Problem&, const DeviceLimits&) const override { return 2; }

  Status apply(const ApplyCall& call, Workspace, const DeviceLimits&, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const RegistersCall<RegistersArgs> run{
        .dtype = p.dtype,
        .kernel = p.kernel,
        .shape = find_shape(register_shapes, p),
        .args = {.in = call.in, .out = call.out, .filters = call.filters, .batch = p.batch, .channels = p.channels}};
    return check(launch_apply(run, stream), "registers: launching the kernel");
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits&, cudaStream_t stream,
                  FinishArgs& finish) const override {
    const Problem& p = call.problem;
    const Work work = gradient_work(p);
    finish.partials[finish.count++] = {workspace.data, DType::f32, work, call.first_level, p.levels};
    const RegistersCall<RegistersGradientArgs> run{.dtype = p.dtype,
                                                   .kernel = p.kernel,
                                                   .shape = find_shape(register_shapes, p),
                                                   .args = {.x = call.x,
                                                            .dy = call.dy,
                                                            .batch = p.batch,
                                                            .channels = p.channels,
                                                            .work = work,
                                                            .partials = static_cast<float*>(workspace.data)}};
    return check(launch_gradient(run, stream), "registers: launching the weight gradient");
  }
};

}  // namespace

const Strategy& registers_strategy() {
  static const Registers strategy;
  return strategy;
}

}  // namespace wtconv::cuda
