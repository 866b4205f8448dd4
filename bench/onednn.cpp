// oneDNN's depthwise convolution. Of the layouts it can work in, the fastest with its reorders is the one that is
// timed.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "bench/competitor.hpp"

namespace wtconv::bench {
namespace {

using dnnl::memory;

// One way to run it: in one layout, with reorders from and to the caller's where they differ. Weights are reordered
// beforehand, as a network that is only read would do.
class Convolution {
 public:
  Convolution(const dnnl::engine& engine, const harness::Case& c, harness::Tensors& tensors, memory::format_tag layout)
      : stream_(engine) {
    const Problem& p = c.problem;
    const memory::dims image{p.batch, p.channels, p.height, p.width}, filter{p.channels, 1, 1, p.kernel, p.kernel};
    const auto f32 = memory::data_type::f32;
    const auto own = c.channels_last ? memory::format_tag::nhwc : memory::format_tag::nchw;
    const bool plain = layout == own;
    const auto weights = plain ? memory::format_tag::goihw : memory::format_tag::any;
    const memory::dim before = p.pad_before(), after = p.kernel - 1 - before;
    const dnnl::convolution_forward::primitive_desc primitive({dnnl::prop_kind::forward_inference,
                                                               dnnl::algorithm::convolution_direct,
                                                               memory::desc(image, f32, layout),
                                                               memory::desc(filter, f32, weights),
                                                               memory::desc(image, f32, layout),
                                                               {1, 1},
                                                               {before, before},
                                                               {after, after}},
                                                              engine);
    convolution_ = dnnl::convolution_forward(primitive);
    x_ = user_x_ = memory({image, f32, own}, engine, tensors.x.view().data);
    y_ = user_y_ = memory({image, f32, own}, engine, tensors.y.view().data);
    memory user_weight({filter, f32, memory::format_tag::goihw}, engine, tensors.parameters.base_weight.view().data);
    weight_ = user_weight;
    if (primitive.src_desc() != x_.get_desc()) x_ = memory(primitive.src_desc(), engine);
    if (primitive.dst_desc() != y_.get_desc()) y_ = memory(primitive.dst_desc(), engine);
    if (primitive.weights_desc() != weight_.get_desc()) weight_ = memory(primitive.weights_desc(), engine);
    if (x_ != user_x_) before_ = dnnl::reorder(user_x_, x_);
    if (y_ != user_y_) after_ = dnnl::reorder(y_, user_y_);
    if (weight_ != user_weight) dnnl::reorder(user_weight, weight_).execute(stream_, user_weight, weight_);
    stream_.wait();
    how_ = std::string(primitive.impl_info_str()) + (before_ || after_ ? ", reorders included" : ", no reorders");
  }

  void run() {
    if (before_) before_->execute(stream_, user_x_, x_);
    convolution_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weight_}, {DNNL_ARG_DST, y_}});
    if (after_) after_->execute(stream_, y_, user_y_);
    stream_.wait();
  }
  const std::string& how() const { return how_; }

 private:
  dnnl::stream stream_;
  dnnl::convolution_forward convolution_;
  memory user_x_, user_y_, x_, y_, weight_;
  std::optional<dnnl::reorder> before_, after_;
  std::string how_;
};

double fastest_of_three(Convolution& convolution) {
  double best = std::numeric_limits<double>::infinity();
  convolution.run();
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    convolution.run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

class OneDnn final : public Competitor {
 public:
  std::string name() const override { return "onednn"; }
  std::string description() const override {
    const dnnl_version_t* v = dnnl::version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch) +
           ", depthwise k x k" + (chosen_ ? ", " + chosen_->how() : "");
  }

  Status applicable(const harness::Case& c) const override {
    const auto no = [](std::string why) { return Status(StatusCode::unsupported, std::move(why)); };
    const Problem& p = c.problem;
    if (p.dtype != DType::f32) return no(std::string("this adapter takes f32, the case has ") + to_string(p.dtype));
    if (c.sliced || c.strided) return no("this adapter takes dense tensors, the case has views");
    if (p.stride != 1) return no("this adapter takes stride 1, the case has " + std::to_string(p.stride));
    if (p.batch == 0) return no("the batch is empty");
    return {};
  }

  Status prepare(const harness::Case& c, harness::Tensors& tensors, int threads,
                 std::function<Status()>& forward) override {
    if (threads > 0) omp_set_num_threads(threads);
    using tag = memory::format_tag;
    double best = std::numeric_limits<double>::infinity();
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    std::string refusal;
    // The caller's layout; the one oneDNN prefers; the blocked one that its depthwise kernels were written for.
    for (const tag layout : {c.channels_last ? tag::nhwc : tag::nchw, tag::any, tag::nChw16c}) {
      try {
        Convolution candidate(engine, c, tensors, layout);
        if (const double seconds = fastest_of_three(candidate); seconds < best) {
          best = seconds;
          chosen_ = std::move(candidate);
        }
      } catch (const dnnl::error& e) {
        refusal = e.what();  // this processor has no kernel for the layout
      }
    }
    if (!chosen_) return {StatusCode::unsupported, "oneDNN: " + refusal};
    forward = [this, threads]() -> Status {
      if (threads > 0) omp_set_num_threads(threads);
      try {
        chosen_->run();
      } catch (const dnnl::error& e) {
        return {StatusCode::device_error, std::string("oneDNN: ") + e.what()};
      }
      return {};
    };
    return {};
  }

 private:
  std::optional<Convolution> chosen_;
};

}  // namespace

std::vector<std::unique_ptr<Competitor>> competitors() {
  std::vector<std::unique_ptr<Competitor>> list;
  list.push_back(std::make_unique<OneDnn>());
  return list;
}

}  // namespace wtconv::bench
