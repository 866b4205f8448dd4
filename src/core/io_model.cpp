#include "wtconv/io_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace wtconv {
namespace {

// B C h w for an image of every plane.
double elements(const Problem& p, std::int64_t h, std::int64_t w) {
  return double(p.batch) * double(p.channels) * double(h) * double(w);
}
// X[level], which is x at level 0 and one band at level >= 1.
double image(const Problem& p, int level) { return elements(p, p.height_at(level), p.width_at(level)); }
double output(const Problem& p) { return elements(p, p.out_height(), p.out_width()); }

// The elements of all bands of all levels.
double all_bands(const Problem& p) {
  double n = 0;
  for (int l = 1; l <= p.levels; ++l) n += 4 * image(p, l);
  return n;
}

Traffic reference_forward(const Problem& p) {
  const double n = image(p, 0);
  // Base: convolution and scale pass; with levels, their sum with R[1] (two reads, one write). That is 7 N.
  Traffic t{2 * n, 2 * n};
  if (p.levels > 0) t = t + Traffic{2 * n, n};
  for (int l = 1; l <= p.levels; ++l) {
    const double band = image(p, l);
    // An odd size is padded by a copy first; this term is 0 under even halving.
    if (4 * band != image(p, l - 1)) t = t + Traffic{image(p, l - 1), 4 * band};
    t = t + Traffic{4 * band, 4 * band};  // analysis
    t = t + Traffic{4 * band, 4 * band};  // convolution
    t = t + Traffic{4 * band, 4 * band};  // scale
    t = t + Traffic{2 * band, band};      // LL + R[l + 1]
    t = t + Traffic{4 * band, 4 * band};  // LL joined with the other three for the inverse
    t = t + Traffic{4 * band, 4 * band};  // synthesis; cropping its result is a view
  }
  if (p.stride > 1) t = t + Traffic{output(p), output(p)};  // all outputs are computed, then some are copied
  return t;
}

Traffic published_forward(const Problem& p) {
  const double n = image(p, 0);
  Traffic t{n, n};  // base convolution
  for (int l = 1; l <= p.levels; ++l) {
    t = t + Traffic{image(p, l - 1), 4 * image(p, l)};         // bands are formed, filtered and written in one kernel,
    if (l < p.levels) t = t + Traffic{0, image(p, l)};         // which also writes LL for the next level
    t = t + Traffic{4 * image(p, l), l == 1 ? output(p) : 0};  // the synthesis reads every band and writes y
  }
  if (p.levels > 0) t.read += output(p);  // the synthesis adds the base
  return t;
}

// Rows of x that tiles of `tile` output rows read, summed over the tiles of a column.
double rows_read(const Problem& p, std::int64_t extent, std::int64_t tile, int local_levels) {
  double rows = 0;
  for (std::int64_t begin = 0; begin < extent; begin += tile) {
    const std::int64_t last = std::min(begin + tile, extent) - 1;
    std::int64_t from = begin, to = last;
    for (int l = 0; l <= local_levels; ++l) {
      from = std::min(from, ((begin >> l) - p.pad_before()) * (std::int64_t{1} << l));
      to = std::max(to, ((last >> l) + p.kernel - p.pad_before()) * (std::int64_t{1} << l) - 1);
    }
    rows += double(std::min(to, extent - 1) - std::max<std::int64_t>(from, 0) + 1);
  }
  return rows;
}

}  // namespace

const char* to_string(Formulation formulation) {
  switch (formulation) {
    case Formulation::reference:
      return "reference";
    case Formulation::published_fused:
      return "published fused";
    case Formulation::one_kernel:
      return "one kernel";
  }
  return "unknown formulation";
}

double published_factor(Formulation formulation, int levels) {
  switch (formulation) {
    case Formulation::reference:
      return 7 + 43.0 / 3 * (1 - std::pow(4.0, -levels));
    case Formulation::published_fused:
      return 7 + 4.0 / 3 * (1 - std::pow(4.0, 1 - levels));
    case Formulation::one_kernel:
      break;
  }
  return 2;
}

Traffic forward_traffic(const Problem& problem, Formulation formulation) {
  switch (formulation) {
    case Formulation::reference:
      return reference_forward(problem);
    case Formulation::published_fused:
      return published_forward(problem);
    case Formulation::one_kernel:
      break;
  }
  return {image(problem, 0), output(problem)};
}

Traffic backward_traffic(const Problem& problem, GradientMask mask) {
  const double n = image(problem, 0);
  if (!mask.x && !mask.any_parameter()) return {};
  return {output(problem) + (mask.any_parameter() ? n : 0), mask.x ? n : 0};
}

Traffic tiled_extra(const Problem& problem, int local_levels, std::int64_t tile_height, std::int64_t tile_width) {
  const double n = image(problem, 0);
  local_levels = std::min(local_levels, problem.levels);
  Traffic t{double(problem.batch) * double(problem.channels) *
                    rows_read(problem, problem.height, tile_height, local_levels) *
                    rows_read(problem, problem.width, tile_width, local_levels) -
                n,
            0};
  if (local_levels < problem.levels) t = t + Traffic{n + image(problem, local_levels), image(problem, local_levels)};
  return t;
}

Work forward_work(const Problem& problem, Formulation formulation) {
  const double taps = double(problem.kernel) * problem.kernel, bands = all_bands(problem);
  const double base = formulation == Formulation::one_kernel ? output(problem) : image(problem, 0);
  if (formulation == Formulation::reference) return {taps * (base + bands) + 2 * 4 * bands, 0};
  return {taps * (base + bands), 2 * 8 * bands / 4};
}

Work backward_work(const Problem& problem, GradientMask mask) {
  const double taps = double(problem.kernel) * problem.kernel, bands = all_bands(problem);
  const double haar = 8 * bands / 4;
  Work w;
  if (mask.x || mask.wavelet) w.additions += haar;  // analysis of dy
  if (mask.wavelet) w.additions += haar;            // analysis of x
  if (mask.x) w.additions += haar;                  // synthesis of dx
  if (mask.x) w.multiply_adds += taps * (output(problem) + bands);
  if (mask.base) w.multiply_adds += taps * output(problem);
  if (mask.wavelet) w.multiply_adds += taps * bands;
  return w;
}

double arithmetic_intensity(const Work& work, const Traffic& traffic, DType dtype) {
  return work.flops() / (traffic.total() * double(size_of(dtype)));
}

std::span<const Machine> known_machines() {
  // Data sheets state FLOP/s; a multiply-add is two.
  static const std::array<Machine, 4> machines{{
      {"RTX A6000", 768e9, 38.7e12 / 2, 38.7e12 / 64 / 2,
       "NVIDIA RTX A6000 data sheet: 768 GB/s, 38.7 TFLOPS single precision; GA102 does f64 at 1/64 of that"},
      {"RTX PRO 6000", 1792e9, 125e12 / 2, 125e12 / 64 / 2,
       "NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet: 1792 GB/s, 125 TFLOPS single precision; GB202 "
       "does f64 at 1/64 of that"},
      {"H200", 4.8e12, 67e12 / 2, 34e12 / 2, "NVIDIA H200 SXM data sheet: 4.8 TB/s, 67 TFLOPS f32, 34 TFLOPS f64"},
      {"H200 measured", 3.76e12, 30e12, 15e12,
       "measured on one H200: a device copy moves 0.47e12 f32 elements/s each way, f32 arithmetic sustains 30e12 "
       "multiply-adds/s; f64 taken as half of that"},
  }};
  return machines;
}

Roofline roofline(const Machine& machine, const Traffic& traffic, const Work& work, DType dtype) {
  const double rate = compute_type(dtype) == DType::f64 ? machine.fma_f64 : machine.fma_f32;
  return {traffic.total() * double(size_of(dtype)) / machine.bandwidth, work.multiply_adds / rate};
}

Roofline predict_forward(const Machine& machine, const Problem& problem, Formulation formulation) {
  return roofline(machine, forward_traffic(problem, formulation), forward_work(problem, formulation), problem.dtype);
}

Roofline predict_backward(const Machine& machine, const Problem& problem, GradientMask mask) {
  return roofline(machine, backward_traffic(problem, mask), backward_work(problem, mask), problem.dtype);
}

}  // namespace wtconv
