// `list`: the backends of this build and whether they can run here.
#include <fmt/format.h>

#include <sstream>

#include "command.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

int run(bool json) {
  Json out = Json::array();
  Table table({"backend", "memory<", "here<", "what it is<"});
  for (const Backend* b : backends()) {
    const Status s = b->available();
    const std::string device = b->device() == Device::cuda ? "cuda" : "host";
    const std::string why = s.ok() ? std::string(b->description()) : s.message();
    out.push_back({{"name", b->name()},
                   {"device", device},
                   {"available", s.ok()},
                   {"reason", s.message()},
                   {"description", b->description()}});
    // Long texts go on in the last column of further rows.
    std::istringstream lines(wrapped(why, 0, 56));
    std::string line;
    std::getline(lines, line);
    table.row({{std::string(b->name()), Style::accent},
               device,
               {s.ok() ? "yes" : "no", s.ok() ? Style::good : Style::bad},
               line});
    while (std::getline(lines, line)) table.row({"", "", "", line});
  }
  if (json) {
    print_json(Json{{"backends", out}});
  } else {
    print(table.text());
    print("\nIn order of preference: a call takes the first that can run its problem.\n");
  }
  return success;
}

}  // namespace

void add_list(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("list", "List the backends, with the reason where one cannot run here");
  const auto json = std::make_shared<bool>(false);
  add_json(*command, *json);
  command->callback([&chosen, json] { chosen = [json] { return run(*json); }; });
}

}  // namespace wtconv::tool
