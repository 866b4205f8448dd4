// What the operator is, checked without the reference as judge: golden values from closed forms, finite differences,
// and patterns that excite one band only.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "backends.hpp"

namespace wtconv::tests {
namespace {

using harness::Case;
using harness::Runner;
using harness::Tensor;
using harness::Tensors;

// golden/make.py's formula.
double golden_value(int tensor, std::int64_t i) {
  return static_cast<double>((i * i + (5 + 2 * tensor) * i + 3 * tensor + 1) % 13) - 6;
}

void set_all(Tensor& t, const std::function<double(std::int64_t)>& value) {
  for (std::int64_t i = 0, n = t.view().size(); i < n; ++i) t.set(i, value(i));
}

class Golden : public EachBackend {};
WTCONV_EACH_VARIANT(Golden);

TEST_P(Golden, SmokeClosedForms) {
  std::ifstream in(WTCONV_GOLDEN "/golden.txt");
  ASSERT_TRUE(in);
  std::map<std::string, std::map<std::string, std::vector<double>>> golden;
  std::string line, text;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    const std::string name = line.substr(0, line.find(": "));
    std::istringstream rest(line.substr(name.size() + 2));
    if (name == "case") {
      rest >> text;
    } else {
      for (double v; rest >> v;) golden[text][name].push_back(v);
    }
  }
  ASSERT_EQ(golden.size(), 9u);
  for (const auto& [name, expected] : golden) {
    for (DType dtype : {DType::f64, DType::f32}) {
      Case c = parsed(name);
      c.problem.dtype = dtype;
      Tensors t;
      ASSERT_TRUE(harness::make_tensors(c, t).ok());
      set_all(t.x, [](std::int64_t i) { return golden_value(0, i); });
      set_all(t.dy, [](std::int64_t i) { return golden_value(1, i); });
      int number = 2;
      harness::for_each_parameter(
          c.problem,
          [&](const std::string&, Tensor& p) {
            set_all(p, [&](std::int64_t i) { return golden_value(number, i); });
            ++number;
          },
          t.parameters);
      Runner runner(t, GetParam().options());
      ASSERT_EQ(runner.forward(), Status{});
      ASSERT_EQ(runner.backward(), Status{});
      std::size_t compared = 0;
      t.for_each_output([&](const std::string& output, Tensor& got) {
        ++compared;
        const auto found = expected.find(output);
        ASSERT_NE(found, expected.end()) << output;
        ASSERT_EQ(static_cast<std::int64_t>(found->second.size()), got.view().size());
        for (std::int64_t i = 0; i < got.view().size(); ++i) {
          ASSERT_EQ(got.get(i), found->second[static_cast<std::size_t>(i)])
              << name << " as " << to_string(dtype) << ": " << output << " at " << harness::index_text(got.view(), i)
              << rerun(GetParam(), c);
        }
      });
      EXPECT_EQ(compared, expected.size());
    }
  }
}

// Loss <dy, y> moved by +-1 in every input element: the loss is linear in each of them, so central differences are
// exact up to rounding.
class FiniteDifferences : public EachBackend {};
WTCONV_EACH_BACKEND(FiniteDifferences);

TEST_P(FiniteDifferences, EqualEveryGradient) {
  for (const char* text : {"n2c2h5w4k3l2_f64", "n1c2h4w3k2l1_f64", "n1c1h6w7k4l3_f64_s2", "n1c1h3w3k5l0_f64",
                           "n1c2h5w5k3l1_f64_s3_nobias", "n1c1h2w3k3l4_f64"}) {
    const Case c = parsed(text);
    Tensors t = tensors_of(c);
    Runner runner(t, GetParam().options());
    ASSERT_EQ(runner.backward(), Status{});
    const auto loss = [&] {
      EXPECT_EQ(runner.forward(), Status{});
      double sum = 0;
      for (std::int64_t i = 0; i < t.y.view().size(); ++i) sum += t.y.get(i) * t.dy.get(i);
      return sum;
    };
    const auto compare = [&](const std::string& name, Tensor& input, const Tensor& gradient) {
      if (!input) return;
      for (std::int64_t i = 0; i < input.view().size(); ++i) {
        const double v = input.get(i);
        input.set(i, v + 1);
        const double up = loss();
        input.set(i, v - 1);
        const double down = loss();
        input.set(i, v);
        const double expected = (up - down) / 2;
        ASSERT_NEAR(gradient.get(i), expected, 1e-11 * (1 + std::abs(up) + std::abs(down)))
            << text << ": gradient of " << name << " at " << harness::index_text(input.view(), i)
            << rerun(GetParam(), c);
      }
    };
    compare("x", t.x, t.dx);
    harness::for_each_parameter(c.problem, compare, t.parameters, t.gradients);
  }
}

// Which band a pattern lives in, as the contract names them: LH = (a + b - c - d) / 2 answers to horizontal stripes
// (rows that alternate), HL to vertical ones, HH to a chequerboard, LL to a constant. At level l the period is 2^l.
class Stripes : public EachBackend {};
WTCONV_EACH_VARIANT(Stripes);

TEST_P(Stripes, SmokeExciteTheDocumentedBandOnly) {
  for (int level = 1; level <= 4; ++level) {
    Case c = parsed("n1c1h32w32k3l4_f32_nobias");
    c.problem.levels = level;
    const auto bit = [&](std::int64_t v) { return (v >> (level - 1)) % 2 ? -1.0 : 1.0; };
    const std::function<double(std::int64_t, std::int64_t)> patterns[] = {
        [](std::int64_t, std::int64_t) { return 1.0; },
        [&](std::int64_t row, std::int64_t) { return bit(row); },
        [&](std::int64_t, std::int64_t column) { return bit(column); },
        [&](std::int64_t row, std::int64_t column) { return bit(row) * bit(column); },
    };
    for (int pattern : {LL, LH, HL, HH}) {
      for (int band : {LL, LH, HL, HH}) {
        // All scales are zero but that of one band of the last level, whose filter is the identity: the output is the
        // part of x that lives there.
        Tensors t;
        ASSERT_TRUE(harness::make_tensors(c, t).ok());
        set_all(t.dy, [](std::int64_t) { return 1.0; });
        harness::for_each_parameter(
            c.problem,
            [](const std::string&, Tensor& p) {
              if (p) set_all(p, [](std::int64_t) { return 0.0; });
            },
            t.parameters);
        t.parameters.wavelet_scale[level - 1].set(band, 1);
        t.parameters.wavelet_weight[level - 1].set(9 * band + 4, 1);
        set_all(t.x, [&](std::int64_t i) { return patterns[pattern](i / 32, i % 32); });
        Runner runner(t, GetParam().options());
        ASSERT_EQ(runner.forward(), Status{});
        for (std::int64_t i = 0; i < t.y.view().size(); ++i) {
          ASSERT_EQ(t.y.get(i), band == pattern ? t.x.get(i) : 0.0)
              << "pattern " << pattern << ", band " << band << ", level " << level << ", element " << i
              << rerun(GetParam(), c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace wtconv::tests
