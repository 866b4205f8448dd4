// Host side of strategy `resident`.
#include <algorithm>
#include <limits>
#include <string>

#include "cuda/kernels/launch.hpp"
#include "cuda/kernels/resident.hpp"
#include "cuda/strategy.hpp"

namespace wtconv::cuda {
namespace {

constexpr int max_threads = 640;  // of a block, for planes without a kernel of their own
constexpr int full_block = 192;   // threads at which a block of several planes is full
constexpr int any_rows = 8;       // rows of an item there

// The layout for one plane a block, or for as many as fill the block, two blocks a multiprocessor at least.
Layout layout_for(const Problem& p, const DeviceLimits& limits) {
  const auto make = [&](int planes) {
    return make_layout(static_cast<int>(p.height), static_cast<int>(p.width), p.levels, p.kernel, planes, any_rows);
  };
  Layout best = make(1);
  for (int planes = 2; planes <= std::min<std::int64_t>(p.batch, 16); ++planes) {
    const Layout next = make(planes);
    if (next.total.threads > full_block) break;
    if (2 * resident_memory(next, p.dtype) > std::size_t(limits.shared_per_multiprocessor)) break;
    best = next;
  }
  return best;
}

std::size_t element_bytes(DType dtype) { return static_cast<std::size_t>(size_of(dtype)); }

bool multiple(std::int64_t value, std::int64_t of) { return value % of == 0; }

bool rows_have_no_gaps(const Image& i) { return i.step == 1 && i.column == 1; }

class Resident final : public Strategy {
 public:
  const char* name() const override { return "resident"; }

  std::string rejects(const Problem& p, const DeviceLimits& limits) const override {
    if (p.kernel != 3 && p.kernel != 5 && p.kernel != 7) {
      return "it has kernels of size 3, 5 and 7, not " + std::to_string(p.kernel);
    }
    if (p.dtype == DType::f64) return "it computes in f32, not in f64";
    constexpr std::int64_t limit = std::numeric_limits<int>::max() / 2;
    if (p.batch > limit || p.channels > limit) return "more than 2^30 planes in a dimension";
    // Far above what fits; keeps the arithmetic below in range.
    if (p.height > 4096 || p.width > 4096) return "a plane does not fit a block's shared memory";
    const Layout layout = layout_for(p, limits);
    const std::size_t bytes = resident_memory(layout, p.dtype);
    if (bytes > std::size_t(limits.shared_per_block)) {
      return "a plane needs " + std::to_string(bytes) + " bytes of shared memory, a block has " +
             std::to_string(limits.shared_per_block);
    }
    if (layout.total.threads > max_threads) {
      return "a plane needs " + std::to_string(layout.total.threads) + " threads, a block has " +
             std::to_string(max_threads);
    }
    return {};
  }

  std::size_t apply_workspace(const Problem&, const DeviceLimits&) const override { return 0; }
  std::size_t gradient_workspace(const Problem& p, const DeviceLimits& limits) const override {
    return levels_strategy().gradient_workspace(p, limits);
  }
  double apply_traffic(const Problem&) const override { return 2; }
  double gradient_traffic(const Problem& p) const override { return levels_strategy().gradient_traffic(p); }

  Status apply(const ApplyCall& call, Workspace, const DeviceLimits& limits, cudaStream_t stream) const override {
    const Problem& p = call.problem;
    const ResidentCall run{.dtype = p.dtype,
                           .kernel = p.kernel,
                           .any = layout_for(p, limits),
                           .channels = p.channels,
                           .args = {.in = call.in,
                                    .out = call.out,
                                    .filters = call.filters,
                                    .batch = p.batch,
                                    .piece = copy_piece(call.in, p.dtype, p.height, p.width),
                                    .vector = store_vector(call.out, p.dtype, p.height, p.width)},
                           .multiprocessors = limits.multiprocessors};
    return check(launch(run, stream), "resident: launching the kernel");
  }

  Status gradient(const GradientCall& call, Workspace workspace, const DeviceLimits& limits,
                  cudaStream_t stream) const override {
    return levels_strategy().gradient(call, workspace, limits, stream);
  }

 private:
  template <DType dtype>
  static cudaError_t launch_sized(const ResidentCall& call, cudaStream_t stream) {
    switch (call.kernel) {
      case 3:
        return launch_resident_as<dtype, 3>(call, stream);
      case 5:
        return launch_resident_as<dtype, 5>(call, stream);
      case 7:
        return launch_resident_as<dtype, 7>(call, stream);
    }
    return cudaErrorInvalidValue;
  }
  static cudaError_t launch(const ResidentCall& call, cudaStream_t stream) {
    switch (call.dtype) {
      case DType::f32:
        return launch_sized<DType::f32>(call, stream);
      case DType::f16:
        return launch_sized<DType::f16>(call, stream);
      case DType::bf16:
        return launch_sized<DType::bf16>(call, stream);
      case DType::f64:
        break;
    }
    return cudaErrorInvalidValue;
  }
};

}  // namespace

std::size_t resident_memory(const Layout& layout, DType dtype) {
  const LayoutTotals& t = layout.total;
  const std::size_t words = std::size_t(t.planes) * t.words + t.slack + filter_count(t.levels) * filter_words(t.kernel);
  const std::size_t plane = std::size_t(layout.level[0].height) * layout.level[0].width * element_bytes(dtype);
  return 4 * words + 8 * std::size_t(t.threads) + t.planes * ((plane + 15) / 16 * 16);
}

int copy_piece(const Image& i, DType dtype, std::int64_t height, std::int64_t width) {
  const std::int64_t size = size_of(dtype);
  if (!rows_have_no_gaps(i) || i.row != width) return 0;
  for (int piece : {16, 4}) {
    if (multiple(reinterpret_cast<std::uintptr_t>(i.data), piece) && multiple(i.batch * size, piece) &&
        multiple(i.channel * size, piece) && multiple(height * width * size, piece)) {
      return piece;
    }
  }
  return 0;
}

int store_vector(const Image& i, DType dtype, std::int64_t height, std::int64_t width) {
  const std::int64_t size = size_of(dtype);
  if (!rows_have_no_gaps(i) || i.row > std::numeric_limits<int>::max() / height || i.row < 0) return 1;
  for (int vector : {4, 2}) {
    if (multiple(reinterpret_cast<std::uintptr_t>(i.data), vector * size) && multiple(i.batch, vector) &&
        multiple(i.channel, vector) && multiple(i.row, vector) && multiple(width, vector)) {
      return vector;
    }
  }
  return 1;
}

const Strategy& resident_strategy() {
  static const Resident strategy;
  return strategy;
}

}  // namespace wtconv::cuda
