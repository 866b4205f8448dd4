#include "wtconv/wtconv.hpp"

#include <cstdint>
#include <new>
#include <string>
#include <type_traits>

#include "core/validate.hpp"

namespace wtconv {
namespace {

WorkspaceSize workspace_size(const Problem& problem, Pass pass, GradientMask mask, const Options& options) {
  const Choice choice = choose_backend(problem, options);
  if (!choice.backend) return {0, choice.status};
  return {choice.backend->plan(problem, pass, mask, options).workspace, {}};
}

Status check_workspace(const Backend& backend, std::size_t needed, const Workspace& given) {
  if (needed > 0 && reinterpret_cast<std::uintptr_t>(given.data) % workspace_alignment != 0) {
    return {StatusCode::invalid_argument, "the workspace must start at a multiple of " +
                                              std::to_string(workspace_alignment) + " bytes, got address " +
                                              std::to_string(reinterpret_cast<std::uintptr_t>(given.data))};
  }
  if (given.bytes >= needed && (given.data || needed == 0)) return {};
  return {StatusCode::workspace_too_small, "backend '" + std::string(backend.name()) + "' needs a workspace of " +
                                               std::to_string(needed) + " bytes, got " +
                                               (given.data ? std::to_string(given.bytes) + " bytes" : "no memory")};
}

// Views and plans may allocate small host memory; what that can throw ends here.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    const Status status{StatusCode::out_of_memory, "the host ran out of memory"};
    if constexpr (std::is_same_v<decltype(f()), Status>) {
      return status;
    } else {
      return {0, status};
    }
  }
}

}  // namespace

Status can_run(const Problem& problem, const Options& options) {
  return guarded([&] { return choose_backend(problem, options).status; });
}

WorkspaceSize forward_workspace(const Problem& problem, const Options& options) {
  return guarded([&] { return workspace_size(problem, Pass::forward, {}, options); });
}

WorkspaceSize backward_workspace(const Problem& problem, GradientMask mask, const Options& options) {
  return guarded([&] { return workspace_size(problem, Pass::backward, mask, options); });
}

Status forward(const Problem& problem, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
               Workspace workspace, const Options& options) {
  return guarded([&]() -> Status {
    const Choice choice = choose_backend(problem, options);
    if (!choice.backend) return choice.status;
    if (Status s = validate_forward(problem, x, parameters, y, workspace); !s.ok()) return s;
    const std::size_t needed = choice.backend->plan(problem, Pass::forward, {}, options).workspace;
    if (Status s = check_workspace(*choice.backend, needed, workspace); !s.ok()) return s;
    if (problem.batch == 0) return {};
    return choice.backend->forward(problem, x, parameters, y, workspace, options);
  });
}

Status backward(const Problem& problem, const ConstTensorView& x, const Parameters& parameters,
                const ConstTensorView& dy, const Gradients& gradients, Workspace workspace, const Options& options) {
  return guarded([&]() -> Status {
    const Choice choice = choose_backend(problem, options);
    if (!choice.backend) return choice.status;
    if (Status s = validate_backward(problem, x, parameters, dy, gradients, workspace); !s.ok()) return s;
    const std::size_t needed = choice.backend->plan(problem, Pass::backward, mask_of(gradients), options).workspace;
    if (Status s = check_workspace(*choice.backend, needed, workspace); !s.ok()) return s;
    // An empty batch still has parameter gradients: zeros, which every backend's sums give.
    return choice.backend->backward(problem, x, parameters, dy, gradients, workspace, options);
  });
}

}  // namespace wtconv
