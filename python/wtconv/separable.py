"""WTConvSeparable: WTConv for layers that mix or change channels."""

from __future__ import annotations

from typing import Any

from torch import nn

from wtconv.layers import WTConv2d


class WTConvSeparable(nn.Sequential):
    """WTConv2d(in_channels) and a 1x1 convolution to out_channels, in the place of a dense nn.Conv2d.

    Takes WTConv2d's arguments. `bias` is that of the 1x1 convolution; the layer before it needs none of its own.
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
        **kwargs: Any,
    ):
        factory = {name: kwargs[name] for name in ("device", "dtype") if name in kwargs}
        super().__init__()
        self.depthwise = WTConv2d(in_channels, in_channels, kernel_size, stride, False, wt_levels, wt_type, **kwargs)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=bias, **factory)
        self.in_channels, self.out_channels = in_channels, out_channels
