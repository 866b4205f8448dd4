// A program of another project: one layer forward by every backend of the installed library.
#include <cstdio>
#include <vector>
#include <wtconv/wtconv.hpp>

int main() {
  using namespace wtconv;
  const Problem problem{.batch = 2, .channels = 3, .height = 7, .width = 9, .kernel = 3, .levels = 2};
  const int c = 3, k = 3;
  std::vector<float> x(2 * 3 * 7 * 9, 1.f), y(x.size()), w(c * k * k, .5f), scale(4 * c, 1.f),
      wavelet(4 * c * k * k, .25f);
  const auto view = [](std::vector<float>& v, std::initializer_list<std::int64_t> e) {
    return dense(v.data(), DType::f32, e);
  };
  Parameters p;
  p.base_weight = view(w, {c, 1, k, k});
  p.base_scale = view(scale, {c});
  for (int l = 0; l < problem.levels; ++l) {
    p.wavelet_weight[l] = view(wavelet, {4 * c, 1, k, k});
    p.wavelet_scale[l] = view(scale, {4 * c});
  }
  double first = 0;
  for (const Backend* backend : backends()) {
    const Options options{.backend = backend->name()};
    if (!can_run(problem, options).ok()) continue;
    struct alignas(256) Block {
      char bytes[256];
    };
    std::vector<Block> memory(forward_workspace(problem, options).bytes / sizeof(Block) + 1);
    const Status status = forward(problem, view(x, {2, 3, 7, 9}), p, view(y, {2, 3, 7, 9}),
                                  {memory.data(), memory.size() * sizeof(Block)}, options);
    if (!status.ok()) return std::printf("%s\n", status.message().c_str()), 1;
    double sum = 0;
    for (float v : y) sum += v;
    if (first == 0) first = sum;
    // All are small multiples of 1/16: exact in every order.
    if (sum == 0 || sum != first) return std::printf("%s gives %g, not %g\n", options.backend.data(), sum, first), 1;
    std::printf("wtconv %s, %s: sum %g\n", WTCONV_VERSION, options.backend.data(), sum);
  }
  return first == 0;
}
