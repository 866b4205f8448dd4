// Planes between device memory and the chip: the staged copy in, the stores out.
#pragma once

#include "cuda/kernels/dispatch.cuh"

namespace wtconv::cuda {

// Asynchronous copy of `bytes` (4, 8 or 16) to shared memory.
template <int bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(bytes) : "memory");
  }
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Bytes a staged plane takes, so that each starts at a multiple of 16.
template <class T>
__host__ __device__ constexpr int staged_plane(int height, int width) {
  return (height * width * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
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

// Starts copying one plane into its stage, row-major without gaps. piece: bytes per copy if the plane is contiguous
// and aligned to it, 0 for any other strides (then element by element, done when the function returns).
template <class T>
__device__ __forceinline__ void stage_plane(T* stage, const T* plane, const Image& image, int height, int width,
                                            int piece, int t, int threads) {
  const auto pieces = [&](auto size) {
    constexpr int bytes = decltype(size)::value;
    const int count = height * width * static_cast<int>(sizeof(T)) / bytes;
    for (int i = t; i < count; i += threads) {
      copy_async<bytes>(reinterpret_cast<char*>(stage) + i * bytes,
                        reinterpret_cast<const char*>(plane) + static_cast<std::int64_t>(i) * bytes);
    }
  };
  if (piece == 16) {
    pieces(Int<16>{});
  } else if (piece == 4) {
    pieces(Int<4>{});
  } else {
#pragma unroll 2
    for (int i = t; i < height * width; i += threads) {
      const std::int64_t at = offset_on_chip(image, i / width, i % width);
      stage[i] = at < 0 ? narrow<T>(0.f) : plane[at];
    }
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

// Four neighbouring pixels of a row, zero from `width` on; a 16-byte (8-byte) access where width is a multiple of 4.
template <class T>
__device__ __forceinline__ void load_row(float (&v)[4], const T* row, int c, int width) {
  if (width % 4 == 0) {
    load4(v, row + c);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = c + j < width ? widen(row[c + j]) : 0.f;
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

// Four neighbouring results at (r, c) of a plane whose rows have no gaps. vector: elements a store may hold, 4 or 2,
// given aligned bases and strides.
template <class T>
__device__ __forceinline__ void store_row(const float (&v)[4], T* plane, int row_stride, int vector, int r, int c,
                                          int width) {
  T* const to = plane + (r * row_stride + c);
  if (vector == 4) {
    store4(to, v);
  } else {
    store2(to, v[0], v[1]);
    if (c + 2 < width) store2(to + 2, v[2], v[3]);
  }
}

// A plane in shared memory to any strides, element by element.
template <class T>
__device__ __forceinline__ void store_plane(T* plane, const Image& image, const float* from, int pitch, int skew,
                                            int height, int width, int t, int threads) {
#pragma unroll 2
  for (int i = t; i < height * width; i += threads) {
    const int r = i / width, c = i % width;
    const std::int64_t at = offset_on_chip(image, r, c);
    if (at >= 0) plane[at] = narrow<T>(from[r * pitch + r / 8 * skew + c]);
  }
}

}  // namespace wtconv::cuda
