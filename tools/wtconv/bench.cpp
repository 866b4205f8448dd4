// `bench`: checked, then timed against a copy of x and the host's roofline.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.hpp"
#include "harness/check.hpp"
#include "layer_call.hpp"
#include "terminal.hpp"
#include "timing.hpp"
#ifdef WTCONV_HAVE_COMPETITORS
#include "bench/competitor.hpp"
#endif

namespace wtconv::tool {
namespace {

struct Arguments {
  CaseArguments cases;
  std::vector<std::string> backends;
  std::vector<std::string> against;
  std::string pass;
  std::string host_file;
  Reformulations reformulations;
  Rounds rounds;
  int threads = 0;
  bool no_check = false;
  bool json = false;
};

// One contestant in one pass.
struct Line {
  std::string name;
  std::string pass;
  std::vector<double> seconds;
  Roofline floor;
};

// Another library's kernel, or nothing. Empty builds have none.
struct Rival {
  std::string name;
  std::string refusal;  // why it cannot run this case
  std::function<Status()> forward;
  std::shared_ptr<harness::Tensors> tensors;
  std::shared_ptr<void> owner;
};

#ifdef WTCONV_HAVE_COMPETITORS
std::vector<std::string> rival_names() {
  std::vector<std::string> names;
  for (const auto& c : bench::competitors()) names.push_back(c->name());
  return names;
}

// `c` is a plain depthwise convolution: no levels, no bias, stride as the case's.
Rival make_rival(const std::string& name, const harness::Case& case_of_layer, int threads, bool check) {
  for (auto& competitor : bench::competitors()) {
    if (competitor->name() != name) continue;
    harness::Case c = case_of_layer;
    c.problem.levels = 0;
    c.bias = false;
    Rival r;
    r.name = name;
    if (const Status s = competitor->applicable(c); !s.ok()) {
      r.refusal = s.message();
      return r;
    }
    r.tensors = std::make_shared<harness::Tensors>();
    require(harness::make_tensors(c, *r.tensors));
    harness::fill(*r.tensors, harness::Fill::random, 1);
    for (std::int64_t i = 0; i < c.problem.channels; ++i) r.tensors->parameters.base_scale.set(i, 1);
    r.owner = std::shared_ptr<bench::Competitor>(std::move(competitor));
    auto* kept = static_cast<bench::Competitor*>(r.owner.get());
    require(kept->prepare(c, *r.tensors, threads, r.forward));
    require(r.forward());
    if (check) {
      const harness::CheckResult result =
          harness::judge(c, *r.tensors, {.backend = name, .backward = false, .threads = threads, .channels = 2});
      if (!result.ok) throw Error(fmt::format("competitor {}: {}", name, result.failure));
    }
    return r;
  }
  throw Error("no competitor '" + name + "'");
}
#else
std::vector<std::string> rival_names() { return {}; }
Rival make_rival(const std::string&, const harness::Case&, int, bool) { return {}; }
#endif

Json to_json(const Summary& s) { return {{"median_seconds", s.median}, {"spread", s.spread}, {"rounds", s.rounds}}; }

class Bench {
 public:
  Bench(const Arguments& a, const Machine& host) : a_(a), host_(host) {}

  // False if a check failed.
  bool run(const harness::Case& c) {
    const Problem& p = c.problem;
    std::vector<std::string> names = a_.backends;
    if (names.empty()) names.push_back("");
    for (std::string& name : names) name = chosen(name, p);
    std::vector<std::string> others;
    for (const std::string& name : a_.against) {
      if (find_backend(name) && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      if (!find_backend(name)) others.push_back(name);
    }
    if (!a_.no_check && !check(c, names)) return false;

    harness::Tensors tensors;
    require(harness::make_tensors(c, tensors));
    harness::fill(tensors, harness::Fill::random, 1);
    const std::size_t x_bytes = std::size_t(tensors.x.view().size()) * std::size_t(size_of(p.dtype));
    CopyCall copy(x_bytes, a_.threads);
    Timed copy_time{[&] { return copy.run(); }};
    std::vector<Timed*> timed{&copy_time};
    struct Contestant {
      std::unique_ptr<LayerCall> call;
      Timed forward, backward;
    };
    std::vector<std::unique_ptr<Contestant>> contestants;
    for (const std::string& name : names) {
      auto& k = *contestants.emplace_back(std::make_unique<Contestant>());
      k.call = std::make_unique<LayerCall>(tensors, name, a_.threads, a_.reformulations);
      k.forward.run = [&k] { return k.call->forward(); };
      k.backward.run = [&k] { return k.call->backward(); };
      if (a_.pass != "backward") timed.push_back(&k.forward);
      if (a_.pass != "forward") timed.push_back(&k.backward);
    }
    std::vector<std::pair<Rival, Timed>> rivals;
    for (const std::string& name : others) {
      Rival r = make_rival(name, c, a_.threads, !a_.no_check);
      const auto forward = r.forward;
      rivals.push_back({std::move(r), Timed{forward}});
    }
    for (auto& [rival, time] : rivals) {
      if (rival.forward && a_.pass != "backward") timed.push_back(&time);
    }
    {
      Progress progress("timing " + harness::to_string(c));
      time_in_rounds(timed, a_.rounds, [&](double f) { progress.update(f); });
    }

    const Roofline forward = predict_forward(host_, p, Formulation::one_kernel), backward = predict_backward(host_, p);
    // A step runs both one after the other, so its floor is the sum.
    const Roofline step{forward.seconds() + backward.seconds(), 0};
    std::vector<Line> lines;
    for (const auto& k : contestants) {
      const std::string& name = k->call->backend();
      if (a_.pass != "backward") lines.push_back({name, "forward", k->forward.seconds, forward});
      if (a_.pass != "forward") lines.push_back({name, "backward", k->backward.seconds, backward});
      if (a_.pass == "step") {
        lines.push_back({name, "step", sums(k->forward.seconds, k->backward.seconds), step});
      }
    }
    for (const auto& [rival, time] : rivals) {
      if (!time.seconds.empty()) lines.push_back({rival.name, "forward", time.seconds, {}});
    }
    report(c, lines, summarise(copy_time.seconds), copy.method(), x_bytes);
    for (const auto& [rival, time] : rivals) {
      if (!rival.refusal.empty() && !a_.json) print(fmt::format("{}: not applicable: {}\n", rival.name, rival.refusal));
    }
    if (!a_.json) print("\n");
    return true;
  }

  const Json& json() const { return json_; }

 private:
  static std::string chosen(const std::string& name, const Problem& p) {
    Options options{.backend = name};
    if (const Backend* b = find_backend(name); b && b->device() != Device::host) {
      throw Error(fmt::format("backend '{}' works on device memory; bench times host backends", name));
    }
    const Choice choice = choose_backend(p, options);
    require(choice.status);
    return std::string(choice.backend->name());
  }

  bool check(const harness::Case& c, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      Progress progress("checking " + name);
      const harness::CheckResult r = harness::check(c, {.backend = name,
                                                        .backward = a_.pass != "forward",
                                                        .threads = a_.threads,
                                                        .reformulations = a_.reformulations,
                                                        .channels = judged_channels(c.problem)});
      if (r.ok) continue;
      json_.push_back({{"case", r.case_text}, {"backend", name}, {"ok", false}, {"failure", r.failure}});
      if (!a_.json) print(styled("FAIL  ", Style::bad) + r.message() + "\nNot timed: the answer is wrong.\n\n");
      return false;
    }
    return true;
  }

  void report(const harness::Case& c, const std::vector<Line>& lines, const Summary& copy, const char* copy_method,
              std::size_t x_bytes) {
    const auto median_of = [&](const std::string& name, const std::string& pass) {
      for (const Line& l : lines) {
        if (l.name == name && l.pass == pass) return summarise(l.seconds).median;
      }
      return 0.0;
    };
    std::vector<std::string> header{"backend", "pass<", "time", "+-", "/ copy", "of roofline"};
    for (const std::string& name : a_.against) header.push_back(name + " /");
    Table table(header);
    Json rows = Json::array();
    for (const Line& l : lines) {
      const Summary s = summarise(l.seconds);
      const double percent = l.floor.seconds() / s.median;
      Json row{{"backend", l.name},  {"pass", l.pass},     {"median_seconds", s.median},
               {"spread", s.spread}, {"rounds", s.rounds}, {"ratio_to_copy", s.median / copy.median}};
      if (percent > 0) {
        row["roofline_seconds"] = l.floor.seconds();
        row["of_roofline"] = percent;
      }
      std::vector<Cell> cells{{l.name, l.pass == "forward" || lines[0].pass == l.pass ? Style::accent : Style::dim},
                              l.pass,
                              {seconds_text(s.median), Style::bold},
                              fmt::format("{:.0f}%", 100 * s.spread),
                              fmt::format("{:.2f}", s.median / copy.median),
                              percent > 0 ? fmt::format("{:.0f}%", 100 * percent) : "-"};
      for (const std::string& name : a_.against) {
        const double other = median_of(name, l.pass);
        cells.push_back(other > 0 && name != l.name ? fmt::format("{:.2f}x", other / s.median) : "-");
        if (other > 0) row["speedup_over"][name] = other / s.median;
      }
      table.row(cells);
      rows.push_back(row);
    }
    json_.push_back({{"case", harness::to_string(c)},
                     {"ok", true},
                     {"checked", !a_.no_check},
                     {"x_bytes", x_bytes},
                     {"copy", to_json(copy)},
                     {"copy_method", copy_method},
                     {"lines", rows}});
    if (a_.json) return;
    print(styled(harness::to_string(c), Style::bold) +
          fmt::format("  x {}, copy {} +-{:.0f}% ({})\n", bytes_text(double(x_bytes)), seconds_text(copy.median),
                      100 * copy.spread, copy_method));
    print(styled(a_.no_check ? "not checked\n"
                             : fmt::format("checked against the reference on {} of {} channels\n",
                                           judged_channels(c.problem), c.problem.channels),
                 Style::dim));
    print(table.text());
  }

  const Arguments& a_;
  const Machine& host_;
  Json json_ = Json::array();
};

int run(const Arguments& a) {
  const std::vector<harness::Case> cases = parse(a.cases);
  for (const std::string& name : a.against) {
    const std::vector<std::string> rivals = rival_names();
    if (find_backend(name) || std::find(rivals.begin(), rivals.end(), name) != rivals.end()) continue;
    std::string known;
    for (const Backend* b : backends()) known += std::string(b->name()) + ", ";
    for (const std::string& r : rivals) known += r + ", ";
    known.resize(known.size() - 2);
    throw Error(fmt::format("nothing named '{}' to compare with; this build has: {}{}", name, known,
                            rivals.empty() ? " (configure with WTCONV_BUILD_BENCH=ON for onednn)" : ""));
  }
  const double load = load_average();
  const Machine host = host_machine(a.threads, a.host_file, Effort::full);
  if (!a.json) {
    print(busy_warning());
    print(wrapped(fmt::format("Host: {}; copies {:.1f} GB/s (read + written), f32 {:.0f} G multiply-adds/s", host.name,
                              host.bandwidth / 1e9, host.fma_f32 / 1e9),
                  0) +
          "\n");
  }
  Bench bench(a, host);
  bool ok = true;
  for (const harness::Case& c : cases) ok = bench.run(c) && ok;
  if (a.json) {
    print_json(Json{{"host",
                     {{"name", host.name},
                      {"bandwidth", host.bandwidth},
                      {"fma_f32", host.fma_f32},
                      {"fma_f64", host.fma_f64},
                      {"source", host.source},
                      {"load_average", load}}},
                    {"cases", bench.json()}});
  } else {
    print(
        wrapped("time: median; +-: half the distance between the quartiles; / copy: times a copy of x timed in the "
                "same rounds; of roofline: the longer of moving 2 N (backward 3 N) elements at the host's copy "
                "bandwidth and doing the filters' multiply-adds at its rate, over the time.",
                0));
    if (!a.against.empty()) print("NAME /: how many times this line is faster than NAME's.\n");
  }
  return ok ? success : check_failed;
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("bench", "Check, then time: medians, ratio to a copy of x, percent of the roofline");
  const auto a = std::make_shared<Arguments>();
  add_cases(*command, a->cases);
  command->add_option("--backend", a->backends, "Backend to time; may be given more than once (default: the fastest)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--against", a->against, "Backend or competitor (onednn) to compare with; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_pass(*command, a->pass);
  add_threads(*command, a->threads);
  command->add_option("--rounds", a->rounds.most, "At most this many rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command->add_option("--seconds", a->rounds.seconds, "Stop a case after this time, but not before 5 rounds")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--no-check", a->no_check, "Do not check the answers first");
  add_host_file(*command, a->host_file);
  add_reformulations(*command, a->reformulations);
  add_json(*command, a->json);
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
