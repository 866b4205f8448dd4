// Backends: named implementations with an order of preference, that say whether and why they can run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "wtconv/export.hpp"
#include "wtconv/problem.hpp"

namespace WTCONV_EXPORT wtconv {

// Memory a call may use, owned by the caller: host memory for host backends, device memory for `cuda`.
// Its content does not matter before a call and is undefined after it. It starts at a multiple of workspace_alignment.
inline constexpr std::size_t workspace_alignment = 256;
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// The three published reformulations of the unfused chain (arXiv 2608.10805), each a switch of backend `unfused`
// and, on a GPU, of `cuda-unfused`. None of them changes the result beyond rounding.
struct Reformulations {
  bool recompute_analysis = false;  // bands are formed inside the convolution, never stored
  bool collapse_synthesis = false;  // one bit-indexed pass over all levels instead of L inverse transforms
  bool fold_scales = false;         // scale * weight once per call instead of scale * output
  friend bool operator==(const Reformulations&, const Reformulations&) = default;
};

enum class Device { host, cuda };

struct Options {
  Device device = Device::host;  // where the tensors and the workspace live
  // Name of the backend. Empty: the environment variable WTCONV_BACKEND, else the first in order of preference that
  // can run the problem on `device`. A named backend that cannot run is an error, never replaced.
  std::string_view backend{};
  int threads = 0;         // host threads, at most 1024; 0: all that OpenMP gives. Never changes a result.
  void* stream = nullptr;  // the device stream a device backend works on (cudaStream_t)
  Reformulations reformulations{};
};

enum class Pass { forward, backward };

// What a backend would do with a problem, for `explain`: its strategy and why, in sentences, and the numbers.
struct Plan {
  std::string strategy;       // short name
  std::string reason;         // why this one, and why not others
  std::size_t workspace = 0;  // bytes
  double elements_moved = 0;  // through main memory, in elements of x's dtype
  // y and dx: bands (and f32 weights) are rounded to the problem's 16-bit type on the way; all sums stay f32.
  bool rounds_bands = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view description() const = 0;  // one line
  virtual Device device() const { return Device::host; }
  // ok, or `unavailable` with the reason it cannot run on this machine.
  virtual Status available() const { return {}; }
  // ok, or `unsupported` with the value this backend cannot take. The problem is valid.
  virtual Status can_run(const Problem&) const { return {}; }
  virtual Plan plan(const Problem&, Pass, GradientMask, const Options&) const = 0;
  // Arguments are validated; the workspace is at least what plan() says.
  virtual Status forward(const Problem&, const ConstTensorView& x, const Parameters&, const TensorView& y, Workspace,
                         const Options&) const = 0;
  virtual Status backward(const Problem&, const ConstTensorView& x, const Parameters&, const ConstTensorView& dy,
                          const Gradients&, Workspace, const Options&) const = 0;
};

// All backends in order of preference, also those that cannot run here.
std::vector<const Backend*> backends();
// Null if the build has no backend of that name.
const Backend* find_backend(std::string_view name);

// Adds a backend that lives in another library (the CUDA one registers itself when it is loaded). `backend` must live
// until the process ends. Higher preference comes first; the built-in ones are cpu 30, unfused 20, reference 10.
// A name that is taken is invalid_argument.
Status register_backend(const Backend& backend, int preference);

// The backend a call with these options would use; status says why none can.
struct Choice {
  const Backend* backend = nullptr;
  Status status;
  std::string reason;  // how it was chosen, and why those before it were not
};
Choice choose_backend(const Problem& problem, const Options& options = {});

}  // namespace wtconv
