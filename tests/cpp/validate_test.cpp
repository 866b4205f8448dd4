// Every input that breaks the contract is refused with a message that holds the offending value, before any output is
// written, whatever the backend.
#include <gtest/gtest.h>

#include <functional>

#include "backends.hpp"

namespace wtconv::tests {
namespace {

using harness::Case;
using harness::Tensor;
using harness::Tensors;

// The arguments of one forward and one backward call, to be spoiled one at a time.
struct Call {
  explicit Call(const std::string& text) : tensors(tensors_of(parsed(text))), problem(tensors.problem) {
    x = tensors.x.view();
    y = tensors.y.view();
    dy = tensors.dy.view();
    parameters = harness::views(tensors.parameters);
    gradients.x = tensors.dx.view();
    harness::for_each_parameter(
        problem, [](const std::string&, Tensor& from, TensorView& to) { to = from.view(); }, tensors.gradients,
        gradients.parameters);
    const std::size_t bytes = std::max(forward_workspace(problem).bytes, backward_workspace(problem).bytes);
    memory = Tensor(DType::f64, {static_cast<std::int64_t>(bytes / 8 + 1)});
    workspace = {memory.view().data, bytes};
  }
  Status forward(const Options& options = {}) const {
    return wtconv::forward(problem, x, parameters, y, workspace, options);
  }
  Status backward(const Options& options = {}) const {
    return wtconv::backward(problem, x, parameters, dy, gradients, workspace, options);
  }

  Tensors tensors;
  Tensor memory;
  Problem problem;
  ConstTensorView x, dy;
  TensorView y;
  Parameters parameters;
  Gradients gradients;
  Workspace workspace;
};

enum In { both, only_forward, only_backward };

struct Rejected {
  const char* what;
  In in;
  std::function<void(Call&)> spoil;
  std::vector<const char*> message;
  StatusCode code = StatusCode::invalid_argument;
};

void expect_rejected(const std::string& text, const std::vector<Rejected>& list) {
  {
    Call call(text);
    ASSERT_EQ(call.forward(), Status{});
    ASSERT_EQ(call.backward(), Status{});
  }
  for (const Rejected& r : list) {
    Call call(text);
    std::vector<std::size_t> before;
    call.tensors.for_each_output([&](const std::string&, Tensor& t) { before.push_back(t.hash()); });
    r.spoil(call);
    for (bool forward : {true, false}) {
      if (r.in == (forward ? only_backward : only_forward)) continue;
      const Status s = forward ? call.forward() : call.backward();
      EXPECT_EQ(to_string(s.code()), std::string(to_string(r.code))) << r.what << ": " << s.message();
      for (const char* part : r.message) {
        EXPECT_NE(s.message().find(part), std::string::npos)
            << r.what << ": '" << part << "' is not in '" << s.message() << "'";
      }
      EXPECT_EQ(s.message().find('\n'), std::string::npos) << r.what << ": " << s.message();
    }
    std::size_t next = 0;
    call.tensors.for_each_output([&](const std::string& name, Tensor& t) {
      EXPECT_EQ(t.hash(), before[next++]) << r.what << ": " << name << " was written";
    });
  }
}

void* advanced(const void* data, std::int64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(data)) + bytes;
}

TEST(Rejects, ViewsThatDoNotFitTheProblem) {
  expect_rejected(
      "n2c3h7w5k3l2_f32_s2",
      {
          {"no x", both, [](Call& c) { c.x.data = nullptr; }, {"x has no data"}},
          {"no y", only_forward, [](Call& c) { c.y.data = nullptr; }, {"y has no data"}},
          {"no dy", only_backward, [](Call& c) { c.dy.data = nullptr; }, {"dy has no data"}},
          {"rank", both, [](Call& c) { c.x.rank = 3; }, {"x must have shape (2, 3, 7, 5)", "(2, 3, 7)"}},
          {"rank 0", both, [](Call& c) { c.x.rank = 0; }, {"x must have shape (2, 3, 7, 5)"}},
          {"rank 5", both, [](Call& c) { c.x.rank = 5; }, {"x must have rank 4, got rank 5"}},
          {"rank -1", both, [](Call& c) { c.x.rank = -1; }, {"x must have rank 4, got rank -1"}},
          {"batch", both, [](Call& c) { c.x.extents[0] = 4; }, {"x must have shape (2, 3, 7, 5)", "(4, 3, 7, 5)"}},
          {"negative", both, [](Call& c) { c.x.extents[3] = -5; }, {"(2, 3, 7, -5)"}},
          {"channels", both, [](Call& c) { c.problem.channels = 4; }, {"(2, 4, 7, 5)", "(2, 3, 7, 5)"}},
          {"y of x's size",
           only_forward,
           [](Call& c) {
             c.y.extents = {2, 3, 7, 5};
           },
           {"y must have shape (2, 3, 4, 3)", "(2, 3, 7, 5)"}},
          {"dy",
           only_backward,
           [](Call& c) { c.dy.extents[2] = 3; },
           {"dy must have shape (2, 3, 4, 3)", "(2, 3, 3, 3)"}},
          {"dx",
           only_backward,
           [](Call& c) { c.gradients.x.extents[2] = 4; },
           {"gradient of x must have shape (2, 3, 7, 5)", "(2, 3, 4, 5)"}},
          {"x dtype", both, [](Call& c) { c.x.dtype = DType::f16; }, {"x must have", "f32", "got f16"}},
          {"y dtype", only_forward, [](Call& c) { c.y.dtype = DType::f64; }, {"y must have", "f32", "got f64"}},
          {"dy dtype", only_backward, [](Call& c) { c.dy.dtype = DType::bf16; }, {"dy must have", "got bf16"}},
          {"dx dtype",
           only_backward,
           [](Call& c) { c.gradients.x.dtype = DType::f64; },
           {"gradient of x must have", "got f64"}},
          {"no dtype at all", both, [](Call& c) { c.x.dtype = static_cast<DType>(77); }, {"x must have", "unknown"}},
          {"stride",
           both,
           [](Call& c) { c.x.strides[1] = INT64_MAX; },
           {"x has a stride out of range", "9223372036854775807"}},
          {"stride",
           both,
           [](Call& c) { c.x.strides[1] = INT64_MIN; },
           {"x has a stride out of range", "-9223372036854775808"}},
          {"stride",
           only_backward,
           [](Call& c) { c.gradients.x.strides[0] = std::int64_t{1} << 60; },
           {"gradient of x has a stride out of range", "1152921504606846976"}},
      });
}

TEST(Rejects, ParametersThatDoNotFitTheProblem) {
  expect_rejected(
      "n1c3h7w5k3l2_f32",
      {
          {"no weight", both, [](Call& c) { c.parameters.base_weight.data = nullptr; }, {"base_weight has no data"}},
          {"no scale", both, [](Call& c) { c.parameters.base_scale.data = nullptr; }, {"base_scale has no data"}},
          {"no level", both, [](Call& c) { c.parameters.wavelet_weight[1] = {}; }, {"wavelet_weight[1] has no data"}},
          {"no level's scale",
           both,
           [](Call& c) { c.parameters.wavelet_scale[0] = {}; },
           {"wavelet_scale[0] has no data"}},
          {"kernel",
           both,
           [](Call& c) { c.problem.kernel = 5; },
           {"base_weight must have shape (3, 1, 5, 5)", "(3, 1, 3, 3)"}},
          {"levels", both, [](Call& c) { c.problem.levels = 3; }, {"wavelet_weight[2] has no data"}},
          {"too many levels",
           both,
           [](Call& c) { c.problem.levels = 1; },
           {"wavelet_weight[1] is given", "only 1 levels"}},
          {"too many scales",
           both,
           [](Call& c) { c.parameters.wavelet_scale[7] = c.parameters.wavelet_scale[0]; },
           {"wavelet_scale[7] is given", "only 2 levels"}},
          {"bias",
           both,
           [](Call& c) { c.parameters.base_bias.extents[0] = 4; },
           {"base_bias must have shape (3)", "(4)"}},
          {"scale rank", both, [](Call& c) { c.parameters.base_scale.rank = 4; }, {"base_scale must have shape (3)"}},
          {"rows",
           both,
           [](Call& c) { c.parameters.wavelet_weight[0].extents[0] = 3; },
           {"wavelet_weight[0] must have shape (12, 1, 3, 3)", "(3, 1, 3, 3)"}},
          {"scale rows",
           both,
           [](Call& c) { c.parameters.wavelet_scale[1].extents[0] = 3; },
           {"wavelet_scale[1] must have shape (12)", "(3)"}},
          {"not dense",
           both,
           [](Call& c) { std::swap(c.parameters.base_weight.strides[2], c.parameters.base_weight.strides[3]); },
           {"base_weight must be dense", "(9, 9, 1, 3)"}},
          {"every second",
           both,
           [](Call& c) { c.parameters.wavelet_scale[0].strides[0] = 2; },
           {"wavelet_scale[0] must be dense", "strides (2)"}},
          {"dtype",
           both,
           [](Call& c) { c.parameters.base_weight.dtype = DType::f64; },
           {"base_weight must be f32", "got f64"}},
          {"half weights",
           both,
           [](Call& c) { c.parameters.base_weight.dtype = DType::f16; },
           {"base_weight must be f32", "got f16"}},
          {"mixed",
           both,
           [](Call& c) { c.parameters.base_scale.dtype = DType::f64; },
           {"base_scale must be f32", "got f64"}},
          {"gradient without bias",
           only_backward,
           [](Call& c) { c.parameters.base_bias = {}; },
           {"gradient of base_bias is asked for, but the problem has no base_bias"}},
          {"gradient's shape",
           only_backward,
           [](Call& c) { c.gradients.parameters.base_scale.extents[0] = 2; },
           {"gradient of base_scale must have shape (3)", "(2)"}},
          {"gradient's strides",
           only_backward,
           [](Call& c) { c.gradients.parameters.wavelet_weight[1].strides[3] = 2; },
           {"gradient of wavelet_weight[1] must be dense"}},
          {"gradient's dtype",
           only_backward,
           [](Call& c) { c.gradients.parameters.wavelet_weight[0].dtype = DType::f64; },
           {"gradient of wavelet_weight[0] must be f32", "got f64"}},
          {"gradient of a level too many",
           only_backward,
           [](Call& c) { c.gradients.parameters.wavelet_scale[2] = c.gradients.parameters.wavelet_scale[1]; },
           {"wavelet_scale[2] is given", "only 2 levels"}},
      });
  expect_rejected("n1c3h7w5k3l2_bf16_wf32",
                  {
                      {"mixed",
                       both,
                       [](Call& c) { c.parameters.wavelet_scale[1].dtype = DType::bf16; },
                       {"wavelet_scale[1] must have base_weight's dtype f32, got bf16"}},
                      {"wrong half",
                       both,
                       [](Call& c) { c.parameters.base_weight.dtype = DType::f16; },
                       {"base_weight must be bf16 or f32", "got f16"}},
                      {"gradient in x's dtype",
                       only_backward,
                       [](Call& c) { c.gradients.parameters.base_weight.dtype = DType::bf16; },
                       {"gradient of base_weight must have base_weight's dtype f32, got bf16"}},
                  });
}

TEST(Rejects, OutputsThatOverlap) {
  expect_rejected(
      "n2c3h8w6k3l2_f32",
      {
          {"y on x", only_forward, [](Call& c) { c.y = c.tensors.x.view(); }, {"y overlaps the input x"}},
          {"y's end on x",
           only_forward,
           [](Call& c) { c.y.data = advanced(c.x.data, -(2 * 3 * 8 * 6 - 1) * 4); },
           {"y overlaps the input x"}},
          {"y's last byte on x",
           only_forward,
           [](Call& c) { c.y.data = advanced(c.x.data, -2 * 3 * 8 * 6 * 4 + 1); },
           {"y overlaps the input x"}},
          {"y on a weight",
           only_forward,
           [](Call& c) { c.parameters.wavelet_weight[1].data = advanced(c.y.data, 4 * 50); },
           {"y overlaps the input wavelet_weight[1]"}},
          {"y on itself",
           only_forward,
           [](Call& c) { c.y.strides[0] = 0; },
           {"y is written", "overlap each other", "(0, 48, 6, 1)"}},
          {"rows of y on each other",
           only_forward,
           [](Call& c) { c.y.strides[2] = 5; },
           {"y is written", "(144, 48, 5, 1)"}},
          {"y on the workspace",
           only_forward,
           [](Call& c) { c.workspace.data = c.y.data; },
           {"y overlaps the workspace"}},
          {"x in the workspace",
           both,
           [](Call& c) { c.x.data = advanced(c.workspace.data, 64); },
           {"the workspace overlaps the input x"}},
          {"workspace of everything",
           both,
           [](Call& c) {
             c.workspace.data = advanced(c.x.data, 0);
             c.workspace.bytes = SIZE_MAX;
           },
           {"workspace"}},
          {"dx on dy",
           only_backward,
           [](Call& c) { c.gradients.x.data = const_cast<void*>(c.dy.data); },
           {"gradient of x overlaps the input dy"}},
          {"dx on x",
           only_backward,
           [](Call& c) { c.gradients.x.data = const_cast<void*>(c.x.data); },
           {"gradient of x overlaps the input x"}},
          {"dx on itself",
           only_backward,
           [](Call& c) {
             c.gradients.x.strides = {144, 0, 6, 1};
           },
           {"gradient of x is written", "(144, 0, 6, 1)"}},
          {"two gradients",
           only_backward,
           [](Call& c) { c.gradients.parameters.wavelet_scale[1].data = c.gradients.parameters.wavelet_scale[0].data; },
           {"gradient of wavelet_scale[1] overlaps the output gradient of wavelet_scale[0]"}},
          {"gradient on its weight",
           only_backward,
           [](Call& c) { c.gradients.parameters.base_weight.data = const_cast<void*>(c.parameters.base_weight.data); },
           {"gradient of base_weight overlaps the input base_weight"}},
          {"gradient on the workspace",
           only_backward,
           [](Call& c) { c.gradients.parameters.base_scale.data = advanced(c.workspace.data, 4); },
           {"gradient of base_scale overlaps the workspace"}},
      });
}

TEST(Rejects, OptionsOutOfRange) {
  const Call call("n1c2h6w6k3l1_f32");
  for (const bool forward : {true, false}) {
    const auto run = [&](const Options& o) { return forward ? call.forward(o) : call.backward(o); };
    const Status threads = run({.threads = -3});
    EXPECT_EQ(threads.code(), StatusCode::invalid_argument);
    EXPECT_NE(threads.message().find("threads must be in 0..1024, got -3"), std::string::npos) << threads.message();
    const Status device = run({.device = static_cast<Device>(5)});
    EXPECT_EQ(device.code(), StatusCode::invalid_argument);
    EXPECT_NE(device.message().find("got 5"), std::string::npos) << device.message();
  }
}

class Workspaces : public EachBackend {};
WTCONV_EACH_BACKEND(Workspaces);

TEST_P(Workspaces, OffItsAlignmentIsRefusedWithTheAddress) {
  Call call("n2c3h8w6k3l2_f32");
  const Options options = GetParam().options();
  const std::size_t bytes = backward_workspace(call.problem, {}, options).bytes;
  if (bytes == 0) return;
  const Tensor memory(DType::f64, {static_cast<std::int64_t>(bytes / 8 + 1)});
  for (std::size_t offset : {std::size_t{8}, workspace_alignment / 2}) {
    char* const start = static_cast<char*>(memory.view().data) + offset;
    call.workspace = {start, bytes};
    const Status s = call.backward(options);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument);
    const std::string address = "got address " + std::to_string(reinterpret_cast<std::uintptr_t>(start));
    EXPECT_NE(s.message().find(address), std::string::npos) << s.message();
  }
}

TEST_P(Workspaces, TooSmallOrMissingIsRefusedWithBothSizes) {
  Call call("n2c3h8w6k3l2_f32");
  const Options options = GetParam().options();
  const std::size_t needed[] = {backward_workspace(call.problem, {}, options).bytes,
                                forward_workspace(call.problem, options).bytes};
  for (bool forward : {false, true}) {
    const std::size_t bytes = needed[forward];
    if (bytes == 0) continue;
    const Tensor memory(DType::f64, {static_cast<std::int64_t>(bytes / 8 + 1)});
    const auto run = [&] { return forward ? call.forward(options) : call.backward(options); };
    call.workspace = {memory.view().data, bytes - 1};
    const Status small = run();
    EXPECT_EQ(small.code(), StatusCode::workspace_too_small);
    for (const std::string& part : {"'" + GetParam().backend + "'", std::to_string(bytes) + " bytes",
                                    "got " + std::to_string(bytes - 1) + " bytes"}) {
      EXPECT_NE(small.message().find(part), std::string::npos) << part << " is not in: " << small.message();
    }
    call.workspace = {nullptr, bytes};
    const Status missing = run();
    EXPECT_EQ(missing.code(), StatusCode::workspace_too_small);
    EXPECT_NE(missing.message().find("got no memory"), std::string::npos) << missing.message();
    call.workspace = {memory.view().data, bytes};
    EXPECT_EQ(run(), Status{});
  }
}

// Sizes that no machine has are valid problems: planning them must neither overflow nor allocate.
TEST_P(Workspaces, AbsurdSizesArePlannedOrRefused) {
  const std::int64_t most = std::int64_t{1} << 48;
  for (const Problem& shape : {Problem{.batch = most}, Problem{.channels = most}, Problem{.height = most},
                               Problem{.width = most}, Problem{.height = 1 << 24, .width = 1 << 24}}) {
    for (int kernel : {1, 15}) {
      for (int levels : {0, 8}) {
        Problem p = shape;
        p.kernel = kernel;
        p.levels = levels;
        p.dtype = DType::f64;
        ASSERT_EQ(validate(p), Status{});
        if (!can_run(p, GetParam().options()).ok()) continue;
        for (const WorkspaceSize& size :
             {forward_workspace(p, GetParam().options(2)), backward_workspace(p, {}, GetParam().options(2))}) {
          EXPECT_EQ(size.status, Status{});
          EXPECT_LT(size.bytes, std::size_t{1} << 62) << to_string(p);
        }
      }
    }
  }
}

// Inputs may overlap each other, and outputs may lie between the elements of inputs.
TEST(Accepts, WhatIsSafe) {
  Call call("n1c2h6w6k3l1_f32");
  call.dy = call.x;
  call.parameters.wavelet_scale[0].data = call.parameters.wavelet_weight[0].data;
  EXPECT_EQ(call.forward(), Status{});
  EXPECT_EQ(call.backward(), Status{});
  Tensor shared(DType::f32, {1, 2, 6, 12});
  for (std::int64_t i = 0; i < shared.view().size(); ++i) shared.set(i, 1);
  TensorView even = shared.view();
  even.extents[3] = 6;
  even.strides[3] = 2;
  TensorView odd = even;
  odd.data = advanced(even.data, 4);
  call.x = even;
  call.y = odd;
  EXPECT_EQ(call.forward(), Status{});
}

}  // namespace
}  // namespace wtconv::tests
