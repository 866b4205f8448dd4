// The case grammar and case files.
#include "harness/case.hpp"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

namespace wtconv::harness {
namespace {

TEST(CaseGrammar, ReadsEveryField) {
  Case c;
  ASSERT_TRUE(parse_case("n64c96h56w28k5l4_f32", c).ok());
  EXPECT_EQ(c.problem, (Problem{.batch = 64, .channels = 96, .height = 56, .width = 28, .kernel = 5, .levels = 4}));
  EXPECT_EQ(c, (Case{.problem = c.problem}));

  ASSERT_TRUE(parse_case("n0c1h2w3k15l8_bf16_strided_nhwc_s12_wf32_offset_nobias_expanded_sliced", c).ok());
  EXPECT_EQ(c.problem, (Problem{.batch = 0,
                                .channels = 1,
                                .height = 2,
                                .width = 3,
                                .kernel = 15,
                                .levels = 8,
                                .stride = 12,
                                .dtype = DType::bf16}));
  EXPECT_TRUE(c.channels_last && !c.bias && c.f32_parameters && c.offset && c.sliced && c.strided && c.expanded);
  EXPECT_EQ(c.parameter_dtype(), DType::f32);
}

TEST(CaseGrammar, PrintsWhatItReads) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 2000; ++i) {
    Case c{.problem = {.batch = draw(0, 300),
                       .channels = draw(1, 99),
                       .height = draw(1, 999),
                       .width = draw(1, 20),
                       .kernel = draw(1, 15),
                       .levels = draw(0, 8),
                       .stride = draw(1, 4),
                       .dtype = static_cast<DType>(draw(0, 3))},
           .channels_last = draw(0, 1) == 1,
           .bias = draw(0, 1) == 1,
           .offset = draw(0, 1) == 1,
           .sliced = draw(0, 1) == 1,
           .strided = draw(0, 1) == 1,
           .expanded = draw(0, 1) == 1};
    c.f32_parameters = size_of(c.problem.dtype) == 2 && draw(0, 1) == 1;
    Case back;
    const Status s = parse_case(to_string(c), back);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(c, back) << to_string(c);
  }
}

TEST(CaseGrammar, RejectsWithPositionAndText) {
  const struct {
    const char* text;
    std::vector<const char*> message;
  } rejected[] = {
      {"", {"character 1", "expected n", "batch", "''"}},
      {"m1c1h1w1k1l0_f32", {"character 1", "'m1c1h1w1k1l0_f32'"}},
      {"n1c1h1k1l0_f32", {"character 7", "expected w", "width", "'k1l0_f32'"}},
      {"n1c1hw1k1l0_f32", {"character 6", "height", "'w1k1l0_f32'"}},
      {"n1c1h-3w1k1l0_f32", {"character 6", "height", "'-3w1k1l0_f32'"}},
      {"n1c1h 3w1k1l0_f32", {"character 6", "' 3w1k1l0_f32'"}},
      {"n1c1h1w1k1l0", {"character 13", "expected _ and a dtype", "''"}},
      {"n1c1h1w1k1l0f32", {"character 13", "'f32'"}},
      {"n1c1h1w1k1l0_f8", {"character 14", "'f8'", "bf16"}},
      {"n1c1h1w1k1l0_", {"character 14", "dtype", "''"}},
      {"n1c1h1w1k1l0_f32_", {"character 18", "unknown option ''"}},
      {"n1c1h1w1k1l0_f32_fast", {"character 18", "unknown option 'fast'", "nhwc"}},
      {"n1c1h1w1k1l0_f32_nhwc_nhwc", {"character 23", "'nhwc' is given twice"}},
      {"n1c1h1w1k1l0_f32_s2_s2", {"character 21", "'s2' is a second stride"}},
      {"n1c1h1w1k1l0_f32_s2x", {"character 18", "'s2x'", "stride"}},
      {"n1c1h1w1k1l0_f32_s", {"character 18", "unknown option 's'"}},
      {"n1c1h1w1k1l0_f32_wf32", {"wf32", "f16 or bf16", "got f32"}},
      {"n99999999999999999999c1h1w1k1l0_f32", {"character 2", "batch '99999999999999999999' is too large"}},
      {"n1c1h1w1k2147483648l0_f32", {"character 10", "kernel '2147483648' is too large"}},
      {"n1c1h1w1k1l0_f32_s99999999999", {"character 19", "stride '99999999999' is too large"}},
      {"n1c0h1w1k1l0_f32", {"channels must be at least 1, got 0"}},
      {"n1c1h1w1k16l0_f32", {"kernel must be in 1..15, got 16"}},
      {"n1c1h1w1k1l9_f32", {"levels must be in 0..8, got 9"}},
      {"n1c1h1w1k1l0_f32_s0", {"stride must be at least 1, got 0"}},
      {"n4000000000c4000000000h4000000000w1k1l0_f32", {"4000000000 * 4000000000 * 4000000000"}},
      {"n1c1h1w1k1l0_f32\n", {"'f32?'"}},
      {"n1c1h1w1k1l0_f32 # comment", {"'f32 # comment'"}},
  };
  for (const auto& r : rejected) {
    Case c = {.problem = {.batch = 77}};
    const Status s = parse_case(r.text, c);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument) << r.text;
    for (const char* part : r.message) {
      EXPECT_NE(s.message().find(part), std::string::npos) << part << " is not in: " << s.message();
    }
    EXPECT_EQ(c, (Case{.problem = {.batch = 77}})) << "a rejected case must leave the result alone";
  }
}

TEST(CaseGrammar, QuotesLongInputsBriefly) {
  Case c;
  const Status s = parse_case(std::string(100000, 'x'), c);
  EXPECT_FALSE(s.ok());
  EXPECT_LT(s.message().size(), 400u);
}

TEST(CaseFiles, SkipsCommentsAndBlankLines) {
  std::istringstream in(
      "# head\n\n  n1c1h1w1k1l0_f32  # one\n\t\r\nn2c1h1w1k1l0_f64\r\n#n3c1h1w1k1l0_f32\nn4c1h1w1k1l0_f16");
  std::vector<Case> cases;
  const Status s = read_cases(in, "cases", cases);
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(to_string(cases[0]), "n1c1h1w1k1l0_f32");
  EXPECT_EQ(to_string(cases[1]), "n2c1h1w1k1l0_f64");
  EXPECT_EQ(to_string(cases[2]), "n4c1h1w1k1l0_f16");
}

TEST(CaseFiles, NamesFileAndLine) {
  std::istringstream in("n1c1h1w1k1l0_f32\n\nn1c1h1w1k99l0_f32\n");
  std::vector<Case> cases;
  const Status s = read_cases(in, "some.txt", cases);
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_EQ(s.message().find("some.txt:3: "), 0u) << s.message();
  EXPECT_TRUE(cases.empty());
  EXPECT_NE(read_cases("/nowhere/some.txt", cases).message().find("/nowhere/some.txt"), std::string::npos);
}

TEST(CaseFiles, AllOfTheRepositoryParse) {
  for (const char* name : {"smoke", "ci", "nightly", "perf", "stages"}) {
    std::vector<Case> cases;
    const Status s = read_cases(std::string(WTCONV_CASES "/") + name + ".txt", cases);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_GE(cases.size(), 10u) << name;
  }
}

}  // namespace
}  // namespace wtconv::harness
