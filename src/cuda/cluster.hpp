// How strategy `cluster` cuts a plane into bands: a pure function of the problem and the device's limits.
#pragma once

#include <string>

#include "cuda/device.hpp"
#include "cuda/tuning/cluster.hpp"
#include "wtconv/problem.hpp"

namespace wtconv::cuda {

struct Cut {
  int blocks = 0;        // of a cluster; 0: no cluster takes the problem
  int shape = -1;        // index among the shapes with kernels of their own
  ResidentShape band{};  // what a block has
  std::string why_not;
};
Cut cut_for_apply(const Problem& p, const DeviceLimits& limits);
Cut cut_for_gradient(const Problem& p, const DeviceLimits& limits);

}  // namespace wtconv::cuda
