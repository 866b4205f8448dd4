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
    The parts (`base_conv`, ...) hold tensors and are not called: parametrizations, weight_norm and pruning work on
    them, other hooks do not run.
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
        if not isinstance(backend, str):
            raise TypeError(f"WTConv2d: backend must be a name or '', got {backend!r}")
        in_channels, kernel, step, wt_levels = (
            general.integer("WTConv2d", *argument)
            for argument in (
                ("in_channels", in_channels, 1, 2**31 - 1),
                ("kernel_size", _square("kernel_size", kernel_size), 1, MAX_KERNEL),
                ("stride", _square("stride", stride), 1, 2**31 - 1),
                ("wt_levels", wt_levels, 0, MAX_LEVELS),
            )
        )
        self.in_channels = self.out_channels = self.groups = in_channels
        self.kernel_size, self.stride, self.dilation, self.output_padding = (kernel,) * 2, (step,) * 2, (1, 1), (0, 0)
        self.padding = "same"
        self.wt_levels, self.wt_type, self.backend = wt_levels, wt_type, backend

        # The random numbers are drawn in the published layer's order: same seed, same initial values.
        factory = reference.factory(device, dtype)
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
        weights = [_weight(conv) for conv in parts["wavelet_convs"]._modules.values()]
        scales = [_factor(scale) for scale in parts["wavelet_scale"]._modules.values()]
        bias = general.tensor_of(base, "bias")
        parameters = (_weight(base), bias, _factor(parts["base_scale"]), weights, scales, self.stride[0])
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


# The parts of a layer are not called, only their tensors are used. So a part that came into the place of another and
# does more with them (quantization-aware training, adapters, circular padding) must not pass for what it replaced.


def _weight(conv: nn.Module) -> Tensor:
    if type(conv).forward is not nn.Conv2d.forward or conv.padding_mode != "zeros" or conv.dilation != (1, 1):
        got = f"{type(conv).__name__}({conv.extra_repr()})"
        raise TypeError(f"WTConv2d: its convolutions must be nn.Conv2d with 'zeros' padding and no dilation, got {got}")
    return general.tensor_of(conv, "weight")


def _factor(scale: nn.Module) -> Tensor:
    if type(scale).forward is not reference.Scale.forward:
        raise TypeError(f"WTConv2d: its scales must be the ones it was made with, got {type(scale).__name__}")
    return general.tensor_of(scale, "weight")


def _square(name: str, value):
    """The one number of an int or of a pair of equal ints."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2 or value[0] != value[1]:
            raise ValueError(f"WTConv2d: {name} must be one number or two equal ones, got {value!r}")
        return value[0]
    return value
