// What `wtconv bench --against NAME` times beside our backends: kernels of other libraries, each behind an adapter of a
// few lines that may answer "not applicable".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/tensors.hpp"

namespace wtconv::bench {

// A competitor computes one depthwise k x k convolution: y = base_weight (*) x with 'same' padding, no scale, no bias,
// no levels. `bench` checks that against the reference before it times it.
class Competitor {
 public:
  virtual ~Competitor() = default;
  virtual std::string name() const = 0;         // "onednn"
  virtual std::string description() const = 0;  // "oneDNN 2.6.3, depthwise k x k, plain layout in and out"
  // ok, or `unsupported` with what it cannot take of this case (dtype, layout, stride, ...).
  virtual Status applicable(const harness::Case& c) const = 0;
  // Does everything that may happen before the clock runs and gives the function to time, which reads tensors.x and
  // tensors.parameters.base_weight and writes all of tensors.y. `tensors` outlives the function.
  virtual Status prepare(const harness::Case& c, harness::Tensors& tensors, int threads,
                         std::function<Status()>& forward) = 0;
};

// Those of this build; defined by library wtconv_competitors (bench/CMakeLists.txt).
std::vector<std::unique_ptr<Competitor>> competitors();

}  // namespace wtconv::bench
