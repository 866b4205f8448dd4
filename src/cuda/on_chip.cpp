#include "cuda/on_chip.hpp"

#include <limits>

namespace wtconv::cuda {
namespace {

bool multiple(std::int64_t value, std::int64_t of) { return value % of == 0; }

bool rows_have_no_gaps(const Image& i) { return i.step == 1 && i.column == 1; }

}  // namespace

std::string not_on_chip(const Problem& p) {
  if (p.kernel != 3 && p.kernel != 5 && p.kernel != 7) {
    return "it has kernels of size 3, 5 and 7, not " + std::to_string(p.kernel);
  }
  if (p.dtype == DType::f64) return "it computes in f32, not in f64";
  constexpr std::int64_t limit = 1 << 30;
  if (p.batch > limit || p.channels > limit) return "batch and channels must be at most 2^30";
  return {};
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

bool rows_load_vectors(const Image& i, DType dtype, std::int64_t height, std::int64_t width) {
  return store_vector(i, dtype, height, width) == 4;
}

}  // namespace wtconv::cuda
