// Thread-block clusters (compute capability 9 and up): their barrier, and each other's shared memory.
#pragma once

#include "cuda/kernels/transfer.cuh"

namespace wtconv::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_clusters = true;
#else
inline constexpr bool has_clusters = false;
#endif

// A barrier of all threads of a cluster, in two halves. What was stored to shared memory before arriving is seen by all
// that waited. Only that: an unrestricted release at this scope waits for every store to device memory, some
// microseconds.
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (has_clusters) {
    __syncwarp();  // the barrier takes whole warps
    asm volatile(
        "fence.release.sync_restrict::shared::cta.cluster;\n"
        "barrier.cluster.arrive.relaxed.aligned;" ::
            : "memory");
  }
}
// For threads that have read only.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (has_clusters) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
}
__device__ __forceinline__ void cluster_wait() {
  if constexpr (has_clusters) {
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Where block `rank` of the cluster has what the calling block has at `address`.
__device__ __forceinline__ unsigned remote_address(unsigned address, int rank) {
  unsigned there = address;
  if constexpr (has_clusters) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  }
  return there;
}

// `words` (4, 2 or 1) words from another block's shared memory.
template <int words>
__device__ __forceinline__ void load_remote(unsigned (&v)[words], unsigned address) {
  if constexpr (!has_clusters) {
  } else if constexpr (words == 4) {
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address));
  } else if constexpr (words == 2) {
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
  } else {
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v[0]) : "r"(address));
  }
}

// `words` (4, 2 or 1) of v, from v[first] on, to another block's shared memory. They count on its barrier.
template <int words>
__device__ __forceinline__ void store_remote(unsigned address, const float (&v)[4], int first, unsigned barrier) {
  if constexpr (!has_clusters) {
  } else if constexpr (words == 4) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
        : "memory");
  } else if constexpr (words == 2) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
        "f"(v[first]), "f"(v[first + 1]), "r"(barrier)
        : "memory");
  } else {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
                 "f"(v[first]), "r"(barrier)
                 : "memory");
  }
}

template <class Kernel>
cudaError_t prepare_clusters(Kernel* kernel, int blocks, int threads, std::size_t shared, int& clusters) {
  return prepare_kernel(reinterpret_cast<const void*>(kernel), blocks, threads, shared, clusters);
}

template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), std::int64_t clusters, int blocks, int threads,
                            std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute size = cluster_of(blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &size;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  return launched();
}

}  // namespace wtconv::cuda
