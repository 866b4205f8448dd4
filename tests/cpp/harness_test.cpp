// The harness itself: what it must notice.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backends.hpp"

namespace wtconv::tests {
namespace {

using harness::Case;
using harness::CheckOptions;
using harness::CheckResult;
using harness::Fill;
using harness::Tensor;
using harness::Tensors;

const BackendUnderTest reference{"reference"};

Tensors computed(const Case& c, Fill fill = Fill::random) {
  Tensors t = tensors_of(c, fill);
  harness::Runner runner(t, reference.options());
  EXPECT_TRUE(runner.forward().ok());
  EXPECT_TRUE(runner.backward().ok());
  return t;
}

CheckOptions options_for(Fill fill) {
  CheckOptions o = reference.check_options();
  o.fill = fill;
  return o;
}

TEST(Judge, NoticesOneWrongElementOfAnyOutput) {
  const Case c = parsed("n2c2h7w6k3l2_f32_nhwc");
  for (Fill fill : {Fill::random, Fill::exact}) {
    Tensors t = computed(c, fill);
    ASSERT_TRUE(harness::judge(c, t, options_for(fill)).ok);
    t.for_each_output([&](const std::string& name, Tensor& out) {
      const std::int64_t i = out.view().size() - 1;
      const double right = out.get(i);
      // Random data: a thousandth of a typical value. Exact data: one unit in the last place.
      const double step = fill == Fill::exact ? std::ldexp(std::max(std::abs(right), 1.0), -23) : 1e-3;
      for (double wrong : {right + step, right - step, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
        out.set(i, wrong);
        const CheckResult result = harness::judge(c, t, options_for(fill));
        EXPECT_FALSE(result.ok) << name << " " << wrong;
        EXPECT_NE(result.failure.find(name + " at " + harness::index_text(out.view(), i) + ": expected"),
                  std::string::npos)
            << result.failure;
        EXPECT_NE(result.failure.find("1 of " + std::to_string(out.view().size())), std::string::npos);
        EXPECT_NE(result.message().find("wtconv check n2c2h7w6k3l2_f32_nhwc --backend reference" +
                                        std::string(fill == Fill::exact ? " --exact" : "")),
                  std::string::npos)
            << result.message();
      }
      out.set(i, right);
    });
    EXPECT_TRUE(harness::judge(c, t, options_for(fill)).ok);
  }
}

// The tolerance must be far below what one misplaced tap, sign or scale does, in sixteen bits too.
TEST(Judge, ToleranceIsSharp) {
  for (const char* text : {"n2c3h33w31k5l4_f32", "n2c3h33w31k5l4_f16", "n2c3h33w31k5l4_bf16", "n2c3h33w31k5l4_f64"}) {
    const Case c = parsed(text);
    Tensors t = computed(c);
    const double relative = c.problem.dtype == DType::f64   ? 1e-13
                            : c.problem.dtype == DType::f32 ? 1e-4
                            : c.problem.dtype == DType::f16 ? 3e-3
                                                            : 3e-2;
    for (std::int64_t i : {0, 100, 999}) {
      const double right = t.y.get(i);
      t.y.set(i, right + relative * (1 + std::abs(right)));
      EXPECT_FALSE(harness::judge(c, t, reference.check_options()).ok) << text << " element " << i;
      t.y.set(i, right);
    }
  }
}

TEST(Judge, RefusesDataThatCheckNothing) {
  const Case c = parsed("n1c1h8w8k3l2_f32");
  Tensors t = tensors_of(c);
  for (std::int64_t i = 0; i < t.x.view().size(); ++i) t.x.set(i, 0);
  t.parameters.base_bias.set(0, 0);
  harness::Runner runner(t, reference.options());
  ASSERT_TRUE(runner.forward().ok());
  ASSERT_TRUE(runner.backward().ok());
  EXPECT_NE(harness::judge(c, t, reference.check_options()).failure.find("nothing but zeros"), std::string::npos);
}

TEST(Judge, RefusesExactCasesThatAreNotExact) {
  const Case c = parsed("n1c1h16w16k3l4_f32");
  Tensors t = tensors_of(c, Fill::exact);
  for (std::int64_t i = 0; i < t.x.view().size(); ++i) t.x.set(i, 12345);
  harness::Runner runner(t, reference.options());
  ASSERT_TRUE(runner.forward().ok());
  ASSERT_TRUE(runner.backward().ok());
  EXPECT_NE(harness::judge(c, t, options_for(Fill::exact)).failure.find("too large for the exact check"),
            std::string::npos);
}

TEST(Judge, CanFollowWithAFewChannels) {
  const Case c = parsed("n2c9h6w5k3l1_f32");
  Tensors t = computed(c);
  CheckOptions options = reference.check_options();
  options.channels = 3;  // 0, 4, 8
  CheckResult result = harness::judge(c, t, options);
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.tensors[0].elements, 2 * 3 * 6 * 5);
  t.gradients.base_bias.set(8, 1e6);
  EXPECT_FALSE(harness::judge(c, t, options).ok);
}

TEST(Check, SaysWhyABackendCannotRun) {
  CheckOptions options;
  options.backend = "no-such-backend";
  const CheckResult result = harness::check(parsed("n1c1h4w4k3l1_f32"), options);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.message().find("no backend named 'no-such-backend'"), std::string::npos) << result.message();
  EXPECT_NE(result.message().find("rerun: wtconv check n1c1h4w4k3l1_f32 --backend no-such-backend"), std::string::npos);
}

TEST(Check, RefusesCasesThatDoNotFitMemory) {
  const CheckResult result = harness::check(parsed("n60000c60000h60000w1k3l1_f32"), reference.check_options());
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.failure.find(" MB"), std::string::npos) << result.failure;
}

TEST(GuardedTensor, FindsEveryStrayWrite) {
  for (const char* text : {"n2c2h3w4k3l1_f32", "n2c2h3w4k3l1_f16_offset", "n2c2h3w4k3l1_f64_nhwc_sliced",
                           "n2c2h3w4k3l1_bf16_strided_sliced_offset", "n1c1h3w5k3l1_f32_strided_nhwc"}) {
    const Tensors t = tensors_of(parsed(text));
    const Tensor& x = t.x;
    ASSERT_EQ(x.damage(), "") << text;
    std::vector<bool> addressed(x.size_bytes());
    for (std::int64_t i = 0; i < x.view().size(); ++i) {
      for (std::int64_t b = 0; b < size_of(x.view().dtype); ++b) {
        addressed[x.data_at() + static_cast<std::size_t>(x.offset_of(i) * size_of(x.view().dtype) + b)] = true;
      }
    }
    for (std::size_t i = 0; i < x.size_bytes(); ++i) {
      if (addressed[i]) continue;
      x.bytes()[i] = std::byte{0};
      EXPECT_NE(x.damage(), "") << text << " byte " << i << " of " << x.size_bytes();
      x.bytes()[i] = std::byte{0xff};
    }
    EXPECT_EQ(x.damage(), "");
  }
}

TEST(GuardedTensor, LayoutsAreWhatTheyAreCalled) {
  const auto strides = [](const char* text) { return tensors_of(parsed(text)).x.view().strides; };
  using Strides = std::array<std::int64_t, 4>;
  EXPECT_EQ(strides("n2c3h4w5k3l1_f32"), (Strides{60, 20, 5, 1}));
  EXPECT_EQ(strides("n2c3h4w5k3l1_f32_nhwc"), (Strides{60, 1, 15, 3}));
  EXPECT_EQ(strides("n2c3h4w5k3l1_f32_sliced"), (Strides{5 * 6 * 8, 6 * 8, 8, 1}));
  EXPECT_EQ(strides("n2c3h4w5k3l1_f32_strided"), (Strides{3 * 8 * 10, 8 * 10, 20, 2}));
  const Tensors t = tensors_of(parsed("n2c3h4w5k3l1_f32_offset_expanded"));
  EXPECT_EQ(t.dy.view().strides, (Strides{0, 0, 0, 0}));
  t.for_each_input([](const std::string& name, const Tensor& in) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(in.view().data) % Tensor::alignment, 4u) << name;
  });
}

TEST(Fill, DependsOnSeedAndIndexNotOnLayout) {
  const Tensors plain = tensors_of(parsed("n2c3h4w5k3l2_f32"));
  const Tensors other = tensors_of(parsed("n2c3h4w5k3l2_f32_nhwc_sliced_offset"));
  EXPECT_EQ(harness::difference(plain.x, other.x), "");
  EXPECT_EQ(harness::difference(plain.dy, other.dy), "");
  EXPECT_EQ(harness::difference(plain.parameters.wavelet_scale[1], other.parameters.wavelet_scale[1]), "");
  const Tensors seeded = tensors_of(parsed("n2c3h4w5k3l2_f32"), Fill::random, 2);
  EXPECT_NE(harness::difference(plain.x, seeded.x), "");
  EXPECT_NE(harness::difference(plain.x, plain.dx), "") << "dx starts as poison";
}

TEST(Fill, HasZeroNegativeAndPositiveScales) {
  for (Fill fill : {Fill::random, Fill::exact}) {
    const Tensors t = tensors_of(parsed("n1c32h4w4k3l2_f32"), fill);
    for (const Tensor* scale : {&t.parameters.base_scale, &t.parameters.wavelet_scale[0]}) {
      int zeros = 0, negative = 0, positive = 0;
      for (std::int64_t i = 0; i < scale->view().size(); ++i) {
        zeros += scale->get(i) == 0;
        negative += scale->get(i) < 0;
        positive += scale->get(i) > 0;
      }
      EXPECT_GT(zeros, 0);
      EXPECT_GT(negative, 5);
      EXPECT_GT(positive, 5);
    }
  }
}

// What the caller of a backend on another device relies on: whole buffers travel, and views move with them.
TEST(Runner, WorksOnCopiesInAnotherMemory) {
  class Elsewhere final : public harness::Memory {
   public:
    Status allocate(std::size_t bytes, void** result) override {
      *result = ::operator new (bytes, std::align_val_t{256});
      ++alive;
      return {};
    }
    void release(void* data) override {
      ::operator delete (data, std::align_val_t{256});
      --alive;
    }
    Status upload(void* device, const void* host, std::size_t bytes, void*) override {
      std::memcpy(device, host, bytes);
      return {};
    }
    Status download(void* host, const void* device, std::size_t bytes, void*) override {
      std::memcpy(host, device, bytes);
      ++downloads;
      return {};
    }
    int alive = 0, downloads = 0;
  };
  static Elsewhere memory;
  const Case c = parsed("n2c3h9w7k3l2_f32_sliced_offset");
  const Tensors in_place = computed(c);
  harness::register_memory(Device::host, &memory);
  {
    Tensors t = computed(c);
    harness::register_memory(Device::host, nullptr);
    EXPECT_GT(memory.downloads, 10);
    EXPECT_EQ(harness::difference(t.y, in_place.y), "");
    EXPECT_EQ(harness::difference(t.dx, in_place.dx), "");
    EXPECT_EQ(harness::difference(t.gradients.wavelet_weight[1], in_place.gradients.wavelet_weight[1]), "");
    EXPECT_TRUE(harness::judge(c, t, reference.check_options()).ok);
  }
  EXPECT_EQ(memory.alive, 0);
}

}  // namespace
}  // namespace wtconv::tests
