"""Writes golden.txt: outputs of small integer problems, from closed forms that share nothing with the library.

Bands are sums over 2^l x 2^l blocks of the zero-extended image, the synthesis is the sum over levels of 2^-l times the
signed bands, and every gradient is the loss <dy, y> at a unit vector (the operator is linear in each of its inputs).

Usage: python tests/cpp/golden/make.py > tests/cpp/golden/golden.txt
"""

import itertools
import re

import numpy as np

CASES = [
    "n1c1h1w1k1l0_f64",
    "n1c1h2w2k1l1_f64",
    "n1c2h4w4k3l1_f64",
    "n2c2h5w3k3l2_f64",
    "n1c1h7w7k5l2_f64",
    "n1c2h6w5k2l2_f64",
    "n1c1h5w6k4l3_f64",
    "n2c1h5w7k3l2_f64_s2",
    "n1c1h7w4k3l1_f64_s3",
]


def value(tensor, i):
    """Element i of the tensor with this number: x 0, dy 1, base weight 2, bias 3, scale 4, then weight, scale a level."""
    return (i * i + (5 + 2 * tensor) * i + 3 * tensor + 1) % 13 - 6.0


def filled(tensor, shape):
    return np.array([value(tensor, i) for i in range(int(np.prod(shape)))]).reshape(shape)


def correlate(image, weight):
    """'same' cross-correlation of one plane, (k - 1) // 2 zeros above and to the left."""
    k = weight.shape[0]
    before = (k - 1) // 2
    h, w = image.shape
    padded = np.zeros((h + k - 1, w + k - 1))
    padded[before : before + h, before : before + w] = image
    out = np.zeros((h, w))
    for i, j in itertools.product(range(k), range(k)):
        out += weight[i, j] * padded[i : i + h, j : j + w]
    return out


def forward(x, params, levels, stride):
    batch, channels, h, w = x.shape
    y = np.zeros_like(x)
    rows, cols = np.arange(h), np.arange(w)
    for b, c in itertools.product(range(batch), range(channels)):
        plane = x[b, c]
        y[b, c] = params["base_scale"][c] * (correlate(plane, params["base_weight"][c, 0]) + params["base_bias"][c])
        for level in range(1, levels + 1):
            size = 2**level
            bh, bw = -(-h // size), -(-w // size)
            extended = np.zeros((bh * size, bw * size))
            extended[:h, :w] = plane
            blocks = extended.reshape(bh, size, bw, size)
            half = np.where(np.arange(size) < size // 2, 1.0, -1.0)
            ones = np.ones(size)
            for band, (down, across) in enumerate([(ones, ones), (half, ones), (ones, half), (half, half)]):
                coefficients = np.einsum("arbs,r,s->ab", blocks, down, across) / size
                row = 4 * c + band
                filtered = correlate(coefficients, params[f"wavelet_weight[{level - 1}]"][row, 0])
                filtered = filtered * params[f"wavelet_scale[{level - 1}]"][row]
                signs = np.outer(np.tile(down, bh)[:h], np.tile(across, bw)[:w])
                y[b, c] += signs * filtered[np.ix_(rows >> level, cols >> level)] / size
    return y[:, :, ::stride, ::stride]


def gradients(x, params, dy, levels, stride):
    def unit_losses(like, run):
        out = np.zeros(like.size)
        for i in range(like.size):
            unit = np.zeros(like.size)
            unit[i] = 1
            out[i] = np.sum(dy * run(unit.reshape(like.shape)))
        return out

    no_bias = dict(params, base_bias=np.zeros_like(params["base_bias"]))
    yield "gradient of x", unit_losses(x, lambda unit: forward(unit, no_bias, levels, stride))
    scales = {name: np.zeros_like(v) for name, v in params.items() if "scale" in name}
    for name, tensor in params.items():
        if "scale" in name:
            silenced = scales
        elif name == "base_bias":
            silenced = {n: np.zeros_like(v) for n, v in params.items() if n in ("base_weight", "base_bias")}
            silenced |= {n: v for n, v in scales.items() if n != "base_scale"}
        else:  # all other filters are silenced by their weights
            silenced = {n: np.zeros_like(v) for n, v in params.items() if "weight" in n or n == "base_bias"}

        def run(unit, name=name, silenced=silenced):
            return forward(x, {**params, **silenced, name: unit}, levels, stride)

        yield "gradient of " + name, unit_losses(tensor, run)


def main():
    print("# Made by make.py. Inputs are value(tensor, i) of that file.")
    for case in CASES:
        n, c, h, w, k, levels = (int(re.search(letter + r"(\d+)", case)[1]) for letter in "nchwkl")
        stride = int((re.search(r"_s(\d+)", case) or [0, 1])[1])
        x = filled(0, (n, c, h, w))
        dy = filled(1, (n, c, -(-h // stride), -(-w // stride)))
        params = {
            "base_weight": filled(2, (c, 1, k, k)),
            "base_bias": filled(3, (c,)),
            "base_scale": filled(4, (c,)),
        }
        for level in range(levels):
            params[f"wavelet_weight[{level}]"] = filled(5 + 2 * level, (4 * c, 1, k, k))
            params[f"wavelet_scale[{level}]"] = filled(6 + 2 * level, (4 * c,))
        print("case:", case)
        outputs = [("y", forward(x, params, levels, stride).ravel()), *gradients(x, params, dy, levels, stride)]
        for name, values in outputs:
            print(f"{name}:", *(repr(float(v)).removesuffix(".0") for v in values))


if __name__ == "__main__":
    main()
