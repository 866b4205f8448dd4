#include "command.hpp"
namespace wtconv::tool {
void add_bench(CLI::App&, Command&) {}
void add_run(CLI::App&, Command&) {}
void add_compare(CLI::App&, Command&) {}
}  // namespace wtconv::tool
