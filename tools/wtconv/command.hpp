// What the commands of the tool share. Each command has one file, which defines its add_... function.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "wtconv/backend.hpp"
#include "wtconv/io_model.hpp"

namespace wtconv::tool {

// Exit codes of the tool.
inline constexpr int success = 0;
inline constexpr int check_failed = 1;
inline constexpr int bad_usage = 2;  // also input or output that does not work

// Ends the command with one line on standard error and `bad_usage`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
inline void require(const Status& status) {
  if (!status.ok()) throw Error(status.message());
}

using Json = nlohmann::ordered_json;
void print(const std::string& text);
void print_json(const Json& json);

// Set by the command line's parser, run after it.
using Command = std::function<int()>;
void add_list(CLI::App& app, Command& chosen);
void add_explain(CLI::App& app, Command& chosen);
void add_check(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_model(CLI::App& app, Command& chosen);
void add_run(CLI::App& app, Command& chosen);
void add_compare(CLI::App& app, Command& chosen);

// Options that mean the same in every command that has them.
void add_json(CLI::App& command, bool& json);
void add_threads(CLI::App& command, int& threads);
void add_backend(CLI::App& command, std::string& backend);
void add_pass(CLI::App& command, std::string& pass);  // "forward", "backward" or "step", which is both
void add_reformulations(CLI::App& command, Reformulations& reformulations);

// Cases as arguments and --cases FILE.
struct CaseArguments {
  std::vector<std::string> texts;
  std::string file;
};
void add_cases(CLI::App& command, CaseArguments& arguments);
// At least one case, or an Error.
std::vector<harness::Case> parse(const CaseArguments& arguments);

// The rates of this host for a number of threads (0: all): from a file that `model --measure-host --json` wrote, or, if
// the name is empty, measured now. A quick measurement copies less and repeats less.
enum class Effort { quick, full };
Machine host_machine(int threads, const std::string& host_file, Effort effort);
// What `model --measure-host` reports for these numbers of threads.
Json measure_host_json(const std::vector<int>& threads, Effort effort);
// Runnable tasks over the last minute, and a warning if others keep this machine busy (else empty).
double load_average();
std::string busy_warning();
void add_host_file(CLI::App& command, std::string& path);

}  // namespace wtconv::tool
