// The PyTorch operators wtconv::forward and wtconv::backward, on LibTorch's stable ABI: the only C++ that includes
// torch. What happens around them (fake kernels, autograd, autocast) is in python/wtconv/_ops.py.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "wtconv/threads.hpp"
#include "wtconv/wtconv.hpp"

// In libtorch_cuda, so absent from a CPU-only torch.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                                   void** ret_stream);

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using wtconv::ConstTensorView;
using wtconv::DType;
using wtconv::Parameters;
using wtconv::Problem;
using wtconv::Status;
using wtconv::StatusCode;
using wtconv::TensorView;

// PyTorch shows std::invalid_argument as ValueError and other exceptions as RuntimeError.
[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument("wtconv: " + message); }

void check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::invalid_argument) refuse(status.message());
  throw std::runtime_error("wtconv: " + status.message());
}

std::string shape_of(const Tensor& t) {
  std::string s = "(";
  for (std::int64_t n : t.sizes()) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
  return s + ")";
}

std::string device_of(const Tensor& t) {
  return t.is_cpu() ? "cpu" : (t.is_cuda() ? "cuda:" : "device ") + std::to_string(t.get_device_index());
}

DType dtype_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::BFloat16:
      return DType::bf16;
    default:
      refuse(std::string(name) + " must be float32, float64, float16 or bfloat16, got " +
             torch::headeronly::toString(t.scalar_type()));
  }
}

// The view of a tensor of rank 4 at most. `data` may be null only where there are no elements.
template <class View = ConstTensorView>
View view(const Tensor& t, const char* name) {
  View v{.dtype = dtype_of(t, name), .rank = static_cast<int>(t.dim())};
  if (v.rank > wtconv::max_rank) refuse(std::string(name) + " has too many dimensions: " + shape_of(t));
  if constexpr (std::is_same_v<View, TensorView>) {
    v.data = t.mutable_data_ptr();
  } else {
    v.data = t.const_data_ptr();
  }
  const auto sizes = t.sizes(), strides = t.strides();
  for (int d = 0; d < v.rank; ++d) v.extents[d] = sizes[d], v.strides[d] = strides[d];
  return v;
}

// A scale is stored as (1, C, 1, 1) and used as (C): drops extents of 1.
template <class View>
View flat(View v) {
  View out{.data = v.data, .dtype = v.dtype, .rank = 0};
  for (int d = 0; d < v.rank; ++d) {
    if (v.extents[d] == 1) continue;
    out.extents[out.rank] = v.extents[d];
    out.strides[out.rank++] = v.strides[d];
  }
  if (out.rank == 0) out.extents[0] = out.strides[0] = out.rank = 1;
  return out;
}

// PyTorch's Tensor::suggest_memory_format, written out because the stable ABI has no access to it. The fake kernels in
// _ops.py decide with the same rule.
bool is_channels_last(const Tensor& t) {
  const auto sizes = t.sizes(), strides = t.strides();
  std::int64_t least = 0;
  for (int d : {1, 3, 2, 0}) {
    if (sizes[d] == 0 || strides[d] < least) return false;
    if (d == 0 && least == strides[1]) return false;  // (N, 1, 1, 1) is both: take contiguous
    least = strides[d] * (sizes[d] > 1 ? sizes[d] : 1);
  }
  return true;
}

using Extents = std::array<std::int64_t, wtconv::max_rank>;

Tensor empty_strided(const Tensor& like, ScalarType dtype, int rank, const std::int64_t* sizes,
                     const std::int64_t* strides) {
  const torch::stable::Device device = like.device();
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      rank, sizes, strides, torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(dtype)),
      torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(device.type())), device.index(), &handle));
  return Tensor(handle);
}

// A dense image in the memory format of `like`.
Tensor empty_image(const Tensor& like, std::int64_t height, std::int64_t width) {
  const std::int64_t b = like.size(0), c = like.size(1);
  const auto one = [](std::int64_t n) { return n > 1 ? n : 1; };  // as PyTorch computes strides of empty tensors
  const Extents sizes{b, c, height, width};
  Extents strides;
  if (is_channels_last(like)) {
    strides = {one(height) * one(width) * one(c), 1, one(width) * one(c), one(c)};
  } else {
    strides = {one(c) * one(height) * one(width), one(height) * one(width), one(width), 1};
  }
  return empty_strided(like, like.scalar_type(), 4, sizes.data(), strides.data());
}

// The gradient of a parameter: its dtype, and its own strides where it is dense.
Tensor empty_gradient(const Tensor& parameter, const char* name) {
  const ConstTensorView v = view(parameter, name);
  Extents strides{};
  for (std::int64_t d = v.rank, stride = 1; d-- > 0; stride *= v.extents[d]) strides[d] = stride;
  if (wtconv::is_dense(v)) strides = v.strides;
  return empty_strided(parameter, parameter.scalar_type(), v.rank, v.extents.data(), strides.data());
}

// One call: problem, views and options read from tensors, which it keeps alive.
struct Call {
  Call(Tensor x_, Tensor base_weight, std::optional<Tensor> base_bias, Tensor base_scale,
       std::vector<Tensor> wavelet_weight, std::vector<Tensor> wavelet_scale, std::int64_t stride, StringHandle name)
      : x(std::move(x_)) {
    read_name(name);
    if (x.dim() != 4) refuse("x must have shape (batch, channels, height, width), got " + shape_of(x));
    if (base_weight.dim() != 4 || base_weight.size(1) != 1 || base_weight.size(2) != base_weight.size(3)) {
      refuse("base_weight must have shape (channels, 1, k, k), got " + shape_of(base_weight));
    }
    if (x.size(1) != base_weight.size(0)) {
      refuse("x must have " + std::to_string(base_weight.size(0)) + " channels, as the weights have, got " +
             std::to_string(x.size(1)) + ": shape " + shape_of(x));
    }
    if (wavelet_weight.size() != wavelet_scale.size() || wavelet_weight.size() > wtconv::max_levels) {
      refuse("wavelet_weight and wavelet_scale must have one entry a level, at most " +
             std::to_string(wtconv::max_levels) + ", got " + std::to_string(wavelet_weight.size()) + " and " +
             std::to_string(wavelet_scale.size()));
    }
    if (stride < 1 || stride > INT32_MAX) refuse("stride must be at least 1, got " + std::to_string(stride));
    if (base_weight.size(2) > wtconv::max_kernel) {
      refuse("the kernel must be at most " + std::to_string(wtconv::max_kernel) + ", got " +
             std::to_string(base_weight.size(2)));
    }
    x_view = view(x, "x");
    problem = {.batch = x.size(0),
               .channels = x.size(1),
               .height = x.size(2),
               .width = x.size(3),
               .kernel = static_cast<int>(base_weight.size(2)),
               .levels = static_cast<int>(wavelet_weight.size()),
               .stride = static_cast<int>(stride),
               .dtype = x_view.dtype};
    parameters.base_weight = add(std::move(base_weight), "base_weight");
    has_bias = base_bias.has_value();
    tensors.reserve(3 + 2 * wavelet_weight.size());
    if (has_bias) parameters.base_bias = add(std::move(*base_bias), "base_bias");
    parameters.base_scale = flat(add(std::move(base_scale), "base_scale"));
    for (int l = 0; l < problem.levels; ++l) {
      parameters.wavelet_weight[l] = add(std::move(wavelet_weight[l]), "wavelet_weight");
      parameters.wavelet_scale[l] = flat(add(std::move(wavelet_scale[l]), "wavelet_scale"));
    }
    options = {.device = x.is_cuda() ? wtconv::Device::cuda : wtconv::Device::host,
               .backend = backend,
               .threads = static_cast<int>(torch::stable::get_num_threads()),
               .reformulations = reformulations};
    if (x.is_cuda()) {
      guard.emplace(x.get_device_index());
      if (!aoti_torch_get_current_cuda_stream) throw std::runtime_error("wtconv: this PyTorch has no CUDA");
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &options.stream));
    }
  }
  Call(const Call&) = delete;

  // Workspace of the asked size; the tensor owns it.
  wtconv::Workspace allocate(const wtconv::WorkspaceSize& needed) {
    check(needed.status);
    if (needed.bytes == 0) return {};
    constexpr std::int64_t alignment = wtconv::workspace_alignment;
    const std::int64_t bytes = static_cast<std::int64_t>(needed.bytes) + alignment, one = 1;
    workspace = empty_strided(x, ScalarType::Byte, 1, &bytes, &one);
    const auto address = reinterpret_cast<std::uintptr_t>(workspace->mutable_data_ptr());
    return {reinterpret_cast<void*>((address + alignment - 1) / alignment * alignment), needed.bytes};
  }

  void check_device(const Tensor& t, const char* name) const {
    if (t.is_cpu() == x.is_cpu() && t.get_device_index() == x.get_device_index()) return;
    refuse(std::string(name) + " must be on x's device " + device_of(x) + ", got " + device_of(t));
  }

  Tensor x;
  std::vector<Tensor> tensors;  // the parameters, dense
  bool has_bias = false;
  ConstTensorView x_view;
  Problem problem;
  Parameters parameters;
  std::string backend;
  wtconv::Reformulations reformulations;
  wtconv::Options options;
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  std::optional<Tensor> workspace;

 private:
  // The string conversion of the stable headers leaks, so the handle is read here.
  void read_name(StringHandle handle) {
    std::size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    backend.assign(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    read_switches();
  }

  // "NAME+SWITCH+SWITCH": the switches of Reformulations, for backends that have them.
  void read_switches() {
    const std::string given = backend;
    for (auto plus = backend.rfind('+'); plus != std::string::npos; plus = backend.rfind('+')) {
      const std::string name = backend.substr(plus + 1);
      bool* const on = name == "recompute_analysis"   ? &reformulations.recompute_analysis
                       : name == "collapse_synthesis" ? &reformulations.collapse_synthesis
                       : name == "fold_scales"        ? &reformulations.fold_scales
                                                      : nullptr;
      if (!on || plus == 0) {
        const std::string switches = "+recompute_analysis, +collapse_synthesis, +fold_scales";
        refuse("backend must be a name, which may be followed by " + switches + ", got '" + given + "'");
      }
      *on = true;
      backend.resize(plus);
    }
  }

  ConstTensorView add(Tensor t, const char* name) {
    check_device(t, name);
    ConstTensorView v = view(t, name);
    if (!wtconv::is_dense(v)) {
      t = torch::stable::contiguous(t);
      v = view(t, name);
    }
    tensors.push_back(std::move(t));
    return v;
  }
};

Tensor forward(Tensor x, Tensor base_weight, std::optional<Tensor> base_bias, Tensor base_scale,
               std::vector<Tensor> wavelet_weight, std::vector<Tensor> wavelet_scale, std::int64_t stride,
               StringHandle backend) {
  Call call(std::move(x), std::move(base_weight), std::move(base_bias), std::move(base_scale),
            std::move(wavelet_weight), std::move(wavelet_scale), stride, backend);
  const wtconv::Workspace workspace = call.allocate(wtconv::forward_workspace(call.problem, call.options));
  const Tensor y = empty_image(call.x, call.problem.out_height(), call.problem.out_width());
  check(wtconv::forward(call.problem, call.x_view, call.parameters, view<TensorView>(y, "y"), workspace, call.options));
  return y;
}

// Bits of `mask`, in the order of the returned gradients: x, base_weight, base_bias, base_scale, then each level's
// weight and, after all weights, each level's scale.
std::vector<Tensor> backward(Tensor dy, Tensor x, Tensor base_weight, std::optional<Tensor> base_bias,
                             Tensor base_scale, std::vector<Tensor> wavelet_weight, std::vector<Tensor> wavelet_scale,
                             std::int64_t stride, std::int64_t mask, StringHandle backend) {
  // Gradients have the strides of the parameters as given, so these are kept beside the dense ones.
  const Tensor weight = base_weight, scale = base_scale;
  const std::optional<Tensor> bias = base_bias;
  const std::vector<Tensor> weights = wavelet_weight, scales = wavelet_scale;
  Call call(std::move(x), std::move(base_weight), std::move(base_bias), std::move(base_scale),
            std::move(wavelet_weight), std::move(wavelet_scale), stride, backend);
  call.check_device(dy, "dy");
  const int levels = call.problem.levels;
  if (mask < 0 || mask >= std::int64_t{1} << (4 + 2 * levels)) refuse("mask is out of range: " + std::to_string(mask));
  std::vector<Tensor> results;
  results.reserve(4 + 2 * levels);
  int bit = 0;
  const auto asked = [&] { return (mask >> bit++) & 1; };
  const auto output = [&](const Tensor& parameter, const char* name) {
    if (!asked()) return TensorView{};
    results.push_back(empty_gradient(parameter, name));
    return view<TensorView>(results.back(), name);
  };
  wtconv::Gradients gradients;
  if (asked()) {
    results.push_back(empty_image(call.x, call.problem.height, call.problem.width));
    gradients.x = view<TensorView>(results.back(), "dx");
  }
  const auto flat_output = [&](const Tensor& parameter, const char* name) {
    const TensorView v = output(parameter, name);
    return v ? flat(v) : v;
  };
  gradients.parameters.base_weight = output(weight, "base_weight");
  if (bias) {
    gradients.parameters.base_bias = output(*bias, "base_bias");
  } else if (asked()) {
    refuse("the gradient of base_bias is asked for, but there is no base_bias");
  }
  gradients.parameters.base_scale = flat_output(scale, "base_scale");
  for (int l = 0; l < levels; ++l) gradients.parameters.wavelet_weight[l] = output(weights[l], "wavelet_weight");
  for (int l = 0; l < levels; ++l) gradients.parameters.wavelet_scale[l] = flat_output(scales[l], "wavelet_scale");
  const wtconv::Workspace workspace =
      call.allocate(wtconv::backward_workspace(call.problem, wtconv::mask_of(gradients), call.options));
  check(
      wtconv::backward(call.problem, call.x_view, call.parameters, view(dy, "dy"), gradients, workspace, call.options));
  return results;
}

// One line a backend: name, device, what it is, and why it cannot run here (empty if it can); fields end in tabs.
std::string describe_backends() {
  std::string s;
  for (const wtconv::Backend* b : wtconv::backends()) {
    s += std::string(b->name()) + "\t" + (b->device() == wtconv::Device::cuda ? "cuda" : "cpu") + "\t" +
         std::string(b->description()) + "\t" + b->available().message() + "\n";
  }
  return s;
}

std::string version() { return WTCONV_VERSION; }

// PyTorch's own threads, so that there is one pool in the process, torch.set_num_threads holds, and a forked worker
// behaves as it does with PyTorch's operators.
void run_workers(int workers, void (*task)(void*, int), void* context) {
  torch::stable::parallel_for(0, workers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t worker = begin; worker < end; ++worker) task(context, static_cast<int>(worker));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY(wtconv, m) {
  wtconv::set_worker_pool(run_workers);
  m.def(
      "forward(Tensor x, Tensor base_weight, Tensor? base_bias, Tensor base_scale, Tensor[] wavelet_weight, "
      "Tensor[] wavelet_scale, int stride, str backend) -> Tensor");
  m.def(
      "backward(Tensor dy, Tensor x, Tensor base_weight, Tensor? base_bias, Tensor base_scale, "
      "Tensor[] wavelet_weight, Tensor[] wavelet_scale, int stride, int mask, str backend) -> Tensor[]");
  m.def("describe_backends() -> str");
  m.def("version() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(wtconv, CPU, m) {
  m.impl("forward", TORCH_BOX(&forward));
  m.impl("backward", TORCH_BOX(&backward));
}

STABLE_TORCH_LIBRARY_IMPL(wtconv, CUDA, m) {
  m.impl("forward", TORCH_BOX(&forward));
  m.impl("backward", TORCH_BOX(&backward));
}

STABLE_TORCH_LIBRARY_IMPL(wtconv, CompositeExplicitAutograd, m) {
  m.impl("describe_backends", TORCH_BOX(&describe_backends));
  m.impl("version", TORCH_BOX(&version));
}
