// Planes of neighbouring channels between device memory and the blocks of a cluster (cuda/neighbours.hpp).
//
//   device memory   pixel 0: c c+1 .. c+7 | pixel 1: c c+1 .. c+7 | ...      a sector is 8 channels of one pixel
//        |  block i copies its rows of all 8 channels, 4 bytes at a time, asynchronously, sorted by channel
//   shares          one in each block: [channel][pixel]
//        |  block i's analysis reads channel c + i from all shares
//   pyramids        one in each block
//        |  block i's synthesis stores channel c + i to all blocks
//   results         one in each block: [channel][pixel]
//        |  block i stores its rows of all 8 channels, whole sectors
//   device memory
#pragma once

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/plane.cuh"
#include "cuda/neighbours.hpp"

namespace wtconv::cuda {

// The 16-bit element `odd` of a word.
template <class T>
__device__ __forceinline__ float half_of(unsigned word, bool odd) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __uint_as_float(odd ? word & 0xffff0000u : word << 16);
  } else {
    const unsigned short bits = static_cast<unsigned short>(odd ? word >> 16 : word);
    return __half2float(__ushort_as_half(bits));
  }
}

// What NeighbourStage and NeighbourResults have in common: the calling block's rows.
template <class Plane>
class NeighbourRows {
 public:
  __device__ __forceinline__ explicit NeighbourRows(const Plane& plane) : plane_(plane) {}

 protected:
  __device__ __forceinline__ static int rank() { return static_cast<int>(blockIdx.x % neighbours); }
  __device__ __forceinline__ int height() const { return plane_.at(Int<0>{}).height; }
  __device__ __forceinline__ int width() const { return plane_.at(Int<0>{}).width; }
  __device__ __forceinline__ Shares shares(int element_size) const {
    return make_shares(height(), width(), plane_.total().planes, element_size);
  }
  // The first row of the calling block, and how many it has of the first `planes` planes.
  __device__ __forceinline__ int first_row() const { return rank() * shares(4).rows; }
  __device__ __forceinline__ int rows(int planes) const {
    return max(0, min(shares(4).rows, planes * height() - first_row()));
  }
  // Whether pixel i of the planes lies i columns on.
  __device__ __forceinline__ bool flat(const Image& image) const {
    const std::int64_t row = width() * image.column;
    return image.step == 1 && image.row == row && (plane_.total().planes == 1 || image.batch == height() * row);
  }
  // Offset of pixel i of the share from plane 0, or -1.
  __device__ __forceinline__ std::int64_t offset(const Image& image, int i) const {
    const int n = i / width(), row = first_row() + n, k = row / height();
    const std::int64_t in_plane = offset_on_chip(image, row - k * height(), i - n * width());
    return in_plane < 0 ? -1 : k * image.batch + in_plane;
  }
  // Loops over a share's pixels; where their number is a constant, all loads and stores are addressed by constants.
  static constexpr int unrolled = std::is_empty_v<Plane> ? 32 : 4;

  const Plane& plane_;
};

// Copies in of one image; the counterpart of Stage for blocks of neighbouring channels.
template <class T, class Plane>
class NeighbourStage : NeighbourRows<Plane> {
  using Rows = NeighbourRows<Plane>;

 public:
  __device__ __forceinline__ NeighbourStage(const Plane& plane, char* memory, bool whole_words)
      : Rows(plane), memory_(memory), whole_words_(whole_words) {}

  // Called by all threads once no block of the cluster reads the shares any more: planes [first, first + planes) of
  // the batch, channels from `group` * neighbours on.
  __device__ __forceinline__ void fetch(const Image& image, int first, int planes, std::int64_t group,
                                        std::int64_t channels, int t, int threads) {
    const Shares s = Rows::shares(sizeof(T));
    const int pixels = Rows::rows(planes) * Rows::width();
    if (whole_words_ && Rows::flat(image)) {
      constexpr int images = neighbours / per_word;
      const int i = t % images, step = threads / images;
      const std::int64_t c = group * neighbours + i * per_word;
      if (c >= channels) return;
      unsigned* const to = reinterpret_cast<unsigned*>(memory_) + i * s.image + t / images;
      const T* from = plane_of<T>(image, first, c) + (Rows::first_row() * Rows::width() + t / images) * image.column;
      const int stride = step * static_cast<int>(image.column), left = pixels - t / images;
#pragma unroll(Rows::unrolled)
      for (int p = 0; p < s.rows * Rows::width(); p += step, from += stride) {
        if (p < left) copy_async<4>(to + p, from);
      }
      return;
    }
    const int i = t % neighbours;
    const std::int64_t c = group * neighbours + i;
    if (c >= channels) return;
    T* const to = reinterpret_cast<T*>(memory_) + i / per_word * s.image * per_word + i % per_word;
    const T* const from = plane_of<T>(image, first, c);
#pragma unroll 4
    for (int p = t / neighbours; p < pixels; p += threads / neighbours) {
      const std::int64_t at = Rows::offset(image, p);
      to[p * per_word] = at < 0 ? narrow<T>(0.f) : from[at];
    }
  }

  // Returns when all shares of the cluster are there, and every block has come here.
  __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    cluster_sync();
  }
  __device__ __forceinline__ static void between() {}
  // After the analysis: the pyramids are complete, and the shares may be written over.
  __device__ __forceinline__ static void analysed() { cluster_sync(); }

  // Four pixels of a row of the calling block's channel.
  __device__ __forceinline__ void load_row(int k, int r, int c, float (&v)[4]) const {
    const Shares s = Rows::shares(sizeof(T));
    const int width = Rows::width(), row = k * Rows::height() + r, owner = row / s.rows;
    const int place = Rows::rank() / per_word * s.image + (row - owner * s.rows) * width + c;
    const unsigned from = remote_address(shared_address(memory_) + 4 * place, owner);
    const auto load = [&](auto vector) {
#pragma unroll
      for (int j = 0; j < 4; j += vector) {
        unsigned words[vector] = {};
        if (vector == 4 || c + j < width) load_remote<vector>(words, from + 4 * j);
#pragma unroll
        for (int m = 0; m < vector; ++m) v[j + m] = value(words[m]);
      }
    };
    if (width % 4 == 0) {
      load(Int<4>{});
    } else if (width % 2 == 0) {
      load(Int<2>{});
    } else {
      load(Int<1>{});
    }
  }

 private:
  static constexpr int per_word = word_channels(sizeof(T));
  __device__ __forceinline__ static float value(unsigned word) {
    if constexpr (per_word == 1) {
      return __uint_as_float(word);
    } else {
      return half_of<T>(word, Rows::rank() % 2);
    }
  }

  char* memory_;
  bool whole_words_;
};

// Results on their way out: in f32, so that every block's memory takes what the others send as it is.
template <class T, class Plane>
class NeighbourResults : NeighbourRows<Plane> {
  using Rows = NeighbourRows<Plane>;

 public:
  __device__ __forceinline__ NeighbourResults(const Plane& plane, char* memory, std::uint64_t* barrier)
      : Rows(plane), memory_(memory), barrier_(shared_address(barrier)) {
    if (threadIdx.x == 0) make_byte_barrier(barrier_);
  }

  // Called by one thread, before the block waits: what it will get of `planes` planes.
  __device__ __forceinline__ void expect(int planes) const {
    expect_bytes(barrier_, neighbours * 4 * Rows::rows(planes) * Rows::width());
  }

  // An item's results, 8 rows x 4 columns of plane k at (r, c), to the blocks whose rows they are.
  __device__ __forceinline__ void send(const float (&v)[8][4], int k, int r, int c) const {
    const Shares s = Rows::shares(4);
    const int width = Rows::width(), height = Rows::height();
    const unsigned own = shared_address(memory_) + 4 * (Rows::rank() * s.image + c);
    const auto store = [&](auto vector) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (height % 8 != 0 && r + n >= height) continue;
        const int row = k * height + r + n, owner = row / s.rows;
        const unsigned to = remote_address(own + 4 * (row - owner * s.rows) * width, owner);
        const unsigned barrier = remote_address(barrier_, owner);
#pragma unroll
        for (int j = 0; j < 4; j += vector) {
          if (vector == 4 || c + j < width) store_remote<vector>(to + 4 * j, v[n], j, barrier);
        }
      }
    };
    if (width % 4 == 0) {
      store(Int<4>{});
    } else if (width % 2 == 0) {
      store(Int<2>{});
    } else {
      store(Int<1>{});
    }
  }

  // Called by all threads: waits for what was sent here, and stores it. No block sends again before all have come to
  // the cluster's next barrier.
  __device__ __forceinline__ void store(const Image& image, bool whole_words, int first, int planes, std::int64_t group,
                                        std::int64_t channels, int t, int threads) {
    wait_for_bytes<true>(barrier_, parity_);
    if constexpr (sizeof(T) == 2) {
      if (whole_words) return store_by<2>(image, first, planes, group, channels, t, threads);
    }
    store_by<1>(image, first, planes, group, channels, t, threads);
  }

 private:
  // `per` channels a store.
  template <int per>
  __device__ __forceinline__ void store_by(const Image& image, int first, int planes, std::int64_t group,
                                           std::int64_t channels, int t, int threads) const {
    constexpr int images = neighbours / per;
    const Shares s = Rows::shares(4);
    const int i = t % images * per, step = threads / images, pixels = Rows::rows(planes) * Rows::width();
    const std::int64_t c = group * neighbours + i;
    if (c >= channels) return;
    const float* const from = reinterpret_cast<const float*>(memory_) + i * s.image + t / images;
    T* const to = plane_of<T>(image, first, c);
    const auto put = [&](T* at, int p) {
      if constexpr (per == 2) {
        *reinterpret_cast<unsigned*>(at) = pack(T{}, from[p], from[p + s.image]);
      } else {
        *at = narrow<T>(from[p]);
      }
    };
    const int left = pixels - t / images;
    if (Rows::flat(image)) {
      T* at = to + (Rows::first_row() * Rows::width() + t / images) * image.column;
      const int stride = step * static_cast<int>(image.column);
#pragma unroll(Rows::unrolled)
      for (int p = 0; p < s.rows * Rows::width(); p += step, at += stride) {
        if (p < left) put(at, p);
      }
      return;
    }
#pragma unroll 1
    for (int p = 0; p < left; p += step) {
      if (const std::int64_t at = Rows::offset(image, p + t / images); at >= 0) put(to + at, p);
    }
  }

  char* memory_;
  unsigned barrier_, parity_ = 0;
};

// The channel that the calling block takes of a group of channels, perhaps one past the last.
template <bool together>
__device__ __forceinline__ std::int64_t own_channel(std::int64_t group) {
  return together ? group * neighbours + blockIdx.x % neighbours : group;
}

template <class T, bool together, class Plane>
__device__ __forceinline__ auto make_stage(const Plane& plane, char* memory, std::uint64_t* barrier, int piece,
                                           bool whole_words) {
  if constexpr (together) {
    return NeighbourStage<T, Plane>(plane, memory, whole_words);
  } else {
    const LevelLayout& base = plane.at(Int<0>{});
    return Stage<T>(memory, barrier, base.height, base.width, piece);
  }
}

// The results' memory follows the shares'.
template <class T, bool together, class Plane>
__device__ __forceinline__ auto make_results(const Plane& plane, char* memory, std::uint64_t* barrier) {
  if constexpr (together) {
    const LevelLayout& base = plane.at(Int<0>{});
    const int shares = shares_bytes(base.height, base.width, plane.total().planes, sizeof(T));
    return NeighbourResults<T, Plane>(plane, memory + shares, barrier);
  } else {
    return Int<0>{};
  }
}

}  // namespace wtconv::cuda
