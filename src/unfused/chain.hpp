// The primitives on whole tensors. Each reads its operands from memory and materialises its result there.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/parallel.hpp"
#include "core/types.hpp"
#include "unfused/arena.hpp"
#include "unfused/primitives.hpp"
#include "wtconv/backend.hpp"

namespace wtconv::unfused {

// Planes of h x w elements, `row` apart by rows and `step` by planes. A copy is another view of the same memory.
template <class T>
struct Tensor {
  std::shared_ptr<void> memory;
  T* data = nullptr;
  std::int64_t planes = 0, h = 0, w = 0, row = 0, step = 0;

  Plane<T> plane(std::int64_t i) const { return {data + i * step, h, w, row}; }
  double bytes() const { return double(planes) * double(h) * double(w) * sizeof(T); }
  // One band of (B, C, 4, h, w).
  Tensor band(int s) const { return {memory, data + s * step, planes / 4, h, w, row, 4 * step}; }
  Tensor crop(std::int64_t rows, std::int64_t columns) const {
    return {memory, data, planes, rows, columns, row, step};
  }
};

// The filters of one level in the compute type.
template <class T>
struct Filters {
  std::shared_ptr<void> memory;
  int level;
  int before;
  std::int64_t count;
  T* weight;  // (count, k, k)
  T* bias;    // (count), zeros where there is none
  T* scale;   // (count); null: folded into weight and bias
};

// What a convolution reads: an image, or the four bands of one, stored or formed where they are used.
template <class T>
struct Source {
  Tensor<T> tensor;             // the image, or its bands (B, C, 4, h, w)
  int bands;                    // 1: the image itself; 4
  bool recompute;               // `tensor` is the image, its bands do not exist
  std::optional<Tensor<T>> ll;  // the image of the next level
  bool ll_pending = false;      // the first primitive that forms the bands stores LL
};

// A run over one problem. While measuring, no tensor memory is touched.
template <class T>
class Chain {
 public:
  Chain(const Problem& problem, const Options& options, Arena& arena, bool measure)
      : p_(problem),
        switches_(options.reformulations),
        threads_(thread_count(options.threads)),
        arena_(arena),
        measure_(measure),
        strip_(strip_elements<T>(p_.width, p_.kernel)),
        bands_(switches_.recompute_analysis && p_.levels > 0 ? 8 * p_.height_at(1) * p_.width_at(1) : 0),
        rows_(switches_.collapse_synthesis ? 2 * synthesis_row(p_.width) : 0),
        scratch_(arena.allocate(std::size_t(threads_ * (strip_ + 2 * bands_ + rows_)) * sizeof(T))) {}

  // Bytes read and written, as if no cache kept a tensor from one primitive to the next.
  double bytes_moved() const { return moved_; }

  // x or dy in the compute type: the caller's memory where it is dense and of that type, otherwise a copy, in which
  // the elements that a stride left out are zeros. The copy's memory is reserved either way: plan() knows no views.
  Tensor<T> gather(const ConstTensorView& v, int stride) {
    Tensor<T> to = make(p_.batch * p_.channels, p_.height, p_.width);
    if (in_place(v, stride)) {
      if (!measure_) to.data = static_cast<T*>(const_cast<void*>(v.data));  // the chain writes no operand
      return to;
    }
    moved_ += to.bytes() + image_elements(stride) * double(size_of(p_.dtype));
    if (stride > 1) {
      for_each(to.planes, to.h * to.w, [&](std::int64_t i, Scratch) { f_.copy({to.data, 0, 0, 0}, to.plane(i)); });
    }
    if (!measure_) transfer(v, kept(to, stride));
    return to;
  }
  // Where the last primitive writes y or dx; scatter() brings it there if it is not the caller's memory.
  Tensor<T> target(const TensorView& v, int stride) {
    Tensor<T> to = make(p_.batch * p_.channels, p_.height, p_.width);
    if (in_place(v, stride) && !measure_) to.data = static_cast<T*>(v.data);
    return to;
  }
  void scatter(const Tensor<T>& from, const TensorView& v, int stride) {
    if (in_place(v, stride)) return;
    moved_ += image_elements(stride) * double(sizeof(T) + size_of(p_.dtype));
    if (!measure_) transfer(kept(from, stride), v);
  }

  Source<T> whole(const Tensor<T>& image) const { return {image, 1, false, {}}; }

  // The bands of `image`, which is split at `level`.
  Source<T> analysis(Tensor<T> image, int level) {
    if (switches_.recompute_analysis) {
      Source<T> s{std::move(image), 4, true, {}};
      if (level < p_.levels) s.ll = make(s.tensor.planes, p_.height_at(level), p_.width_at(level));
      s.ll_pending = s.ll.has_value();
      return s;
    }
    const Tensor<T> bands = haar(pad(std::move(image)));
    return {bands, 4, false, bands.band(LL)};
  }

  // Parameters as the chain uses them; `rotated`: for the transposed operator, which has no bias.
  Filters<T> filters(const Parameters& parameters, int level, bool rotated) {
    const std::int64_t n = level == 0 ? p_.channels : 4 * p_.channels, taps = p_.kernel * p_.kernel;
    const bool fold = switches_.fold_scales;
    Filters<T> f{arena_.allocate(std::size_t(n * (taps + 2)) * sizeof(T)), level, p_.pad_before(), n, {}, {}, {}};
    f.weight = static_cast<T*>(f.memory.get());
    f.bias = f.weight + n * taps;
    f.scale = fold ? nullptr : f.bias + n;
    if (rotated) f.before = p_.kernel - 1 - f.before;
    if (measure_) return f;
    const ConstTensorView &weight = parameters.weight(level), &scale = parameters.scale(level);
    const ConstTensorView& bias = parameters.base_bias;
    for_each(n, taps, [&](std::int64_t i, Scratch) {
      const T s = T(load_double(scale.data, scale.dtype, i)), factor = fold ? s : T(1);
      for (std::int64_t t = 0; t < taps; ++t) {
        const std::int64_t tap = rotated ? taps - 1 - t : t;
        f.weight[i * taps + t] = factor * T(load_double(weight.data, weight.dtype, i * taps + tap));
      }
      const bool biased = level == 0 && bias && !rotated;
      f.bias[i] = biased ? factor * T(load_double(bias.data, bias.dtype, i)) : T(0);
      if (!fold) f.scale[i] = s;
    });
    return f;
  }

  // scale * (source (*) weight + bias). The result is stored in `to` where it is given.
  Tensor<T> filter(Source<T>& source, const Filters<T>& f, std::optional<Tensor<T>> to = {}) {
    if (switches_.fold_scales) return convolve(source, f, std::move(to));
    return scale(convolve(source, f, {}), f, std::move(to));
  }

  // The weight gradient of every filter, before the scale: (count, k, k) sums. `x` and `g` are what the layer's input
  // and its output's gradient give at one level. One task sums a channel over a chunk of the batch that depends on the
  // problem alone; chunks are added in order.
  std::pair<std::shared_ptr<void>, double*> correlate(Source<T>& x, Source<T>& g) {
    const std::int64_t c = p_.channels, b = p_.batch, taps = p_.kernel * p_.kernel, bands = x.bands;
    const std::int64_t chunks = std::clamp<std::int64_t>(64 / c, 1, std::max<std::int64_t>(b, 1));
    std::shared_ptr<void> memory = arena_.allocate(std::size_t(chunks * c * bands * taps) * sizeof(double));
    double* const sums = static_cast<double*>(memory.get());
    for_each_task(chunks * c, [&](std::int64_t task, Scratch scratch) {
      double* const to = sums + task * bands * taps;
      std::fill(to, to + bands * taps, 0.0);
      for (std::int64_t n = b * (task / c) / chunks; n < b * (task / c + 1) / chunks; ++n) {
        const std::int64_t i = n * c + task % c;
        const auto xs = planes(x, i, scratch.bands[0]), gs = planes(g, i, scratch.bands[1]);
        for (int s = 0; s < bands; ++s) {
          f_.correlate(xs[s], gs[s], p_.kernel, p_.pad_before(), scratch.strip, to + s * taps);
        }
      }
    });
    for_each(c, chunks * bands * taps, [&](std::int64_t i, Scratch) {
      for (std::int64_t t = i * bands * taps; t < (i + 1) * bands * taps; ++t) {
        for (std::int64_t n = 1; n < chunks; ++n) sums[t] += sums[n * c * bands * taps + t];
      }
    });
    count_read(x), count_read(g);
    return {std::move(memory), sums};
  }

  // Per channel the sum over batch and plane.
  std::pair<std::shared_ptr<void>, double*> sum(const Tensor<T>& x) {
    std::shared_ptr<void> memory = arena_.allocate(std::size_t(p_.channels) * sizeof(double));
    double* const sums = static_cast<double*>(memory.get());
    for_each(p_.channels, p_.batch * x.h * x.w, [&](std::int64_t c, Scratch) {
      sums[c] = 0;
      for (std::int64_t b = 0; b < p_.batch; ++b) sums[c] += f_.sum(x.plane(b * p_.channels + c));
    });
    count({x}, {});
    return {std::move(memory), sums};
  }

  // base + R[1] from the filtered bands z of levels 1, 2, ..., written to the target.
  Tensor<T> synthesis(std::vector<Tensor<T>> z, const Tensor<T>& base, const TensorView& v, int stride) {
    if (switches_.collapse_synthesis) return collapse(z, base, target(v, stride));
    // R[L + 1] = 0: one plane of zeros that every channel shares.
    Tensor<T> r = make(1, p_.height_at(p_.levels), p_.width_at(p_.levels));
    for_each(1, r.h * r.w, [&](std::int64_t, Scratch) { f_.copy({r.data, 0, 0, 0}, r.plane(0)); });
    r.planes = p_.batch * p_.channels, r.step = 0;
    for (int l = p_.levels; l >= 1; --l) {
      r = join(add(z[l - 1].band(LL), r), z[l - 1]);
      z.pop_back();
      r = inverse_haar(r).crop(p_.height_at(l - 1), p_.width_at(l - 1));
    }
    return add(base, r, target(v, stride));
  }

  // Calls f(i, scratch) for i in [0, n), in groups worth a thread's while.
  template <class F>
  void for_each(std::int64_t n, std::int64_t elements, F&& f) {
    const std::int64_t group = std::clamp<std::int64_t>(16384 / std::max<std::int64_t>(elements, 1), 1, 1024);
    for_each_task((n + group - 1) / group, [&](std::int64_t task, auto scratch) {
      for (std::int64_t i = task * group; i < std::min(n, (task + 1) * group); ++i) f(i, scratch);
    });
  }

 private:
  static constexpr DType dtype = std::is_same_v<T, double> ? DType::f64 : DType::f32;

  struct Scratch {
    T* strip;
    T* bands[2];
    T* rows;
  };

  template <class F>
  void for_each_task(std::int64_t n, F&& f) {
    if (measure_) return;
    parallel_for(n, threads_, [&](std::int64_t task, int thread) {
      T* const at = static_cast<T*>(scratch_.get()) + thread * (strip_ + 2 * bands_ + rows_);
      f(task, Scratch{at, {at + strip_, at + strip_ + bands_}, at + strip_ + 2 * bands_});
    });
  }

  Tensor<T> make(std::int64_t planes, std::int64_t h, std::int64_t w) {
    std::shared_ptr<void> memory = arena_.allocate(std::size_t(planes * h * w) * sizeof(T));
    T* const data = static_cast<T*>(memory.get());
    return {std::move(memory), data, planes, h, w, w, h * w};
  }

  void count(std::initializer_list<Tensor<T>> read, const Tensor<T>& written) {
    for (const Tensor<T>& t : read) moved_ += t.bytes();
    moved_ += written.bytes();
  }
  void count_read(Source<T>& s) {
    moved_ += s.tensor.bytes() + (s.ll_pending ? s.ll->bytes() : 0);
    s.ll_pending = false;
  }

  // To even size, with zeros at the bottom and right.
  Tensor<T> pad(Tensor<T> x) {
    if (x.h % 2 == 0 && x.w % 2 == 0) return x;
    const Tensor<T> to = make(x.planes, (x.h + 1) / 2 * 2, (x.w + 1) / 2 * 2);
    for_each(to.planes, to.h * to.w, [&](std::int64_t i, Scratch) { f_.copy(x.plane(i), to.plane(i)); });
    count({x}, to);
    return to;
  }

  Tensor<T> haar(const Tensor<T>& x) {
    const Tensor<T> to = make(4 * x.planes, x.h / 2, x.w / 2);
    for_each(x.planes, x.h * x.w, [&](std::int64_t i, Scratch) { f_.haar(x.plane(i), four(to, i).data()); });
    count({x}, to);
    return to;
  }

  Tensor<T> inverse_haar(const Tensor<T>& z) {
    const Tensor<T> to = make(z.planes / 4, 2 * z.h, 2 * z.w);
    for_each(to.planes, to.h * to.w, [&](std::int64_t i, Scratch) { f_.inverse_haar(four(z, i).data(), to.plane(i)); });
    count({z}, to);
    return to;
  }

  Tensor<T> collapse(const std::vector<Tensor<T>>& z, const Tensor<T>& base, const Tensor<T>& to) {
    for_each(to.planes, to.h * to.w, [&](std::int64_t i, Scratch scratch) {
      std::array<Plane<T>, 4 * max_levels> bands;
      for (std::size_t s = 0; s < 4 * z.size(); ++s) bands[s] = z[s / 4].plane(4 * i + s % 4);
      f_.collapse(bands.data(), int(z.size()), base.plane(i), scratch.rows, to.plane(i));
    });
    count({base}, to);
    for (const Tensor<T>& bands : z) count({bands}, {});
    return to;
  }

  Tensor<T> convolve(Source<T>& source, const Filters<T>& f, std::optional<Tensor<T>> given) {
    const int bands = source.bands;
    const std::int64_t images = p_.batch * p_.channels, taps = p_.kernel * p_.kernel;
    const Tensor<T> to = given ? *given : make(bands * images, p_.height_at(f.level), p_.width_at(f.level));
    for_each(images, bands * to.h * to.w, [&](std::int64_t i, Scratch scratch) {
      const auto xs = planes(source, i, scratch.bands[0]);
      for (int s = 0; s < bands; ++s) {
        const std::int64_t n = i % p_.channels * bands + s;
        f_.convolve(xs[s], {f.weight + n * taps, f.bias[n], p_.kernel, f.before}, scratch.strip,
                    to.plane(i * bands + s));
      }
    });
    count_read(source), count({}, to);
    return to;
  }

  Tensor<T> scale(const Tensor<T>& x, const Filters<T>& f, std::optional<Tensor<T>> given) {
    const Tensor<T> to = given ? *given : make(x.planes, x.h, x.w);
    for_each(x.planes, x.h * x.w,
             [&](std::int64_t i, Scratch) { f_.multiply(x.plane(i), f.scale[i % f.count], to.plane(i)); });
    count({x}, to);
    return to;
  }

  Tensor<T> add(const Tensor<T>& a, const Tensor<T>& b, std::optional<Tensor<T>> given = {}) {
    const Tensor<T> to = given ? *given : make(a.planes, a.h, a.w);
    for_each(a.planes, a.h * a.w, [&](std::int64_t i, Scratch) { f_.add(a.plane(i), b.plane(i), to.plane(i)); });
    count({a, b}, to);
    return to;
  }

  // (B, C, 4, h, w) of ll and the other bands of z.
  Tensor<T> join(const Tensor<T>& ll, const Tensor<T>& z) {
    const Tensor<T> to = make(z.planes, z.h, z.w);
    for_each(z.planes, z.h * z.w,
             [&](std::int64_t i, Scratch) { f_.copy(i % 4 == LL ? ll.plane(i / 4) : z.plane(i), to.plane(i)); });
    count({z}, to);
    return to;
  }

  static std::array<Plane<T>, 4> four(const Tensor<T>& bands, std::int64_t i) {
    return {bands.plane(4 * i), bands.plane(4 * i + 1), bands.plane(4 * i + 2), bands.plane(4 * i + 3)};
  }

  // What a convolution of image i reads: 1 or 4 planes, formed in `scratch` where they are not stored.
  std::array<Plane<T>, 4> planes(const Source<T>& s, std::int64_t i, T* scratch) const {
    if (s.bands == 1) return {s.tensor.plane(i)};
    if (!s.recompute) return four(s.tensor, i);
    Plane<T> image = s.tensor.plane(i);
    const std::int64_t h = (image.h + 1) / 2, w = (image.w + 1) / 2;
    std::array<Plane<T>, 4> bands;
    for (int n = 0; n < 4; ++n) bands[n] = {scratch + n * h * w, h, w, w};
    if (image.h % 2 || image.w % 2) {
      const Plane<T> even{scratch + 4 * h * w, 2 * h, 2 * w, 2 * w};
      f_.copy(image, even);
      image = even;
    }
    f_.haar(image, bands.data());
    if (s.ll_pending) f_.copy(bands[LL], s.ll->plane(i));
    return bands;
  }

  bool in_place(const ConstTensorView& v, int stride) const {
    return p_.dtype == dtype && stride == 1 && (measure_ || is_dense(v));
  }
  // Elements of y or dy, or of x (stride 1).
  double image_elements(int stride) const {
    const double rows = double((p_.height + stride - 1) / stride), columns = double((p_.width + stride - 1) / stride);
    return double(p_.batch) * double(p_.channels) * rows * columns;
  }
  // The elements that a stride keeps.
  TensorView kept(const Tensor<T>& t, int stride) const {
    return {t.data,
            dtype,
            4,
            {p_.batch, p_.channels, (t.h + stride - 1) / stride, (t.w + stride - 1) / stride},
            {p_.channels * t.step, t.step, stride * t.row, stride}};
  }

  // Copies between views of any strides and converts; one of the two has the compute type of the other.
  void transfer(const ConstTensorView& from, const TensorView& to) {
    dispatch_dtype(from.dtype == dtype ? to.dtype : from.dtype, [&]<class S>(TypeTag<S>) {
      if constexpr (std::is_same_v<ComputeOf<S>, T>) {
        if (from.dtype == dtype) {
          transfer_tiles(static_cast<const T*>(from.data), from.strides, static_cast<S*>(to.data), to);
        } else {
          transfer_tiles(static_cast<const S*>(from.data), from.strides, static_cast<T*>(to.data), to);
        }
      }
    });
  }
  // Tiles of 16 channels by 16 columns use whole cache lines whichever of the two lies innermost.
  template <class From, class To>
  void transfer_tiles(const From* from, const std::array<std::int64_t, max_rank>& in, To* result, const TensorView& v) {
    const std::array<std::int64_t, max_rank>& out = v.strides;
    const std::int64_t channels = v.extents[1], rows = v.extents[2], columns = v.extents[3];
    const std::int64_t tile = in[3] == 1 && out[3] == 1 ? columns : 16;
    for_each(v.extents[0] * rows, channels * columns, [&](std::int64_t i, Scratch) {
      const From* const source = from + i / rows * in[0] + i % rows * in[2];
      To* const target = result + i / rows * out[0] + i % rows * out[2];
      for (std::int64_t c0 = 0; c0 < channels; c0 += 16) {
        for (std::int64_t q = 0; q < columns; q += tile) {
          for (std::int64_t c = c0; c < std::min(c0 + 16, channels); ++c) {
            convert(source + c * in[1] + q * in[3], in[3], target + c * out[1] + q * out[3], out[3],
                    std::min(tile, columns - q));
          }
        }
      }
    });
  }
  template <class From, class To>
  static void convert(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride, std::int64_t n) {
    if (from_stride == 1 && to_stride == 1) {
      for (std::int64_t i = 0; i < n; ++i) to[i] = from_float<To>(to_float(from[i]));
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i * to_stride] = from_float<To>(to_float(from[i * from_stride]));
    }
  }

  const Problem& p_;
  const Reformulations switches_;
  const int threads_;
  Arena& arena_;
  const bool measure_;
  const std::int64_t strip_, bands_, rows_;  // elements of a thread's scratch
  const std::shared_ptr<void> scratch_;
  const Primitives<T>& f_ = primitives<T>();
  double moved_ = 0;
};

}  // namespace wtconv::unfused
