// Cases: one problem with its layout and options, as one line of text.
//
//   n64c96h56w56k5l5_f32[_OPTION]...       batch, channels, height, width, kernel, levels, dtype
//
//   s2        stride of the output
//   nhwc      x, y, dy, dx in channels-last order
//   nobias    no base bias
//   wf32      f32 parameters beside f16 or bf16 tensors
//   offset    every tensor starts one element off alignment
//   sliced    x, y, dy, dx are slices (channels, rows, columns) of larger buffers
//   strided   x, y, dy, dx are every second row and column of larger buffers
//   expanded  dy is one value expanded to its shape (all strides 0)
#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "wtconv/problem.hpp"

namespace wtconv::harness {

struct Case {
  Problem problem;
  bool channels_last = false;
  bool bias = true;
  bool f32_parameters = false;
  bool offset = false;
  bool sliced = false;
  bool strided = false;
  bool expanded = false;

  DType parameter_dtype() const { return f32_parameters ? DType::f32 : problem.dtype; }
  friend bool operator==(const Case&, const Case&) = default;
};

// The status holds the offending text and its position; `result` is untouched when it is not ok.
Status parse_case(std::string_view text, Case& result);
// The line that parse_case reads back to the same case.
std::string to_string(const Case& c);

// One case a line; blank lines and what follows a # do not count. Errors name `name` and the line.
Status read_cases(std::istream& in, const std::string& name, std::vector<Case>& result);
Status read_cases(const std::string& path, std::vector<Case>& result);

}  // namespace wtconv::harness
