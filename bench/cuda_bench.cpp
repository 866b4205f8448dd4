// Times the CUDA backend on the cases named on the command line (or in --cases FILE) and writes JSON.
//
//   wtconv_cuda_bench [--backend cuda] [--json FILE] [--forward-only] [--once] [--cases FILE] [CASE...]
//
// With --backend cuda-unfused also --recompute-analysis, --collapse-synthesis and --fold-scales (Reformulations).
//
// Each case: the answer is checked on one channel, then `calls` calls over rotating buffers (beyond the L2 cache) are
// captured into a graph and replayed; the time is the median over replays, divided by the calls. A copy of x is timed
// the same way: it is the unit. --once only runs each case once, unchecked: for profilers.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "harness/check.hpp"
#include "wtconv/wtconv.hpp"

namespace {

using namespace wtconv;

constexpr int replays = 15, calls = 20;
constexpr std::size_t rotated_bytes = std::size_t{300} << 20;

void require(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  std::exit(1);
}

// Device memory of a run, freed together.
class Pool {
 public:
  ~Pool() {
    for (void* p : pieces_) cudaFree(p);
  }
  void* take(std::size_t bytes) {
    void* p = nullptr;
    require(cudaMalloc(&p, std::max<std::size_t>(bytes, 256)), "cudaMalloc");
    pieces_.push_back(p);
    return p;
  }

 private:
  std::vector<void*> pieces_;
};

// ms of one call of f(i, stream), i counting up.
double time(cudaStream_t stream, const std::function<void(int)>& f) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  f(0);
  require(cudaStreamSynchronize(stream), "first call");
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) f(i);
  require(cudaStreamEndCapture(stream, &graph), "capture");
  require(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms;
  for (int i = 0; i < replays + 2; ++i) {
    cudaEventRecord(start, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(stop, stream);
    require(cudaEventSynchronize(stop), "replay");
    float t = 0;
    cudaEventElapsedTime(&t, start, stop);
    if (i >= 2) ms.push_back(t);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2] / calls;
}

struct Result {
  double copy = 0, forward = 0, dx = 0, dw = 0, backward = 0;
  std::string strategy, error;
  std::size_t workspace = 0;
};

Result run(const harness::Case& c, Options options, bool backward_too, bool once) {
  Result result;
  if (once) {
    harness::Tensors t;
    if (Status s = make_tensors(c, t); !s.ok()) return result.error = s.message(), result;
    fill(t, harness::Fill::random, 7);
    harness::Runner runner(t, options);
    Status s = runner.forward();
    if (s.ok() && backward_too) s = runner.backward();
    result.error = s.message();
    return result;
  }
  const auto checked = harness::check(c, {.backend = std::string(options.backend),
                                          .backward = backward_too,
                                          .reformulations = options.reformulations,
                                          .channels = 1});
  if (!checked.ok) {
    result.error = checked.message();
    return result;
  }
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  options.stream = stream;
  const Problem& p = c.problem;
  harness::Tensors t;
  if (Status s = make_tensors(c, t); !s.ok()) {
    result.error = s.message();
    return result;
  }
  fill(t, harness::Fill::random, 7);
  Pool pool;
  const auto upload = [&](const harness::Tensor& host) {
    TensorView v = host.view();
    if (!v) return v;
    char* device = static_cast<char*>(pool.take(host.size_bytes()));
    require(cudaMemcpy(device, host.bytes(), host.size_bytes(), cudaMemcpyHostToDevice), "upload");
    v.data = device + host.data_at();
    return v;
  };
  ParameterSet<TensorView> parameters;
  Gradients gradients;
  const auto each = [&](auto&& f) {
    f(t.parameters.base_weight, parameters.base_weight, gradients.parameters.base_weight);
    f(t.parameters.base_bias, parameters.base_bias, gradients.parameters.base_bias);
    f(t.parameters.base_scale, parameters.base_scale, gradients.parameters.base_scale);
    for (int l = 0; l < p.levels; ++l) {
      f(t.parameters.wavelet_weight[l], parameters.wavelet_weight[l], gradients.parameters.wavelet_weight[l]);
      f(t.parameters.wavelet_scale[l], parameters.wavelet_scale[l], gradients.parameters.wavelet_scale[l]);
    }
  };
  each([&](const harness::Tensor& host, TensorView& v, TensorView& g) {
    v = upload(host);
    g = upload(host);
  });
  Parameters constant;
  constant.base_weight = parameters.base_weight;
  constant.base_bias = parameters.base_bias;
  constant.base_scale = parameters.base_scale;
  for (int l = 0; l < p.levels; ++l) {
    constant.wavelet_weight[l] = parameters.wavelet_weight[l];
    constant.wavelet_scale[l] = parameters.wavelet_scale[l];
  }
  const std::size_t bytes = static_cast<std::size_t>(t.x.view().size() * size_of(p.dtype));
  const int sets = static_cast<int>(std::clamp<std::size_t>(rotated_bytes / (2 * bytes), 1, 16));
  std::vector<TensorView> x, y, dy, dx;
  for (int i = 0; i < sets; ++i) {
    x.push_back(upload(t.x));
    y.push_back(upload(t.y));
    dy.push_back(upload(t.dy));
    dx.push_back(upload(t.x));
  }
  const auto at = [&](const std::vector<TensorView>& v, int i) { return v[static_cast<std::size_t>(i % sets)]; };
  const Backend* b = find_backend(options.backend);
  const Plan plan = b->plan(p, Pass::forward, {}, options);
  result.strategy = plan.strategy;
  result.workspace = std::max(plan.workspace, b->plan(p, Pass::backward, {}, options).workspace);
  const Workspace workspace{pool.take(result.workspace), result.workspace};
  const auto ok = [&](const Status& s) {
    if (!s.ok()) result.error = s.message();
  };
  result.copy = time(stream, [&](int i) {
    require(cudaMemcpyAsync(at(dx, i).data, at(x, i).data, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
  });
  result.forward = time(stream, [&](int i) { ok(forward(p, at(x, i), constant, at(y, i), workspace, options)); });
  if (!backward_too) return result;
  const auto backward_of = [&](bool image, bool filters) {
    return time(stream, [&](int i) {
      Gradients g;
      if (image) g.x = at(dx, i);
      if (filters) g.parameters = gradients.parameters;
      ok(backward(p, at(x, i), constant, at(dy, i), g, workspace, options));
    });
  };
  result.dx = backward_of(true, false);
  result.dw = backward_of(false, true);
  result.backward = backward_of(true, true);
  cudaStreamDestroy(stream);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const char* backend = "cuda";
  Reformulations reformulations;
  const char* json = nullptr;
  bool backward_too = true, once = false;
  std::vector<harness::Case> cases;
  for (int i = 1; i < argc; ++i) {
    const auto option = [&](const char* name) { return std::strcmp(argv[i], name) == 0 && i + 1 < argc; };
    if (option("--backend")) {
      backend = argv[++i];
    } else if (option("--json")) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--forward-only") == 0) {
      backward_too = false;
    } else if (std::strcmp(argv[i], "--once") == 0) {
      once = true;
    } else if (std::strcmp(argv[i], "--recompute-analysis") == 0) {
      reformulations.recompute_analysis = true;
    } else if (std::strcmp(argv[i], "--collapse-synthesis") == 0) {
      reformulations.collapse_synthesis = true;
    } else if (std::strcmp(argv[i], "--fold-scales") == 0) {
      reformulations.fold_scales = true;
    } else {
      harness::Case c;
      const Status s = option("--cases") ? harness::read_cases(argv[++i], cases) : harness::parse_case(argv[i], c);
      if (!s.ok()) {
        std::fprintf(stderr, "%s\n", s.message().c_str());
        return 2;
      }
      if (std::strcmp(argv[i - 1], "--cases") != 0) cases.push_back(c);
    }
  }
  const Options options{.device = Device::cuda, .backend = backend, .reformulations = reformulations};
  int failures = 0;
  std::string rows;
  std::printf("%-30s %-9s %8s %8s %6s %8s %8s %8s %6s\n", "case", "strategy", "copy", "forward", "/copy", "dx", "dw",
              "step", "/2.5c");
  for (const harness::Case& c : cases) {
    const Result r = run(c, options, backward_too, once);
    const std::string name = harness::to_string(c);
    if (!r.error.empty()) {
      std::printf("%-30s FAILED: %s\n", name.c_str(), r.error.c_str());
      ++failures;
      continue;
    }
    const double step = r.forward + r.backward;
    std::printf("%-30s %-9s %8.4f %8.4f %6.2f %8.4f %8.4f %8.4f %6.2f\n", name.c_str(), r.strategy.c_str(), r.copy,
                r.forward, r.forward / r.copy, r.dx, r.dw, step, step / 2.5 / r.copy);
    std::fflush(stdout);
    char line[512];
    std::snprintf(line, sizeof line,
                  "%s    {\"case\": \"%s\", \"strategy\": \"%s\", \"copy_ms\": %.5f, \"forward_ms\": %.5f, "
                  "\"input_gradient_ms\": %.5f, \"weight_gradient_ms\": %.5f, \"backward_ms\": %.5f, "
                  "\"workspace_bytes\": %zu}",
                  rows.empty() ? "" : ",\n", name.c_str(), r.strategy.c_str(), r.copy, r.forward, r.dx, r.dw,
                  r.backward, r.workspace);
    rows += line;
  }
  if (json) {
    std::FILE* f = std::fopen(json, "w");
    if (!f) {
      std::fprintf(stderr, "cannot write %s\n", json);
      return 2;
    }
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    std::string command;
    for (int i = 0; i < argc; ++i) command += std::string(i ? " " : "") + argv[i];
    const char* commit = std::getenv("WTCONV_COMMIT");
    std::fprintf(f,
                 "{\n  \"command\": \"%s\",\n  \"commit\": \"%s\",\n  \"gpu\": \"%s\",\n  \"cuda_runtime\": %d,\n"
                 "  \"cuda_driver\": %d,\n  \"backend\": \"%s\",\n  \"results\": [\n%s\n  ]\n}\n",
                 command.c_str(), commit ? commit : "unknown", device.name, runtime, driver, backend, rows.c_str());
    std::fclose(f);
  }
  return failures ? 1 : 0;
}
