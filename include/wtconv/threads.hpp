// The host backends' threads, for programs that bring their own pool.
//
// Without one the backends use OpenMP, whose threads do not survive fork(): a child that calls the library after its
// parent did may hang (with GCC's runtime). Use threads = 1 there, fork before the first call, or bring a pool.
#pragma once

#include "wtconv/export.hpp"

namespace WTCONV_EXPORT wtconv {

// Runs task(context, worker) for every worker in [0, workers), as far as possible at the same time, and returns when
// all have ended. A pool may run several workers one after the other on one thread.
using RunWorkers = void (*)(int workers, void (*task)(void* context, int worker), void* context);

// Uses `run` in place of OpenMP in all host backends; null goes back. Not while a call is running.
void set_worker_pool(RunWorkers run);

}  // namespace wtconv
