// Tensors of a case: owning buffers with guard bands, filled from a seed, and their copies where a backend works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/case.hpp"
#include "wtconv/backend.hpp"

namespace wtconv::harness {

// A host buffer and a view into it. What the view does not address (guard bands of at least 256 bytes on both sides,
// the gaps of a slice) holds the poison byte 0xff, a nan in every dtype: reading it spoils a result, and a write to it
// is found by damage().
class Tensor {
 public:
  static constexpr std::size_t guard = 256;
  static constexpr std::size_t alignment = 256;

  // Absent: no buffer, and a view without data.
  Tensor() = default;
  // `view.data` is ignored. The view's element at index 0 lies `first` elements into a payload of `count` elements,
  // which starts at a multiple of `alignment` (one element later if `offset`). All poisoned.
  // Throws std::bad_alloc.
  Tensor(TensorView view, std::int64_t first, std::int64_t count, bool offset);
  // Dense and aligned.
  Tensor(DType dtype, std::initializer_list<std::int64_t> extents, bool offset = false);

  explicit operator bool() const { return bytes_ != nullptr; }
  const TensorView& view() const { return view_; }
  // The whole buffer, guard bands included, and where the view's first element lies in it.
  std::byte* bytes() const { return bytes_.get(); }
  std::size_t size_bytes() const { return size_bytes_; }
  std::size_t data_at() const { return data_at_; }

  void poison();
  // Empty, or which guarded byte was written.
  std::string damage() const;
  // Of the whole buffer: two equal numbers mean that nothing was written.
  std::size_t hash() const;

  // Element at the i-th index in row-major order of the view's extents.
  std::int64_t offset_of(std::int64_t i) const;
  double get(std::int64_t i) const;
  void set(std::int64_t i, double v);
  // Raw bits of an element, to compare bit for bit.
  std::uint64_t bits(std::int64_t i) const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::size_t size_bytes_ = 0;
  std::size_t data_at_ = 0;
  TensorView view_{};
};

// Same dtype, extents and bits of every element, whatever the strides. Empty, or the first index that differs.
std::string difference(const Tensor& a, const Tensor& b);

// "(1, 0, 3, 5)" for the i-th index in row-major order.
std::string index_text(const ConstTensorView& view, std::int64_t i);

// Calls f(name, sets.member...) for each parameter of the problem, in a fixed order.
template <class F, class... Sets>
void for_each_parameter(const Problem& p, F&& f, Sets&&... sets) {
  f(std::string("base_weight"), sets.base_weight...);
  f(std::string("base_bias"), sets.base_bias...);
  f(std::string("base_scale"), sets.base_scale...);
  for (int l = 0; l < p.levels; ++l) {
    const std::string at = "[" + std::to_string(l) + "]";
    f("wavelet_weight" + at, sets.wavelet_weight[l]...);
    f("wavelet_scale" + at, sets.wavelet_scale[l]...);
  }
}

// Everything one case needs. Inputs x, parameters and dy, outputs y, dx and gradients.
struct Tensors {
  Problem problem;
  Tensor x, y, dy, dx;
  ParameterSet<Tensor> parameters, gradients;

  // f(name, tensor) for inputs (x, parameters, dy) and for outputs (y, dx, gradients) that are there.
  template <class F>
  void for_each_input(F&& f) const {
    f(std::string("x"), x);
    f(std::string("dy"), dy);
    for_each_parameter(
        problem,
        [&](const std::string& name, const Tensor& t) {
          if (t) f(name, t);
        },
        parameters);
  }
  template <class F>
  void for_each_output(F&& f) {
    f(std::string("y"), y);
    f(std::string("gradient of x"), dx);
    for_each_parameter(
        problem,
        [&](const std::string& name, Tensor& t) {
          if (t) f("gradient of " + name, t);
        },
        gradients);
  }
};

// out_of_memory with the bytes needed, or poisoned tensors of the case's shapes and layout.
Status make_tensors(const Case& c, Tensors& result);

enum class Fill {
  random,  // x, dy roughly normal; weights and bias as nn.Conv2d starts; scales of both signs, some of them zero
  exact,   // small integers and power-of-two scales (some zero, some negative): sums exact in f32 in any order
};
// Fills x, dy and the parameters. A value depends on the seed, the tensor's name and the index, not on the layout.
void fill(Tensors& tensors, Fill how, std::uint64_t seed);

// Where a device's tensors live. The host needs none; the CUDA library registers one when a backend on another device
// is to be checked. `stream` is Options::stream.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Status allocate(std::size_t bytes, void** result) = 0;  // aligned to 256 bytes
  virtual void release(void* data) = 0;
  virtual Status upload(void* device, const void* host, std::size_t bytes, void* stream) = 0;
  // Waits for all work on the stream.
  virtual Status download(void* host, const void* device, std::size_t bytes, void* stream) = 0;
};
// Null takes it back.
void register_memory(Device device, Memory* memory);

// Calls wtconv::forward and backward on tensors where the backend works: in place on the host, else on copies of the
// whole buffers, guard bands included, which are copied back after each call. The workspace has guard bands too.
class Runner {
 public:
  Runner(Tensors& tensors, const Options& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Status forward();
  // The gradients of all outputs that are there.
  Status backward();
  // The gradients of those whose names (as for_each_output gives them) are chosen.
  template <class Chosen>
  Status backward(Chosen&& chosen) {
    Gradients g;
    if (chosen(std::string("gradient of x"))) g.x = tensors_.dx.view();
    for_each_parameter(
        tensors_.problem,
        [&](const std::string& name, Tensor& t, TensorView& view) {
          if (t && chosen("gradient of " + name)) view = t.view();
        },
        tensors_.gradients, g.parameters);
    return backward_to(g);
  }
  std::size_t workspace_bytes() const { return workspace_bytes_; }  // of the last call

 private:
  struct Copies;
  Status backward_to(const Gradients& host_views);
  Tensors& tensors_;
  Options options_;
  std::string backend_;
  std::unique_ptr<Copies> copies_;
  std::size_t workspace_bytes_ = 0;
};

// Views of the host buffers.
Parameters views(const ParameterSet<Tensor>& parameters);

}  // namespace wtconv::harness
