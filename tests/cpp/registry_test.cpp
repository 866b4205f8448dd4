// Names, order of preference, forcing and refusing of backends.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "backends.hpp"

namespace wtconv::tests {
namespace {

const Problem problem{.batch = 1, .channels = 2, .height = 7, .width = 6, .kernel = 3, .levels = 1};

// Sets WTCONV_BACKEND for a scope.
class ForcedBackend {
 public:
  explicit ForcedBackend(const char* name) {
    if (const char* old = std::getenv(variable)) old_ = old;
    name ? setenv(variable, name, 1) : unsetenv(variable);
  }
  ~ForcedBackend() { old_ ? setenv(variable, old_->c_str(), 1) : unsetenv(variable); }

 private:
  static constexpr const char* variable = "WTCONV_BACKEND";
  std::optional<std::string> old_;
};

TEST(Registry, SmokeHasTheExpectedBackends) {
  for (const char* name : expected_backends) {
    const Backend* b = find_backend(name);
    ASSERT_NE(b, nullptr) << "no backend named " << name << " in this build";
    EXPECT_EQ(b->name(), name);
    EXPECT_EQ(b->available(), Status{}) << name;
    EXPECT_FALSE(b->description().empty());
    EXPECT_EQ(b->description().find('\n'), std::string_view::npos);
  }
}

TEST(Registry, FastestFirstAndReferenceLast) {
  const std::vector<const Backend*> list = backends();
  std::vector<std::string> host;
  for (const Backend* b : list) {
    if (b->device() == Device::host && b->name() != "guest") host.emplace_back(b->name());
  }
  std::vector<std::string> expected;
  for (const char* name : {"cpu", "unfused", "reference"}) {
    if (find_backend(name)) expected.push_back(name);
  }
  EXPECT_EQ(host, expected);
}

TEST(Registry, TestsCoverEveryHostBackend) {
  for (const Backend* b : backends()) {
    if (b->device() != Device::host) continue;
    int found = 0;
    for (const BackendUnderTest& t : backends_under_test()) found += t.backend == b->name() && t.target == 0;
    EXPECT_EQ(found, b->name() == "unfused" ? 8 : 1) << b->name();
  }
}

TEST(Registry, ChoosesTheFirstThatCanRunAndSaysWhy) {
  const ForcedBackend none(nullptr);
  const Choice choice = choose_backend(problem);
  ASSERT_NE(choice.backend, nullptr);
  EXPECT_EQ(choice.status, Status{});
  EXPECT_NE(choice.reason.find(std::string(choice.backend->name()) + ": first that can run"), std::string::npos)
      << choice.reason;
  EXPECT_EQ(can_run(problem), Status{});
}

TEST(Registry, OptionsForceABackend) {
  for (const BackendUnderTest& b : backends_under_test()) {
    const Choice choice = choose_backend(problem, b.options());
    ASSERT_NE(choice.backend, nullptr) << choice.status.message();
    EXPECT_EQ(choice.backend->name(), b.backend);
    EXPECT_NE(choice.reason.find("named in the options"), std::string::npos) << choice.reason;
  }
}

TEST(Registry, EnvironmentForcesABackendAndOptionsWin) {
  const ForcedBackend forced("reference");
  Choice choice = choose_backend(problem);
  ASSERT_NE(choice.backend, nullptr);
  EXPECT_EQ(choice.backend->name(), "reference");
  EXPECT_NE(choice.reason.find("named by WTCONV_BACKEND"), std::string::npos) << choice.reason;
  for (const BackendUnderTest& b : backends_under_test()) {
    EXPECT_EQ(choose_backend(problem, b.options()).backend->name(), b.backend);
  }
}

TEST(Registry, UnknownNamesAreRefusedWithTheList) {
  const auto expect_refused = [](const Status& s, const char* name, const char* why) {
    EXPECT_EQ(s.code(), StatusCode::unavailable);
    for (const std::string& part : {"'" + std::string(name) + "'", std::string(why), std::string("reference")}) {
      EXPECT_NE(s.message().find(part), std::string::npos) << part << " is not in: " << s.message();
    }
  };
  const Options options{.backend = "cuda9000"};
  expect_refused(can_run(problem, options), "cuda9000", "named in the options");
  expect_refused(forward_workspace(problem, options).status, "cuda9000", "named in the options");
  expect_refused(backward_workspace(problem, {}, options).status, "cuda9000", "named in the options");
  expect_refused(forward(problem, {}, {}, {}, {}, options), "cuda9000", "named in the options");
  expect_refused(backward(problem, {}, {}, {}, {}, {}, options), "cuda9000", "named in the options");
  const ForcedBackend forced("Reference");  // names are exact
  expect_refused(can_run(problem), "Reference", "named by WTCONV_BACKEND");
  EXPECT_EQ(find_backend("Reference"), nullptr);
  EXPECT_EQ(find_backend(""), nullptr);
}

TEST(Registry, AForcedBackendThatCannotRunIsNotReplaced) {
  const Options options{.device = Device::cuda, .backend = "reference"};
  const Status s = can_run(problem, options);
  EXPECT_EQ(s.code(), StatusCode::unsupported);
  for (const char* part : {"'reference'", "n1c2h7w6k3l1_f32", "host memory", "cuda memory"}) {
    EXPECT_NE(s.message().find(part), std::string::npos) << part << " is not in: " << s.message();
  }
  const ForcedBackend forced("reference");
  EXPECT_EQ(can_run(problem, {.device = Device::cuda}).code(), StatusCode::unsupported);
}

TEST(Registry, SaysWhyNoBackendCanRun) {
  for (const Backend* b : backends()) {
    if (b->device() == Device::cuda) GTEST_SKIP() << "this build has a CUDA backend";
  }
  const ForcedBackend none(nullptr);
  const Status s = can_run(problem, {.device = Device::cuda});
  EXPECT_EQ(s.code(), StatusCode::unavailable);
  for (const char* name : expected_backends) {
    EXPECT_NE(s.message().find("not " + std::string(name) + ": it works on host memory"), std::string::npos)
        << s.message();
  }
}

// A backend that another library brings: it goes where its preference puts it, and its refusals are passed on.
TEST(Registry, TakesBackendsOfOtherLibraries) {
  class Guest final : public Backend {
   public:
    std::string_view name() const override { return "guest"; }
    std::string_view description() const override { return "refuses odd heights"; }
    Status can_run(const Problem& p) const override {
      if (!present) return {StatusCode::unsupported, "the test is over"};
      return p.height % 2 ? Status{StatusCode::unsupported, "height " + std::to_string(p.height) + " is odd"}
                          : Status{};
    }
    Plan plan(const Problem&, Pass, GradientMask, const Options&) const override { return {"guest", "", 48, 0}; }
    Status forward(const Problem&, const ConstTensorView&, const Parameters&, const TensorView&, Workspace,
                   const Options&) const override {
      return {StatusCode::device_error, "the guest was called"};
    }
    Status backward(const Problem&, const ConstTensorView&, const Parameters&, const ConstTensorView&, const Gradients&,
                    Workspace, const Options&) const override {
      return {};
    }
    bool present = true;
  };
  static Guest guest;
  const ForcedBackend none(nullptr);
  ASSERT_EQ(register_backend(guest, 1000), Status{});
  const Status twice = register_backend(guest, 5);
  EXPECT_EQ(twice.code(), StatusCode::invalid_argument);
  EXPECT_NE(twice.message().find("'guest'"), std::string::npos);
  EXPECT_EQ(backends().front(), &guest);

  const Choice odd = choose_backend(problem);
  ASSERT_NE(odd.backend, nullptr);
  EXPECT_NE(odd.backend->name(), "guest");
  EXPECT_NE(odd.reason.find("not guest: height 7 is odd"), std::string::npos) << odd.reason;
  const Status forced = can_run(problem, {.backend = "guest"});
  EXPECT_EQ(forced.code(), StatusCode::unsupported);
  EXPECT_NE(forced.message().find("height 7 is odd"), std::string::npos) << forced.message();

  Problem even = problem;
  even.height = 8;
  EXPECT_EQ(choose_backend(even).backend, &guest);
  EXPECT_EQ(forward_workspace(even).bytes, 48u);
  harness::Tensors t = tensors_of(harness::Case{.problem = even});
  harness::Runner runner(t, {.backend = "guest"});
  EXPECT_EQ(runner.forward().message(), "the guest was called");
  guest.present = false;  // it stays registered, but refuses the tests that share this process
}

}  // namespace
}  // namespace wtconv::tests
