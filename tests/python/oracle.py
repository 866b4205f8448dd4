"""What the operators must give: the plain composition in float64, and how far rounding may lead away from it."""

from __future__ import annotations

import torch
import wtconv
from torch import Tensor
from wtconv import general, reference

BACKENDS = [b.name for b in wtconv.backends() if not b.unavailable and b.device == "cpu"]


def exact_filters(channels: int) -> tuple[Tensor, Tensor]:
    return general.haar_filters(channels, 2)


def random_inputs(b, c, h, w, k, levels, stride=1, *, bias=True, dtype=torch.float32, parameters=None, layout=None):
    """([x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale], dy), scales of both signs and zero."""
    parameters = parameters or dtype

    def scale(n):
        s = torch.randn(1, n, 1, 1)
        s.view(-1)[:: max(3, n // 2)] = 0
        return s

    x, dy = torch.randn(b, c, h, w), torch.randn(b, c, -(-h // stride), -(-w // stride))
    ps = [torch.randn(c, 1, k, k), torch.randn(c) if bias else None, scale(c)]
    ps += [torch.randn(4 * c, 1, k, k) for _ in range(levels)] + [scale(4 * c) for _ in range(levels)]
    x, dy = (t.to(dtype, memory_format=layout or torch.contiguous_format) for t in (x, dy))
    return [x, *(p if p is None else p.to(parameters) for p in ps)], dy


def grouped(inputs):
    levels = (len(inputs) - 4) // 2
    return (*inputs[:4], list(inputs[4 : 4 + levels]), list(inputs[4 + levels :]))


def evaluate(inputs, dy, function) -> list[Tensor]:
    """y, then the gradient with respect to every input that is there."""
    leaves = [t if t is None else t.detach().requires_grad_() for t in inputs]
    y = function(*grouped(leaves))
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], dy)]


def operator(stride, backend=""):
    return lambda *a: wtconv.functional.wtconv2d(*a, stride, backend)


def expected(inputs, dy, stride):
    """Pairs (value, magnitude): the exact result, and the sum of the absolute values of its terms."""
    filters = exact_filters(inputs[0].shape[1])
    result = []
    for transform in (lambda t: t.double(), lambda t: t.double().abs()):
        ins, d = [t if t is None else transform(t) for t in inputs], transform(dy)
        fs = [transform(f) for f in filters]
        result.append(evaluate(ins, d, lambda *a: reference.wtconv2d(*a, stride, *fs)))
    return list(zip(*result))


def assert_right(results, inputs, dy, stride, context=""):
    """Every element of y and of each gradient, against the sum of the absolute values of its own terms.

    float32 sums of n terms err by about sqrt(n) half ulps of that sum, at most 8 ulps here; 16-bit results are rounded
    once more at the end.
    """
    names = ["y"] + [f"gradient {i}" for i, t in enumerate(inputs) if t is not None]
    for name, result, (value, magnitude) in zip(names, results, expected(inputs, dy, stride), strict=True):
        assert result.shape == value.shape, f"{name} {context}: shape {tuple(result.shape)}"
        assert torch.isfinite(result).all(), f"{name} {context}: not finite"
        sums = torch.finfo(torch.float64 if result.dtype == torch.float64 else torch.float32).eps
        bound = 8 * sums * magnitude
        if result.dtype in (torch.float16, torch.bfloat16):
            type_ = torch.finfo(result.dtype)
            bound = bound + 0.51 * type_.eps * value.abs() + type_.tiny * type_.eps
        worst = ((result.double() - value).abs() - bound).nan_to_num(nan=float("inf"))
        if result.numel() and worst.max() > 0:
            at = tuple(i.item() for i in torch.unravel_index(worst.argmax(), worst.shape))
            raise AssertionError(
                f"{name}{list(at)} {context}: {result[at].item()!r}, exact {value[at].item()!r}, "
                f"allowed error {bound[at].item():.3g}"
            )


def randomise(module, seed=0):
    """Values of both signs, zeros among the scales, in every trained parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if not p.requires_grad:
                continue
            p.copy_(torch.randn(p.shape, generator=generator))
            if "scale" in name:
                p.view(-1)[::3] = 0
    return module


def layer_and_plain(*args, dtype=torch.float32, **kwargs):
    """WTConv2d and the plain layer with the same random parameters."""
    layer = randomise(wtconv.WTConv2d(*args, **kwargs))
    kwargs.pop("backend", None)
    plain = reference.WTConv2d(*args, **kwargs)
    plain.load_state_dict(layer.state_dict(), strict=True)
    return layer.to(dtype), plain.to(dtype)
