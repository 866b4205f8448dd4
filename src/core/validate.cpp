#include "core/validate.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace wtconv {
namespace {

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

// A view's name, put together only where a message needs it.
struct Name {
  const char* text;
  int level = -1;
  bool gradient = false;

  std::string str() const {
    return (gradient ? "gradient of " : "") + std::string(text) + (level < 0 ? "" : "[" + std::to_string(level) + "]");
  }
  friend std::string operator+(const Name& name, const std::string& text) { return name.str() + text; }
  friend std::string operator+(const std::string& text, const Name& name) { return text + name.str(); }
};

struct Named {
  Name name;
  ConstTensorView view;
};
// Reserved for all that a call can hold: x, dy, y, dx and the parameters.
struct Views : std::vector<Named> {
  Views() { reserve(4 + 3 + 2 * max_levels); }
};

std::string list(std::initializer_list<std::int64_t> values) {
  std::string s = "(";
  for (std::int64_t v : values) s += (s.size() > 1 ? ", " : "") + std::to_string(v);
  return s + ")";
}

Status check_shape(Name name, const ConstTensorView& v, std::initializer_list<std::int64_t> expected) {
  if (v.rank < 0 || v.rank > max_rank) {
    return invalid(name + " must have rank " + std::to_string(expected.size()) + ", got rank " +
                   std::to_string(v.rank));
  }
  const bool same =
      v.rank == static_cast<int>(expected.size()) && std::equal(expected.begin(), expected.end(), v.extents.begin());
  return same ? Status{} : invalid(name + " must have shape " + list(expected) + ", got " + to_string(v));
}

Status check_strides(Name name, const ConstTensorView& v) {
  // The reach of two views together, in bytes, must fit an int64.
  constexpr std::int64_t limit = std::int64_t{1} << 57;
  std::int64_t reach = 0;
  for (int d = 0; d < v.rank; ++d) {
    const std::int64_t s = v.strides[d], n = v.extents[d] > 0 ? v.extents[d] - 1 : 0;
    if (n == 0) continue;
    if (s > limit / n || s < -(limit / n)) return invalid(name + " has a stride out of range: " + to_string(v));
    reach += (s < 0 ? -s : s) * n;
  }
  return reach <= limit ? Status{} : invalid(name + " reaches past 2^57 elements: " + to_string(v));
}

Status check_image(Name name, const ConstTensorView& v, const Problem& p, std::int64_t h, std::int64_t w) {
  const bool empty = p.batch == 0;
  if (!v && !empty) return invalid(name + " has no data");
  if (v.dtype != p.dtype) {
    return invalid(name + " must have the problem's dtype " + to_string(p.dtype) + ", got " + to_string(v.dtype));
  }
  if (Status s = check_shape(name, v, {p.batch, p.channels, h, w}); !s.ok()) return s;
  return check_strides(name, v);
}

// Calls f(name, view, {extents...}) for every parameter that the problem has.
template <class View, class F>
Status for_each_parameter(const Problem& p, const ParameterSet<View>& set, F&& f) {
  const std::int64_t c = p.channels, k = p.kernel;
  if (Status s = f(Name{"base_weight"}, set.base_weight, {c, 1, k, k}); !s.ok()) return s;
  if (Status s = f(Name{"base_bias"}, set.base_bias, {c}); !s.ok()) return s;
  if (Status s = f(Name{"base_scale"}, set.base_scale, {c}); !s.ok()) return s;
  for (int l = 0; l < max_levels; ++l) {
    const View &weight = set.wavelet_weight[l], &scale = set.wavelet_scale[l];
    if (l >= p.levels && (weight || scale)) {
      return invalid(Name{weight ? "wavelet_weight" : "wavelet_scale", l} + " is given, but the problem has only " +
                     std::to_string(p.levels) + " levels");
    }
    if (l >= p.levels) continue;
    if (Status s = f(Name{"wavelet_weight", l}, weight, {4 * c, 1, k, k}); !s.ok()) return s;
    if (Status s = f(Name{"wavelet_scale", l}, scale, {4 * c}); !s.ok()) return s;
  }
  return {};
}

Status check_parameter_dtype(Name name, DType dtype, const Problem& p, DType expected) {
  if (dtype != p.dtype && dtype != compute_type(p.dtype)) {
    return invalid(name + " must be " + to_string(p.dtype) + (compute_type(p.dtype) == p.dtype ? "" : " or f32") +
                   " where x is " + to_string(p.dtype) + ", got " + to_string(dtype));
  }
  if (dtype != expected) {
    return invalid(name + " must have base_weight's dtype " + to_string(expected) + ", got " + to_string(dtype));
  }
  return {};
}

Status check_parameters(const Problem& p, const Parameters& parameters, Views& inputs) {
  return for_each_parameter(
      p, parameters, [&](Name name, const ConstTensorView& v, std::initializer_list<std::int64_t> expected) -> Status {
        if (!v) return &v == &parameters.base_bias ? Status{} : invalid(name + " has no data");
        if (Status s = check_shape(name, v, expected); !s.ok()) return s;
        if (!is_dense(v)) return invalid(name + " must be dense (row-major), got " + to_string(v));
        inputs.push_back({name, v});
        return check_parameter_dtype(name, v.dtype, p, parameters.base_weight.dtype);
      });
}

Status check_outputs(const Views& inputs, const Views& outputs, const Workspace& workspace) {
  // In elements of two bytes, rounded up, and no larger than what check_strides allows.
  const std::size_t elements = std::min((workspace.bytes - workspace.bytes / 2), std::size_t{1} << 57);
  const ConstTensorView scratch{.data = workspace.data,
                                .dtype = DType::f16,
                                .rank = 1,
                                .extents = {static_cast<std::int64_t>(elements)},
                                .strides = {1}};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& out = outputs[i];
    if (self_overlaps(out.view)) {
      return invalid(out.name + " is written but its elements overlap each other: " + to_string(out.view));
    }
    if (may_overlap(out.view, scratch)) return invalid(out.name + " overlaps the workspace");
    for (const auto& in : inputs) {
      if (may_overlap(out.view, in.view)) return invalid(out.name + " overlaps the input " + in.name);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (may_overlap(out.view, outputs[j].view)) return invalid(out.name + " overlaps the output " + outputs[j].name);
    }
  }
  for (const auto& in : inputs) {
    if (may_overlap(in.view, scratch)) return invalid("the workspace overlaps the input " + in.name);
  }
  return {};
}

}  // namespace

Status validate_options(const Options& options) {
  // OpenMP ends the process when it cannot start as many threads as asked.
  if (options.threads < 0 || options.threads > 1024) {
    return invalid("threads must be in 0..1024, got " + std::to_string(options.threads));
  }
  if (options.device != Device::host && options.device != Device::cuda) {
    return invalid("device must be host or cuda, got " + std::to_string(static_cast<int>(options.device)));
  }
  return {};
}

Status validate_forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                        const Workspace& workspace) {
  if (Status s = check_image({"x"}, x, p, p.height, p.width); !s.ok()) return s;
  if (Status s = check_image({"y"}, y, p, p.out_height(), p.out_width()); !s.ok()) return s;
  Views inputs;
  inputs.push_back({{"x"}, x});
  if (Status s = check_parameters(p, parameters, inputs); !s.ok()) return s;
  Views outputs;
  outputs.push_back({{"y"}, y});
  return check_outputs(inputs, outputs, workspace);
}

Status validate_backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters,
                         const ConstTensorView& dy, const Gradients& gradients, const Workspace& workspace) {
  if (Status s = check_image({"x"}, x, p, p.height, p.width); !s.ok()) return s;
  if (Status s = check_image({"dy"}, dy, p, p.out_height(), p.out_width()); !s.ok()) return s;
  Views inputs;
  inputs.push_back({{"x"}, x});
  inputs.push_back({{"dy"}, dy});
  if (Status s = check_parameters(p, parameters, inputs); !s.ok()) return s;
  Views outputs;
  if (gradients.x) {
    if (Status s = check_image({"x", -1, true}, gradients.x, p, p.height, p.width); !s.ok()) return s;
    outputs.push_back({{"x", -1, true}, gradients.x});
  }
  if (gradients.parameters.base_bias && !parameters.base_bias) {
    return invalid("gradient of base_bias is asked for, but the problem has no base_bias");
  }
  const Status s =
      for_each_parameter(p, gradients.parameters,
                         [&](Name name, const TensorView& v, std::initializer_list<std::int64_t> expected) -> Status {
                           if (!v) return {};
                           name.gradient = true;
                           if (Status s = check_shape(name, v, expected); !s.ok()) return s;
                           if (!is_dense(v)) return invalid(name + " must be dense (row-major), got " + to_string(v));
                           outputs.push_back({name, v});
                           return check_parameter_dtype(name, v.dtype, p, parameters.base_weight.dtype);
                         });
  if (!s.ok()) return s;
  return check_outputs(inputs, outputs, workspace);
}

}  // namespace wtconv
