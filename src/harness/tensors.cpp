#include "harness/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <string_view>

#include "core/parallel.hpp"
#include "core/types.hpp"
#include "wtconv/wtconv.hpp"

namespace wtconv::harness {
namespace {

constexpr std::byte poison_byte{0xff};

// What a view addresses: the lowest and highest element offset from its data.
std::pair<std::int64_t, std::int64_t> span_of(const TensorView& v) {
  std::int64_t low = 0, high = 0;
  for (int d = 0; d < v.rank; ++d) (v.strides[d] < 0 ? low : high) += v.strides[d] * (v.extents[d] - 1);
  return {low, high};
}

// Counter-based random numbers: equal on every platform, for any order of drawing.
std::uint64_t mix(std::uint64_t z) {  // splitmix64
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Random {
 public:
  Random(std::uint64_t seed, std::string_view name) : key_(mix(seed)) {
    for (char c : name) key_ = mix(key_ ^ static_cast<unsigned char>(c));
  }
  std::uint64_t bits(std::int64_t i) const { return mix(key_ ^ mix(static_cast<std::uint64_t>(i))); }
  double uniform(std::int64_t i) const { return double(bits(i) >> 11) * 0x1p-53; }  // [0, 1)
  // Variance 1, in (-3.5, 3.5): the sum of four uniforms.
  double normal(std::int64_t i) const {
    const std::uint64_t b = bits(i);
    double sum = -2;
    for (int part = 0; part < 4; ++part) sum += (double((b >> (16 * part)) & 0xffff) + 0.5) / 65536;
    return sum * std::sqrt(3.0);
  }

 private:
  std::uint64_t key_;
};

template <class F>
void fill_with(Tensor& t, F&& value) {
  constexpr std::int64_t part = 1 << 16;
  const std::int64_t n = t.view().size();
  parallel_for((n + part - 1) / part, thread_count(0), [&](std::int64_t task, int) {
    for (std::int64_t i = task * part, end = std::min(n, i + part); i < end; ++i) t.set(i, value(i));
  });
}

// A zero now and then, never at the first index: whole filters vanish, but never all of them.
bool vanishes(const Random& random, std::int64_t i) { return i > 0 && random.bits(i) % 7 == 0; }

bool is_expanded(const Tensor& t) {
  const TensorView& v = t.view();
  return v.size() > 0 && std::all_of(v.strides.begin(), v.strides.begin() + v.rank, [](auto s) { return s == 0; });
}

Tensor image(const Case& c, std::int64_t h, std::int64_t w) {
  // The buffer that holds the image: larger when it is sliced or strided.
  const Problem& p = c.problem;
  const std::int64_t step = c.strided ? 2 : 1, margin = c.sliced ? 1 : 0;
  const std::int64_t channels = p.channels + 2 * margin, rows = h * step + 2 * margin, columns = w * step + 3 * margin;
  std::array<std::int64_t, 4> s = {channels * rows * columns, rows * columns, columns, 1};
  if (c.channels_last) s = {rows * columns * channels, 1, columns * channels, channels};
  const std::int64_t first = margin * (s[1] + s[2] + 2 * s[3]);
  const TensorView v{.dtype = p.dtype,
                     .rank = 4,
                     .extents = {p.batch, p.channels, h, w},
                     .strides = {s[0], s[1], step * s[2], step * s[3]}};
  return Tensor(v, first, p.batch * channels * rows * columns, c.offset);
}

// An upper bound of the bytes of all tensors, as a double so that nothing overflows.
double bytes_needed(const Case& c) {
  const Problem& p = c.problem;
  const double step = c.strided ? 2 : 1, margin = c.sliced ? 3 : 0;
  const auto elements = [&](double h, double w) {
    return double(p.batch) * (double(p.channels) + margin) * (h * step + margin) * (w * step + margin);
  };
  const double images = 2 * elements(double(p.height), double(p.width)) +
                        (c.expanded ? 1 : 2) * elements(double(p.out_height()), double(p.out_width()));
  const double parameters = 2.0 * double(p.channels) * (1 + 4 * p.levels) * (p.kernel * p.kernel + 2);
  return images * double(size_of(p.dtype)) + parameters * double(size_of(c.parameter_dtype()));
}

std::map<Device, Memory*>& memories() {
  static std::map<Device, Memory*> m;
  return m;
}

}  // namespace

void Tensor::Free::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{alignment}); }

Tensor::Tensor(TensorView view, std::int64_t first, std::int64_t count, bool offset) : view_(view) {
  const std::size_t element = static_cast<std::size_t>(size_of(view.dtype));
  size_bytes_ = guard + (static_cast<std::size_t>(count) + (offset ? 1 : 0)) * element + guard;
  bytes_.reset(static_cast<std::byte*>(::operator new[](size_bytes_, std::align_val_t{alignment})));
  data_at_ = guard + (static_cast<std::size_t>(first) + (offset ? 1 : 0)) * element;
  view_.data = bytes_.get() + data_at_;
  poison();
}

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> extents, bool offset)
    : Tensor(dense(static_cast<void*>(nullptr), dtype, extents), 0,
             dense(static_cast<void*>(nullptr), dtype, extents).size(), offset) {}

void Tensor::poison() { std::fill_n(bytes_.get(), size_bytes_, poison_byte); }

std::string Tensor::damage() const {
  const std::size_t element = static_cast<std::size_t>(size_of(view_.dtype));
  const auto first_written = [&](std::size_t from, std::size_t to) -> std::string {
    for (std::size_t i = from; i < to; ++i) {
      if (bytes_[i] != poison_byte) {
        return "the byte " + std::to_string(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(data_at_)) +
               " bytes from the first element of " + to_string(view_) + " was written";
      }
    }
    return {};
  };
  const std::int64_t n = view_.size();
  if (n == 0) return first_written(0, size_bytes_);
  const auto [low, high] = span_of(view_);
  const std::size_t begin = data_at_ + static_cast<std::size_t>(low) * element;
  const std::size_t end = data_at_ + static_cast<std::size_t>(high + 1) * element;
  if (std::string s = first_written(0, begin); !s.empty()) return s;
  if (std::string s = first_written(end, size_bytes_); !s.empty()) return s;
  if (high - low + 1 == n || is_expanded(*this)) return {};  // no gaps
  std::vector<bool> addressed(static_cast<std::size_t>(high - low + 1));
  for (std::int64_t i = 0; i < n; ++i) addressed[static_cast<std::size_t>(offset_of(i) - low)] = true;
  for (std::size_t i = 0; i < addressed.size(); ++i) {
    if (addressed[i]) continue;
    if (std::string s = first_written(begin + i * element, begin + (i + 1) * element); !s.empty()) return s;
  }
  return {};
}

std::size_t Tensor::hash() const {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes_.get()), size_bytes_});
}

std::int64_t Tensor::offset_of(std::int64_t i) const {
  std::int64_t offset = 0;
  for (int d = view_.rank - 1; d >= 0; --d) {
    offset += i % view_.extents[d] * view_.strides[d];
    i /= view_.extents[d];
  }
  return offset;
}

double Tensor::get(std::int64_t i) const { return load_double(view_.data, view_.dtype, offset_of(i)); }
void Tensor::set(std::int64_t i, double v) { store_double(view_.data, view_.dtype, offset_of(i), v); }

std::uint64_t Tensor::bits(std::int64_t i) const {
  return dispatch_dtype(view_.dtype, [&](auto tag) -> std::uint64_t {
    using T = typename decltype(tag)::type;
    std::uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const T*>(view_.data) + offset_of(i), sizeof(T));
    return bits;
  });
}

std::string index_text(const ConstTensorView& view, std::int64_t i) {
  std::string s;
  for (int d = view.rank - 1; d >= 0; --d) {
    s = std::to_string(i % view.extents[d]) + (s.empty() ? "" : ", ") + s;
    i /= view.extents[d];
  }
  return "(" + s + ")";
}

std::string difference(const Tensor& a, const Tensor& b) {
  const TensorView &va = a.view(), &vb = b.view();
  if (va.dtype != vb.dtype || va.rank != vb.rank || va.extents != vb.extents) {
    return to_string(va) + " against " + to_string(vb);
  }
  for (std::int64_t i = 0, n = va.size(); i < n; ++i) {
    if (a.bits(i) != b.bits(i)) {
      char text[96];
      std::snprintf(text, sizeof text, ": %.17g and %.17g", a.get(i), b.get(i));
      return "at " + index_text(va, i) + text;
    }
  }
  return {};
}

Status make_tensors(const Case& c, Tensors& result) {
  const Problem& p = c.problem;
  if (Status s = validate(p); !s.ok()) return s;
  const double bytes = bytes_needed(c);
  const auto too_large = [&] {
    return Status{StatusCode::out_of_memory, "the tensors of " + to_string(c) + " need " +
                                                 std::to_string(std::llround(std::min(bytes, 9e18) / 1e6)) + " MB"};
  };
  if (bytes > 0x1p46) return too_large();
  try {
    Tensors t;
    t.problem = p;
    t.x = image(c, p.height, p.width);
    t.dx = image(c, p.height, p.width);
    t.y = image(c, p.out_height(), p.out_width());
    if (c.expanded) {
      const TensorView one{
          .dtype = p.dtype, .rank = 4, .extents = {p.batch, p.channels, p.out_height(), p.out_width()}, .strides = {}};
      t.dy = Tensor(one, 0, 1, c.offset);
    } else {
      t.dy = image(c, p.out_height(), p.out_width());
    }
    const DType dtype = c.parameter_dtype();
    const std::int64_t channels = p.channels, k = p.kernel;
    for (ParameterSet<Tensor>* set : {&t.parameters, &t.gradients}) {
      set->base_weight = Tensor(dtype, {channels, 1, k, k}, c.offset);
      if (c.bias) set->base_bias = Tensor(dtype, {channels}, c.offset);
      set->base_scale = Tensor(dtype, {channels}, c.offset);
      for (int l = 0; l < p.levels; ++l) {
        set->wavelet_weight[l] = Tensor(dtype, {4 * channels, 1, k, k}, c.offset);
        set->wavelet_scale[l] = Tensor(dtype, {4 * channels}, c.offset);
      }
    }
    result = std::move(t);
  } catch (const std::bad_alloc&) {
    return too_large();
  }
  return {};
}

void fill(Tensors& tensors, Fill how, std::uint64_t seed) {
  const Problem& p = tensors.problem;
  const bool exact = how == Fill::exact;
  // Sums in the exact case must stay below 2^24 steps of their grid, which Haar's halves make 4^L finer. The longest is
  // a scale's gradient, over every position and tap: thin out x and dy until it fits.
  const double room = std::ldexp(1.0, 19 - 2 * p.levels);
  const double terms = double(p.batch) * double(p.height) * double(p.width) * p.kernel * p.kernel;
  const double density = std::min(0.75, std::sqrt(room / std::max(terms, 1.0)));
  const std::int64_t plane = p.height * p.width;
  const auto image_value = [&](const Random& random, std::int64_t i) {
    if (!exact) return random.normal(i);
    if (i % plane != 0 && random.uniform(i) >= density) return 0.0;
    return random.bits(~i) % 2 ? -1.0 : 1.0;
  };
  const auto fill_image = [&](Tensor& t, const char* name) {
    const Random random(seed, name);
    if (t.view().size() == 0) return;
    if (is_expanded(t)) {
      t.set(0, exact ? -1.0 : 0.5 + 0.5 * random.uniform(0));
    } else {
      fill_with(t, [&](std::int64_t i) { return image_value(random, i); });
    }
  };
  fill_image(tensors.x, "x");
  fill_image(tensors.dy, "dy");
  for_each_parameter(
      p,
      [&](const std::string& name, Tensor& t) {
        if (!t) return;
        const Random random(seed, name);
        const bool scale = name.find("scale") != std::string::npos;
        const double bound = 1.0 / p.kernel;  // nn.Conv2d's uniform start for one input channel: 1 / sqrt(k * k)
        fill_with(t, [&](std::int64_t i) {
          if (scale) {
            if (vanishes(random, i)) return 0.0;
            const double sign = random.bits(i) % 2 ? -1 : 1;
            if (exact) return sign * std::ldexp(1.0, static_cast<int>(random.bits(~i) % 3) - 1);
            return sign * (0.1 + random.uniform(i));
          }
          if (exact) return std::array{-2.0, -1.0, 1.0, 2.0}[random.bits(i) % 4];
          return bound * (2 * random.uniform(i) - 1);
        });
      },
      tensors.parameters);
}

void register_memory(Device device, Memory* memory) { memories()[device] = memory; }

Parameters views(const ParameterSet<Tensor>& parameters) {
  Parameters v;
  v.base_weight = parameters.base_weight.view();
  v.base_bias = parameters.base_bias.view();
  v.base_scale = parameters.base_scale.view();
  for (int l = 0; l < max_levels; ++l) {
    v.wavelet_weight[l] = parameters.wavelet_weight[l].view();
    v.wavelet_scale[l] = parameters.wavelet_scale[l].view();
  }
  return v;
}

// Device copies of host buffers, made anew for every call: what is checked, not what is timed.
struct Runner::Copies {
  Copies(Memory* memory, void* stream) : memory(memory), stream(stream) {}
  ~Copies() { clear(); }
  void clear() {
    for (const auto& [host, device] : of) memory->release(device);
    of.clear();
  }
  Status upload(const Tensor& t) {
    if (!memory || !t) return {};
    void* device = nullptr;
    if (Status s = memory->allocate(t.size_bytes(), &device); !s.ok()) return s;
    of.emplace_back(&t, device);
    return memory->upload(device, t.bytes(), t.size_bytes(), stream);
  }
  Status download() {
    if (!memory) return {};
    for (const auto& [host, device] : of) {
      if (Status s = memory->download(host->bytes(), device, host->size_bytes(), stream); !s.ok()) return s;
    }
    return {};
  }
  // A view of host memory, moved to the copy of the buffer it points into.
  template <class View>
  View moved(View v) const {
    for (const auto& [host, device] : of) {
      const auto* data = static_cast<const std::byte*>(static_cast<const void*>(v.data));
      if (data >= host->bytes() && data < host->bytes() + host->size_bytes()) {
        v.data = static_cast<std::byte*>(device) + (data - host->bytes());
        break;
      }
    }
    return v;
  }
  template <class View>
  ParameterSet<View> moved(ParameterSet<View> set) const {
    set.base_weight = moved(set.base_weight);
    set.base_bias = moved(set.base_bias);
    set.base_scale = moved(set.base_scale);
    for (int l = 0; l < max_levels; ++l) {
      set.wavelet_weight[l] = moved(set.wavelet_weight[l]);
      set.wavelet_scale[l] = moved(set.wavelet_scale[l]);
    }
    return set;
  }
  // Uploads everything, runs `call(workspace)` with guard bands around the workspace, and fetches everything.
  template <class Call>
  Status run(Tensors& tensors, std::size_t bytes, Call&& call) {
    clear();
    Status s;
    const auto add = [&](const std::string&, const Tensor& t) {
      if (s.ok()) s = upload(t);
    };
    tensors.for_each_input(add);
    tensors.for_each_output(add);
    Tensor scratch;
    try {
      scratch = Tensor(DType::f16, {static_cast<std::int64_t>(bytes / 2 + bytes % 2)});
    } catch (const std::bad_alloc&) {
      return {StatusCode::out_of_memory, "no memory for a workspace of " + std::to_string(bytes) + " bytes"};
    }
    if (s.ok()) s = upload(scratch);
    if (s.ok()) s = call(Workspace{moved(scratch.view()).data, bytes});
    if (s.ok()) s = download();
    if (!s.ok()) return s;
    if (std::string d = scratch.damage(); !d.empty()) {
      return {StatusCode::device_error, "written outside the workspace of " + std::to_string(bytes) + " bytes: " + d};
    }
    return {};
  }

  Memory* memory;
  void* stream;
  std::vector<std::pair<const Tensor*, void*>> of;
};

Runner::Runner(Tensors& tensors, const Options& options)
    : tensors_(tensors), options_(options), backend_(options.backend) {
  options_.backend = backend_;
  Memory* memory = memories().count(options.device) ? memories()[options.device] : nullptr;
  copies_ = std::make_unique<Copies>(memory, options.stream);
}

Runner::~Runner() = default;

Status Runner::forward() {
  const Problem& p = tensors_.problem;
  if (options_.device != Device::host && !copies_->memory) {
    return {StatusCode::unavailable, "no memory is registered for the backend's device"};
  }
  const WorkspaceSize size = forward_workspace(p, options_);
  if (!size.status.ok()) return size.status;
  workspace_bytes_ = size.bytes;
  return copies_->run(tensors_, size.bytes, [&](Workspace workspace) {
    return wtconv::forward(p, copies_->moved(ConstTensorView(tensors_.x.view())),
                           copies_->moved(views(tensors_.parameters)), copies_->moved(tensors_.y.view()), workspace,
                           options_);
  });
}

Status Runner::backward() {
  return backward([](const std::string&) { return true; });
}

Status Runner::backward_to(const Gradients& host_views) {
  const Problem& p = tensors_.problem;
  if (options_.device != Device::host && !copies_->memory) {
    return {StatusCode::unavailable, "no memory is registered for the backend's device"};
  }
  const WorkspaceSize size = backward_workspace(p, mask_of(host_views), options_);
  if (!size.status.ok()) return size.status;
  workspace_bytes_ = size.bytes;
  return copies_->run(tensors_, size.bytes, [&](Workspace workspace) {
    const Gradients g{copies_->moved(host_views.x), copies_->moved(host_views.parameters)};
    return wtconv::backward(p, copies_->moved(ConstTensorView(tensors_.x.view())),
                            copies_->moved(views(tensors_.parameters)),
                            copies_->moved(ConstTensorView(tensors_.dy.view())), g, workspace, options_);
  });
}

}  // namespace wtconv::harness
