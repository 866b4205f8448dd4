// The fused passes of the cpu backend: analysis, filters, synthesis and weight-gradient sums of one task, in rings of
// rows that stay in cache.
#if defined(WTCONV_CPU_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WTCONV_CPU_ENGINE_INL_H_
#undef WTCONV_CPU_ENGINE_INL_H_
#else
#define WTCONV_CPU_ENGINE_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstring>
#include <optional>

#include "cpu/job.hpp"
#include "cpu/kernels-inl.h"
#include "cpu/transfer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wtconv::HWY_NAMESPACE {

// Hands out the scratch memory of a thread.
class Arena {
 public:
  explicit Arena(void* memory) : next_(reinterpret_cast<std::uintptr_t>(memory)) {}
  template <class T>
  T* take(std::int64_t count) {
    next_ = (next_ + 127) & ~std::uintptr_t{127};
    T* p = reinterpret_cast<T*>(next_);
    next_ += static_cast<std::uintptr_t>(count) * sizeof(T);
    return p;
  }

 private:
  std::uintptr_t next_;
};

// Rows of an image and of its bands at every level, made top to bottom; the newest `capacity` rows of each exist.
template <class T>
class Pyramid {
 public:
  static constexpr std::int64_t v = lanes_of<T>();

  Pyramid(const cpu::Geometry& g, Arena& arena, const ConstTensorView& view, int stride)
      : g_(g), map_(g, view, stride) {
    for (int l = 0; l <= g.problem.levels; ++l) {
      for (int band = 0; band < (l == 0 ? 1 : 4); ++band) {
        rings_[l][band] = arena.take<T>(g.capacity[l] * g.pitch(l) * v);
        const auto halo = static_cast<std::size_t>(g.halo * v) * sizeof(T);  // columns that stay zero
        for (std::int64_t r = 0; r < g.capacity[l]; ++r) {
          std::memset(row(l, band, r) - g.halo * v, 0, halo);
          std::memset(row(l, band, r) + g.width[l] * v, 0, halo);
        }
      }
    }
    // Lanes that take their halo from a neighbour `distance` strips away.
    for (int distance = 0; distance <= max_kernel / 2; ++distance) {
      for (int i = 0; i < v; ++i) {
        const int strip = i % g.strips;
        std::memset(&from_left_[distance][i], strip >= distance ? 0xff : 0, sizeof(T));
        std::memset(&from_right_[distance][i], strip + distance < g.strips ? 0xff : 0, sizeof(T));
      }
    }
  }

  // Begins another group of lanes at a row of x; the rows above it are needed as far as filters reach.
  // `more`: another batch group will follow.
  void start(std::int64_t channel_group, std::int64_t batch_group, std::int64_t row, bool more) {
    map_.select(channel_group, batch_group);
    prefetcher_.start(map_, more && g_.segments == 1);
    const int levels = g_.problem.levels;
    const std::int64_t first = std::max<std::int64_t>(0, row - (std::int64_t{g_.halo} << levels));
    for (int l = 0; l <= levels; ++l) produced_[l] = first >> l;
  }

  Prefetcher<T>& prefetcher() { return prefetcher_; }

  // Reads x up to row `end` and makes every band row that this allows.
  void advance(std::int64_t end) {
    while (produced_[0] < end) {
      const std::int64_t first = produced_[0], rows = std::min(g_.band_rows, end - first);
      dispatch_storage<T>(map_.dtype, [&](auto tag) {
        load_rows<typename decltype(tag)::type, T>(map_, first, rows, [&](std::int64_t r) { return row(0, 0, r); });
      });
      produced_[0] += rows;
      fill_halos(0, 0, first, produced_[0]);
      for (int l = 1; l <= g_.problem.levels; ++l) analyse(l);
    }
    prefetcher_.done(produced_[0], g_.problem.height);
  }

  // First column of a row that exists.
  T* row(int level, int band, std::int64_t r) const {
    const std::int64_t capacity = g_.capacity[level];
    const std::int64_t slot = r < capacity ? r : r % capacity;
    return rings_[level][band] + (slot * g_.pitch(level) + g_.halo) * v;
  }
  // Null outside the image.
  T* row_or_null(int level, int band, std::int64_t r) const {
    return r < 0 || r >= g_.height(level) ? nullptr : row(level, band, r);
  }

 private:
  void analyse(int l) {
    const std::int64_t finer = produced_[l - 1], height = g_.height(l - 1);
    const std::int64_t end = finer == height ? g_.height(l) : finer / 2;
    for (std::int64_t r = produced_[l]; r < end; ++r) {
      const T* bottom = 2 * r + 1 < height ? row(l - 1, LL, 2 * r + 1) : nullptr;
      haar_row<T>(row(l - 1, LL, 2 * r), bottom, g_.width[l], row(l, LL, r), row(l, LH, r), row(l, HL, r),
                  row(l, HH, r));
    }
    for (int band = 0; band < 4; ++band) fill_halos(l, band, produced_[l], end);
    produced_[l] = end;
  }

  // The columns beside a strip are those of the neighbouring strip, one lane on. Beside a plane they are zero.
  void fill_halos(int l, int band, std::int64_t first, std::int64_t end) {
    if (g_.strips == 1) return;
    const Tag<T> d;
    const std::int64_t width = g_.width[l];
    for (std::int64_t r = first; r < end; ++r) {
      T* const p = row(l, band, r);
      for (std::int64_t m = 1; m <= g_.halo; ++m) {
        const std::int64_t distance = (m + width - 1) / width;  // in strips; more than one where they are narrow
        const auto left = hn::LoadU(d, p + (distance * width - m) * v - distance);
        const auto right = hn::LoadU(d, p + (width + m - 1 - distance * width) * v + distance);
        hn::Store(hn::And(left, hn::Load(d, from_left_[distance])), d, p - m * v);
        hn::Store(hn::And(right, hn::Load(d, from_right_[distance])), d, p + (width + m - 1) * v);
      }
    }
  }

  const cpu::Geometry& g_;
  LaneMap<T> map_;
  T* rings_[max_levels + 1][4] = {};
  Prefetcher<T> prefetcher_{false, 256};
  std::int64_t produced_[max_levels + 1] = {};
  HWY_ALIGN T from_left_[max_kernel / 2 + 1][v];
  HWY_ALIGN T from_right_[max_kernel / 2 + 1][v];
};

// Filters and synthesis: from the rows of a pyramid to rows of the output.
template <class T>
class Filtering {
 public:
  static constexpr std::int64_t v = lanes_of<T>();

  Filtering(const cpu::Job& job, Arena& arena)
      : job_(job), g_(*job.geometry), map_(g_, job.out, job.out_stride), prefetcher_(true, map_.lines(g_.out_rows)) {
    const Problem& p = g_.problem;
    weights_ = arena.take<T>(g_.filters() * g_.taps() * v);
    bias_ = arena.take<T>(v);
    for (int l = 0; l < p.levels; ++l) synthesised_[l] = arena.take<T>(g_.synthesis_rows() * g_.width[l] * v);
    if (p.levels > 0) {
      for (auto& band : filtered_) band = arena.take<T>(g_.group_rows * g_.width[1] * v);
    }
    out_ = arena.take<T>(g_.out_rows * g_.width[0] * v);
    pad_ = job.rotated ? p.kernel - 1 - p.pad_before() : p.pad_before();
  }

  // Weights of a group of channels, one lane each, times their scales and the factor 2^-l of the closed synthesis.
  void set_channels(std::int64_t channel_group) {
    const Problem& p = g_.problem;
    std::memset(weights_, 0, static_cast<std::size_t>(g_.filters() * g_.taps() * v) * sizeof(T));
    std::memset(bias_, 0, v * sizeof(T));
    dispatch_dtype(job_.parameters->base_weight.dtype, [&](auto tag) {
      using S = typename decltype(tag)::type;
      for (int i = 0; i < v; ++i) {
        const std::int64_t c = channel_group * g_.lane_channels + i / g_.strips % g_.lane_channels;
        if (c >= p.channels) continue;
        T* to = weights_ + i;
        const auto put = [&](const ConstTensorView& weight, const ConstTensorView& scale, std::int64_t row, T factor) {
          const S* w = static_cast<const S*>(weight.data) + row * g_.taps();
          const T s = static_cast<T>(to_float(static_cast<const S*>(scale.data)[row])) * factor;
          for (int t = 0; t < g_.taps(); ++t, to += v) {
            *to = s * static_cast<T>(to_float(w[job_.rotated ? g_.taps() - 1 - t : t]));
          }
        };
        put(job_.parameters->base_weight, job_.parameters->base_scale, c, T(1));
        for (int l = 1; l <= p.levels; ++l) {
          for (int band = 0; band < 4; ++band) {
            put(job_.parameters->wavelet_weight[l - 1], job_.parameters->wavelet_scale[l - 1], 4 * c + band,
                T(1) / T(1 << l));
          }
        }
        if (job_.parameters->base_bias && !job_.rotated) {
          bias_[i] = static_cast<T>(to_float(static_cast<const S*>(job_.parameters->base_bias.data)[c])) *
                     static_cast<T>(to_float(static_cast<const S*>(job_.parameters->base_scale.data)[c]));
        }
      }
    });
  }

  void start(std::int64_t channel_group, std::int64_t batch_group, std::int64_t row) {
    map_.select(channel_group, batch_group);
    prefetcher_.start(map_, false);
    prefetcher_.done(row, g_.problem.height);
    for (int l = 1; l <= g_.problem.levels; ++l) done_[l] = row >> l;
  }

  // Rows [begin, end) of the output; the pyramid has what they need. Finished rows leave at once: written in a long
  // burst they would wait for memory, a few at a time they do not.
  void band(Pyramid<T>& pyramid, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r += g_.out_rows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(g_.out_rows, end - r));
      if (g_.problem.levels > 0) synthesise(pyramid, 1, r + rows);
      const T* add[most_rows];
      for (int i = 0; i < rows && g_.problem.levels > 0; ++i) add[i] = synthesised(0, r + i);
      filter_group(pyramid, 0, 0, r, rows, out_, bias_, g_.problem.levels > 0 ? add : nullptr);
      dispatch_storage<T>(map_.dtype,
                          [&](auto tag) { store_rows<typename decltype(tag)::type, T>(map_, r, rows, out_); });
      prefetcher_.done(r + rows, g_.problem.height);
    }
  }

 private:
  static constexpr int most_rows = cpu::Geometry::most_rows;

  // A row of R[level + 1].
  T* synthesised(int level, std::int64_t r) const {
    return synthesised_[level] + r % g_.synthesis_rows() * g_.width[level] * v;
  }

  void filter_group(Pyramid<T>& pyramid, int level, int band, std::int64_t first, int rows, T* out,
                    const T* init = nullptr, const T* const* add = nullptr) {
    const int k = g_.problem.kernel;
    const T* in[most_rows + max_kernel - 1];
    for (int i = 0; i < rows + k - 1; ++i) {
      const T* row = pyramid.row_or_null(level, band, first + i - pad_);
      in[i] = row ? row - pad_ * v : nullptr;
    }
    filter(FilterCall<T>{.kernel = k,
                         .rows = rows,
                         .width = g_.width[level],
                         .in = in,
                         .weights = weights_ + g_.filter_index(level, band) * g_.taps() * v,
                         .out = out,
                         .prefetchers = {&pyramid.prefetcher(), &prefetcher_},
                         .zero_halo = g_.strips == 1,
                         .init = init,
                         .add = add});
  }

  // Makes the rows of R[level] above `end`, group by group, the coarser levels first as far as they are needed.
  void synthesise(Pyramid<T>& pyramid, int level, std::int64_t end) {
    const std::int64_t width = g_.width[level], height = g_.height(level), finer = g_.height(level - 1);
    while (done_[level] < (end + 1) / 2) {
      const std::int64_t first = done_[level];
      const int rows = static_cast<int>(std::min<std::int64_t>(g_.group_rows_at(level), height - first));
      const bool coarser = level < g_.problem.levels;
      if (coarser) synthesise(pyramid, level + 1, first + rows);
      for (int band = 0; band < 4; ++band) filter_group(pyramid, level, band, first, rows, filtered_[band]);
      for (std::int64_t i = 0; i < rows; ++i) {
        const T* const z[4] = {filtered_[LL] + i * width * v, filtered_[LH] + i * width * v,
                               filtered_[HL] + i * width * v, filtered_[HH] + i * width * v};
        const std::int64_t top = 2 * (first + i);
        synthesis_row<T>(z, coarser ? synthesised(level, first + i) : nullptr, g_.width[level - 1],
                         synthesised(level - 1, top), top + 1 < finer ? synthesised(level - 1, top + 1) : nullptr);
      }
      done_[level] += rows;
    }
  }

  const cpu::Job& job_;
  const cpu::Geometry& g_;
  LaneMap<T> map_;
  Prefetcher<T> prefetcher_;
  int pad_;
  T* weights_;
  T* bias_;
  T* synthesised_[max_levels] = {};
  T* filtered_[4] = {};
  T* out_;
  std::int64_t done_[max_levels + 1] = {};
};

// Sums of the weight gradient: products of the bands of x and of dy.
template <class T>
class Correlation {
 public:
  static constexpr std::int64_t v = lanes_of<T>();

  Correlation(const cpu::Job& job, Arena& arena) : job_(job), g_(*job.geometry) {
    const std::int64_t sums = count();
    sums_ = arena.take<T>(sums * v);
    totals_ = arena.take<double>(sums * v);
    channel_ = arena.take<double>(sums);
    zeros_ = arena.take<T>(g_.pitch(0) * v);
    std::memset(zeros_, 0, static_cast<std::size_t>(g_.pitch(0) * v) * sizeof(T));
    std::memset(sums_, 0, static_cast<std::size_t>(sums * v) * sizeof(T));
    std::memset(totals_, 0, static_cast<std::size_t>(sums * v) * sizeof(double));
  }

  void start(std::int64_t row) {
    for (int l = 0; l <= g_.problem.levels; ++l) done_[l] = row >> l;
  }

  // Adds the rows of dy's bands that belong to the rows of x before `end`.
  void band(Pyramid<T>& x, Pyramid<T>& dy, std::int64_t end) {
    for (int l = 0; l <= g_.problem.levels; ++l) {
      const std::int64_t last = std::min(g_.height(l), ((end - 1) >> l) + 1);
      const std::int64_t rows = std::clamp<std::int64_t>(most_terms / g_.width[l], 1, most_rows);
      for (std::int64_t r = done_[l]; r < last; r += rows) {
        const std::int64_t stop = std::min(last, r + rows);
        for (int band = 0; band < (l == 0 ? 1 : 4); ++band) add_rows(x, dy, l, band, r, stop);
        pending_[l] += (stop - r) * g_.width[l];
        if (pending_[l] >= most_terms) flush(l);
      }
      done_[l] = last;
    }
  }

  // Ends a task: sums over the lanes of each channel, in order.
  void finish(std::int64_t channel_group, std::int64_t part) {
    for (int l = 0; l <= g_.problem.levels; ++l) flush(l);
    const std::int64_t sums = count();
    for (int i = 0; i < g_.lane_channels; ++i) {
      const std::int64_t c = channel_group * g_.lane_channels + i;
      if (c >= g_.problem.channels) break;
      for (std::int64_t t = 0; t < sums; ++t) {
        double sum = 0;
        for (int b = 0; b < g_.lane_batches; ++b) {
          for (int s = 0; s < g_.strips; ++s) sum += totals_[t * v + (b * g_.lane_channels + i) * g_.strips + s];
        }
        channel_[t] = sum;
      }
      if (g_.parts() == 1) {
        job_.finish(job_.finish_context, c, channel_);
      } else {
        std::copy(channel_, channel_ + sums, job_.partials + (part * g_.problem.channels + c) * sums);
      }
    }
  }

 private:
  static constexpr std::int64_t most_rows = 64;
  // Longer sums go through double: with 4096 terms the roundings were up to nine times those of PyTorch's operators.
  static constexpr std::int64_t most_terms = 64;

  std::int64_t count() const { return g_.filters() * g_.taps() + 1; }

  void add_rows(Pyramid<T>& x, Pyramid<T>& dy, int level, int band, std::int64_t first, std::int64_t last) {
    const int k = g_.problem.kernel, pad = g_.problem.pad_before();
    const T* in[most_rows + max_kernel - 1];
    const T* g[most_rows];
    for (std::int64_t r = first; r < last; ++r) g[r - first] = dy.row(level, band, r);
    for (std::int64_t r = first - pad; r < last + k - 1 - pad; ++r) {
      const T* row = x.row_or_null(level, band, r);
      in[r - first + pad] = row ? row - pad * v : zeros_;
    }
    const int filter = g_.filter_index(level, band);
    correlate(CorrelateCall<T>{
        k, last - first, g_.width[level], in, g, sums_ + filter * g_.taps() * v, {&x.prefetcher(), &dy.prefetcher()}});
    for (std::int64_t r = 0; level == 0 && r < last - first; ++r) add_to_sum(g[r]);
  }

  // Adds a row of dy to its sum, in short steps and then in double: the roundings of a long sum of equal terms (the
  // gradient of a mean) all go one way.
  void add_to_sum(const T* row) {
    const Tag<T> d;
    double* const total = totals_ + (count() - 1) * v;
    HWY_ALIGN T values[v];
    for (std::int64_t column = 0; column < g_.width[0];) {
      auto block = hn::Zero(d);
      for (int i = 0; i < 8 && column < g_.width[0]; ++i) {
        auto part = hn::Zero(d);
        const std::int64_t end = std::min(g_.width[0], column + 8);
        for (; column < end; ++column) part = hn::Add(part, hn::Load(d, row + column * v));
        block = hn::Add(block, part);
      }
      hn::Store(block, d, values);
      for (int i = 0; i < v; ++i) total[i] += static_cast<double>(values[i]);
    }
  }

  // The sums of a level's filters into its totals.
  void flush(int level) {
    const std::int64_t first = g_.filter_index(level, 0) * g_.taps() * v;
    const std::int64_t n = (level == 0 ? 1 : 4) * g_.taps() * v;
    for (std::int64_t i = first; i < first + n; ++i) totals_[i] += static_cast<double>(sums_[i]);
    std::memset(sums_ + first, 0, static_cast<std::size_t>(n) * sizeof(T));
    pending_[level] = 0;
  }

  const cpu::Job& job_;
  const cpu::Geometry& g_;
  T* sums_;
  T* zeros_;
  double* totals_;
  double* channel_;
  std::int64_t pending_[max_levels + 1] = {};
  std::int64_t done_[max_levels + 1] = {};
};

// One task: a group of channels, a chunk of the batch, a segment of the rows.
template <class T>
void run_task(const cpu::Job& job, std::int64_t task, void* scratch) {
  const cpu::Geometry& g = *job.geometry;
  const std::int64_t channel_group = task / g.parts(), part = task % g.parts();
  const std::int64_t chunk = part / g.segments, segment = part % g.segments;
  const std::int64_t row_begin = segment * g.segment_rows;
  const std::int64_t row_end = std::min(g.problem.height, row_begin + g.segment_rows);
  const std::int64_t first_batch = chunk * g.batch_groups / g.chunks;
  const std::int64_t last_batch = (chunk + 1) * g.batch_groups / g.chunks;

  Arena arena(scratch);
  Pyramid<T> in(g, arena, job.in, job.in_stride);
  // Made only if wanted: their memory is counted only then.
  std::optional<Filtering<T>> filtering;
  std::optional<Correlation<T>> correlation;
  std::optional<Pyramid<T>> x;
  if (job.out) filtering.emplace(job, arena);
  if (job.x) correlation.emplace(job, arena);
  if (job.x) x.emplace(g, arena, job.x, 1);

  if (filtering) filtering->set_channels(channel_group);
  for (std::int64_t batch = first_batch; batch < last_batch; ++batch) {
    const bool more = batch + 1 < last_batch;
    in.start(channel_group, batch, row_begin, more);
    if (filtering) filtering->start(channel_group, batch, row_begin);
    if (correlation) {
      correlation->start(row_begin);
      x->start(channel_group, batch, row_begin, more);
    }
    for (std::int64_t begin = row_begin; begin < row_end; begin += g.band_rows) {
      const std::int64_t end = std::min(row_end, begin + g.band_rows), needed = g.rows_needed(end);
      in.advance(needed);
      if (filtering) filtering->band(in, begin, end);
      if (correlation) {
        x->advance(needed);
        correlation->band(*x, in, end);
      }
    }
  }
  if (correlation) correlation->finish(channel_group, part);
  hwy::FlushStream();
}

}  // namespace wtconv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
