// The command-line tool. This file knows the commands' names and exit codes, nothing of what they do.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

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
  command.add_option("--backend", backend, "Backend to use (default: the first that can run; see 'list')");
}
void add_host_file(CLI::App& command, std::string& path) {
  command.add_option("--host-file", path,
                     "Take this host's rates from a file that 'model --measure-host --json' wrote, instead of "
                     "measuring them");
}

namespace {

int complain(const std::string& what) {
  std::fflush(stdout);
  fmt::print(stderr, "wtconv: {}\n", what);
  return bad_usage;
}

int run(int argc, char** argv) {
  CLI::App app("WTConv, the wavelet convolution layer: check it, measure it, run it on images.", "wtconv");
  app.set_version_flag("--version", WTCONV_VERSION);
  app.require_subcommand(1);
  app.footer(
      "A CASE is one line such as n64c96h56w56k5l5_f32: batch, channels, height, width, kernel, levels, dtype; "
      "options\n"
      "follow after underscores: _s2 (stride), _nhwc, _nobias, ... Exit codes: 0 all well, 1 a check failed, 2 bad\n"
      "usage or input. 'wtconv COMMAND --help' explains a command.");
  Command chosen;
  for (const auto add : {add_list, add_explain, add_check, add_bench, add_model, add_run, add_compare}) {
    add(app, chosen);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::string command = "wtconv";
    for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
    return complain(fmt::format("{} (see '{} --help')", e.what(), command));
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
