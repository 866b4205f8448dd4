// Properties every backend must have beside right values: adjointness, homogeneity, the same bits for any number of
// threads, for repeated runs and for any subset of gradients; views of every kind; range in sixteen bits.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "backends.hpp"
#include "core/types.hpp"

namespace wtconv::tests {
namespace {

using harness::Case;
using harness::Fill;
using harness::Runner;
using harness::Tensor;
using harness::Tensors;

class Properties : public EachBackend {
 protected:
  // Forward and backward into fresh tensors of the case.
  Tensors run(const Case& c, int threads = 0) {
    Tensors t = tensors_of(c);
    Runner runner(t, GetParam().options(threads));
    EXPECT_EQ(runner.forward(), Status{});
    EXPECT_EQ(runner.backward(), Status{});
    return t;
  }

  void expect_same_bits(Tensors& a, Tensors& b, const std::string& what) {
    std::vector<const Tensor*> others;
    b.for_each_output([&](const std::string&, Tensor& t) { others.push_back(&t); });
    std::size_t next = 0;
    a.for_each_output([&](const std::string& name, Tensor& t) {
      const std::string d = harness::difference(t, *others[next++]);
      EXPECT_EQ(d, "") << what << ": " << name;
    });
  }
};
WTCONV_EACH_BACKEND(Properties);

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0, n = a.view().size(); i < n; ++i) sum += a.get(i) * b.get(i);
  return sum;
}
double absolute_dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0, n = a.view().size(); i < n; ++i) sum += std::abs(a.get(i) * b.get(i));
  return sum;
}

// With no bias: <M x, dy> = <x, M' dy>, and, as the operator is linear in the weights and in the scales, both equal
// the sums of <weight, its gradient> and of <scale, its gradient>.
TEST_P(Properties, AdjointAndHomogeneous) {
  for (const char* text : {"n2c3h9w7k3l2_f64_nobias", "n1c2h16w16k5l3_f64_nobias", "n1c2h15w13k2l2_f64_nobias",
                           "n1c1h13w8k4l3_f64_nobias", "n1c2h11w11k6l1_f64_nobias_s2", "n2c1h21w7k8l4_f64_nobias_s3",
                           "n1c2h7w7k7l6_f64_nobias_nhwc", "n1c1h1w1k3l3_f64_nobias", "n1c1h1w19k4l2_f64_nobias_s2",
                           "n2c2h40w33k5l0_f64_nobias", "n1c1h33w29k15l2_f64_nobias"}) {
    const Case c = parsed(text);
    const Tensors t = run(c);
    const double loss = dot(t.y, t.dy);
    const double tolerance = 1e-13 * (absolute_dot(t.y, t.dy) + absolute_dot(t.x, t.dx));
    EXPECT_NEAR(loss, dot(t.x, t.dx), tolerance) << text << rerun(GetParam(), c);
    double weights = 0, scales = 0, size = 0;
    harness::for_each_parameter(
        c.problem,
        [&](const std::string& name, const Tensor& p, const Tensor& g) {
          if (!p) return;
          (name.find("scale") == std::string::npos ? weights : scales) += dot(p, g);
          size += absolute_dot(p, g);
        },
        t.parameters, t.gradients);
    EXPECT_NEAR(loss, weights, tolerance + 1e-13 * size) << text << rerun(GetParam(), c);
    EXPECT_NEAR(loss, scales, tolerance + 1e-13 * size) << text << rerun(GetParam(), c);
  }
}

const char* const determinism_cases[] = {
    "n3c5h17w19k5l3_f32",          "n7c3h7w7k3l2_f32_nhwc",   "n1c1h65w40k5l4_f32",
    "n2c3h20w20k4l2_f64",          "n2c3h33w31k5l3_f16_wf32", "n2c4h9w9k7l2_bf16_s2",
    "n5c1h12w30k3l2_f32_expanded", "n17c2h14w14k5l3_f32",     "n2c2h128w96k5l3_f32",
};

TEST_P(Properties, SameBitsForAnyNumberOfThreads) {
  for (const char* text : determinism_cases) {
    const Case c = parsed(text);
    Tensors one = run(c, 1);
    for (int threads : {2, 3, 8}) {
      Tensors many = run(c, threads);
      expect_same_bits(one, many,
                       std::string(text) + " on 1 and " + std::to_string(threads) + " threads" + rerun(GetParam(), c) +
                           " --threads " + std::to_string(threads));
    }
  }
}

TEST_P(Properties, SameBitsEveryRun) {
  for (const char* text : determinism_cases) {
    const Case c = parsed(text);
    Tensors first = run(c);
    for (int i = 0; i < 5; ++i) {
      Tensors again = run(c);
      expect_same_bits(first, again, std::string(text) + " repeated" + rerun(GetParam(), c));
    }
  }
}

// Whatever the caller does not ask for is not touched, and asking for less changes no bit of the rest.
TEST_P(Properties, AnySubsetOfGradientsHasTheBitsOfAll) {
  std::mt19937 random(9);
  for (const char* text : {"n2c3h9w11k3l3_f32", "n2c2h8w7k5l2_f16_wf32_nhwc", "n1c2h7w9k4l2_f64_nobias_s2",
                           "n3c2h5w5k3l0_f32", "n4c2h14w14k5l3_f32_sliced"}) {
    const Case c = parsed(text);
    Tensors all = run(c);
    std::vector<std::string> names;
    all.for_each_output([&](const std::string& name, Tensor&) {
      if (name != "y") names.push_back(name);
    });
    std::vector<std::set<std::string>> subsets = {{}};
    for (const std::string& name : names) subsets.push_back({name});
    for (const std::string& name : names) {  // all but one
      std::set<std::string> s(names.begin(), names.end());
      s.erase(name);
      subsets.push_back(s);
    }
    for (int i = 0; i < 12; ++i) {
      std::set<std::string> s;
      for (const std::string& name : names)
        if (random() % 2) s.insert(name);
      subsets.push_back(s);
    }
    for (const std::set<std::string>& subset : subsets) {
      Tensors some = tensors_of(c);
      std::vector<std::size_t> poisoned;
      some.for_each_output([&](const std::string&, Tensor& t) { poisoned.push_back(t.hash()); });
      Runner runner(some, GetParam().options());
      ASSERT_EQ(runner.backward([&](const std::string& name) { return subset.count(name) > 0; }), Status{});
      std::string asked;
      for (const std::string& name : subset) asked += (asked.empty() ? "" : ", ") + name;
      std::vector<Tensor*> outputs;
      all.for_each_output([&](const std::string&, Tensor& t) { outputs.push_back(&t); });
      std::size_t next = 0;
      some.for_each_output([&](const std::string& name, Tensor& t) {
        if (subset.count(name)) {
          EXPECT_EQ(harness::difference(t, *outputs[next]), "")
              << text << ": " << name << ", asked for: " << asked << rerun(GetParam(), c);
          EXPECT_EQ(t.damage(), "") << text << ": " << name;
        } else {
          EXPECT_EQ(t.hash(), poisoned[next])
              << text << ": " << name << " was written, asked for: " << asked << rerun(GetParam(), c);
        }
        ++next;
      });
    }
  }
}

// The workspace a mask is promised is enough for that mask, and a few planes per thread.
TEST_P(Properties, WorkspaceIsBounded) {
  const Backend* backend = find_backend(GetParam().backend);
  ASSERT_NE(backend, nullptr);
  const Problem p{.batch = 64, .channels = 96, .height = 56, .width = 56, .kernel = 5, .levels = 5};
  const Options options = GetParam().options(2);
  if (GetParam().backend == "unfused") {  // materialises every intermediate, by design
    EXPECT_GT(forward_workspace(p, options).bytes, std::size_t{4} * 64 * 96 * 56 * 56);
    return;
  }
  const double plane = 56 * 56 * 4, most = 2 * 40 * plane + 8 * 96 * 25 * 21 * 4.0;
  EXPECT_LE(double(forward_workspace(p, options).bytes), most);
  EXPECT_LE(double(backward_workspace(p, {}, options).bytes), most + 64.0 * 96 * 25 * 21 * 8);
  Problem larger = p;
  larger.batch *= 16;
  EXPECT_LE(forward_workspace(larger, options).bytes, 2 * forward_workspace(p, options).bytes + 1024)
      << "the forward workspace must not grow with the batch";
}

// Views no layout flag makes: mirrored, transposed, broadcast along single dimensions.
TEST_P(Properties, ViewsOfEveryKind) {
  const Case c = parsed("n2c3h9w7k3l2_f32");
  const auto view = [](std::array<std::int64_t, 4> extents, std::array<std::int64_t, 4> strides) {
    return TensorView{.dtype = DType::f32, .rank = 4, .extents = extents, .strides = strides};
  };
  const std::array<std::int64_t, 4> e = {2, 3, 9, 7};
  const auto mirrored = [&] { return Tensor(view(e, {-189, -63, -7, -1}), 377, 378, false); };
  const auto mirrored_rows = [&] { return Tensor(view(e, {189, 63, -7, 1}), 56, 378, false); };
  const auto transposed = [&] { return Tensor(view(e, {189, 63, 1, 9}), 0, 378, false); };
  const auto batch_inside = [&] { return Tensor(view(e, {1, 126, 14, 2}), 0, 378, false); };
  const auto broadcast_batch = [&] { return Tensor(view(e, {0, 63, 7, 1}), 0, 189, false); };
  const auto broadcast_rows = [&] { return Tensor(view(e, {21, 7, 0, 1}), 0, 42, false); };
  const auto broadcast_columns = [&] { return Tensor(view(e, {27, 9, 1, 0}), 0, 54, false); };
  const std::vector<std::function<Tensor()>> outputs = {mirrored, mirrored_rows, transposed, batch_inside};
  std::vector<std::function<Tensor()>> inputs = outputs;
  inputs.insert(inputs.end(), {broadcast_batch, broadcast_rows, broadcast_columns});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      Tensors t;
      ASSERT_TRUE(harness::make_tensors(c, t).ok());
      t.x = inputs[i]();
      t.dy = inputs[(i + o) % inputs.size()]();
      t.y = outputs[o]();
      t.dx = outputs[(o + 1) % outputs.size()]();
      harness::fill(t, Fill::random, 4);
      Runner runner(t, GetParam().options());
      ASSERT_EQ(runner.forward(), Status{});
      ASSERT_EQ(runner.backward(), Status{});
      const harness::CheckResult result = harness::judge(c, t, GetParam().check_options());
      EXPECT_TRUE(result.ok) << "x " << to_string(t.x.view()) << ", dy " << to_string(t.dy.view()) << ", y "
                             << to_string(t.y.view()) << ", dx " << to_string(t.dx.view()) << "\n"
                             << result.message();
      t.for_each_output([](const std::string& name, Tensor& out) { EXPECT_EQ(out.damage(), "") << name; });
    }
  }
}

// Offsets beyond 2^31 elements: planes far apart in reserved, mostly untouched address space.
TEST_P(Properties, PlanesFurtherApartThan2To31Elements) {
  constexpr std::int64_t apart = (std::int64_t{1} << 31) + 12345;
  const Case c = parsed("n2c2h9w8k3l2_f32");
  Tensors t = tensors_of(c);
  const std::size_t bytes = static_cast<std::size_t>(4 * apart + 1000) * sizeof(float);
  const auto reserve = [&] {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* const far_x = reserve();
  void* const far_y = reserve();
  if (far_x == MAP_FAILED || far_y == MAP_FAILED) GTEST_SKIP() << "no " << 2 * bytes << " bytes of address space";
  const auto far_view = [&](void* data) {
    return TensorView{data, DType::f32, 4, {2, 2, 9, 8}, {2 * apart, apart, 8, 1}};
  };
  const auto at = [&](void* data, std::int64_t i) -> float& {
    return static_cast<float*>(data)[i / 144 * 2 * apart + i / 72 % 2 * apart + i % 72];
  };
  const Options options = GetParam().options();
  const std::size_t size =
      std::max(forward_workspace(c.problem, options).bytes, backward_workspace(c.problem, {}, options).bytes);
  const Tensor scratch(DType::f16, {static_cast<std::int64_t>(size / 2 + 1)});
  const Workspace workspace{scratch.view().data, size};
  for (std::int64_t i = 0; i < 288; ++i) at(far_x, i) = static_cast<float>(t.x.get(i));
  EXPECT_EQ(forward(c.problem, far_view(far_x), harness::views(t.parameters), far_view(far_y), workspace, options),
            Status{});
  for (std::int64_t i = 0; i < 288; ++i) t.y.set(i, at(far_y, i));
  Gradients g{.x = far_view(far_y)};
  harness::for_each_parameter(
      c.problem, [](const std::string&, Tensor& from, TensorView& to) { to = from.view(); }, t.gradients, g.parameters);
  EXPECT_EQ(backward(c.problem, far_view(far_x), harness::views(t.parameters), t.dy.view(), g, workspace, options),
            Status{});
  for (std::int64_t i = 0; i < 288; ++i) t.dx.set(i, at(far_y, i));
  const harness::CheckResult result = harness::judge(c, t, GetParam().check_options());
  EXPECT_TRUE(result.ok) << result.message();
  munmap(far_x, bytes);
  munmap(far_y, bytes);
}

// Runs the case with its scales made smaller by `factor`; every element of y and dx must be finite.
void expect_finite(const BackendUnderTest& backend, const Case& c, Tensors& t, double factor) {
  harness::for_each_parameter(
      c.problem,
      [&](const std::string& name, Tensor& p) {
        if (name.find("scale") == std::string::npos) return;
        for (std::int64_t i = 0; i < p.view().size(); ++i) p.set(i, factor * p.get(i));
      },
      t.parameters);
  Runner runner(t, backend.options());
  ASSERT_EQ(runner.forward(), Status{});
  ASSERT_EQ(runner.backward([](const std::string& name) { return name == "gradient of x"; }), Status{});
  for (const Tensor* out : {&t.y, &t.dx}) {
    for (std::int64_t i = 0; i < out->view().size(); ++i) {
      ASSERT_TRUE(std::isfinite(out->get(i))) << to_string(c) << " element " << i << rerun(backend, c);
    }
  }
}

// Five levels of |x| near 3000 make LL reach 96000, beyond f16's 65504: what lies between load and store is f32.
TEST_P(Properties, LargeHalfValuesStayFinite) {
  for (const char* text : {"n1c2h64w64k3l5_f16", "n1c2h64w64k5l5_f16_wf32", "n1c1h33w47k3l6_f16"}) {
    const Case c = parsed(text);
    Tensors t = tensors_of(c);
    for (Tensor* image : {&t.x, &t.dy}) {
      for (std::int64_t i = 0; i < image->view().size(); ++i) image->set(i, 3000 + 100 * image->get(i));
    }
    ASSERT_NO_FATAL_FAILURE(expect_finite(GetParam(), c, t, 1e-4));
    harness::CheckOptions options = GetParam().check_options();
    options.backward = false;
    const harness::CheckResult result = harness::judge(c, t, options);
    EXPECT_TRUE(result.ok) << result.message();
  }
}

// Two pixels may add up past f32's range where their bands, half of it, do not.
TEST_P(Properties, LargeValuesStayFinite) {
  const Case c = parsed("n1c2h8w40k1l1_f32");
  Tensors t = tensors_of(c);
  for (Tensor* image : {&t.x, &t.dy}) {
    for (std::int64_t i = 0; i < image->view().size(); ++i) image->set(i, i / 40 % 2 ? 0 : 2e38);
  }
  ASSERT_NO_FATAL_FAILURE(expect_finite(GetParam(), c, t, 1e-3));
}

// Vectors convert 16-bit values by other code than core/types.hpp: every value in, every rounding out, the same bits.
template <class S>
void expect_conversions(const BackendUnderTest& backend, const char* text) {
  const Case c = parsed(text);
  Tensors t = tensors_of(c);
  auto* const x = static_cast<S*>(t.x.view().data);
  const auto* const y = static_cast<const S*>(t.y.view().data);
  for (std::int64_t i = 0; i < 65536; ++i) x[i].bits = static_cast<std::uint16_t>(i);
  const float weight = 0.7f;
  harness::for_each_parameter(
      c.problem,
      [&](const std::string& name, Tensor& p) {
        if (!p.view()) return;  // the bias
        for (std::int64_t i = 0; i < p.view().size(); ++i) p.set(i, name == "base_weight" ? weight : 1);
      },
      t.parameters);
  Runner runner(t, backend.options());
  ASSERT_EQ(runner.forward(), Status{});
  for (std::int64_t i = 0; i < 65536; ++i) {
    const float expected = to_float(x[i]) * weight;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(to_float(y[i]))) << text << " value " << i;
    } else {
      ASSERT_EQ(to_float(y[i]), to_float(from_float<S>(expected))) << text << " value " << i << rerun(backend, c);
    }
  }
}
TEST_P(Properties, SixteenBitValuesAreReadAndRoundedAsDefined) {
  expect_conversions<Half>(GetParam(), "n1c16h64w64k1l0_f16_wf32_nobias");
  expect_conversions<BFloat16>(GetParam(), "n1c16h64w64k1l0_bf16_wf32_nobias");
}

// A nan or an infinity in one plane stays in that plane, and spoils what depends on it.
TEST_P(Properties, NansAndInfinitiesStayInTheirPlane) {
  for (double bad : {std::nan(""), HUGE_VAL}) {
    const Case c = parsed("n2c3h8w9k3l2_f32");
    Tensors clean = run(c);
    Tensors t = tensors_of(c);
    const std::int64_t plane = 8 * 9, at = (1 * 3 + 1) * plane + 4 * 9 + 4;  // batch 1, channel 1
    t.x.set(at, bad);
    Runner runner(t, GetParam().options());
    ASSERT_EQ(runner.forward(), Status{});
    EXPECT_FALSE(std::isfinite(t.y.get(at)));
    for (std::int64_t i = 0; i < t.y.view().size(); ++i) {
      if (i / plane == at / plane) continue;
      ASSERT_EQ(t.y.bits(i), clean.y.bits(i)) << "element " << i << rerun(GetParam(), c);
    }
  }
}

TEST_P(Properties, EmptyBatchGivesZeroGradients) {
  const Case c = parsed("n0c3h8w7k3l2_f32");
  Tensors t = tensors_of(c);
  Runner runner(t, GetParam().options());
  ASSERT_EQ(runner.forward(), Status{});
  ASSERT_EQ(runner.backward(), Status{});
  int checked = 0;
  t.for_each_output([&](const std::string& name, Tensor& out) {
    for (std::int64_t i = 0; i < out.view().size(); ++i, ++checked) ASSERT_EQ(out.get(i), 0) << name;
  });
  EXPECT_EQ(checked, 3 * (9 + 2) + 2 * 12 * (9 + 1));
}

}  // namespace
}  // namespace wtconv::tests
