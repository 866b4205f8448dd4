#include "layer_call.hpp"

#include <algorithm>
#include <cstring>

#include "command.hpp"
#include "core/parallel.hpp"
#include "timing.hpp"

namespace wtconv::tool {
namespace {

// The first touch happens here, not in the first timed call; the content is not zeros.
Memory allocate(std::size_t bytes) {
  Memory memory(bytes / sizeof(Block) + 1);
  std::memset(memory.data(), 0x3f, memory.size() * sizeof(Block));
  return memory;
}

}  // namespace

LayerCall::LayerCall(harness::Tensors& tensors, const std::string& backend, int threads, Reformulations reformulations)
    : tensors_(tensors), backend_(backend), threads_(threads), reformulations_(reformulations) {
  const Choice choice = choose_backend(tensors.problem, options());
  require(choice.status);
  backend_ = std::string(choice.backend->name());
  const WorkspaceSize forward = wtconv::forward_workspace(tensors.problem, options());
  require(forward.status);
  const WorkspaceSize backward = wtconv::backward_workspace(tensors.problem, {}, options());
  require(backward.status);
  forward_bytes_ = forward.bytes;
  backward_bytes_ = backward.bytes;
  workspace_ = allocate(std::max(forward_bytes_, backward_bytes_));
  parameters_ = harness::views(tensors.parameters);
  gradients_.x = tensors.dx.view();
  harness::for_each_parameter(
      tensors.problem, [](const std::string&, harness::Tensor& t, TensorView& view) { view = t.view(); },
      tensors.gradients, gradients_.parameters);
}

Options LayerCall::options() const {
  return {.backend = backend_, .threads = threads_, .reformulations = reformulations_};
}

Plan LayerCall::plan(Pass pass) const { return find_backend(backend_)->plan(tensors_.problem, pass, {}, options()); }

Status LayerCall::forward() {
  return wtconv::forward(tensors_.problem, tensors_.x.view(), parameters_, tensors_.y.view(),
                         {workspace_.data(), forward_bytes_}, options());
}

Status LayerCall::backward() {
  return wtconv::backward(tensors_.problem, tensors_.x.view(), parameters_, tensors_.dy.view(), gradients_,
                          {workspace_.data(), backward_bytes_}, options());
}

std::int64_t judged_channels(const Problem& p) {
  const double plane = double(std::max<std::int64_t>(p.batch, 1)) * double(p.height) * double(p.width);
  return std::clamp<std::int64_t>(std::int64_t(1.6e6 / plane), 1, p.channels);
}

CopyCall::CopyCall(std::size_t bytes, int threads)
    : bytes_(bytes), threads_(thread_count(threads)), from_(allocate(bytes)), to_(allocate(bytes)) {
  CopyMethod fastest = method_;
  double least = 0;
  for (const CopyMethod method : {CopyMethod::memcpy, CopyMethod::vector, CopyMethod::stream}) {
    method_ = method;
    Timed timed{[this] { return run(); }};
    time_in_rounds({&timed}, {.most = 5, .least = 3, .seconds = 0.1}, [](double) {});
    const double median = summarise(timed.seconds).median;
    if (least == 0 || median < least) {
      least = median;
      fastest = method;
    }
  }
  method_ = fastest;
}

Status CopyCall::run() {
  parallel_copy(method_, to_.data(), from_.data(), bytes_, threads_);
  return {};
}

const char* CopyCall::method() const { return to_string(method_); }

}  // namespace wtconv::tool
