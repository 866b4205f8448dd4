"""WTConv1d: the layer on sequences, for any wavelet, as a composition of PyTorch operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wtconv import _ops, general, reference


def wavelet_filters(wt_type: str, channels: int) -> tuple[Tensor, Tensor]:
    """(wt_filter, iwt_filter), each (2 * channels, 1, n): rows low, high of every channel."""
    return tuple(torch.stack(taps)[:, None].repeat(channels, 1, 1) for taps in reference.wavelet_taps(wt_type))


def wtconv1d(
    x: Tensor,
    base_weight: Tensor,
    base_bias: Tensor | None,
    base_scale: Tensor,
    wavelet_weight: list[Tensor],
    wavelet_scale: list[Tensor],
    wt_filter: Tensor,
    iwt_filter: Tensor,
) -> Tensor:
    channels = x.shape[1]
    before, after = wt_filter.shape[2] // 2 - 1, wt_filter.shape[2] // 2
    low, lengths, filtered = x, [], []
    for weight, scale in zip(wavelet_weight, wavelet_scale):
        lengths.append(low.shape[2])
        # One more zero at the end serves odd lengths and changes nothing for even ones.
        bands = F.conv1d(F.pad(low, (before, after)), wt_filter, stride=2, groups=channels)
        low = bands.unflatten(1, (channels, 2))[:, :, 0]
        filtered.append(scale.reshape(1, -1, 1) * F.conv1d(bands, weight, padding="same", groups=2 * channels))
    rest = None
    for length, bands in zip(reversed(lengths), reversed(filtered)):
        if rest is not None:
            bands = bands.unflatten(1, (channels, 2))
            bands = torch.cat([bands[:, :, :1] + rest[:, :, None], bands[:, :, 1:]], dim=2).flatten(1, 2)
        rest = F.conv_transpose1d(bands, iwt_filter, stride=2, padding=before, groups=channels)[:, :, :length]
    y = base_scale.reshape(1, -1, 1) * F.conv1d(x, base_weight, base_bias, padding="same", groups=channels)
    return y if rest is None else y + rest


class WTConv1d(general.WaveletFilters):
    """The layer on (B, C, L). Signature, names and initial values of the public layer.

    Unlike WTConv2d, which keeps every stride-th output, its stride averages `stride` outputs and drops a rest.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 5,
        stride: int = 1,
        bias: bool = True,
        wt_levels: int = 1,
        wt_type: str = "db1",
        *,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if in_channels != out_channels:
            raise ValueError(
                f"WTConv1d is depthwise: out_channels must equal in_channels={in_channels}, got {out_channels}"
            )
        in_channels, kernel_size, stride, wt_levels = (
            general.integer("WTConv1d", *argument, 2**31 - 1)
            for argument in (
                ("in_channels", in_channels, 1),
                ("kernel_size", kernel_size, 1),
                ("stride", stride, 1),
                ("wt_levels", wt_levels, 0),
            )
        )
        self.in_channels = self.out_channels = in_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.wt_levels, self.wt_type = wt_levels, wt_type
        factory = reference.factory(device, dtype)
        self.set_filters(*(f.to(**factory) for f in wavelet_filters(wt_type, in_channels)))

        def depthwise(channels, bias):
            return nn.Conv1d(channels, channels, kernel_size, padding="same", groups=channels, bias=bias, **factory)

        self.base_conv = depthwise(in_channels, bias)
        self.base_scale = _Scale(in_channels, 1.0, **factory)
        self.wavelet_convs = nn.ModuleList(depthwise(2 * in_channels, False) for _ in range(wt_levels))
        self.wavelet_scale = nn.ModuleList(_Scale(2 * in_channels, 0.1, **factory) for _ in range(wt_levels))

    def forward(self, x: Tensor) -> Tensor:
        _ops.require_tensor(x)
        if x.dim() != 3 or x.shape[1] != self.in_channels or x.shape[2] == 0:
            raise ValueError(f"WTConv1d: expected x of shape (B, {self.in_channels}, L), L > 0, got {tuple(x.shape)}")
        y = general.in_full_precision(
            wtconv1d,
            x,
            general.tensor_of(self.base_conv, "weight"),
            general.tensor_of(self.base_conv, "bias"),
            general.tensor_of(self.base_scale, "weight"),
            [general.tensor_of(conv, "weight") for conv in self.wavelet_convs],
            [general.tensor_of(scale, "weight") for scale in self.wavelet_scale],
            self.wt_filter,
            self.iwt_filter,
        )
        return y if self.stride == 1 else F.avg_pool1d(y, self.stride)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"bias={self.base_conv.bias is not None}, wt_levels={self.wt_levels}, wt_type={self.wt_type!r}"
        )


class _Scale(nn.Module):
    def __init__(self, channels: int, initial: float, **factory):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, channels, 1), initial, **factory))
