// This host's rates: measured, reported as JSON, and read back from such a report.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "command.hpp"
#include "core/parallel.hpp"
#include "host_rates.hpp"
#include "images/files.hpp"
#include "terminal.hpp"

namespace wtconv::tool {
namespace {

int repetitions(Effort effort) { return effort == Effort::full ? 15 : 5; }
std::size_t copy_bytes(Effort effort) { return default_copy_bytes() / (effort == Effort::full ? 1 : 4); }

Machine from_file(const std::string& path, int threads) {
  std::vector<std::byte> bytes;
  require(images::read_file(path, bytes));
  const char* text = reinterpret_cast<const char*>(bytes.data());
  try {
    const Json host = Json::parse(text, text + bytes.size()).at("host");
    std::string known;
    for (const Json& r : host.at("rates")) {
      if (r.at("threads") == threads) {
        const Machine m{
            fmt::format("{}, {} thread{}", host.at("cpu").get<std::string>(), threads, threads == 1 ? "" : "s"),
            r.at("bandwidth"), r.at("fma_f32"), r.at("fma_f64"), "'" + path + "'"};
        if (!(m.bandwidth > 0 && m.fma_f32 > 0 && m.fma_f64 > 0)) throw Error("a rate is not positive");
        return m;
      }
      known += (known.empty() ? "" : ", ") + r.at("threads").dump();
    }
    throw Error(fmt::format("no rates for {} threads, only for {}", threads, known.empty() ? "none" : known));
  } catch (const std::exception& e) {
    throw Error(fmt::format("host file '{}': {}", path, e.what()));
  }
}

}  // namespace

Machine host_machine(int threads, const std::string& host_file, Effort effort) {
  if (threads == 0) threads = thread_count(0);
  if (!host_file.empty()) return from_file(host_file, threads);
  Progress progress("measuring this host");
  return to_machine(
      measure_host(threads, copy_bytes(effort), repetitions(effort), [&](double f) { progress.update(f); }));
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

std::string busy_warning() {
  // Before the work starts, one more than the processors is already somebody else's.
  const double load = load_average();
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  if (load < processors + 1) return {};
  const std::string text =
      fmt::format("This machine is busy (load {:.0f} on {} processors): times are too long and not to be trusted.",
                  load, processors);
  return styled(wrapped(text, 0), Style::bad);
}

Json measure_host_json(const std::vector<int>& threads, Effort effort) {
  Json rates = Json::array();
  Progress progress("measuring this host");
  double done = 0;
  for (int n : threads) {
    const HostRates r = measure_host(n, copy_bytes(effort), repetitions(effort),
                                     [&](double f) { progress.update((done + f) / double(threads.size())); });
    done += 1;
    rates.push_back({{"threads", n},
                     {"bandwidth", r.bandwidth},
                     {"copy_method", to_string(r.method)},
                     {"fma_f32", r.fma_f32},
                     {"fma_f64", r.fma_f64}});
  }
  return {{"cpu", cpu_name()},
          {"simd", simd_target_name()},
          {"load_average", load_average()},
          {"method", host_rates_method(copy_bytes(effort), repetitions(effort))},
          {"rates", rates}};
}

}  // namespace wtconv::tool
