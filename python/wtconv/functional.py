"""The layer as a function of its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from wtconv import _ops


def wtconv2d(
    x: Tensor,
    base_weight: Tensor,
    base_bias: Tensor | None,
    base_scale: Tensor,
    wavelet_weight: Sequence[Tensor] = (),
    wavelet_scale: Sequence[Tensor] = (),
    stride: int = 1,
    backend: str = "",
) -> Tensor:
    """WTConv with Haar wavelets: x (B, C, H, W) -> (B, C, ceil(H / stride), ceil(W / stride)).

    base_weight is (C, 1, k, k), base_bias (C,) or None, base_scale (1, C, 1, 1) or (C,); for each level wavelet_weight
    holds (4C, 1, k, k), rows LL, LH, HL, HH of every channel, and wavelet_scale (1, 4C, 1, 1) or (4C,).
    The parameters share x's dtype, or are float32 where x is float16 or bfloat16; sums are kept in float32 (float64 for
    float64). The result is dense in x's memory format. A backend named here runs or raises; "" takes the fastest.
    After "unfused" and "cuda-unfused" may come +recompute_analysis, +collapse_synthesis and +fold_scales, the published
    reformulations of this baseline.
    """
    return _ops.forward(
        x, base_weight, base_bias, base_scale, list(wavelet_weight), list(wavelet_scale), stride, backend
    )
