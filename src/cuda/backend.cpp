// Backend `cuda`: turns the API's views into kernel arguments, lets the chooser pick a strategy and runs it.
// Backend `cuda-levels` is the same with the strategy fixed: the published formulation, as baseline.
#include <algorithm>
#include <string>

#include "cuda/strategy.hpp"
#include "wtconv/backend.hpp"

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
  Cuda(std::string_view name, std::string_view description, const Strategy* fixed)
      : name_(name), description_(description), fixed_(fixed) {}

  std::string_view name() const override { return name_; }
  std::string_view description() const override { return description_; }
  Device device() const override { return Device::cuda; }
  Status available() const override {
    DeviceLimits limits;
    return current_device(limits);
  }

  Plan plan(const Problem& p, Pass pass, GradientMask mask, const Options&) const override {
    DeviceLimits limits;
    if (Status s = current_device(limits); !s.ok()) return {"none", s.message(), 0, 0};
    const Decision d = decide(p, limits);
    const double n = double(p.batch) * double(p.channels) * double(p.height) * double(p.width);
    const bool apply = pass == Pass::forward || mask.x;
    const bool gradient = pass == Pass::backward && mask.any_parameter();
    // The two halves of a backward run one after the other and share the workspace.
    return {d.strategy->name(), d.reason,
            std::max(apply ? d.strategy->apply_workspace(p, limits) : 0,
                     gradient ? d.strategy->gradient_workspace(p, limits) : 0),
            n * ((apply ? d.strategy->apply_traffic(p, limits) : 0) + (gradient ? d.strategy->gradient_traffic(p, limits) : 0))};
  }

  Status forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                 Workspace workspace, const Options& options) const override {
    DeviceLimits limits;
    if (Status s = current_device(limits); !s.ok()) return s;
    const ApplyCall call{p, image_of(x, 1), image_of(y, p.stride), filters_of(p, parameters)};
    return decide(p, limits).strategy->apply(call, workspace, limits, static_cast<cudaStream_t>(options.stream));
  }

  Status backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const ConstTensorView& dy,
                  const Gradients& gradients, Workspace workspace, const Options& options) const override {
    DeviceLimits limits;
    if (Status s = current_device(limits); !s.ok()) return s;
    const Strategy& strategy = *decide(p, limits).strategy;
    const auto stream = static_cast<cudaStream_t>(options.stream);
    const GradientMask mask = mask_of(gradients);
    if (mask.x && p.batch > 0) {
      ApplyCall call{p, image_of(dy, p.stride), image_of(gradients.x, 1), filters_of(p, parameters)};
      call.filters.rotated = true;
      call.filters.bias = nullptr;
      if (Status s = strategy.apply(call, workspace, limits, stream); !s.ok()) return s;
    }
    if (!mask.any_parameter()) return {};
    const GradientCall call{p, image_of(x, 1), image_of(dy, p.stride), filters_of(p, parameters),
                            gradients_of(gradients.parameters)};
    return strategy.gradient(call, workspace, limits, stream);
  }

 private:
  Decision decide(const Problem& p, const DeviceLimits& limits) const {
    return fixed_ ? Decision{fixed_, std::string(fixed_->name()) + ": fixed by the backend's name"}
                  : choose_strategy(p, limits);
  }

  std::string_view name_, description_;
  const Strategy* fixed_;
};

// Registered when this library is loaded. A second copy in one process is refused by name; the first stays.
[[maybe_unused]] const bool registered = [] {
  static const Cuda fused("cuda", "the whole layer on chip, forward and backward, on NVIDIA GPUs", nullptr);
  static const Cuda levels("cuda-levels", "the published formulation on NVIDIA GPUs: a kernel a level, as baseline",
                           &levels_strategy());
  return register_backend(fused, 40).ok() && register_backend(levels, 5).ok();
}();

}  // namespace
}  // namespace wtconv::cuda
