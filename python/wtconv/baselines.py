"""The depthwise layers that WTConv is compared with. Each takes WTConv2d's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from wtconv import reference
from wtconv.layers import WTConv2d

LARGEST_KERNEL = 31  # RepLKNet's


def depthwise(
    in_channels: int,
    out_channels: int,
    kernel_size: int = 5,
    stride: int = 1,
    bias: bool = True,
    wt_levels: int = 1,
    *,
    dilation: int = 1,
    **factory: Any,
) -> nn.Conv2d:
    """One depthwise convolution; wt_levels is not used. Sizes are those of WTConv2d for odd kernels."""
    padding = dilation * (kernel_size // 2)
    return nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups=in_channels, bias=bias, **factory
    )


def dilated(in_channels: int, out_channels: int, kernel_size: int = 5, *args: Any, wt_levels: int = 1, **kwargs: Any):
    """One depthwise convolution with taps 2**wt_levels apart: about WTConv's reach, with as few weights as one level."""
    return depthwise(in_channels, out_channels, kernel_size, *args, dilation=2**wt_levels, **kwargs)


def large_kernel(in_channels: int, out_channels: int, kernel_size: int = 5, *args: Any, wt_levels: int = 1, **kwargs):
    """One depthwise convolution with WTConv's field of kernel_size * 2**wt_levels, made odd, or LARGEST_KERNEL if less."""
    kernel = min(LARGEST_KERNEL, kernel_size * 2**wt_levels | 1)
    return depthwise(in_channels, out_channels, kernel, *args, **kwargs)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "wtconv": WTConv2d,
    "reference": reference.WTConv2d,
    "depthwise": depthwise,
    "dilated": dilated,
    "large-kernel": large_kernel,
}
