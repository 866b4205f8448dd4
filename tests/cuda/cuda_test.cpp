// Tests of the CUDA backend on a GPU, over the case files named on the command line: every case by every CUDA backend,
// on random values (per element against the double reference) and on small integers (bit for bit).
// Exit code 77: no GPU here, nothing ran.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "harness/check.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv {
namespace {

using harness::Case;
using harness::CheckOptions;
using harness::Fill;
using harness::Runner;
using harness::Tensors;

constexpr const char* backends[] = {"cuda", "cuda-levels"};

// All settings of cuda-unfused's switches run these: every type, odd sizes, an even kernel, no level, one level,
// strides.
constexpr const char* switched_cases[] = {"n2c3h17w15k5l4_f32",
                                          "n2c3h12w10k4l2_f64",
                                          "n3c5h9w14k3l3_f16",
                                          "n2c3h33w31k7l5_bf16_wf32",
                                          "n2c3h20w36k2l2_f32_nhwc",
                                          "n2c3h23w21k5l3_f32_s2",
                                          "n2c4h16w16k3l1_f32_sliced_offset",
                                          "n2c3h13w7k5l0_f32_nobias"};

Case parsed(const char* text) {
  Case c;
  const Status s = harness::parse_case(text, c);
  EXPECT_TRUE(s.ok()) << s.message();
  return c;
}

class CaseTest : public testing::Test {
 public:
  CaseTest(Case c, std::string backend, Fill fill, Reformulations reformulations = {})
      : case_(c), backend_(std::move(backend)), fill_(fill), reformulations_(reformulations) {}
  void TestBody() override {
    CheckOptions options;
    options.backend = backend_;
    options.fill = fill_;
    options.reformulations = reformulations_;
    const std::int64_t elements =
        case_.problem.batch * case_.problem.channels * case_.problem.height * case_.problem.width;
    if (elements > 1 << 20) options.channels = 2;  // the reference is slow
    const auto result = harness::check(case_, options);
    EXPECT_TRUE(result.ok) << result.message();
  }

 private:
  Case case_;
  std::string backend_;
  Fill fill_;
  Reformulations reformulations_;
};

void register_case(const Case& c, const char* backend, std::string name, Reformulations r = {}) {
  std::replace(name.begin(), name.end(), '-', '_');  // it would begin the exclusions of a --gtest_filter
  for (const Fill fill : {Fill::random, Fill::exact}) {
    const std::string suite = name + (fill == Fill::exact ? "_exact" : "_random");
    testing::RegisterTest(suite.c_str(), harness::to_string(c).c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [=]() -> testing::Test* { return new CaseTest(c, backend, fill, r); });
  }
}

void register_cases(const std::vector<Case>& cases) {
  for (const char* backend : backends) {
    for (const Case& c : cases) register_case(c, backend, backend);
  }
  for (int bits = 0; bits < 8; ++bits) {
    const Reformulations r{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    const std::string name = std::string("cuda-unfused") + (r.recompute_analysis ? "_recompute" : "") +
                             (r.collapse_synthesis ? "_collapse" : "") + (r.fold_scales ? "_fold" : "");
    for (const char* text : switched_cases) register_case(parsed(text), "cuda-unfused", name, r);
  }
}

const void* constant(void* p) { return p; }

Options cuda_options(const char* backend = "cuda") { return {.device = Device::cuda, .backend = backend}; }

// Same inputs, same bits, also when other work runs in between.
TEST(Cuda, RepeatsBitForBit) {
  for (const char* text : {"n33c5h56w56k5l5_f32", "n40c3h14w14k3l3_f16", "n37c6h7w7k5l2_f32", "n3c2h150w150k5l3_f32",
                           "n9c5h128w128k5l3_f32", "n33c17h28w28k5l4_f32_nhwc", "n33c20h56w56k3l5_f16_nhwc",
                           "n33c5h56w56k5l5_bf16", "n40c3h14w14k7l3_f16"}) {
    for (const char* backend : backends) {
      const Case c = parsed(text);
      Tensors first, second;
      ASSERT_TRUE(make_tensors(c, first).ok());
      ASSERT_TRUE(make_tensors(c, second).ok());
      for (Tensors* t : {&first, &second}) {
        fill(*t, Fill::random, 3);
        Runner runner(*t, cuda_options(backend));
        ASSERT_TRUE(runner.forward().ok());
        ASSERT_TRUE(runner.backward().ok());
      }
      std::vector<std::string> names;
      std::vector<harness::Tensor*> of_first, of_second;
      first.for_each_output([&](const std::string& name, harness::Tensor& t) {
        names.push_back(name);
        of_first.push_back(&t);
      });
      second.for_each_output([&](const std::string&, harness::Tensor& t) { of_second.push_back(&t); });
      for (std::size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(difference(*of_first[i], *of_second[i]), "") << text << " " << backend << " " << names[i];
      }
    }
  }
}

// Any subset of the gradients has the bits it has among all.
TEST(Cuda, SubsetsOfGradientsAgree) {
  const Case c = parsed("n5c3h28w28k3l3_f32");
  for (const char* backend : {"cuda", "cuda-levels", "cuda-unfused"}) {
    Tensors all;
    ASSERT_TRUE(make_tensors(c, all).ok());
    fill(all, Fill::random, 4);
    Runner run_all(all, cuda_options(backend));
    ASSERT_TRUE(run_all.backward().ok());
    all.for_each_output([&](const std::string& only, harness::Tensor& expected) {
      if (only == "y") return;
      Tensors one;
      ASSERT_TRUE(make_tensors(c, one).ok());
      fill(one, Fill::random, 4);
      Runner run_one(one, cuda_options(backend));
      const Status s = run_one.backward([&](const std::string& name) { return name == only; });
      ASSERT_TRUE(s.ok()) << s.message();
      one.for_each_output([&](const std::string& name, harness::Tensor& got) {
        if (name != only) return;
        EXPECT_EQ(difference(expected, got), "") << backend << " " << name;
      });
    });
  }
}

// x and dx in one layout, y and dy in the other: the bits are those of tensors that agree.
TEST(Cuda, LayoutsMayDiffer) {
  for (const char* text : {"n3c10h28w28k5l4_f32", "n2c9h56w56k3l5_f16", "n3c12h17w15k7l3_bf16", "n9c6h7w7k5l2_f32"}) {
    const Case planes = parsed(text), pixels = parsed((std::string(text) + "_nhwc").c_str());
    Tensors expected, a, b;
    ASSERT_TRUE(make_tensors(planes, expected).ok());
    ASSERT_TRUE(make_tensors(planes, a).ok());
    ASSERT_TRUE(make_tensors(pixels, b).ok());
    std::swap(a.y, b.y);
    std::swap(a.dy, b.dy);
    for (Tensors* t : {&expected, &a, &b}) {
      fill(*t, Fill::exact, 6);
      Runner runner(*t, cuda_options());
      ASSERT_TRUE(runner.forward().ok());
      ASSERT_TRUE(runner.backward().ok());
    }
    for (Tensors* t : {&a, &b}) {
      std::vector<harness::Tensor*> outputs;
      t->for_each_output([&](const std::string&, harness::Tensor& output) { outputs.push_back(&output); });
      std::size_t i = 0;
      expected.for_each_output([&](const std::string& name, harness::Tensor& output) {
        EXPECT_EQ(difference(output, *outputs[i++]), "") << text << " " << (t == &a ? "x planes" : "x pixels") << name;
      });
    }
  }
}

// A refused call leaves nothing behind: the next good one works.
TEST(Cuda, ErrorsDoNotStick) {
  const Case c = parsed("n2c3h33w33k5l2_f32");
  const Problem& p = c.problem;
  Tensors t;
  ASSERT_TRUE(make_tensors(c, t).ok());
  fill(t, Fill::random, 5);
  const Options options = cuda_options("cuda-levels");
  const std::size_t needed = forward_workspace(p, options).bytes;
  ASSERT_GT(needed, 0u);
  const Status small = forward(p, t.x.view(), harness::views(t.parameters), t.y.view(), {nullptr, 0}, options);
  EXPECT_EQ(small.code(), StatusCode::workspace_too_small) << small.message();
  EXPECT_NE(small.message().find(std::to_string(needed)), std::string::npos) << small.message();
  void* far_too_much = nullptr;
  EXPECT_NE(cudaMalloc(&far_too_much, std::size_t{1} << 48), cudaSuccess);
  cudaGetLastError();
  const auto result = harness::check(c, {.backend = "cuda"});
  EXPECT_TRUE(result.ok) << result.message();
}

// Capturing a stream records the calls; replaying gives the bits of a direct call.
TEST(Cuda, CapturesIntoGraphs) {
  const Problem p{.batch = 4, .channels = 3, .height = 28, .width = 28, .kernel = 5, .levels = 4};
  const Options plain = cuda_options();
  const std::size_t n = 4 * 3 * 28 * 28;
  std::vector<float> host(n), direct(n), replayed(n);
  for (std::size_t i = 0; i < n; ++i) host[i] = float(i * 2654435761u % 1000) / 500 - 1;
  void *x, *y, *w, *s;
  ASSERT_EQ(cudaMalloc(&x, n * 4), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, n * 4), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&w, 4 * 3 * 25 * 4), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&s, 4 * 3 * 4), cudaSuccess);
  cudaMemcpy(x, host.data(), n * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(w, host.data(), 4 * 3 * 25 * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(s, host.data(), 4 * 3 * 4, cudaMemcpyHostToDevice);
  Parameters parameters{.base_weight = dense(constant(w), DType::f32, {3, 1, 5, 5}),
                        .base_bias = {},
                        .base_scale = dense(constant(s), DType::f32, {3})};
  for (int l = 0; l < 4; ++l) {
    parameters.wavelet_weight[l] = dense(constant(w), DType::f32, {12, 1, 5, 5});
    parameters.wavelet_scale[l] = dense(constant(s), DType::f32, {12});
  }
  const ConstTensorView xv = dense(constant(x), DType::f32, {4, 3, 28, 28});
  const TensorView yv = dense(y, DType::f32, {4, 3, 28, 28});
  ASSERT_TRUE(forward(p, xv, parameters, yv, {}, plain).ok());
  cudaMemcpy(direct.data(), y, n * 4, cudaMemcpyDeviceToHost);
  cudaMemset(y, 0xff, n * 4);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  Options captured = plain;
  captured.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Status status = forward(p, xv, parameters, yv, {}, captured);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaMemcpy(replayed.data(), y, n * 4, cudaMemcpyDeviceToHost);
  EXPECT_EQ(std::memcmp(direct.data(), replayed.data(), n * 4), 0);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  for (void* memory : {x, y, w, s}) cudaFree(memory);
}

// More than 2^31 elements: one plane expanded to all of x (and dy), so that only y (and dx) need the memory. Planes
// whose weights agree must come out the same, the first and the last of them.
TEST(Cuda, PastTwoToThe31Elements) {
  const Problem p{
      .batch = 4, .channels = 175'007, .height = 56, .width = 56, .kernel = 3, .levels = 1, .dtype = DType::f16};
  const std::int64_t plane = 56 * 56, c = p.channels, period = 7;
  ASSERT_GT(p.batch * c * plane, std::int64_t{1} << 31);
  std::size_t free_bytes = 0, total = 0;
  cudaMemGetInfo(&free_bytes, &total);
  if (free_bytes < std::size_t{6} << 30) GTEST_SKIP() << "needs 6 GiB of device memory";
  const auto device = [](const std::vector<float>& values) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, values.size() * 4), cudaSuccess);
    cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice);
    return memory;
  };
  const auto periodic = [&](std::int64_t a_channel) {
    std::vector<float> v(static_cast<std::size_t>(c * a_channel));
    for (std::int64_t i = 0; i < c * a_channel; ++i) {
      v[static_cast<std::size_t>(i)] = float((i / a_channel % period + 1) * (i % a_channel + 3) % 11) / 16 - 0.25f;
    }
    return device(v);
  };
  void *base = periodic(9), *scale = periodic(1), *wavelet = periodic(36), *wavelet_scale = periodic(4);
  void *x = nullptr, *y = nullptr;
  std::vector<std::uint16_t> pixels(plane);
  for (std::int64_t i = 0; i < plane; ++i) pixels[i] = static_cast<std::uint16_t>(0x3800 + i * 37 % 1024);
  ASSERT_EQ(cudaMalloc(&x, plane * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, p.batch * c * plane * 2), cudaSuccess);
  cudaMemcpy(x, pixels.data(), plane * 2, cudaMemcpyHostToDevice);
  Parameters parameters{.base_weight = dense(constant(base), DType::f32, {c, 1, 3, 3}),
                        .base_bias = {},
                        .base_scale = dense(constant(scale), DType::f32, {c})};
  parameters.wavelet_weight[0] = dense(constant(wavelet), DType::f32, {4 * c, 1, 3, 3});
  parameters.wavelet_scale[0] = dense(constant(wavelet_scale), DType::f32, {4 * c});
  ConstTensorView expanded = dense(constant(x), DType::f16, {p.batch, c, 56, 56});
  expanded.strides[0] = expanded.strides[1] = 0;
  const TensorView out = dense(y, DType::f16, {p.batch, c, 56, 56});
  const auto same_planes = [&] {
    const std::int64_t first = 2, last = (p.batch - 1) * c + (c - 3) / period * period + first;
    std::vector<std::uint16_t> a(plane), b(plane), other(plane);
    const auto read = [&](std::vector<std::uint16_t>& to, std::int64_t at) {
      return cudaMemcpy(to.data(), static_cast<const std::uint16_t*>(y) + at * plane, plane * 2,
                        cudaMemcpyDeviceToHost);
    };
    EXPECT_EQ(read(a, first), cudaSuccess);
    EXPECT_EQ(read(b, last), cudaSuccess);
    EXPECT_EQ(read(other, first + 1), cudaSuccess);
    EXPECT_NE(a, other);
    return a == b;
  };
  ASSERT_EQ(cudaMemset(y, 0xff, p.batch * c * plane * 2), cudaSuccess);
  const Status f = forward(p, expanded, parameters, out, {}, cuda_options());
  ASSERT_TRUE(f.ok()) << f.message();
  EXPECT_TRUE(same_planes());
  ASSERT_EQ(cudaMemset(y, 0xff, p.batch * c * plane * 2), cudaSuccess);
  const Status b = backward(p, expanded, parameters, expanded, {.x = out}, {}, cuda_options());
  ASSERT_TRUE(b.ok()) << b.message();
  EXPECT_TRUE(same_planes());
  for (void* memory : {base, scale, wavelet, wavelet_scale, x, y}) cudaFree(memory);
}

}  // namespace
}  // namespace wtconv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("[  SKIPPED ] wtconv_cuda_test: no CUDA device here, no GPU test ran\n");
    return 77;
  }
  std::vector<wtconv::harness::Case> cases;
  for (int i = 1; i < argc; ++i) {
    std::vector<wtconv::harness::Case> more;
    if (const wtconv::Status s = wtconv::harness::read_cases(argv[i], more); !s.ok()) {
      std::fprintf(stderr, "%s\n", s.message().c_str());
      return 2;
    }
    cases.insert(cases.end(), more.begin(), more.end());
  }
  wtconv::register_cases(cases);
  return RUN_ALL_TESTS();
}
