// `explain`: what would happen to a case, and why.
#include <fmt/format.h>

#include "command.hpp"
#include "core/parallel.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

struct Arguments {
  CaseArguments cases;
  std::string backend;
  std::string pass;
  std::string host_file;
  Reformulations reformulations;
  int threads = 0;
  bool json = false;
};

// What one backend would do in one pass.
struct Entry {
  const Backend* backend;
  Pass pass;
  Plan plan;
  double bytes;
  Roofline time;  // on this host, for host backends
  bool has_time() const { return backend->device() == Device::host; }
};

const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

Entry entry(const Backend& b, const Problem& p, Pass pass, const Options& options, const Machine& host) {
  Entry e{&b, pass, b.plan(p, pass, {}, options), 0, {}};
  e.bytes = e.plan.elements_moved * double(size_of(p.dtype));
  const Work work = pass == Pass::forward ? forward_work(p, Formulation::one_kernel) : backward_work(p);
  if (e.has_time()) e.time = roofline(host, {e.plan.elements_moved, 0}, work, p.dtype);
  return e;
}

Json to_json(const Entry& e) {
  Json j{{"backend", e.backend->name()},
         {"pass", name_of(e.pass)},
         {"strategy", e.plan.strategy},
         {"reason", e.plan.reason},
         {"workspace_bytes", e.plan.workspace},
         {"elements_moved", e.plan.elements_moved},
         {"bytes", e.bytes}};
  if (e.has_time()) j["predicted_seconds"] = e.time.seconds();
  return j;
}

struct Level {
  int level;
  std::int64_t height, width;  // of a band; of x at level 0
  double elements;             // of all its bands
  std::int64_t reach;          // pixels of x, a side, that an output of its filters depends on
};

std::vector<Level> levels_of(const Problem& p) {
  std::vector<Level> levels;
  for (int l = 0; l <= p.levels; ++l) {
    const std::int64_t h = p.height_at(l), w = p.width_at(l);
    levels.push_back({l, h, w, (l ? 4.0 : 1.0) * double(p.batch) * double(p.channels) * double(h) * double(w),
                      std::int64_t{p.kernel} << l});
  }
  return levels;
}

Json shapes_json(const Problem& p) {
  Json out = Json::array();
  for (const Level& l : levels_of(p)) {
    out.push_back(
        {{"level", l.level}, {"height", l.height}, {"width", l.width}, {"elements", l.elements}, {"reach", l.reach}});
  }
  return out;
}

void print_shapes(const Problem& p) {
  Table table({"level", "planes", "height", "width", "padded to", "elements", "reach*"});
  for (const Level& l : levels_of(p)) {
    // The image that level l splits has the size of the level above.
    const std::int64_t above_h = l.level ? p.height_at(l.level - 1) : 0,
                       above_w = l.level ? p.width_at(l.level - 1) : 0;
    const bool padded = l.level && (2 * l.height != above_h || 2 * l.width != above_w);
    table.row({l.level ? fmt::format("{}", l.level) : "0 (x)", l.level ? "4 bands" : "x", fmt::format("{}", l.height),
               fmt::format("{}", l.width), padded ? fmt::format("{} x {}", 2 * l.height, 2 * l.width) : "-",
               count_text(l.elements), fmt::format("{}", l.reach)});
  }
  print(table.text() + "* pixels of x, a side, that one output of the level's filters depends on\n\n");
}

void explain(const harness::Case& c, const Arguments& a, const Machine& host, Json* out) {
  const Problem& p = c.problem;
  Options options{.backend = a.backend, .threads = a.threads, .reformulations = a.reformulations};
  const Backend* named = find_backend(a.backend);
  if (named) options.device = named->device();
  Choice choice = choose_backend(p, options);
  if (named && !named->available().ok() && named->can_run(p).ok()) {
    // What it would do does not need its device.
    choice = {named, {}, a.backend + " cannot run here: " + named->available().message()};
  }
  require(choice.status);
  std::vector<Pass> passes;
  if (a.pass != "backward") passes.push_back(Pass::forward);
  if (a.pass != "forward") passes.push_back(Pass::backward);
  std::vector<Entry> chosen, others;
  Json refusals = Json::array();
  for (const Backend* b : backends()) {
    Status s = b == choice.backend ? Status{} : b->available();
    if (s.ok()) s = b->can_run(p);
    if (!s.ok()) {
      refusals.push_back({{"backend", b->name()}, {"reason", s.message()}});
      continue;
    }
    for (Pass pass : passes) (b == choice.backend ? chosen : others).push_back(entry(*b, p, pass, options, host));
  }
  if (out) {
    Json j{{"case", harness::to_string(c)}, {"shapes", shapes_json(p)}, {"backend", choice.backend->name()},
           {"choice", choice.reason},       {"plans", Json::array()},   {"other_plans", Json::array()},
           {"cannot_run", refusals}};
    for (const Entry& e : chosen) j["plans"].push_back(to_json(e));
    for (const Entry& e : others) j["other_plans"].push_back(to_json(e));
    out->push_back(j);
    return;
  }
  const double n = std::max(1.0, levels_of(p)[0].elements);
  print(styled(harness::to_string(c), Style::bold) +
        fmt::format(": x is ({}, {}, {}, {}), {}\n\n", p.batch, p.channels, p.height, p.width,
                    bytes_text(levels_of(p)[0].elements * double(size_of(p.dtype)))));
  print_shapes(p);
  print(styled(fmt::format("Backend {}", choice.backend->name()), Style::bold) + "\n" + wrapped(choice.reason, 2));
  for (const Entry& e : chosen) {
    print("\n" + styled(fmt::format("{}: {}", name_of(e.pass), e.plan.strategy), Style::accent) + "\n");
    print(wrapped(e.plan.reason, 2));
  }
  print("\n");
  Table table({"backend", "pass<", "strategy<", "workspace", "elements/N", "bytes", "predicted"});
  const auto add = [&](const Entry& e, Style style) {
    table.row({{std::string(e.backend->name()), style},
               name_of(e.pass),
               e.plan.strategy.substr(0, 20),
               bytes_text(double(e.plan.workspace)),
               fmt::format("{:.2f}", e.plan.elements_moved / n),
               bytes_text(e.bytes),
               e.has_time() ? seconds_text(e.time.seconds()) + (e.time.memory_bound() ? " " : "*") : "-"});
  };
  for (const Entry& e : chosen) add(e, Style::accent);
  for (const Entry& e : others) add(e, Style::dim);
  print(table.text());
  print(wrapped(fmt::format("Predicted: the least time that {} allows for these bytes and the filters' multiply-adds; "
                            "a * says that arithmetic is the limit.",
                            host.name),
                0));
  for (const Json& r : refusals) {
    print(wrapped(fmt::format("{} cannot run it: {}", r["backend"].get<std::string>(), r["reason"].get<std::string>()),
                  0));
  }
  print("\n");
}

int run(const Arguments& a) {
  const std::vector<harness::Case> cases = parse(a.cases);
  const Machine host = host_machine(a.threads, a.host_file, Effort::quick);
  Json out = Json::array();
  for (const harness::Case& c : cases) explain(c, a, host, a.json ? &out : nullptr);
  if (a.json) print_json(Json{{"cases", out}});
  return success;
}

}  // namespace

void add_explain(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("explain", "Shapes per level, the strategy chosen and why, workspace, bytes, predicted time");
  const auto a = std::make_shared<Arguments>();
  add_cases(*command, a->cases);
  add_backend(*command, a->backend);
  add_pass(*command, a->pass);
  add_threads(*command, a->threads);
  add_reformulations(*command, a->reformulations);
  add_host_file(*command, a->host_file);
  add_json(*command, a->json);
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
