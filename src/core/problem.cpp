#include "wtconv/problem.hpp"

namespace wtconv {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::workspace_too_small:
      return "workspace too small";
    case StatusCode::unavailable:
      return "unavailable";
    case StatusCode::out_of_memory:
      return "out of memory";
    case StatusCode::device_error:
      return "device error";
  }
  return "unknown status";
}

Status validate(const Problem& p) {
  const auto require = [](bool ok, const char* what, const char* range, std::int64_t got) {
    return ok ? Status{}
              : Status{StatusCode::invalid_argument,
                       std::string(what) + " must be " + range + ", got " + std::to_string(got)};
  };
  for (const Status& s : {
           require(p.batch >= 0, "batch", "at least 0", p.batch),
           require(p.channels >= 1, "channels", "at least 1", p.channels),
           require(p.height >= 1, "height", "at least 1", p.height),
           require(p.width >= 1, "width", "at least 1", p.width),
           require(p.kernel >= 1 && p.kernel <= max_kernel, "kernel", "in 1..15", p.kernel),
           require(p.levels >= 0 && p.levels <= max_levels, "levels", "in 0..8", p.levels),
           require(p.stride >= 1, "stride", "at least 1", p.stride),
           require(p.dtype <= DType::bf16, "dtype", "f32, f64, f16 or bf16", static_cast<int>(p.dtype)),
       }) {
    if (!s.ok()) return s;
  }
  // Beyond any memory, and small enough that no count that is made from it (parameters, bytes, workspace) overflows.
  constexpr std::int64_t limit = std::int64_t{1} << 48;
  std::int64_t count = p.channels;
  for (std::int64_t extent : {p.height, p.width, p.batch ? p.batch : 1}) {
    if (count > limit / extent) {
      return {StatusCode::invalid_argument, "batch * channels * height * width must be at most 2^48 elements, got " +
                                                std::to_string(p.batch) + " * " + std::to_string(p.channels) + " * " +
                                                std::to_string(p.height) + " * " + std::to_string(p.width)};
    }
    count *= extent;
  }
  return {};
}

std::string to_string(const Problem& p) {
  const auto n = [](std::int64_t v) { return std::to_string(v); };
  std::string s = "n" + n(p.batch) + "c" + n(p.channels) + "h" + n(p.height) + "w" + n(p.width) + "k" + n(p.kernel) +
                  "l" + n(p.levels) + "_" + to_string(p.dtype);
  if (p.stride != 1) s += "_s" + n(p.stride);
  return s;
}

GradientMask mask_of(const Gradients& g) {
  GradientMask mask{.x = bool(g.x),
                    .base = g.parameters.base_weight || g.parameters.base_bias || g.parameters.base_scale,
                    .wavelet = false};
  for (int l = 0; l < max_levels; ++l) {
    mask.wavelet = mask.wavelet || g.parameters.wavelet_weight[l] || g.parameters.wavelet_scale[l];
  }
  return mask;
}

}  // namespace wtconv
