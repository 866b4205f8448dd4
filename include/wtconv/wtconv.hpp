// wtconv: wavelet convolution. The three calls: can it run, how much workspace, run.
//
// The library allocates no tensor memory, never synchronises a device, never prints and never exits.
#pragma once

#include <cstddef>

#include "wtconv/backend.hpp"
#include "wtconv/export.hpp"
#include "wtconv/problem.hpp"
#include "wtconv/status.hpp"
#include "wtconv/tensor.hpp"
#include "wtconv/version.hpp"

namespace WTCONV_EXPORT wtconv {

// ok, or why no backend (or the one named in options) can run this problem.
Status can_run(const Problem& problem, const Options& options = {});

// Bytes of workspace a call needs. Backend `cpu`: per thread about what fits a core's L2 cache, more for rows so wide
// or levels so deep that what filters need exceeds it, never more than a few planes for each of its SIMD lanes. Backend
// `unfused`: several times x. On a problem that cannot run the status says why and bytes is 0.
struct WorkspaceSize {
  std::size_t bytes = 0;
  Status status;
};
WorkspaceSize forward_workspace(const Problem& problem, const Options& options = {});
WorkspaceSize backward_workspace(const Problem& problem, GradientMask mask = {}, const Options& options = {});

// y = wtconv(x). x is (B, C, H, W), y is (B, C, ceil(H / stride), ceil(W / stride)), both of the problem's dtype and
// any strides. y may not overlap an input. Sums are kept in f32 (f64 for f64), also between f16/bf16 load and store.
// Scales are multiplied into the weights first: scale * weight must be finite in that type.
// The same inputs, build and machine give the same bits, for any number of threads.
Status forward(const Problem& problem, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
               Workspace workspace, const Options& options = {});

// Gradients of sum(dy * forward(x)) with respect to every view present in `gradients`.
// dy has y's shape, any strides (expanded ones too).
// dx is the forward operator on dy with every kernel rotated by 180 degrees and padding sides swapped.
Status backward(const Problem& problem, const ConstTensorView& x, const Parameters& parameters,
                const ConstTensorView& dy, const Gradients& gradients, Workspace workspace,
                const Options& options = {});

}  // namespace wtconv
