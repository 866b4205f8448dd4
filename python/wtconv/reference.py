"""The layer as a plain composition of PyTorch operators: the oracle of the tests, and the general path for any wavelet.

Every convolution is written out with F.conv2d, band by band, level by level. It is slow and easy to check by eye.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HAAR = (1 / math.sqrt(2), 1 / math.sqrt(2)), (1 / math.sqrt(2), -1 / math.sqrt(2))


def wavelet_taps(wt_type: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Analysis (low, high) and synthesis (low, high) taps of a wavelet, in the order in which they meet the signal.

    On the CPU, whatever the default device is.
    """
    if wt_type in ("db1", "haar"):
        analysis = synthesis = _HAAR
    else:
        try:
            import pywt
        except ImportError as error:
            raise ImportError(
                f"wt_type={wt_type!r} needs PyWavelets (pip install PyWavelets); only 'db1' does not"
            ) from error
        try:
            wavelet = pywt.Wavelet(wt_type)
        except (ValueError, TypeError, AttributeError) as error:  # the latter two for what is no string
            raise ValueError(
                f"wt_type must be a discrete wavelet of PyWavelets such as 'db1', got {wt_type!r}"
            ) from error
        # PyWavelets keeps analysis filters for a true convolution; cross-correlation meets them reversed.
        analysis = wavelet.dec_lo[::-1], wavelet.dec_hi[::-1]
        synthesis = wavelet.rec_lo, wavelet.rec_hi
    return tuple(
        tuple(torch.tensor(taps, dtype=torch.float32, device="cpu") for taps in pair) for pair in (analysis, synthesis)
    )


def wavelet_filters(wt_type: str, channels: int) -> tuple[Tensor, Tensor]:
    """(wt_filter, iwt_filter), each (4 * channels, 1, n, n): rows LL, LH, HL, HH of every channel."""

    def outer(low: Tensor, high: Tensor) -> Tensor:
        bands = [torch.outer(rows, columns) for rows in (low, high) for columns in (low, high)]
        # LH is high along the height: rows high, columns low.
        ll, low_high, high_low, hh = bands[0], bands[2], bands[1], bands[3]
        return torch.stack([ll, low_high, high_low, hh])[:, None].repeat(channels, 1, 1, 1)

    analysis, synthesis = wavelet_taps(wt_type)
    return outer(*analysis), outer(*synthesis)


def analysis(x: Tensor, wt_filter: Tensor) -> Tensor:
    """One level: (B, C, H, W) -> (B, C, 4, ceil(H / 2), ceil(W / 2))."""
    x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
    padding = tuple(n // 2 - 1 for n in wt_filter.shape[2:])
    bands = F.conv2d(x, wt_filter, stride=2, padding=padding, groups=x.shape[1])
    return bands.reshape(x.shape[0], x.shape[1], 4, bands.shape[2], bands.shape[3])


def synthesis(bands: Tensor, iwt_filter: Tensor) -> Tensor:
    """One level back: (B, C, 4, h, w) -> (B, C, 2h, 2w)."""
    batch, channels, _, height, width = bands.shape
    padding = tuple(n // 2 - 1 for n in iwt_filter.shape[2:])
    bands = bands.reshape(batch, 4 * channels, height, width)
    return F.conv_transpose2d(bands, iwt_filter, stride=2, padding=padding, groups=channels)


def wtconv2d(
    x: Tensor,
    base_weight: Tensor,
    base_bias: Tensor | None,
    base_scale: Tensor,
    wavelet_weight: Sequence[Tensor],
    wavelet_scale: Sequence[Tensor],
    stride: int = 1,
    wt_filter: Tensor | None = None,
    iwt_filter: Tensor | None = None,
) -> Tensor:
    """The operator, for any wavelet; Haar where no filters are given."""
    channels = x.shape[1]
    if wt_filter is None or iwt_filter is None:
        wt_filter, iwt_filter = (f.to(x.device, base_weight.dtype) for f in wavelet_filters("db1", channels))
    low, shapes, filtered = x, [], []
    for weight, scale in zip(wavelet_weight, wavelet_scale):
        shapes.append(low.shape)
        bands = analysis(low, wt_filter)
        low = bands[:, :, 0]
        flat = bands.reshape(bands.shape[0], 4 * channels, *bands.shape[3:])
        flat = scale.reshape(1, -1, 1, 1) * F.conv2d(flat, weight, padding="same", groups=4 * channels)
        filtered.append(flat.reshape(bands.shape))
    rest = None
    for shape, bands in zip(reversed(shapes), reversed(filtered)):
        if rest is not None:
            bands = torch.cat([bands[:, :, :1] + rest[:, :, None], bands[:, :, 1:]], dim=2)
        rest = synthesis(bands, iwt_filter)[:, :, : shape[2], : shape[3]]
    y = base_scale.reshape(1, -1, 1, 1) * F.conv2d(x, base_weight, base_bias, padding="same", groups=channels)
    y = y if rest is None else y + rest
    return y if stride == 1 else y[:, :, ::stride, ::stride].contiguous()


class Scale(nn.Module):
    """Multiplies by a trained factor per channel."""

    def __init__(self, channels: int, initial: float, **factory):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, channels, 1, 1), initial, **factory))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def factory(device=None, dtype=None) -> dict[str, Any]:
    """PyTorch's defaults by name, for tensors that are not made by a module of PyTorch's."""
    return {"device": device or torch.get_default_device(), "dtype": dtype or torch.get_default_dtype()}


def depthwise(channels: int, kernel_size: int, bias: bool, **factory) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, kernel_size, padding="same", groups=channels, bias=bias, **factory)


class WTConv2d(nn.Module):
    """The plain layer. Same names, initial values and random numbers drawn as the layer published with the paper."""

    def __init__(self, in_channels, out_channels, kernel_size=5, stride=1, bias=True, wt_levels=1, wt_type="db1"):
        super().__init__()
        if in_channels != out_channels:
            raise ValueError(
                f"WTConv2d is depthwise: out_channels must equal in_channels={in_channels}, got {out_channels}"
            )
        self.in_channels, self.out_channels, self.stride, self.wt_levels = in_channels, out_channels, stride, wt_levels
        wt_filter, iwt_filter = (f.to(**factory()) for f in wavelet_filters(wt_type, in_channels))
        self.wt_filter = nn.Parameter(wt_filter, requires_grad=False)
        self.iwt_filter = nn.Parameter(iwt_filter, requires_grad=False)
        self.base_conv = depthwise(in_channels, kernel_size, bias)
        self.base_scale = Scale(in_channels, 1.0)
        self.wavelet_convs = nn.ModuleList(depthwise(4 * in_channels, kernel_size, False) for _ in range(wt_levels))
        self.wavelet_scale = nn.ModuleList(Scale(4 * in_channels, 0.1) for _ in range(wt_levels))

    def forward(self, x: Tensor) -> Tensor:
        return wtconv2d(
            x,
            self.base_conv.weight,
            self.base_conv.bias,
            self.base_scale.weight,
            [conv.weight for conv in self.wavelet_convs],
            [scale.weight for scale in self.wavelet_scale],
            self.stride,
            self.wt_filter,
            self.iwt_filter,
        )
