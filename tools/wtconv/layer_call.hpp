// A host backend with a case's tensors and its workspace: calls that can be timed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "harness/tensors.hpp"
#include "host_rates.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv::tool {

// Aligned as workspaces must be.
struct alignas(workspace_alignment) Block {
  std::byte bytes[workspace_alignment];
};
using Memory = std::vector<Block>;

class LayerCall {
 public:
  // Throws Error if the backend cannot run the case, std::bad_alloc without memory. `tensors` outlives this.
  LayerCall(harness::Tensors& tensors, const std::string& backend, int threads, Reformulations reformulations);

  Status forward();
  Status backward();  // every gradient

  const std::string& backend() const { return backend_; }
  std::size_t forward_workspace() const { return forward_bytes_; }
  std::size_t backward_workspace() const { return backward_bytes_; }
  Plan plan(Pass pass) const;

 private:
  Options options() const;
  harness::Tensors& tensors_;
  std::string backend_;
  int threads_;
  Reformulations reformulations_;
  Parameters parameters_;
  Gradients gradients_;
  std::size_t forward_bytes_ = 0, backward_bytes_ = 0;
  Memory workspace_;
};

// As many channels as the reference can follow in a second or two.
std::int64_t judged_channels(const Problem& problem);

// Copies n bytes between two buffers by whichever way is fastest for this size: the unit of a forward's time.
class CopyCall {
 public:
  CopyCall(std::size_t bytes, int threads);
  Status run();
  const char* method() const;

 private:
  std::size_t bytes_;
  int threads_;
  CopyMethod method_ = CopyMethod::memcpy;
  Memory from_, to_;
};

}  // namespace wtconv::tool
