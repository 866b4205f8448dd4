// Between memory and lanes: rows of a plane per lane become vectors, and back.
#if defined(WTCONV_CPU_TRANSFER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WTCONV_CPU_TRANSFER_INL_H_
#undef WTCONV_CPU_TRANSFER_INL_H_
#else
#define WTCONV_CPU_TRANSFER_INL_H_
#endif

#include <algorithm>

#include "core/types.hpp"
#include "cpu/geometry.hpp"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wtconv::HWY_NAMESPACE {

// Where the lanes of one group find their images in a tensor.
template <class T>
struct LaneMap {
  static constexpr int v = static_cast<int>(lanes_of<T>());

  // Tensors whose rows are contiguous are transposed block by block; with channels contiguous (channels_last) a
  // vector is one load; anything else is gathered lane by lane, element by element where it has to be.
  enum class Order { rows, channels, any };

  LaneMap(const cpu::Geometry& g, const ConstTensorView& view, int stride) : geometry(g), stride(stride) {
    const auto& s = view.strides;
    data = static_cast<const char*>(view.data);
    dtype = view.dtype;
    row_stride = s[2];
    column_stride = s[3];
    channel_stride = s[1];
    batch_stride = s[0];
    width = view.extents[3];
    const bool dense_rows = (s[3] == 1 || width == 1) && stride == 1;
    order = dense_rows ? Order::rows : s[1] == 1 && g.lane_channels == v && stride == 1 ? Order::channels : Order::any;
    whole_rows = g.strips == 1 && (row_stride == width || view.extents[2] == 1);
    const std::int64_t bytes = view.size() * size_of(dtype);
    bypass_cache = bytes >= bypass_threshold && aligned(view);
    const std::int64_t run = (whole_rows ? view.extents[2] : 1) * (whole_rows ? width : g.width[0]);
    lines_per_run = (run * size_of(dtype) + line - 1) / line;
    runs = whole_rows ? 1 : view.extents[2];
  }

  void select(std::int64_t channel_group, std::int64_t batch_group) {
    const auto& g = geometry;
    full = true;
    for (int i = 0; i < v; ++i) {
      const int strip = i % g.strips;
      const std::int64_t c = channel_group * g.lane_channels + i / g.strips % g.lane_channels;
      const std::int64_t b = batch_group * g.lane_batches + i / g.strips / g.lane_channels;
      const bool exists = c < g.problem.channels && b < g.problem.batch;
      const std::int64_t first = strip * g.width[0];
      columns[i] = exists ? std::clamp<std::int64_t>(g.problem.width - first, 0, g.width[0]) : 0;
      offset[i] =
          columns[i] > 0 ? b * batch_stride + c * channel_stride + (stride == 1 ? first * column_stride : 0) : 0;
      first_column[i] = first;
      full = full && columns[i] == g.width[0];
    }
    constexpr std::int64_t limit = std::int64_t{1} << (8 * sizeof(T) - 2);
    gathers = full && stride == 1;
    for (int i = 0; i < v; ++i) {
      gathers = gathers && offset[i] < limit && offset[i] > -limit;
      index[i] = static_cast<Index>(offset[i]);
    }
  }

  // Cache lines that `rows` rows of one lane's image touch.
  std::int64_t lines(std::int64_t rows) const {
    return whole_rows ? (rows * width * size_of(dtype) + line - 1) / line : rows * lines_per_run;
  }

  // How many of the n elements from column e of a run lane i has.
  std::int64_t valid(int i, std::int64_t e, std::int64_t n) const {
    return whole_rows ? (columns[i] ? n : 0) : std::clamp<std::int64_t>(columns[i] - e, 0, n);
  }

  const cpu::Geometry& geometry;
  const char* data;
  DType dtype;
  int stride;
  Order order;
  bool full;          // every lane has an image as wide as its strip
  bool gathers;       // and their offsets fit the indices of a gather
  bool whole_rows;    // consecutive rows of a lane are one contiguous run
  bool bypass_cache;  // so large that what is written will not be read from cache
  std::int64_t row_stride, column_stride, channel_stride, batch_stride, width;
  std::int64_t runs, lines_per_run;  // of one lane's image: contiguous pieces, cache lines of each

  // Every block that store_rows writes starts on a vector boundary.
  static bool aligned(const ConstTensorView& view) {
    const std::int64_t all = view.strides[0] | view.strides[1] | view.strides[2];
    return (all * size_of(view.dtype) | static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data))) %
               (v * std::int64_t{sizeof(T)}) ==
           0;
  }

  static constexpr std::int64_t line = 64;
  static constexpr std::int64_t bypass_threshold = std::int64_t{128} << 20;
  std::int64_t offset[v], columns[v], first_column[v];
  using Index = hwy::MakeSigned<T>;
  HWY_ALIGN Index index[v];  // offset, as a gather takes it
};

// Asks for the lines that load_rows will read, or store_rows will write, next: a few at a time between arithmetic, so
// that memory works while the core computes. In bursts the requests would stall the core as the accesses themselves do.
template <class T>
class Prefetcher {
 public:
  // most_ahead: lines of each lane.
  Prefetcher(bool write, std::int64_t most_ahead) : write_(write), most_ahead_(most_ahead) {}

  // `more`: another batch group follows this one.
  void start(const LaneMap<T>& map, bool more) {
    const std::int64_t steps = map.runs * map.lines_per_run;
    enabled_ = map.order == LaneMap<T>::Order::rows && !(write_ && map.bypass_cache);
    lines_per_run_ = map.lines_per_run;
    runs_ = map.runs;
    run_bytes_ = map.row_stride * size_of(map.dtype);
    next_plane_bytes_ = map.geometry.lane_batches * map.batch_stride * size_of(map.dtype);
    for (int i = 0; i < LaneMap<T>::v; ++i) base_[i] = map.data + map.offset[i] * size_of(map.dtype);
    end_ = more ? 2 * steps : steps;
    seek(std::max<std::int64_t>(0, step_ - steps));
    limit_ = step_;
  }

  // `rows` of `height` rows are done: what comes next may be asked for.
  void done(std::int64_t rows, std::int64_t height) {
    const std::int64_t line = rows * runs_ * lines_per_run_ / height;
    if (step_ < line) seek(line);
    limit_ = enabled_ ? std::min(line + most_ahead_, end_) : step_;
  }

  // While `work` vectors of results are made. The filters make about 7/3 vectors of results for one of x.
  HWY_INLINE void during(int work) {
    if (step_ >= limit_) return;
    // Few instructions a line: they compete with the multiply-adds for issue ports.
    constexpr int per_line = LaneMap<T>::line / sizeof(T) * 2 / LaneMap<T>::v;
    work_ += work;
    const int first = lane_, last = std::min(LaneMap<T>::v, first + work_ / per_line);
    const std::int64_t offset = offset_;
    if (write_) {
      for (int i = first; i < last; ++i) __builtin_prefetch(base_[i] + offset, 1, 3);
    } else {
      for (int i = first; i < last; ++i) __builtin_prefetch(base_[i] + offset, 0, 2);
    }
    work_ -= (last - first) * per_line;
    lane_ = last;
    if (last == LaneMap<T>::v) seek(step_ + 1);
  }

 private:
  void seek(std::int64_t step) {
    const std::int64_t steps = runs_ * lines_per_run_, within = step >= steps ? step - steps : step;
    step_ = step;
    lane_ = 0;
    offset_ = (step >= steps ? next_plane_bytes_ : 0) + within / lines_per_run_ * run_bytes_ +
              within % lines_per_run_ * LaneMap<T>::line;
  }

  const bool write_;
  const std::int64_t most_ahead_;
  bool enabled_ = false;
  const char* base_[LaneMap<T>::v];
  std::int64_t lines_per_run_ = 1, runs_ = 1, run_bytes_ = 0, next_plane_bytes_ = 0;
  std::int64_t step_ = 0, limit_ = 0, end_ = 0;  // in lines of a lane
  std::int64_t offset_ = 0;
  int lane_ = 0, work_ = 0;
};

// Whether the target converts f16 by an instruction. Elsewhere loops over core/types.hpp's conversions do.
constexpr bool native_half = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX2 : HWY_TARGET == HWY_NEON;

// Whole vectors of a 16-bit type; the same bits as core/types.hpp's conversions, which GCC keeps in memory.
template <class T>
HWY_INLINE Vec<T> load_bf16(const BFloat16* p) {
  const hn::RebindToUnsigned<Tag<T>> bits;
  const hn::Rebind<std::uint16_t, Tag<T>> narrow;
  const auto upper = hn::PromoteTo(bits, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(p)));
  return hn::BitCast(Tag<T>(), hn::ShiftLeft<16>(upper));
}
template <class T>
HWY_INLINE void store_bf16(Vec<T> m, BFloat16* p) {
  const hn::RebindToUnsigned<Tag<T>> d;
  const hn::RebindToSigned<Tag<T>> integers;
  const hn::Rebind<std::uint16_t, Tag<T>> narrow;
  const auto bits = hn::BitCast(d, m);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000u));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(m)), quiet, rounded));
  hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(integers, upper)), narrow, reinterpret_cast<std::uint16_t*>(p));
}

// The first n elements at p, then zeros.
template <class S, class T>
HWY_INLINE Vec<T> load_lanes(const S* p, std::int64_t n) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  if constexpr (std::is_same_v<S, T>) {
    if (n == v) return hn::LoadU(d, p);
  }
  if constexpr (std::is_same_v<S, Half> && native_half) {
    const hn::Rebind<hwy::float16_t, Tag<T>> half;
    if (n == v) return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
  }
  if constexpr (std::is_same_v<S, BFloat16>) {
    if (n == v) return load_bf16<T>(p);
  }
  HWY_ALIGN T values[v] = {};
  if (n == v) {
    for (std::int64_t i = 0; i < v; ++i) values[i] = to_float(p[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) values[i] = to_float(p[i]);
  }
  return hn::Load(d, values);
}

// `bypass`: past the caches where the address allows, so that the line is not read first.
template <class S, class T>
HWY_INLINE void store_lanes(Vec<T> m, S* p, std::int64_t n, bool bypass = false) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  if constexpr (std::is_same_v<S, T>) {
    if (n == v && bypass && reinterpret_cast<std::uintptr_t>(p) % (v * sizeof(T)) == 0) return hn::Stream(m, d, p);
    if (n == v) return hn::StoreU(m, d, p);
  }
  if constexpr (std::is_same_v<S, Half> && native_half) {
    const hn::Rebind<hwy::float16_t, Tag<T>> half;
    if (n == v) return hn::StoreU(hn::DemoteTo(half, m), half, reinterpret_cast<hwy::float16_t*>(p));
  }
  if constexpr (std::is_same_v<S, BFloat16>) {
    if (n == v) return store_bf16<T>(m, p);
  }
  HWY_ALIGN T values[v];
  hn::Store(m, d, values);
  if (n == v) {
    for (std::int64_t i = 0; i < v; ++i) p[i] = from_float<S>(values[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) p[i] = from_float<S>(values[i]);
  }
}

// Rows [first, first + rows) of every lane's image to the vector rows that row(r) points to.
template <class S, class T, class Row>
void load_rows(const LaneMap<T>& map, std::int64_t first, std::int64_t rows, Row&& row) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  const S* const data = reinterpret_cast<const S*>(map.data);
  const std::int64_t width = map.geometry.width[0];
  using Order = typename LaneMap<T>::Order;
  if (map.order == Order::rows) {
    const std::int64_t run = map.whole_rows ? rows * width : width;
    for (std::int64_t r = first; r < first + rows; r += map.whole_rows ? rows : 1) {
      std::int64_t to_row = r, to_column = 0;
      T* to = row(r);
      for (std::int64_t e = 0; e < run; e += v) {
        std::int64_t skip = 0;
        if (e + v > run && run >= v) {  // the last block overlaps the one before it
          skip = e - (run - v);
          e = run - v;
        }
        const std::int64_t n = std::min(v, run - e);
        const S* const from = data + r * map.row_stride + e;
        Vec<T> m[v];
        if (n == v && map.full) {
#pragma GCC unroll 16
          for (int i = 0; i < v; ++i) m[i] = load_lanes<S, T>(from + map.offset[i], v);
        } else {
          for (int i = 0; i < v; ++i) m[i] = load_lanes<S, T>(from + map.offset[i], map.valid(i, e, n));
        }
        transpose<T>(m);
        for (std::int64_t j = skip; j < n; ++j) {
          if (to_column == width) {
            to = row(++to_row);
            to_column = 0;
          }
          hn::Store(m[j], d, to + to_column * v);
          ++to_column;
        }
      }
    }
  } else if (map.order == Order::channels) {
    std::int64_t n = 0;
    while (n < v && map.columns[n]) ++n;
    for (std::int64_t r = first; r < first + rows; ++r) {
      T* to = row(r);
      const S* from = data + map.offset[0] + r * map.row_stride;
      for (std::int64_t q = 0; q < width; ++q) {
        hn::Store(load_lanes<S, T>(from + q * map.column_stride, n), d, to + q * v);
      }
    }
  } else if (std::is_same_v<S, T> && map.gathers) {
    const hn::RebindToSigned<Tag<T>> integers;
    const auto index = hn::Load(integers, map.index);
    for (std::int64_t r = first; r < first + rows; ++r) {
      T* to = row(r);
      const T* from = reinterpret_cast<const T*>(data) + r * map.row_stride;
      for (std::int64_t q = 0; q < width; ++q) {
        hn::Store(hn::GatherIndex(d, from + q * map.column_stride, index), d, to + q * v);
      }
    }
  } else {
    const std::int64_t s = map.stride;
    for (std::int64_t r = first; r < first + rows; ++r) {
      T* to = row(r);
      std::fill(to, to + width * v, T(0));
      if (r % s) continue;
      for (int i = 0; i < v; ++i) {
        const S* from = data + map.offset[i] + r / s * map.row_stride;
        const std::int64_t begin = s == 1 ? 0 : map.first_column[i];
        for (std::int64_t q = (s - begin % s) % s; q < map.columns[i]; q += s) {
          to[q * v + i] = to_float(from[(begin + q) / s * map.column_stride]);
        }
      }
    }
  }
}

// Rows [first, first + rows), contiguous at `from` (width vectors each), to every lane's image. With a stride, `first`
// and the rows count rows of x; only those that the output keeps are stored.
template <class S, class T>
void store_rows(const LaneMap<T>& map, std::int64_t first, std::int64_t rows, const T* from) {
  const Tag<T> d;
  constexpr std::int64_t v = lanes_of<T>();
  S* const data = reinterpret_cast<S*>(const_cast<char*>(map.data));
  const std::int64_t width = map.geometry.width[0];
  using Order = typename LaneMap<T>::Order;
  if (map.order == Order::rows) {
    const std::int64_t run = map.whole_rows ? rows * width : width;
    for (std::int64_t r = first; r < first + rows; r += map.whole_rows ? rows : 1, from += run * v) {
      for (std::int64_t e = 0; e < run; e += v) {
        if (e + v > run && run >= v) e = run - v;
        const std::int64_t n = std::min(v, run - e);
        S* const to = data + r * map.row_stride + e;
        Vec<T> m[v];
        if (n == v && map.full) {
#pragma GCC unroll 16
          for (int i = 0; i < v; ++i) m[i] = hn::Load(d, from + (e + i) * v);
          transpose<T>(m);
#pragma GCC unroll 16
          for (int i = 0; i < v; ++i) store_lanes<S, T>(m[i], to + map.offset[i], v, map.bypass_cache);
        } else {
          for (int i = 0; i < v; ++i) m[i] = i < n ? hn::Load(d, from + (e + i) * v) : hn::Zero(d);
          transpose<T>(m);
          for (int i = 0; i < v; ++i) store_lanes<S, T>(m[i], to + map.offset[i], map.valid(i, e, n));
        }
      }
    }
  } else if (map.order == Order::channels) {
    std::int64_t n = 0;
    while (n < v && map.columns[n]) ++n;
    for (std::int64_t r = first; r < first + rows; ++r) {
      S* to = data + map.offset[0] + r * map.row_stride;
      for (std::int64_t q = 0; q < width; ++q, from += v) {
        store_lanes<S, T>(hn::Load(d, from), to + q * map.column_stride, n, map.bypass_cache);
      }
    }
  } else if (std::is_same_v<S, T> && map.gathers) {
    const hn::RebindToSigned<Tag<T>> integers;
    const auto index = hn::Load(integers, map.index);
    for (std::int64_t r = first; r < first + rows; ++r) {
      T* to = reinterpret_cast<T*>(data) + r * map.row_stride;
      for (std::int64_t q = 0; q < width; ++q, from += v) {
        hn::ScatterIndex(hn::Load(d, from), d, to + q * map.column_stride, index);
      }
    }
  } else {
    const std::int64_t s = map.stride;
    for (std::int64_t r = first; r < first + rows; ++r, from += width * v) {
      if (r % s) continue;
      for (int i = 0; i < v; ++i) {
        S* to = data + map.offset[i] + r / s * map.row_stride;
        const std::int64_t begin = s == 1 ? 0 : map.first_column[i];
        for (std::int64_t q = (s - begin % s) % s; q < map.columns[i]; q += s) {
          to[(begin + q) / s * map.column_stride] = from_float<S>(from[q * v + i]);
        }
      }
    }
  }
}

// Calls f with the storage types that go with compute type T.
template <class T, class F>
void dispatch_storage(DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(TypeTag<double>{});
  } else if (dtype == DType::f16) {
    f(TypeTag<Half>{});
  } else if (dtype == DType::bf16) {
    f(TypeTag<BFloat16>{});
  } else {
    f(TypeTag<float>{});
  }
}

}  // namespace wtconv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
