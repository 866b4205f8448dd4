#include "core/parallel.hpp"

#include <algorithm>
#include <atomic>

#include "wtconv/threads.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace wtconv {
namespace {

void run_workers_openmp(int workers, void (*task)(void*, int), void* context) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(workers) schedule(static, 1)
#endif
  for (int worker = 0; worker < workers; ++worker) task(context, worker);
}

RunWorkers run_workers = run_workers_openmp;

}  // namespace

void set_worker_pool(RunWorkers run) { run_workers = run ? run : run_workers_openmp; }

int thread_count(int asked) {
#ifdef _OPENMP
  return asked > 0 ? asked : omp_get_max_threads();
#else
  return asked > 0 ? asked : 1;
#endif
}

void detail::parallel_for(std::int64_t tasks, int threads, void (*run)(void*, std::int64_t, int), void* context) {
  const int team = static_cast<int>(std::min<std::int64_t>(tasks, threads));
  if (team <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) run(context, task, 0);
    return;
  }
  // Workers draw tasks from one counter, so that a late or slow thread takes fewer.
  struct Job {
    std::atomic<std::int64_t> next{0};
    std::int64_t tasks;
    void (*run)(void*, std::int64_t, int);
    void* context;
  } job{.tasks = tasks, .run = run, .context = context};
  run_workers(
      team,
      [](void* opaque, int worker) {
        Job& j = *static_cast<Job*>(opaque);
        for (std::int64_t task; (task = j.next.fetch_add(1, std::memory_order_relaxed)) < j.tasks;) {
          j.run(j.context, task, worker);
        }
      },
      &job);
}

}  // namespace wtconv
