// Backend `unfused`: the operator as frameworks run it, a chain of primitives that each materialise their result. The
// baseline, and with the switches of Reformulations the ablation of arXiv 2608.10805.
//
// Each primitive is vectorised and threaded. Intermediate tensors are in the compute type, f32 for f16 and bf16: a
// framework would keep them in 16 bits, with half of the traffic and without the library's bound on the error.
//
// Backward is the reverse of the chain: the inverse transform's gradient is the transform, a convolution's is one with
// rotated weights. Gradients of the scales come from those of the weights, so only the bands of x, which a framework
// would have saved, are formed again.
#include <optional>
#include <string>
#include <vector>

#include "core/builtin.hpp"
#include "core/finish.hpp"
#include "unfused/chain.hpp"

namespace wtconv {
namespace {

using namespace unfused;

// One pass. Forward applies the layer to x; backward applies its transpose to dy and correlates with x on the way.
struct Job {
  ConstTensorView image;  // x or dy
  int image_stride;
  bool transpose;
  bool apply;         // y or dx is asked for
  TensorView result;  // y or dx
  int result_stride;
  ConstTensorView x;  // backward
  GradientMask mask;  // of parameters
  ParameterSet<TensorView> gradients;
};

template <class T>
void finish_level(Chain<T>& chain, const Problem& p, const Parameters& parameters, int level, const double* sums,
                  const double* sum_dy, const ParameterSet<TensorView>& to) {
  const std::int64_t taps = p.kernel * p.kernel;
  chain.for_each(level == 0 ? p.channels : 4 * p.channels, taps, [&](std::int64_t i, auto) {
    finish_filter(p, parameters, to, level, i, sums + i * taps, sum_dy ? sum_dy[i] : 0);
  });
}

// Returns the bytes moved.
template <class T>
double run(const Problem& p, const Options& options, Arena& arena, bool measure, const Parameters& parameters,
           const Job& job) {
  Chain<T> chain(p, options, arena, measure);
  Tensor<T> image = chain.gather(job.image, job.image_stride), x, base;
  std::optional<Tensor<T>> result;
  if (job.apply) {
    if (p.levels == 0) result = chain.target(job.result, job.result_stride);
    Source<T> source = chain.whole(image);
    base = chain.filter(source, chain.filters(parameters, 0, job.transpose), result);
  }
  if (job.mask.any_parameter()) x = chain.gather(job.x, 1);
  if (job.mask.base) {
    Source<T> of_x = chain.whole(x), of_dy = chain.whole(image);
    const auto sums = chain.correlate(of_x, of_dy), sum_dy = chain.sum(image);
    finish_level(chain, p, parameters, 0, sums.second, sum_dy.second, job.gradients);
  }
  std::vector<Tensor<T>> filtered;
  for (int l = 1; l <= p.levels && (job.apply || job.mask.wavelet); ++l) {
    Source<T> bands = chain.analysis(std::move(image), l);
    if (job.apply) filtered.push_back(chain.filter(bands, chain.filters(parameters, l, job.transpose)));
    if (job.mask.wavelet) {
      Source<T> of_x = chain.analysis(std::move(x), l);
      const auto sums = chain.correlate(of_x, bands);
      finish_level(chain, p, parameters, l, sums.second, nullptr, job.gradients);
      x = of_x.ll.value_or(Tensor<T>{});
    }
    image = bands.ll.value_or(Tensor<T>{});
  }
  image = x = {};
  if (job.apply) {
    if (p.levels > 0) result = chain.synthesis(std::move(filtered), base, job.result, job.result_stride);
    chain.scatter(*result, job.result, job.result_stride);
  }
  return chain.bytes_moved();
}

double run(const Problem& p, const Options& options, Arena& arena, bool measure, const Parameters& parameters,
           const Job& job) {
  return compute_type(p.dtype) == DType::f64 ? run<double>(p, options, arena, measure, parameters, job)
                                             : run<float>(p, options, arena, measure, parameters, job);
}

class Unfused final : public Backend {
 public:
  std::string_view name() const override { return "unfused"; }
  std::string_view description() const override {
    return "the baseline: whole-tensor primitives one after the other, as frameworks run them";
  }

  Plan plan(const Problem& p, Pass pass, GradientMask mask, const Options& options) const override {
    const bool forward = pass == Pass::forward;
    const Job job{.image = {},
                  .image_stride = forward ? 1 : p.stride,
                  .transpose = !forward,
                  .apply = forward || mask.x,
                  .result = {},
                  .result_stride = forward ? p.stride : 1,
                  .x = {},
                  .mask = forward ? GradientMask{false, false, false} : mask,
                  .gradients = {}};
    Arena arena(nullptr);
    const double bytes = run(p, options, arena, true, {}, job);
    const Reformulations& r = options.reformulations;
    std::string on;
    if (r.recompute_analysis) on += ", analysis recomputed inside the convolution";
    if (r.collapse_synthesis) on += ", synthesis collapsed to one pass";
    if (r.fold_scales) on += ", scales folded into the weights";
    return {on.empty() ? "chain" : "chain, reformulated",
            "every primitive materialises its result in the workspace" + (on.empty() ? "; no reformulation" : on),
            arena.peak(), bytes / double(size_of(p.dtype))};
  }

  Status forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                 Workspace workspace, const Options& options) const override {
    Arena arena(workspace.data);
    run(p, options, arena, false, parameters,
        {.image = x,
         .image_stride = 1,
         .transpose = false,
         .apply = true,
         .result = y,
         .result_stride = p.stride,
         .x = {},
         .mask = {false, false, false},
         .gradients = {}});
    return {};
  }

  Status backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const ConstTensorView& dy,
                  const Gradients& gradients, Workspace workspace, const Options& options) const override {
    const GradientMask mask = mask_of(gradients);
    Arena arena(workspace.data);
    run(p, options, arena, false, parameters,
        {.image = dy,
         .image_stride = p.stride,
         .transpose = true,
         .apply = mask.x,
         .result = gradients.x,
         .result_stride = 1,
         .x = x,
         .mask = mask,
         .gradients = gradients.parameters});
    return {};
  }
};

}  // namespace

const Backend& unfused_backend() {
  static const Unfused backend;
  return backend;
}

}  // namespace wtconv
