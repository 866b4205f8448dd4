// The low-pass image that deep levels start from: sums of 4^levels pixels.
#include <algorithm>

#include "cuda/kernels/tiled.hpp"
#include "cuda/kernels/transfer.cuh"

namespace wtconv::cuda {
namespace {

constexpr int threads = 256;
constexpr std::int64_t max_blocks = 1 << 15;

template <class T>
__global__ void __launch_bounds__(threads) pool_kernel(const __grid_constant__ PoolArgs p) {
  const int block = 1 << p.levels, h = (p.height + block - 1) / block, w = (p.width + block - 1) / block;
  const std::int64_t size = std::int64_t{h} * w, count = p.batch * p.channels * size;
  for (std::int64_t i = blockIdx.x * std::int64_t{threads} + threadIdx.x; i < count;
       i += gridDim.x * std::int64_t{threads}) {
    const std::int64_t plane = i / size;
    const int in_plane = static_cast<int>(i % size), r0 = in_plane / w * block, c0 = in_plane % w * block;
    const T* const from = plane_of<T>(p.in, plane / p.channels, plane % p.channels);
    float sum = 0.f;
    if (p.load_vectors && block == 4) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float v[4] = {0.f, 0.f, 0.f, 0.f};
        if (r0 + r < p.height) load4(v, from + (r0 + r) * p.in.row + c0);
        sum += (v[0] + v[1]) + (v[2] + v[3]);
      }
    } else {
      for (int r = r0; r < min(r0 + block, p.height); ++r) {
        for (int c = c0; c < min(c0 + block, p.width); ++c) {
          const std::int64_t at = offset_on_chip(p.in, r, c);
          if (at >= 0) sum += widen(from[at]);
        }
      }
    }
    p.out[i] = sum;
  }
}

}  // namespace

cudaError_t launch_pool(const PoolArgs& args, cudaStream_t stream) {
  const int block = 1 << args.levels;
  const std::int64_t count =
      args.batch * args.channels * ((args.height + block - 1) / block) * std::int64_t{(args.width + block - 1) / block};
  const auto blocks = static_cast<unsigned>(std::min((count + threads - 1) / threads, max_blocks));
  switch (args.dtype) {
    case DType::f32:
      pool_kernel<float><<<blocks, threads, 0, stream>>>(args);
      return launched();
    case DType::f16:
      pool_kernel<__half><<<blocks, threads, 0, stream>>>(args);
      return launched();
    case DType::bf16:
      pool_kernel<__nv_bfloat16><<<blocks, threads, 0, stream>>>(args);
      return launched();
    case DType::f64:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace wtconv::cuda
