// The command-line tool. This file knows the commands' names and exit codes, nothing of what they do.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

#include "command.hpp"
#include "wtconv/version.hpp"

namespace wtconv::tool {

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void print_json(const Json& json) { print(json.dump(2) + "\n"); }

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print JSON on standard output, for machines");
}
void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Host threads (default: all)")->check(CLI::Range(1, 1024));
}
void add_backend(CLI::App& command, std::string& backend) {
  command.add_option("--backend", backend, "Backend to use (default: the first that can run; see 'list')")
      ->type_name("NAME");
}
void add_pass(CLI::App& command, std::string& pass) {
  pass = "step";
  command.add_option("--pass", pass, "forward, backward or step (both)")
      ->capture_default_str()
      ->check(CLI::IsMember({"forward", "backward", "step"}));
}
void add_reformulations(CLI::App& command, Reformulations& r) {
  command
      .add_flag("--recompute-analysis", r.recompute_analysis,
                "unfused, cuda-unfused: form bands inside the convolution")
      ->group("Published reformulations");
  command
      .add_flag("--collapse-synthesis", r.collapse_synthesis,
                "unfused, cuda-unfused: one synthesis pass over all levels")
      ->group("Published reformulations");
  command.add_flag("--fold-scales", r.fold_scales, "unfused, cuda-unfused: scale weights instead of outputs")
      ->group("Published reformulations");
}
void add_cases(CLI::App& command, CaseArguments& a) {
  command.add_option("CASE", a.texts, "Problems, such as n64c96h56w56k5l5_f32");
  command.add_option("--cases", a.file, "Also the cases of this file, one a line")->type_name("FILE");
}
std::vector<harness::Case> parse(const CaseArguments& a) {
  std::vector<harness::Case> cases;
  for (const std::string& text : a.texts) require(harness::parse_case(text, cases.emplace_back()));
  if (!a.file.empty()) {
    std::vector<harness::Case> more;
    require(harness::read_cases(a.file, more));
    cases.insert(cases.end(), more.begin(), more.end());
  }
  if (cases.empty()) throw Error("no CASE is given, nor --cases FILE");
  return cases;
}
void add_host_file(CLI::App& command, std::string& path) {
  command
      .add_option("--host-file", path,
                  "Take this host's rates from a file that 'model --measure-host --json' wrote, instead of "
                  "measuring them")
      ->type_name("FILE");
}

namespace {

int complain(const std::string& what) {
  std::fflush(stdout);
  fmt::print(stderr, "wtconv: {}\n", what);
  return bad_usage;
}

// CLI11's help in 80 columns: what is too long goes on below where its description starts.
std::string fitted(const std::string& help) {
  constexpr std::size_t width = 80;
  std::string result;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    std::size_t text = line.find_first_not_of(' ');
    if (const std::size_t gap = line.find("  ", text); text != line.npos && gap != line.npos && gap < 40) {
      text = std::min(line.find_first_not_of(' ', gap), width / 2);
    }
    while (line.size() > width) {
      const std::size_t space = line.rfind(' ', width);
      if (space == line.npos || space <= text) break;
      result += line.substr(0, space) + "\n";
      line = std::string(text, ' ') + line.substr(space + 1);
    }
    result += line + "\n";
  }
  return result;
}

int run(int argc, char** argv) {
  CLI::App app("WTConv, the wavelet convolution layer: check it, measure it, run it on images.", "wtconv");
  app.set_version_flag("--version", WTCONV_VERSION);
  app.require_subcommand(1);
  app.footer(
      "A CASE is one line such as n64c96h56w56k5l5_f32: batch, channels, height, width, kernel, levels, dtype; options "
      "follow after underscores: _s2 (stride), _nhwc, _nobias, ... Exit codes: 0 all well, 1 a check failed, 2 bad "
      "usage or input. 'wtconv COMMAND --help' explains a command.\n");
  Command chosen;
  for (const auto add : {add_list, add_explain, add_check, add_bench, add_model, add_run, add_compare}) {
    add(app, chosen);
  }
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == argv[1]; }).empty()) {
    return complain(fmt::format("no command '{}' (see 'wtconv --help')", argv[1]));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(fitted(app.help()));
    return success;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --version
    std::string command = "wtconv";
    for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    return complain(fmt::format("{} (see '{} --help')", what, command));
  }
  try {
    return chosen();
  } catch (const std::bad_alloc&) {
    return complain("not enough memory for this; a smaller batch (n) needs less");
  } catch (const std::exception& e) {
    return complain(e.what());
  }
}

}  // namespace
}  // namespace wtconv::tool

int main(int argc, char** argv) { return wtconv::tool::run(argc, argv); }
