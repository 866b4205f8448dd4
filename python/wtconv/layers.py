"""WTConv2d, the layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wtconv import functional, general, reference
from wtconv._ops import MAX_KERNEL, MAX_LEVELS


class WTConv2d(general.WaveletFilters):
    """Wavelet convolution (ECCV 2024): a depthwise layer with a receptive field of about kernel_size * 2**wt_levels.

    Signature, parameter names, initial values and state_dict are those of the layer published with the paper.
    Further arguments: `backend` names one of `wtconv.backends()` and fails where it cannot run; device and dtype are
    nn.Conv2d's. `kernel_size`, `stride`, `padding`, `dilation` and `groups` can be read as nn.Conv2d's.
    """

    transposed, padding_mode = False, "zeros"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 5,
        stride: int | tuple[int, int] = 1,
        bias: bool = True,
        wt_levels: int = 1,
        wt_type: str = "db1",
        *,
        backend: str = "",
        device=None,
        dtype=None,
    ):
        super().__init__()
        if in_channels != out_channels:
            raise ValueError(
                f"WTConv2d is depthwise: out_channels must equal in_channels={in_channels}, got {out_channels}; "
                "wtconv.WTConvSeparable(in_channels, out_channels) adds the 1x1 convolution that mixes channels"
            )
        kernel = _square("kernel_size", kernel_size)
        step = _square("stride", stride)
        for name, value, least, most in (
            ("in_channels", in_channels, 1, 2**31),
            ("kernel_size", kernel, 1, MAX_KERNEL),
            ("stride", step, 1, 2**31),
            ("wt_levels", wt_levels, 0, MAX_LEVELS),
        ):
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"WTConv2d: {name} must be an integer in {least}..{most}, got {value!r}")
        self.in_channels = self.out_channels = self.groups = in_channels
        self.kernel_size, self.stride, self.dilation, self.output_padding = (kernel,) * 2, (step,) * 2, (1, 1), (0, 0)
        self.padding = "same"
        self.wt_levels, self.wt_type, self.backend = wt_levels, wt_type, backend

        # The random numbers are drawn in the published layer's order: same seed, same initial values.
        factory = {"device": device, "dtype": dtype}
        self.set_filters(*(f.to(**factory) for f in reference.wavelet_filters(wt_type, in_channels)))
        self.base_conv = reference.depthwise(in_channels, kernel, bias, **factory)
        self.base_scale = reference.Scale(in_channels, 1.0, **factory)
        self.wavelet_convs = nn.ModuleList(
            reference.depthwise(4 * in_channels, kernel, False, **factory) for _ in range(wt_levels)
        )
        self.wavelet_scale = nn.ModuleList(reference.Scale(4 * in_channels, 0.1, **factory) for _ in range(wt_levels))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initial values anew, filters included: what a layer built on the meta device needs after to_empty()."""
        for parameter, taps in zip(
            (self.wt_filter, self.iwt_filter), reference.wavelet_filters(self.wt_type, self.in_channels)
        ):
            parameter.copy_(taps)
        self.base_conv.reset_parameters()
        self.base_scale.weight.fill_(1.0)
        for conv, scale in zip(self.wavelet_convs, self.wavelet_scale):
            conv.reset_parameters()
            scale.weight.fill_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self._modules  # as attributes they cost a search each
        base = parts["base_conv"]
        weights = [_parameter(conv, "weight") for conv in parts["wavelet_convs"]._modules.values()]
        scales = [_parameter(scale, "weight") for scale in parts["wavelet_scale"]._modules.values()]
        base_scale = _parameter(parts["base_scale"], "weight")
        parameters = (_parameter(base, "weight"), _parameter(base, "bias"), base_scale, weights, scales, self.stride[0])
        if self.has_haar_filters():
            return functional.wtconv2d(x, *parameters, self.backend)
        return general.wtconv2d(x, *parameters, self.wt_filter, self.iwt_filter)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        parts.append(f"wt_levels={self.wt_levels}, wt_type={self.wt_type!r}")
        if self.base_conv.bias is None:
            parts.append("bias=False")
        if self.backend:
            parts.append(f"backend={self.backend!r}")
        return ", ".join(parts)


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    """module.<name>. Not a parameter but computed where torch.nn.utils.parametrize or weight_norm is in charge."""
    found = module._parameters.get(name)
    return found if found is not None else getattr(module, name)


def _square(name: str, value):
    """The one number of an int or of a pair of equal ints."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2 or value[0] != value[1]:
            raise ValueError(f"WTConv2d: {name} must be one number or two equal ones, got {value!r}")
        return value[0]
    return value
