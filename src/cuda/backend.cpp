// Backend `cuda`: turns the API's views into kernel arguments, lets the chooser pick a strategy and runs it.
// Backends `cuda-levels` and `cuda-unfused` are the same with the strategy fixed, as baselines: the published
// formulation, and the chain it started from, with the switches of Reformulations.
#include "wtconv/backend.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

template <class View>
Image image_of(const View& v, int step) {
  return {.data = const_cast<void*>(static_cast<const void*>(v.data)),
          .batch = v.strides[0],
          .channel = v.strides[1],
          .row = v.strides[2],
          .column = v.strides[3],
          .step = step};
}

Filters filters_of(const Problem& p, const Parameters& parameters) {
  Filters f{.bias = parameters.base_bias.data, .dtype = parameters.base_weight.dtype};
  f.weight[0] = parameters.base_weight.data;
  f.scale[0] = parameters.base_scale.data;
  for (int l = 1; l <= p.levels; ++l) {
    f.weight[l] = parameters.wavelet_weight[l - 1].data;
    f.scale[l] = parameters.wavelet_scale[l - 1].data;
  }
  return f;
}

FilterGradients gradients_of(const ParameterSet<TensorView>& to) {
  FilterGradients g{.bias = to.base_bias.data};
  g.weight[0] = to.base_weight.data;
  g.scale[0] = to.base_scale.data;
  for (int l = 1; l <= max_levels; ++l) {
    g.weight[l] = to.wavelet_weight[l - 1].data;
    g.scale[l] = to.wavelet_scale[l - 1].data;
  }
  return g;
}

class Cuda final : public Backend {
 public:
  // `fixed`: the strategy for these options; null: the chooser's.
  using Fixed = const Strategy& (*)(const Options&);
  Cuda(std::string_view name, std::string_view description, Fixed fixed)
      : name_(name), description_(description), fixed_(fixed) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return description_; }
  Device device() const override { return Device::cuda; }
  Status available() const override {
    DeviceLimits limits;
    return current_device(limits);
  }

  Plan plan(const Problem& p, Pass pass, GradientMask mask, const Options& options) const override {
    DeviceLimits limits;
    Plan plan;
    if (!current_device(limits).ok()) {
      limits = h200;
      plan.reason = "as on an NVIDIA H200, because no GPU can be used here: ";
    }
    const double n = double(p.batch) * double(p.channels) * double(p.height) * double(p.width);
    if (pass == Pass::forward || mask.x) {
      const Half& half = half_for(apply, p, limits, options);
      plan.strategy = half.decision.strategy->name();
      plan.reason += half.decision.reason;
      plan.workspace = half.workspace;
      plan.elements_moved = n * half.traffic;
      plan.rounds_bands = half.decision.strategy->rounds_bands(p);
    }
    if (pass == Pass::backward && mask.any_parameter()) {
      const Half& half = half_for(weight_gradient, p, limits, options);
      const char* const name = half.decision.strategy->name();
      if (plan.strategy != name) plan.strategy += (plan.strategy.empty() ? "" : " + ") + std::string(name);
      plan.reason += (plan.elements_moved == 0 ? "" : "; weight gradient by ") + half.decision.reason;
      // The two halves of a backward run one after the other and share the workspace.
      plan.workspace = std::max(plan.workspace, half.workspace);
      plan.elements_moved += n * half.traffic;
    }
    return plan;
  }

  Status forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                 Workspace workspace, const Options& options) const override {
    DeviceLimits limits;
    if (Status s = current_device(limits); !s.ok()) return s;
    const ApplyCall call{p, image_of(x, 1), image_of(y, p.stride), filters_of(p, parameters)};
    return half_for(apply, p, limits, options)
        .decision.strategy->apply(call, workspace, limits, static_cast<cudaStream_t>(options.stream));
  }

  Status backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const ConstTensorView& dy,
                  const Gradients& gradients, Workspace workspace, const Options& options) const override {
    DeviceLimits limits;
    if (Status s = current_device(limits); !s.ok()) return s;
    const auto stream = static_cast<cudaStream_t>(options.stream);
    const GradientMask mask = mask_of(gradients);
    const Image dy_image = image_of(dy, p.stride);
    if (mask.x && p.batch > 0) {
      ApplyCall call{p, dy_image, image_of(gradients.x, 1), filters_of(p, parameters)};
      call.filters.rotated = true;
      call.filters.bias = nullptr;
      if (Status s = half_for(apply, p, limits, options).decision.strategy->apply(call, workspace, limits, stream);
          !s.ok())
        return s;
    }
    if (!mask.any_parameter()) return {};
    FinishArgs finish{.filters = filters_of(p, parameters),
                      .gradients = gradients_of(gradients.parameters),
                      .kernel = p.kernel,
                      .levels = p.levels,
                      .channels = p.channels};
    const GradientCall call{.problem = p, .x = image_of(x, 1), .dy = dy_image, .base = mask.base};
    if (Status s = half_for(weight_gradient, p, limits, options)
                       .decision.strategy->gradient(call, workspace, limits, stream, finish);
        !s.ok()) {
      return s;
    }
    return check(launch_finish(finish, stream), "launching the closing kernel of the weight gradient");
  }

 private:
  enum Which { apply, weight_gradient };
  // A call's forward or input gradient, or its weight gradient: which strategy, and what that needs.
  struct Half {
    const Cuda* backend;
    Problem problem;
    DeviceLimits limits;
    Reformulations switches;
    Decision decision;
    std::size_t workspace;
    double traffic;
  };
  // A call asks three times (size of the workspace, check of it, run), so each thread keeps its last answers.
  const Half& half_for(Which which, const Problem& p, const DeviceLimits& limits, const Options& options) const {
    thread_local std::optional<Half> last[2];
    std::optional<Half>& half = last[which];
    const Reformulations& switches = options.reformulations;
    if (half && half->backend == this && half->problem == p && half->limits == limits && half->switches == switches) {
      return *half;
    }
    const Decision d = fixed_ ? fixed(options) : which == apply ? choose_apply(p, limits) : choose_gradient(p, limits);
    const Strategy& s = *d.strategy;
    half = {this,
            p,
            limits,
            switches,
            d,
            which == apply ? s.apply_workspace(p, limits) : s.gradient_workspace(p, limits),
            which == apply ? s.apply_traffic(p, limits) : s.gradient_traffic(p, limits)};
    return *half;
  }
  Decision fixed(const Options& options) const {
    const Strategy& strategy = fixed_(options);
    return {&strategy, std::string(strategy.name()) + ": fixed by the backend's name"};
  }

  std::string_view name_, description_;
  Fixed fixed_;
};

}  // namespace
}  // namespace wtconv::cuda

// Registered when this library is loaded. A second copy in one process is refused by name; the first stays. A program
// that links wtconv_cuda refers to this symbol (CMakeLists.txt), or the linker would leave all of the library out.
extern "C" WTCONV_EXPORT bool wtconv_cuda_registered;
bool wtconv_cuda_registered = [] {
  using namespace wtconv::cuda;
  static const Cuda fused("cuda", "the whole layer on chip, forward and backward, on NVIDIA GPUs", nullptr);
  static const Cuda levels("cuda-levels", "the published formulation on NVIDIA GPUs: a kernel a level, as baseline",
                           [](const wtconv::Options&) -> const Strategy& { return levels_strategy(); });
  static const Cuda unfused(
      "cuda-unfused", "what that started from on NVIDIA GPUs: stored bands, passes for the scales",
      [](const wtconv::Options& o) -> const Strategy& { return levels_strategy(o.reformulations); });
  return wtconv::register_backend(fused, 40).ok() && wtconv::register_backend(levels, 5).ok() &&
         wtconv::register_backend(unfused, 4).ok();
}();
