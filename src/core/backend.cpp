#include "wtconv/backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "core/builtin.hpp"
#include "core/validate.hpp"

namespace wtconv {
namespace {

struct Entry {
  const Backend* backend;
  int preference;
};

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries{{&cpu_backend(), 30}, {&unfused_backend(), 20}, {&reference_backend(), 10}};
};

Registry& registry() {
  static Registry r;
  return r;
}

std::string names() {
  std::string s;
  for (const Backend* b : backends()) s += (s.empty() ? "" : ", ") + std::string(b->name());
  return s;
}

const char* to_string(Device device) { return device == Device::cuda ? "cuda" : "host"; }

// Why `backend` cannot take the problem, or ok.
Status reject(const Backend& backend, const Problem& problem, Device device) {
  if (backend.device() != device) {
    return {StatusCode::unsupported, std::string("it works on ") + to_string(backend.device()) +
                                         " memory, the tensors are in " + to_string(device) + " memory"};
  }
  if (Status s = backend.available(); !s.ok()) return s;
  return backend.can_run(problem);
}

}  // namespace

std::vector<const Backend*> backends() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  std::vector<const Backend*> list;
  for (const Entry& e : r.entries) list.push_back(e.backend);
  return list;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* b : backends()) {
    if (b->name() == name) return b;
  }
  return nullptr;
}

Status register_backend(const Backend& backend, int preference) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (const Entry& e : r.entries) {
    if (e.backend->name() == backend.name()) {
      return {StatusCode::invalid_argument,
              "a backend named '" + std::string(backend.name()) + "' is registered already"};
    }
  }
  const auto at =
      std::find_if(r.entries.begin(), r.entries.end(), [&](const Entry& e) { return e.preference < preference; });
  r.entries.insert(at, Entry{&backend, preference});
  return {};
}

Choice choose_backend(const Problem& problem, const Options& options) {
  if (Status s = validate(problem); !s.ok()) return {nullptr, s, {}};
  if (Status s = validate_options(options); !s.ok()) return {nullptr, s, {}};
  std::string_view name = options.backend;
  const char* why = "named in the options";
  if (name.empty()) {
    if (const char* env = std::getenv("WTCONV_BACKEND"); env && *env) {
      name = env;
      why = "named by WTCONV_BACKEND";
    }
  }
  if (!name.empty()) {
    const Backend* backend = find_backend(name);
    if (!backend) {
      return {nullptr,
              {StatusCode::unavailable,
               "no backend named '" + std::string(name) + "' (" + why + "); this build has: " + names()},
              {}};
    }
    if (Status s = reject(*backend, problem, options.device); !s.ok()) {
      return {nullptr,
              {s.code(), "backend '" + std::string(name) + "' (" + why + ") cannot run " + to_string(problem) + ": " +
                             s.message()},
              {}};
    }
    return {backend, {}, std::string(name) + ": " + why};
  }
  std::string rejected;
  for (const Backend* backend : backends()) {
    const Status s = reject(*backend, problem, options.device);
    if (s.ok()) return {backend, {}, std::string(backend->name()) + ": first that can run" + rejected};
    rejected += "; not " + std::string(backend->name()) + ": " + s.message();
  }
  return {nullptr, {StatusCode::unavailable, "no backend can run " + to_string(problem) + rejected}, {}};
}

}  // namespace wtconv
