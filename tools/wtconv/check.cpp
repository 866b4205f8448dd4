// `check`: a backend against the reference, forward and every gradient.
#include "harness/check.hpp"

#include <fmt/format.h>

#include "command.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

struct Arguments {
  CaseArguments cases;
  std::string pass;
  bool exact = false;
  bool quiet = false;
  bool json = false;
  harness::CheckOptions check;
};

Json to_json(const harness::CheckResult& r) {
  Json tensors = Json::array();
  for (const harness::TensorError& t : r.tensors) {
    tensors.push_back({{"name", t.name},
                       {"elements", t.elements},
                       {"wrong", t.wrong},
                       {"max_error", t.max_error},
                       {"rms_error", t.rms_error},
                       {"max_expected", t.max_expected},
                       {"error_over_tolerance", t.worst_ratio},
                       {"first_wrong", t.first_wrong}});
  }
  return {{"case", r.case_text},  {"backend", r.backend}, {"ok", r.ok},
          {"failure", r.failure}, {"rerun", r.rerun},     {"tensors", tensors}};
}

// The tensor that came closest to its tolerance, or went furthest beyond it.
const harness::TensorError* worst(const harness::CheckResult& r) {
  const harness::TensorError* w = nullptr;
  for (const harness::TensorError& t : r.tensors) {
    if (!w || t.worst_ratio > w->worst_ratio) w = &t;
  }
  return w;
}

std::string passed_line(const harness::CheckResult& r, std::size_t case_width) {
  std::string line = styled("ok    ", Style::good) + fmt::format("{:{}}  {}", r.case_text, case_width, r.backend);
  if (const harness::TensorError* w = worst(r)) {
    line += styled(fmt::format("  {:.0f}% of tolerance ({})", 100 * w->worst_ratio, w->name), Style::dim);
  }
  return line + "\n";
}

int run(Arguments a) {
  const std::vector<harness::Case> cases = parse(a.cases);
  a.check.backward = a.pass != "forward";
  a.check.fill = a.exact ? harness::Fill::exact : harness::Fill::random;
  if (!a.check.backend.empty() && !find_backend(a.check.backend)) {
    require(choose_backend(cases[0].problem, {.backend = a.check.backend}).status);
  }
  std::size_t width = 0;
  for (const harness::Case& c : cases) width = std::max(width, harness::to_string(c).size());
  Json out = Json::array();
  int passed = 0, failed = 0;
  std::string refused;
  int refusals = 0;
  {
    Progress progress("checking");
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const harness::Case& c = cases[i];
      progress.update(double(i) / double(cases.size()), harness::to_string(c));
      Options options{.backend = a.check.backend};
      if (const Backend* named = find_backend(a.check.backend)) options.device = named->device();
      const Choice choice = choose_backend(c.problem, options);
      if (!choice.status.ok()) {
        refused = choice.status.message();
        ++refusals;
        out.push_back({{"case", harness::to_string(c)}, {"skipped", choice.status.message()}});
        if (!a.json) {
          progress.clear();
          print(styled("skip  ", Style::dim) + choice.status.message() + "\n");
        }
        continue;
      }
      const harness::CheckResult r = harness::check(c, a.check);
      ++(r.ok ? passed : failed);
      out.push_back(to_json(r));
      if (a.json || (r.ok && a.quiet)) continue;
      progress.clear();
      if (r.ok) {
        print(passed_line(r, width));
      } else {
        print(styled("FAIL  ", Style::bad) + r.message() + "\n");
      }
      std::fflush(stdout);
    }
  }
  if (passed + failed == 0) throw Error(refused);
  if (a.json) {
    print_json(Json{{"passed", passed}, {"failed", failed}, {"skipped", refusals}, {"checks", out}});
  } else if (cases.size() > 1 || a.quiet) {
    print(fmt::format("{} passed, {} failed, {} skipped\n", passed, failed, refusals));
  }
  return failed ? check_failed : success;
}

}  // namespace

void add_check(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("check", "Compare forward and every gradient with the reference, element by element");
  const auto a = std::make_shared<Arguments>();
  add_cases(*command, a->cases);
  add_backend(*command, a->check.backend);
  add_pass(*command, a->pass);
  command->add_flag("--exact", a->exact,
                    "Small integers and power-of-two scales: every element must agree bit for bit");
  command->add_option("--seed", a->check.seed, "Seed of the random tensors")->capture_default_str();
  command->add_option("--channels", a->check.channels, "Judge only this many channels, evenly spread (default: all)")
      ->check(CLI::PositiveNumber);
  add_threads(*command, a->check.threads);
  add_reformulations(*command, a->check.reformulations);
  command->add_flag("--quiet", a->quiet, "Print failures and a summary only");
  add_json(*command, a->json);
  command->footer(
      "Exit code 1 if a check fails; each failure prints the first bad element and the command that reruns it.\n");
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
