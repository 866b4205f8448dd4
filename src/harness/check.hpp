// Checks a backend on a case, element by element, against the reference in double precision on the same inputs.
//
// Tolerance. Let e be the expected value and m its magnitude: the same sum with every term replaced by its absolute
// value (|x|, |w|, |s|, Haar with plus signs only). Any order of evaluation in a compute type of unit roundoff u (2^-24
// for f32, 2^-53 for f64) is off by at most c u m, c the number of roundings on the longest path from an input to the
// result; roundings are as good as independent, so a path of n additions counts sqrt(n):
//
//   images (y, dx)          c = 4 + 4 L + k        Haar and its inverse per level, k * k products, a few for the scales
//   parameter gradients     c = 4 + 4 L + k + sqrt(B H W) / 4                   and one sum over the batch and plane
//   tolerance = c u m + half an ulp of the storage type at |e| + c u m
//
// Where the backend's plan says that bands are rounded to 16 bits (unit roundoff v, 2^-11 for f16, 2^-8 for bf16),
// images get v m / 2 more: a level rounds 4 k k products independently, which adds up to a tenth of that.
//
// For f64 the reference rounds as the backend does: c counts twice. The magnitude is what makes this sharp: dropping,
// doubling or misplacing one tap anywhere changes an element by about m / (k k), thousands of times the tolerance.
//
// The exact check (Fill::exact) allows nothing: every element must have the expected bits (+0 and -0 count as equal).
//
// Beside the values: the named backend is the one that ran; outputs are poisoned with nans before; nothing outside the
// outputs is written, inputs included; a y or dx that is mostly zeros fails, for it checks nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/tensors.hpp"

namespace wtconv::harness {

struct CheckOptions {
  std::string backend;  // empty: the one that would be chosen
  Fill fill = Fill::random;
  std::uint64_t seed = 1;
  bool backward = true;
  int threads = 0;
  Reformulations reformulations{};
  void* stream = nullptr;
  // Channels that are judged, evenly spread; 0: all. The backend runs the whole case in any case: the operator is
  // depthwise, so the reference can follow with single channels.
  std::int64_t channels = 0;
};

// One output tensor, judged.
struct TensorError {
  std::string name;           // "y", "gradient of x", "gradient of wavelet_weight[0]"
  std::int64_t elements = 0;  // judged
  std::int64_t wrong = 0;     // beyond tolerance
  double max_error = 0;       // absolute
  double rms_error = 0;
  double max_expected = 0;  // absolute, to put the errors in proportion
  double worst_ratio = 0;   // largest error / tolerance (0 / 0 counts as 0)
  std::string first_wrong;  // coordinates, expected, got
};

struct CheckResult {
  bool ok = false;
  // What failed, in one sentence with the first bad coordinates, the expected and the computed value. Does not repeat
  // the case or the rerun command: message() does.
  std::string failure{};
  bool unsuitable = false;  // no output is wrong, but these data check nothing (a case too large for the exact check)
  std::string case_text{}, backend{}, rerun{};
  std::vector<TensorError> tensors{};
  // "n1c1...: backend cpu: FAILURE\n  rerun: wtconv check ..." or "...: ok".
  std::string message() const;
};

CheckResult check(const Case& c, const CheckOptions& options = {});

// Judges outputs that are already there: fills the rest of CheckResult from `tensors`, whose y (and, with
// options.backward, dx and gradients) were computed from its inputs.
CheckResult judge(const Case& c, Tensors& tensors, const CheckOptions& options);

// "wtconv check CASE --backend B [--exact] [--seed N] [--threads N] [--recompute-analysis] ...".
std::string rerun_command(const Case& c, const CheckOptions& options);

}  // namespace wtconv::harness
