// The strategies' host sides behind one signature, and the chooser among them. A strategy plans, lays out its
// workspace and launches; it neither allocates nor synchronises.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/arguments.hpp"
#include "cuda/device.hpp"
#include "cuda/kernels/launch.hpp"
#include "wtconv/backend.hpp"

namespace wtconv::cuda {

// The operator, forward or (filters rotated, dy in, dx out) as input gradient.
struct ApplyCall {
  const Problem& problem;
  Image in, out;
  Filters filters;
};

// The sums that weight gradients are made of; the closing kernel does the rest.
struct GradientCall {
  const Problem& problem;
  Image x, dy;
  bool base = true;     // whether those of the base filter are wanted
  int first_level = 0;  // the problem is that of the levels beyond, on their LL images
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual const char* name() const = 0;
  // Empty, or why this problem is not for it.
  virtual std::string rejects(const Problem&, const DeviceLimits&) const = 0;
  virtual std::string rejects_gradient(const Problem&, const DeviceLimits&) const = 0;
  virtual std::size_t apply_workspace(const Problem&, const DeviceLimits&) const = 0;
  virtual std::size_t gradient_workspace(const Problem&, const DeviceLimits&) const = 0;
  // Whether apply() rounds bands to the problem's 16-bit type.
  virtual bool rounds_bands(const Problem&) const { return false; }
  // Elements read and written, in units of N.
  virtual double apply_traffic(const Problem&, const DeviceLimits&) const = 0;
  virtual double gradient_traffic(const Problem&, const DeviceLimits&) const = 0;
  virtual Status apply(const ApplyCall&, Workspace, const DeviceLimits&, cudaStream_t) const = 0;
  // Adds where it leaves its sums, in the workspace, to `finish`.
  virtual Status gradient(const GradientCall&, Workspace, const DeviceLimits&, cudaStream_t,
                          FinishArgs& finish) const = 0;
};

const Strategy& registers_strategy();
const Strategy& resident_strategy();
const Strategy& cluster_strategy();
const Strategy& tiled_strategy();
// The published formulation, or what it started from: each of its reformulations can be left out.
const Strategy& levels_strategy(const Reformulations& = {true, true, true});

// The first strategy that takes the problem, and in words why and why not those before it. Pure: no device is touched.
struct Decision {
  const Strategy* strategy = nullptr;
  std::string reason;
};
Decision choose_apply(const Problem& problem, const DeviceLimits& limits);
Decision choose_gradient(const Problem& problem, const DeviceLimits& limits);

// Hands out 256-byte aligned pieces of a workspace. Over a null base it measures.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  void* take(std::int64_t bytes) {
    void* piece = base_ ? base_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    return piece;
  }
  std::size_t used() const { return used_; }
  // What has not been taken of a workspace of so many bytes.
  Workspace rest(std::size_t bytes) const { return {base_ ? base_ + used_ : nullptr, bytes - used_}; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace wtconv::cuda
