// Backend `reference`: the operator as problem.hpp writes it, plane by plane, in plain double loops. The oracle.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/builtin.hpp"
#include "core/types.hpp"

namespace wtconv {
namespace {

// A single-channel image of doubles.
struct Image {
  double* data;
  std::int64_t h, w;
  double& at(std::int64_t r, std::int64_t c) const { return data[r * w + c]; }
  double get(std::int64_t r, std::int64_t c) const { return r < 0 || c < 0 || r >= h || c >= w ? 0.0 : at(r, c); }
};

using Bands = std::array<Image, 4>;

// The images of one plane, laid out in the workspace.
struct Images {
  // Null memory: only to count.
  explicit Images(const Problem& p, void* memory) : data(static_cast<double*>(memory)) {
    for (int l = 0; l <= p.levels; ++l) full[l] = image(p.height_at(l), p.width_at(l));
    for (int l = 1; l <= p.levels; ++l) {
      for (Image& band : y[l]) band = image(p.height_at(l), p.width_at(l));
      for (Image& band : z[l]) band = image(p.height_at(l), p.width_at(l));
      for (Image& band : g[l]) band = image(p.height_at(l), p.width_at(l));
    }
    x = image(p.height, p.width);
    dy = image(p.height, p.width);
    dw = take((1 + 4 * p.levels) * p.kernel * p.kernel);
  }
  static std::size_t bytes(const Problem& p) { return std::size_t(Images(p, nullptr).taken) * sizeof(double); }

  Image x, dy;
  std::array<Image, max_levels + 1> full;     // R[l + 1], or the gradient of X[l]: the image level l + 1 splits
  std::array<Bands, max_levels + 1> y, z, g;  // bands of x, filtered bands (or their transpose), bands of dy
  double* dw;                                 // sums of one channel: base, then level by level, band by band

 private:
  Image image(std::int64_t h, std::int64_t w) { return {take(h * w), h, w}; }
  double* take(std::int64_t count) {
    taken += count;
    return data ? data + taken - count : nullptr;
  }
  double* data;
  std::int64_t taken = 0;
};

double* dw_at(const Images& m, const Problem& p, int level, int band) {
  return m.dw + (level == 0 ? 0 : 1 + 4 * (level - 1) + band) * p.kernel * p.kernel;
}

// stride > 1 (of dy): the elements the output did not keep are zeros.
void load_plane(const ConstTensorView& v, std::int64_t b, std::int64_t c, int stride, const Image& to) {
  std::fill(to.data, to.data + to.h * to.w, 0.0);
  for (std::int64_t r = 0; r < v.extents[2]; ++r) {
    for (std::int64_t q = 0; q < v.extents[3]; ++q) {
      to.at(r * stride, q * stride) =
          load_double(v.data, v.dtype, b * v.strides[0] + c * v.strides[1] + r * v.strides[2] + q * v.strides[3]);
    }
  }
}

void store_plane(const Image& from, const TensorView& v, std::int64_t b, std::int64_t c, int stride) {
  for (std::int64_t r = 0; r < v.extents[2]; ++r) {
    for (std::int64_t q = 0; q < v.extents[3]; ++q) {
      store_double(v.data, v.dtype, b * v.strides[0] + c * v.strides[1] + r * v.strides[2] + q * v.strides[3],
                   from.at(r * stride, q * stride));
    }
  }
}

void haar(const Image& x, const Bands& y) {
  for (std::int64_t r = 0; r < y[LL].h; ++r) {
    for (std::int64_t q = 0; q < y[LL].w; ++q) {
      const double a = x.get(2 * r, 2 * q), b = x.get(2 * r, 2 * q + 1);
      const double c = x.get(2 * r + 1, 2 * q), d = x.get(2 * r + 1, 2 * q + 1);
      y[LL].at(r, q) = (a + b + c + d) / 2;
      y[LH].at(r, q) = (a + b - c - d) / 2;
      y[HL].at(r, q) = (a - b + c - d) / 2;
      y[HH].at(r, q) = (a - b - c + d) / 2;
    }
  }
}

// to = crop(inverse_haar(z.LL + add, z.LH, z.HL, z.HH)); add may be absent.
void inverse_haar(const Bands& z, const Image* add, const Image& to) {
  for (std::int64_t r = 0; r < to.h; ++r) {
    for (std::int64_t q = 0; q < to.w; ++q) {
      const double v = r % 2 ? -1 : 1, h = q % 2 ? -1 : 1;
      const std::int64_t i = r / 2, j = q / 2;
      const double ll = z[LL].at(i, j) + (add ? add->at(i, j) : 0.0);
      to.at(r, q) = (ll + v * z[LH].at(i, j) + h * z[HL].at(i, j) + v * h * z[HH].at(i, j)) / 2;
    }
  }
}

// Views of one filter: k x k weights and a scale.
struct Filter {
  const void* weight;
  DType dtype;
  std::int64_t row;  // which k x k block
  double scale;
  int k;
  double at(int i, int j) const { return load_double(weight, dtype, (row * k + i) * k + j); }
};

Filter filter_of(const Problem& p, const Parameters& parameters, int level, std::int64_t c, int band) {
  const std::int64_t row = level == 0 ? c : 4 * c + band;
  const ConstTensorView &w = parameters.weight(level), &s = parameters.scale(level);
  return {w.data, w.dtype, row, load_double(s.data, s.dtype, row), p.kernel};
}

// to(r, q) = scale * sum over (i, j) of w(i, j) x(r + i - pad, q + j - pad)
void convolve(const Image& x, const Filter& f, int pad, const Image& to) {
  for (std::int64_t r = 0; r < to.h; ++r) {
    for (std::int64_t q = 0; q < to.w; ++q) {
      double sum = 0;
      for (int i = 0; i < f.k; ++i) {
        for (int j = 0; j < f.k; ++j) sum += f.at(i, j) * x.get(r + i - pad, q + j - pad);
      }
      to.at(r, q) = f.scale * sum;
    }
  }
}

// Its transpose: to(r + i - pad, q + j - pad) gets scale * w(i, j) g(r, q)
void convolve_transposed(const Image& g, const Filter& f, int pad, const Image& to) {
  for (std::int64_t r = 0; r < to.h; ++r) {
    for (std::int64_t q = 0; q < to.w; ++q) {
      double sum = 0;
      for (int i = 0; i < f.k; ++i) {
        for (int j = 0; j < f.k; ++j) sum += f.at(i, j) * g.get(r - i + pad, q - j + pad);
      }
      to.at(r, q) = f.scale * sum;
    }
  }
}

// dw(i, j) += sum over (r, q) of x(r + i - pad, q + j - pad) g(r, q). Row by row, because the roundings of a long sum
// of equal terms all go one way, which f64 would show.
void correlate(const Image& x, const Image& g, int k, int pad, double* dw) {
  for (int i = 0; i < k; ++i) {
    for (int j = 0; j < k; ++j) {
      double sum = 0;
      for (std::int64_t r = 0; r < g.h; ++r) {
        double row = 0;
        for (std::int64_t q = 0; q < g.w; ++q) row += x.get(r + i - pad, q + j - pad) * g.at(r, q);
        sum += row;
      }
      dw[i * k + j] += sum;
    }
  }
}

// The analysis of x (or of dy): bands of every level.
void analyse(const Problem& p, const Image& x, const std::array<Bands, max_levels + 1>& y) {
  for (int l = 1; l <= p.levels; ++l) haar(l == 1 ? x : y[l - 1][LL], y[l]);
}

// The synthesis of filtered bands: full[0] = R[1].
void synthesise(const Problem& p, const Images& m) {
  for (int l = p.levels; l >= 1; --l) inverse_haar(m.z[l], l < p.levels ? &m.full[l] : nullptr, m.full[l - 1]);
}

class Reference final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view description() const override { return "the oracle: plain loops in double precision"; }

  Plan plan(const Problem& p, Pass pass, GradientMask, const Options&) const override {
    // One read and one write of each tensor; what lies between is one plane of doubles at a time.
    const double n = double(p.batch) * double(p.channels) * double(p.height) * double(p.width);
    return {"plane by plane", "the only strategy: one plane at a time in double", Images::bytes(p),
            pass == Pass::forward ? 2 * n : 3 * n};
  }

  Status forward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const TensorView& y,
                 Workspace workspace, const Options&) const override {
    const Images m(p, workspace.data);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t c = 0; c < p.channels; ++c) {
        load_plane(x, b, c, 1, m.x);
        analyse(p, m.x, m.y);
        for (int l = 1; l <= p.levels; ++l) {
          for (int band = 0; band < 4; ++band) {
            convolve(m.y[l][band], filter_of(p, parameters, l, c, band), p.pad_before(), m.z[l][band]);
          }
        }
        synthesise(p, m);
        const Filter base = filter_of(p, parameters, 0, c, 0);
        const double bias =
            parameters.base_bias ? load_double(parameters.base_bias.data, parameters.base_bias.dtype, c) : 0.0;
        convolve(m.x, base, p.pad_before(), m.dy);
        for (std::int64_t i = 0; i < p.height * p.width; ++i) {
          m.dy.data[i] += base.scale * bias + (p.levels > 0 ? m.full[0].data[i] : 0.0);
        }
        store_plane(m.dy, y, b, c, p.stride);
      }
    }
    return {};
  }

  Status backward(const Problem& p, const ConstTensorView& x, const Parameters& parameters, const ConstTensorView& dy,
                  const Gradients& gradients, Workspace workspace, const Options&) const override {
    const Images m(p, workspace.data);
    for (std::int64_t c = 0; c < p.channels; ++c) {
      std::fill(m.dw, m.dw + (1 + 4 * p.levels) * p.kernel * p.kernel, 0.0);
      double sum_dy = 0;
      for (std::int64_t b = 0; b < p.batch; ++b) {
        load_plane(dy, b, c, p.stride, m.dy);
        analyse(p, m.dy, m.g);
        if (gradients.x) {
          backward_x(p, parameters, c, m);
          store_plane(m.x, gradients.x, b, c, 1);
        }
        load_plane(x, b, c, 1, m.x);
        analyse(p, m.x, m.y);
        correlate(m.x, m.dy, p.kernel, p.pad_before(), dw_at(m, p, 0, 0));
        for (int l = 1; l <= p.levels; ++l) {
          for (int band = 0; band < 4; ++band) {
            correlate(m.y[l][band], m.g[l][band], p.kernel, p.pad_before(), dw_at(m, p, l, band));
          }
        }
        for (std::int64_t r = 0; r < p.height; ++r) {
          double row = 0;
          for (std::int64_t q = 0; q < p.width; ++q) row += m.dy.at(r, q);
          sum_dy += row;
        }
      }
      finish_parameters(p, parameters, c, m, sum_dy, gradients.parameters);
    }
    return {};
  }

 private:
  // m.x = gradient of x from dy and its bands.
  static void backward_x(const Problem& p, const Parameters& parameters, std::int64_t c, const Images& m) {
    for (int l = 1; l <= p.levels; ++l) {
      for (int band = 0; band < 4; ++band) {
        convolve_transposed(m.g[l][band], filter_of(p, parameters, l, c, band), p.pad_before(), m.z[l][band]);
      }
    }
    synthesise(p, m);
    convolve_transposed(m.dy, filter_of(p, parameters, 0, c, 0), p.pad_before(), m.x);
    for (std::int64_t i = 0; i < p.height * p.width && p.levels > 0; ++i) m.x.data[i] += m.full[0].data[i];
  }

  // With u = scale * weight: dL/dweight = scale * dL/du, dL/dscale = <weight, dL/du>.
  static void finish_parameters(const Problem& p, const Parameters& parameters, std::int64_t c, const Images& m,
                                double sum_dy, const ParameterSet<TensorView>& to) {
    for (int l = 0; l <= p.levels; ++l) {
      for (int band = 0; band < (l == 0 ? 1 : 4); ++band) {
        const Filter f = filter_of(p, parameters, l, c, band);
        const double* du = dw_at(m, p, l, band);
        const TensorView &weight = to.weight(l), &scale = to.scale(l);
        double dot = 0;
        for (int t = 0; t < p.kernel * p.kernel; ++t) {
          if (weight) store_double(weight.data, weight.dtype, f.row * p.kernel * p.kernel + t, f.scale * du[t]);
          dot += f.at(t / p.kernel, t % p.kernel) * du[t];
        }
        if (l == 0) {
          const ConstTensorView& bias = parameters.base_bias;
          if (bias) dot += load_double(bias.data, bias.dtype, c) * sum_dy;
          if (to.base_bias) store_double(to.base_bias.data, to.base_bias.dtype, c, f.scale * sum_dy);
        }
        if (scale) store_double(scale.data, scale.dtype, f.row, dot);
      }
    }
  }
};

}  // namespace

const Backend& reference_backend() {
  static const Reference backend;
  return backend;
}

}  // namespace wtconv
