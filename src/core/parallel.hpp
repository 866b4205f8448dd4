// The one threading seam of the host backends: everything else is oblivious of OpenMP.
#pragma once

#include <cstdint>
#include <type_traits>

namespace wtconv {

// Threads a call with Options::threads = `asked` uses.
int thread_count(int asked);

namespace detail {
void parallel_for(std::int64_t tasks, int threads, void (*run)(void* context, std::int64_t task, int thread),
                  void* context);
}

// Calls f(task, thread) once for each task in [0, tasks), thread in [0, threads). Which thread runs a task is not
// fixed, so results must depend on the task alone.
template <class F>
void parallel_for(std::int64_t tasks, int threads, F&& f) {
  detail::parallel_for(
      tasks, threads,
      [](void* context, std::int64_t task, int thread) {
        (*static_cast<std::remove_reference_t<F>*>(context))(task, thread);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace wtconv
