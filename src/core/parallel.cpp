#include "core/parallel.hpp"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace wtconv {

int thread_count(int asked) {
#ifdef _OPENMP
  return asked > 0 ? asked : omp_get_max_threads();
#else
  (void)asked;
  return 1;
#endif
}

void detail::parallel_for(std::int64_t tasks, int threads, void (*run)(void*, std::int64_t, int), void* context) {
#ifdef _OPENMP
  const int team = static_cast<int>(std::min<std::int64_t>(tasks, threads));
  if (team > 1) {
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (std::int64_t task = 0; task < tasks; ++task) run(context, task, omp_get_thread_num());
    return;
  }
#endif
  for (std::int64_t task = 0; task < tasks; ++task) run(context, task, 0);
}

}  // namespace wtconv
