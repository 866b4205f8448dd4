// `model`: what formulations move and compute, and the time that machines' rooflines predict.
#include <fmt/format.h>

#include <array>

#include "command.hpp"
#include "core/parallel.hpp"
#include "harness/case.hpp"
#include "host_rates.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

constexpr std::array formulations{Formulation::reference, Formulation::published_fused, Formulation::one_kernel};
constexpr int table_levels = 5;

struct Arguments {
  CaseArguments cases;
  std::vector<std::string> machines;
  bool measure_host = false;
  std::string host_file;
  int threads = 0;
  bool json = false;
};

// FLOP per byte of a forward where all sizes halve evenly.
double intensity(Formulation f, int kernel, int levels) {
  const Problem p{.height = 1024, .width = 1024, .kernel = kernel, .levels = levels};
  return arithmetic_intensity(forward_work(p, f), forward_traffic(p, f), DType::f32);
}

Json published_json() {
  Json out = Json::array();
  for (Formulation f : formulations) {
    Json row{{"formulation", to_string(f)}};
    for (int l = 1; l <= table_levels; ++l) row["elements_per_n"].push_back(published_factor(f, l));
    for (int k : {3, 5, 7}) row["flop_per_byte_f32_l5"][fmt::format("k{}", k)] = intensity(f, k, table_levels);
    out.push_back(row);
  }
  return out;
}

void print_published() {
  print(styled("Elements through main memory in a forward, in units of N = B C H W", Style::bold) +
        "\n(published counts; they assume that sizes halve evenly)\n\n");
  Table table({"levels", "reference", "published fused", "one kernel"});
  for (int l = 1; l <= table_levels; ++l) {
    table.row({fmt::format("L = {}", l),
               fmt::format("{:.2f}", published_factor(formulations[0], l)),
               fmt::format("{:.2f}", published_factor(formulations[1], l)),
               {fmt::format("{:.2f}", published_factor(formulations[2], l)), Style::accent}});
  }
  table.row({"closed form", "7 + 43/3 (1 - 4^-L)", "7 + 4/3 (1 - 4^(1-L))", "2"});
  print(table.text());
  print("A backward in one kernel moves 3 N: reads x and dy, writes dx.\n\n");
  print(styled("FLOP per byte of that forward, f32, L = 5", Style::bold) + "\n\n");
  Table flops({"kernel", "reference", "published fused", "one kernel"});
  for (int k : {3, 5, 7}) {
    std::vector<Cell> row{fmt::format("k = {}", k)};
    for (Formulation f : formulations) row.push_back(fmt::format("{:.2f}", intensity(f, k, table_levels)));
    flops.row(row);
  }
  print(flops.text() + "\n");
}

Json machine_json(const Machine& m) {
  return {{"name", m.name},
          {"bandwidth", m.bandwidth},
          {"fma_f32", m.fma_f32},
          {"fma_f64", m.fma_f64},
          {"source", m.source}};
}

void print_machines(const std::vector<Machine>& machines) {
  print(styled("Machines", Style::bold) + "\n\n");
  Table table({"machine", "GB/s", "f32 T mul-add/s", "f64 T mul-add/s", "balance*"});
  for (const Machine& m : machines) {
    table.row({{m.name, Style::accent},
               fmt::format("{:.1f}", m.bandwidth / 1e9),
               fmt::format("{:.3f}", m.fma_f32 / 1e12),
               fmt::format("{:.3f}", m.fma_f64 / 1e12),
               fmt::format("{:.1f}", 2 * m.fma_f32 / m.bandwidth)});
  }
  print(table.text());
  print("* f32 FLOP per byte above which arithmetic is the limit\n");
  for (const Machine& m : machines) print(wrapped(m.name + ": " + m.source, 0));
  print("\n");
}

void print_host(const Json& host) {
  print(styled("This host: ", Style::bold) + host["cpu"].get<std::string>() + "\n\n");
  Table table({"threads", "copy GB/s", "by<", "f32 G mul-add/s", "f64 G mul-add/s"});
  for (const Json& r : host["rates"]) {
    table.row({r["threads"].dump(), fmt::format("{:.2f}", r["bandwidth"].get<double>() / 1e9),
               r["copy_method"].get<std::string>(), fmt::format("{:.1f}", r["fma_f32"].get<double>() / 1e9),
               fmt::format("{:.1f}", r["fma_f64"].get<double>() / 1e9)});
  }
  print(busy_warning());
  print(table.text() + wrapped(host["method"].get<std::string>(), 0) + "\n");
}

// One line of a case's report: a pass in a formulation.
struct Row {
  std::string name;
  Traffic traffic;
  Work work;
};

std::vector<Row> rows_of(const Problem& p) {
  std::vector<Row> rows;
  for (Formulation f : formulations) {
    rows.push_back({std::string(to_string(f)) + ", forward", forward_traffic(p, f), forward_work(p, f)});
  }
  rows.push_back({"one kernel, backward", backward_traffic(p), backward_work(p)});
  return rows;
}

double elements(const Problem& p) { return double(p.batch) * double(p.channels) * double(p.height) * double(p.width); }

Json case_json(const harness::Case& c, const std::vector<Machine>& machines) {
  const Problem& p = c.problem;
  Json rows = Json::array();
  for (const Row& r : rows_of(p)) {
    Json predictions = Json::array();
    for (const Machine& m : machines) {
      const Roofline line = roofline(m, r.traffic, r.work, p.dtype);
      predictions.push_back({{"machine", m.name},
                             {"seconds", line.seconds()},
                             {"memory_seconds", line.memory_seconds},
                             {"arithmetic_seconds", line.arithmetic_seconds}});
    }
    rows.push_back({{"formulation", r.name},
                    {"elements_read", r.traffic.read},
                    {"elements_written", r.traffic.written},
                    {"bytes", r.traffic.total() * double(size_of(p.dtype))},
                    {"multiply_adds", r.work.multiply_adds},
                    {"additions", r.work.additions},
                    {"flop_per_byte", arithmetic_intensity(r.work, r.traffic, p.dtype)},
                    {"predictions", predictions}});
  }
  return {{"case", harness::to_string(c)}, {"elements", elements(p)}, {"formulations", rows}};
}

void print_case(const harness::Case& c, const std::vector<Machine>& machines) {
  const Problem& p = c.problem;
  const double n = elements(p);
  print(styled(harness::to_string(c), Style::bold) +
        fmt::format(", N = {}, x is {}\n\n", count_text(n), bytes_text(n * double(size_of(p.dtype)))));
  const std::vector<Row> rows = rows_of(p);
  Table counts({"formulation", "elements/N", "bytes", "mul-adds", "additions", "FLOP/byte"});
  for (const Row& r : rows) {
    counts.row({r.name, fmt::format("{:.2f}", r.traffic.total() / std::max(n, 1.0)),
                bytes_text(r.traffic.total() * double(size_of(p.dtype))), count_text(r.work.multiply_adds),
                count_text(r.work.additions),
                n > 0 ? fmt::format("{:.2f}", arithmetic_intensity(r.work, r.traffic, p.dtype)) : "-"});
  }
  print(counts.text());
  print("\nPredicted times; a * says that arithmetic is the limit, else memory is:\n\n");
  Table times({"machine", "reference", "published", "one kernel", "its backward", "its step"});
  for (const Machine& m : machines) {
    std::vector<Cell> cells{{m.name.substr(0, 24), Style::accent}};
    double step = 0;
    for (const Row& r : rows) {
      const Roofline line = roofline(m, r.traffic, r.work, p.dtype);
      cells.push_back(seconds_text(line.seconds()) + (line.memory_bound() ? " " : "*"));
      if (&r >= &rows[2]) step += line.seconds();
    }
    cells.push_back(seconds_text(step));
    times.row(cells);
  }
  print(times.text() + "\n");
}

std::vector<Machine> chosen_machines(const std::vector<std::string>& names) {
  const auto known = known_machines();
  if (names.empty()) return {known.begin(), known.end()};
  std::vector<Machine> chosen;
  for (const std::string& name : names) {
    std::string all;
    bool found = false;
    for (const Machine& m : known) {
      all += (all.empty() ? "" : ", ") + m.name;
      if (m.name != name) continue;
      chosen.push_back(m);
      found = true;
    }
    if (!found) throw Error(fmt::format("no machine named '{}'; known are: {}", name, all));
  }
  return chosen;
}

int run(const Arguments& a) {
  std::vector<harness::Case> cases;
  if (!a.cases.texts.empty() || !a.cases.file.empty()) cases = parse(a.cases);
  std::vector<Machine> machines = chosen_machines(a.machines);
  Json host;
  if (a.measure_host) {
    std::vector<int> counts{1};
    for (int n : {thread_count(0), a.threads}) {
      if (n > 0 && std::find(counts.begin(), counts.end(), n) == counts.end()) counts.push_back(n);
    }
    host = measure_host_json(counts, Effort::full);
    for (const Json& r : host["rates"]) {
      const int n = r["threads"];
      machines.push_back({fmt::format("this host, {} thread{}", n, n == 1 ? "" : "s"), r["bandwidth"], r["fma_f32"],
                          r["fma_f64"], "measured now"});
    }
  } else if (!a.host_file.empty()) {
    machines.push_back(host_machine(a.threads, a.host_file, Effort::full));
  }
  if (a.json) {
    Json out{{"published", published_json()}, {"machines", Json::array()}, {"cases", Json::array()}};
    for (const Machine& m : machines) out["machines"].push_back(machine_json(m));
    if (!host.is_null()) out["host"] = host;
    for (const auto& c : cases) out["cases"].push_back(case_json(c, machines));
    print_json(out);
    return success;
  }
  if (!host.is_null()) print_host(host);
  if (cases.empty() && host.is_null()) print_published();
  if (cases.empty() && host.is_null()) print_machines(machines);
  for (const auto& c : cases) print_case(c, machines);
  return success;
}

}  // namespace

void add_model(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("model", "Bytes, multiply-adds and the time a roofline predicts, of cases or in general");
  const auto a = std::make_shared<Arguments>();
  add_cases(*command, a->cases);
  command->add_option("--machine", a->machines, "Only this machine (may be given more than once)")
      ->allow_extra_args(false);
  command->add_flag("--measure-host", a->measure_host,
                    "Measure this host's copy bandwidth and multiply-adds, on one thread and on all");
  add_host_file(*command, a->host_file);
  add_threads(*command, a->threads);
  add_json(*command, a->json);
  command->footer("Save this host's rates for the other commands: wtconv model --measure-host --json > host.json\n");
  command->callback([&chosen, a] { chosen = [a] { return run(*a); }; });
}

}  // namespace wtconv::tool
