// Prints what the entries of the CUDA backend's tuning tables need of a multiprocessor, for an element type; no GPU.
//
//   wtconv_cuda_tables [f32|f16|bf16]
//
// A line an entry: table, index, threads and bytes of shared memory of a block, most registers of a thread.
#include <cstdio>
#include <cstring>

#include "cuda/tuning/needs.hpp"

namespace {

using namespace wtconv::cuda;

template <class Shape, std::size_t n>
void print(const char* table, const Shape (&shapes)[n], Needs (*of)(const Shape&, wtconv::DType), wtconv::DType dtype) {
  for (std::size_t i = 0; i < n; ++i) {
    const Needs needs = of(shapes[i], dtype);
    std::printf("%s %zu %d %zu %d\n", table, i, needs.threads, needs.shared, needs.registers());
  }
}

}  // namespace

int main(int argc, char** argv) {
  using wtconv::DType;
  const char* type = argc > 1 ? argv[1] : "f32";
  const DType dtype = std::strcmp(type, "f16") == 0    ? DType::f16
                      : std::strcmp(type, "bf16") == 0 ? DType::bf16
                                                       : DType::f32;
  print("apply_shapes", apply_shapes, apply_needs, dtype);
  print("gradient_shapes", gradient_shapes, gradient_needs, dtype);
  print("matrix_shapes", matrix_shapes, matrix_needs, dtype);
  print("cluster_shapes", cluster_shapes, cluster_needs, dtype);
  print("cluster_gradient_shapes", cluster_gradient_shapes, cluster_gradient_needs, dtype);
}
