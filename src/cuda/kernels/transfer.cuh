// Planes between device memory and the chip: the staged copy in, the stores out.
#pragma once

#include "cuda/kernels/plane.cuh"

namespace wtconv::cuda {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Asynchronous copy of `bytes` (4, 8 or 16) to shared memory.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const unsigned address = shared_address(to);
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(bytes) : "memory");
  }
}

// Four neighbouring elements, aligned to four of them.
__device__ __forceinline__ void load4(float (&v)[4], const float* from) {
  const float4 q = *reinterpret_cast<const float4*>(from);
  v[0] = q.x;
  v[1] = q.y;
  v[2] = q.z;
  v[3] = q.w;
}
__device__ __forceinline__ void load4(float (&v)[4], const __half* from) {
  const uint2 q = *reinterpret_cast<const uint2*>(from);
  const float2 a = __half22float2(reinterpret_cast<const __half2&>(q.x));
  const float2 b = __half22float2(reinterpret_cast<const __half2&>(q.y));
  v[0] = a.x;
  v[1] = a.y;
  v[2] = b.x;
  v[3] = b.y;
}
__device__ __forceinline__ void load4(float (&v)[4], const __nv_bfloat16* from) {
  const uint2 q = *reinterpret_cast<const uint2*>(from);
  v[0] = __uint_as_float(q.x << 16);
  v[1] = __uint_as_float(q.x & 0xffff0000u);
  v[2] = __uint_as_float(q.y << 16);
  v[3] = __uint_as_float(q.y & 0xffff0000u);
}

// Bytes a staged plane takes, so that each starts at a multiple of 16.
template <class T>
__host__ __device__ constexpr int staged_plane(int height, int width) {
  return (height * width * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

// Where the image keeps row (or column) i >= 0 of those it stands for, or -1. The quotient is exact where the step
// divides i, and no other quotient passes the test: a division in a few instructions.
__device__ __forceinline__ int kept_place(const Image& image, int i) {
  if (image.step == 1) return i;
  const auto step = static_cast<unsigned>(image.step);
  const unsigned place = __umulhi(static_cast<unsigned>(i), 0xffffffffu / step + 1);
  return place * step == static_cast<unsigned>(i) ? static_cast<int>(place) : -1;
}

// Offset of pixel (r, q) of a plane that fits on chip, or -1 where the image does not keep it.
__device__ __forceinline__ std::int64_t offset_on_chip(const Image& image, int r, int q) {
  if (image.step != 1) {
    if (r % image.step != 0 || q % image.step != 0) return -1;
    r /= image.step;
    q /= image.step;
  }
  return r * image.row + q * image.column;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_bulk_copies = true;
#else
inline constexpr bool has_bulk_copies = false;
#endif

// A barrier in shared memory that counts bytes (compute capability 9). One thread makes it and says, once a phase, how
// many bytes to expect; who waits may read what they brought.
__device__ __forceinline__ void make_byte_barrier(unsigned barrier) {
  if constexpr (has_bulk_copies) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}
__device__ __forceinline__ void expect_bytes(unsigned barrier, unsigned bytes) {
  if constexpr (has_bulk_copies) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
}
// from_cluster: other blocks stored them.
template <bool from_cluster = false>
__device__ __forceinline__ void wait_for_bytes(unsigned barrier, unsigned& parity) {
  if constexpr (!has_bulk_copies) {
  } else if constexpr (from_cluster) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  }
  parity ^= 1;
}

// Planes on their way into shared memory, each row-major without gaps. One thread's bulk copies on a barrier where the
// planes are contiguous and aligned to 16 bytes and the GPU has them (compute capability 9), else asynchronous copies
// of 4 or 16 bytes by all threads, else element by element.
template <class T>
class Stage {
 public:
  // piece: bytes of one copy, 16 or 4; 0 for any strides.
  __device__ __forceinline__ Stage(char* memory, std::uint64_t* barrier, int height, int width, int piece)
      : memory_(memory), barrier_(barrier), height_(height), width_(width), piece_(piece) {
    if (threadIdx.x == 0) make_byte_barrier(shared_address(barrier_));
  }

  // Called by all threads once nobody reads the stage any more: planes [first, first + planes) of the batch.
  __device__ __forceinline__ void fetch(const Image& image, int first, int planes, std::int64_t channel,
                                        std::int64_t /*channels*/, int t, int threads) {
    const auto source = [&](int k) { return plane_of<T>(image, first + k, channel); };
    const int elements = height_ * width_;
    if constexpr (has_bulk_copies) {
      if (piece_ == 16) {
        if (t != 0) return;
        const unsigned bytes = elements * sizeof(T), barrier = shared_address(barrier_);
        expect_bytes(barrier, planes * bytes);
        for (int k = 0; k < planes; ++k) {
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                           shared_address(at(k))),
                       "l"(source(k)), "r"(bytes), "r"(barrier)
                       : "memory");
        }
        return;
      }
    }
    for (int k = 0; k < planes; ++k) {
      const T* const from = source(k);
      if (piece_ == 16) {
        copy_pieces<16>(at(k), from, elements, t, threads);
      } else if (piece_ == 4) {
        copy_pieces<4>(at(k), from, elements, t, threads);
      } else {
        // Several loads in flight: each may be a sector of its own.
        constexpr int flight = 8;
#pragma unroll 1
        for (int i0 = t; i0 < elements; i0 += flight * threads) {
          T v[flight];
#pragma unroll
          for (int n = 0; n < flight; ++n) {
            const int i = i0 + n * threads;
            const std::int64_t offset = i < elements ? offset_on_chip(image, i / width_, i % width_) : -1;
            v[n] = offset < 0 ? narrow<T>(0.f) : from[offset];
          }
#pragma unroll
          for (int n = 0; n < flight; ++n) {
            if (i0 + n * threads < elements) at(k)[i0 + n * threads] = v[n];
          }
        }
      }
    }
  }

  // Returns when the calling thread may read what the last fetch brought.
  __device__ __forceinline__ void wait() {
    if constexpr (has_bulk_copies) {
      if (piece_ == 16) {
        wait_for_bytes(shared_address(barrier_), parity_);
        return;
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }

  // Between the analysis' loads and its stores; after the analysis: the pyramid is complete, the stage may be refilled.
  __device__ __forceinline__ static void between() { __syncthreads(); }
  __device__ __forceinline__ static void analysed() { __syncthreads(); }

  __device__ __forceinline__ const T* plane(int k) const { return at(k); }

  // Four pixels of a row, zero beyond its end; 16-byte (8-byte) accesses where the width is a multiple of 4.
  __device__ __forceinline__ void load_row(int k, int r, int c, float (&v)[4]) const {
    const T* const row = at(k) + r * width_;
    if (width_ % 4 == 0) {
      load4(v, row + c);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = c + j < width_ ? widen(row[c + j]) : 0.f;
  }

 private:
  __device__ __forceinline__ T* at(int k) const {
    return reinterpret_cast<T*>(memory_ + k * staged_plane<T>(height_, width_));
  }
  template <int bytes>
  __device__ __forceinline__ static void copy_pieces(T* to, const T* from, int elements, int t, int threads) {
    for (int i = t; i < elements * static_cast<int>(sizeof(T)) / bytes; i += threads) {
      copy_async<bytes>(reinterpret_cast<char*>(to) + i * bytes, reinterpret_cast<const char*>(from) + i * bytes);
    }
  }

  char* memory_;
  std::uint64_t* barrier_;
  int height_, width_, piece_;
  unsigned parity_ = 0;
};

// 8 rows x 4 columns of pixels at (r0, c), zero outside the image. With vectors, c and the width are multiples of 4.
// rows_inside: none of the rows lies outside.
template <class T>
__device__ __forceinline__ void load_block(float (&v)[8][4], const T* plane, const Image& image, int height, int width,
                                           bool vectors, bool rows_inside, int r0, int c) {
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k][0] = v[k][1] = v[k][2] = v[k][3] = 0.f;
  if (vectors) {
    if (c < 0 || c >= width) return;
    const auto row = static_cast<int>(image.row);
    const T* from = plane + (r0 * row + c);
#pragma unroll
    for (int k = 0; k < 8; ++k, from += row) {
      if (rows_inside || (r0 + k >= 0 && r0 + k < height)) load4(v[k], from);
    }
    return;
  }
  // The strides of a row and of a column apart, so that divisions by a step are few.
  int columns[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    columns[j] = c + j < 0 || c + j >= width ? -1 : kept_place(image, c + j);
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (r0 + k < 0 || r0 + k >= height) continue;
    const int row = kept_place(image, r0 + k);
    if (row < 0) continue;
    const T* const from = plane + row * image.row;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (columns[j] >= 0) v[k][j] = widen(from[columns[j] * image.column]);
    }
  }
}

// Asks for `rows` x `columns` pixels at (r0, c0), where they lie inside a plane whose rows have no gaps, to be brought
// to the L2 cache, a line of 128 bytes a thread.
template <class T>
__device__ __forceinline__ void prefetch_rows(const T* plane, const Image& image, int height, int width, int r0, int c0,
                                              int rows, int columns, int t, int threads) {
  constexpr int line = 128 / sizeof(T);
  const int lines = (columns + line - 1) / line;
  for (int i = t; i < rows * lines; i += threads) {
    const int r = r0 + i / lines, c = max(c0, 0) + i % lines * line;
    if (r < 0 || r >= height || c >= width) continue;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(plane + r * static_cast<int>(image.row) + c));
  }
}

__device__ __forceinline__ unsigned pack(__half, float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return reinterpret_cast<const unsigned&>(h);
}
__device__ __forceinline__ unsigned pack(__nv_bfloat16, float a, float b) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const unsigned&>(h);
}

// Written as PTX: nvcc 13.0 splits a float4 store into four.
__device__ __forceinline__ void store4(float* to, const float (&v)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
__device__ __forceinline__ void store2(float* to, float a, float b) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}
template <class T>
__device__ __forceinline__ void store4(T* to, const float (&v)[4]) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(pack(T{}, v[0], v[1])), "r"(pack(T{}, v[2], v[3]))
               : "memory");
}
template <class T>
__device__ __forceinline__ void store2(T* to, float a, float b) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(pack(T{}, a, b)) : "memory");
}

// An item's results, 8 rows x 4 columns at (r, c), to a plane whose rows have no gaps. vector: elements a store may
// hold, 4 or 2, given aligned bases and strides.
template <class T>
__device__ __forceinline__ void store_item(const float (&v)[8][4], T* plane, const Image& image, int vector, int r,
                                           int c, int height, int width) {
  const auto row = static_cast<int>(image.row);
  T* to = plane + (r * row + c);
  if (vector == 4) {
#pragma unroll
    for (int k = 0; k < 8; ++k, to += row) {
      if (height % 8 == 0 || r + k < height) store4(to, v[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k, to += row) {
      if (height % 8 != 0 && r + k >= height) continue;
      store2(to, v[k][0], v[k][1]);
      if (c + 2 < width) store2(to + 2, v[k][2], v[k][3]);
    }
  }
}

// An item's results over level 0 of its pyramid. The border stays zero. 8-byte stores, as in put_item.
__device__ __forceinline__ void keep_item(const float (&v)[8][4], float* pyramid, int pitch, const LayoutTotals& total,
                                          int r, int c, int height, int width) {
  const bool whole = c + 4 <= width, right_first = thread_index() >> 3 & 1;
  const int first = right_first ? 2 : 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (height % 8 != 0 && r + k >= height) continue;
    const int row = r + k + total.pad;
    float* const to = pyramid + row * pitch + row / 8 * total.skew + total.left + c;
    if (whole) {
      const float2 left = make_float2(v[k][0], v[k][1]), right = make_float2(v[k][2], v[k][3]);
      *reinterpret_cast<float2*>(to + first) = right_first ? right : left;
      *reinterpret_cast<float2*>(to + 2 - first) = right_first ? left : right;
    } else {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        if (c + j < width) to[j] = v[k][j];
      }
    }
  }
}

// Level 0 of a pyramid to any strides, element by element: the part of a plane of height x width that starts at
// (r0, c0) and is kept in rows [0, rows) and columns [0, columns).
template <class T>
__device__ __forceinline__ void store_plane(T* plane, const Image& image, const float* pyramid, int pitch,
                                            const LayoutTotals& total, int r0, int c0, int rows, int columns, int t,
                                            int threads) {
#pragma unroll 2
  for (int i = t; i < rows * columns; i += threads) {
    const int r = i / columns, c = i % columns, row = r + total.pad;
    const std::int64_t at = offset_on_chip(image, r0 + r, c0 + c);
    if (at >= 0) plane[at] = narrow<T>(pyramid[row * pitch + row / 8 * total.skew + total.left + c]);
  }
}

}  // namespace wtconv::cuda
