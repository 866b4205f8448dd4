#include "wtconv/tensor.hpp"

#include <algorithm>
#include <numeric>

namespace wtconv {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown dtype";
}

namespace {

template <class Pointer>
BasicTensorView<Pointer> dense_view(Pointer data, DType dtype, std::initializer_list<std::int64_t> extents) {
  BasicTensorView<Pointer> v{.data = data, .dtype = dtype, .rank = static_cast<int>(extents.size())};
  std::copy(extents.begin(), extents.end(), v.extents.begin());
  std::int64_t stride = 1;
  for (int d = v.rank - 1; d >= 0; --d) {
    v.strides[d] = stride;
    stride *= v.extents[d];
  }
  return v;
}

template <class Pointer>
BasicTensorView<Pointer> channels_last_view(Pointer data, DType dtype, std::int64_t b, std::int64_t c, std::int64_t h,
                                            std::int64_t w) {
  return {data, dtype, 4, {b, c, h, w}, {c * h * w, 1, w * c, c}};
}

// One term of an address: index * stride for index in [0, extent).
struct Term {
  std::int64_t stride;
  std::int64_t extent;
};

// Elements reachable from the base lie in [base + low, base + high].
struct Range {
  std::int64_t low = 0, high = 0;
};
Range range_of(const ConstTensorView& v) {
  Range r;
  for (int d = 0; d < v.rank; ++d) (v.strides[d] < 0 ? r.low : r.high) += v.strides[d] * (v.extents[d] - 1);
  return r;
}

// Can sum(index_i * stride_i) reach a value in [low, high]? Terms have positive strides, sorted from large to small.
// Exact for nested layouts, where each stride leaves one or two candidates; gives up with `true` after `budget` steps.
bool can_reach(const Term* term, const Term* end, std::int64_t low, std::int64_t high, int& budget) {
  if (--budget < 0) return true;
  if (term == end) return low <= 0 && 0 <= high;
  std::int64_t rest = 0, divisor = term->stride;
  for (const Term* t = term + 1; t != end; ++t) {
    rest += t->stride * (t->extent - 1);
    divisor = std::gcd(divisor, t->stride);
  }
  if (high < 0 || low > rest + term->stride * (term->extent - 1)) return false;
  // Only multiples of the strides' common divisor: even and odd columns never meet.
  if (low > 0 && (low - 1) / divisor == high / divisor) return false;
  const std::int64_t first = std::max<std::int64_t>(0, (low - rest + term->stride - 1) / term->stride);
  const std::int64_t last = std::min<std::int64_t>(term->extent - 1, high / term->stride);
  for (std::int64_t i = first; i <= last; ++i) {
    if (can_reach(term + 1, end, low - i * term->stride, high - i * term->stride, budget)) return true;
  }
  return false;
}

constexpr int search_budget = 10000;

}  // namespace

TensorView dense(void* data, DType dtype, std::initializer_list<std::int64_t> extents) {
  return dense_view(data, dtype, extents);
}
ConstTensorView dense(const void* data, DType dtype, std::initializer_list<std::int64_t> extents) {
  return dense_view(data, dtype, extents);
}
TensorView channels_last(void* data, DType dtype, std::int64_t b, std::int64_t c, std::int64_t h, std::int64_t w) {
  return channels_last_view(data, dtype, b, c, h, w);
}
ConstTensorView channels_last(const void* data, DType dtype, std::int64_t b, std::int64_t c, std::int64_t h,
                              std::int64_t w) {
  return channels_last_view(data, dtype, b, c, h, w);
}

bool is_dense(const ConstTensorView& view) {
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.extents[d] != 1 && view.strides[d] != stride) return false;
    stride *= view.extents[d];
  }
  return true;
}

bool self_overlaps(const ConstTensorView& view) {
  if (view.size() == 0) return false;
  // Sorted by stride, each dimension must step over everything the smaller ones reach.
  std::array<Term, max_rank> terms;
  int n = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.extents[d] > 1) terms[n++] = {view.strides[d] < 0 ? -view.strides[d] : view.strides[d], view.extents[d]};
  }
  std::sort(terms.begin(), terms.begin() + n, [](Term a, Term b) { return a.stride < b.stride; });
  std::int64_t reach = 0;
  for (int i = 0; i < n; ++i) {
    if (terms[i].stride <= reach) return true;
    reach += terms[i].stride * (terms[i].extent - 1);
  }
  return false;
}

bool may_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (!a || !b || a.size() == 0 || b.size() == 0) return false;
  // Byte addresses: a + i . sa + e = b + j . sb + f, with e, f inside one element. Negative strides are counted from
  // the other end, so that every term is positive: reach(a) + reach(b reversed) = offset.
  const std::int64_t ea = size_of(a.dtype), eb = size_of(b.dtype);
  const Range ra = range_of(a), rb = range_of(b);
  const auto address = [](const ConstTensorView& v) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(v.data));
  };
  const std::int64_t target = (address(b) + rb.high * eb) - (address(a) + ra.low * ea);
  // Most pairs lie apart.
  const std::int64_t reach = (ra.high - ra.low) * ea + (rb.high - rb.low) * eb;
  if (target + (eb - 1) < 0 || target - (ea - 1) > reach) return false;
  std::array<Term, 2 * max_rank> terms;
  int n = 0;
  const auto add = [&](const ConstTensorView& v, std::int64_t size) {
    for (int d = 0; d < v.rank; ++d) {
      if (v.extents[d] > 1 && v.strides[d] != 0) {
        terms[n++] = {(v.strides[d] < 0 ? -v.strides[d] : v.strides[d]) * size, v.extents[d]};
      }
    }
  };
  add(a, ea);
  add(b, eb);
  std::sort(terms.begin(), terms.begin() + n, [](Term x, Term y) { return x.stride > y.stride; });
  // Equal strides (of a and b) count as one longer term.
  int merged = 0;
  for (int i = 0; i < n; ++i) {
    if (merged > 0 && terms[merged - 1].stride == terms[i].stride) {
      terms[merged - 1].extent += terms[i].extent - 1;
    } else {
      terms[merged++] = terms[i];
    }
  }
  n = merged;
  int budget = search_budget;
  return can_reach(terms.data(), terms.data() + n, target - (ea - 1), target + (eb - 1), budget);
}

std::string to_string(const ConstTensorView& view) {
  const auto list = [&](const std::array<std::int64_t, max_rank>& values) {
    std::string s = "(";
    for (int d = 0; d < view.rank; ++d) s += (d ? ", " : "") + std::to_string(values[d]);
    return s + ")";
  };
  return std::string(to_string(view.dtype)) + " " + list(view.extents) + " strides " + list(view.strides);
}

}  // namespace wtconv
