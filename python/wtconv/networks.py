"""WTConvNeXt for timm: importing this module registers wtconvnext_tiny, wtconvnext_small and wtconvnext_base.

They are timm's ConvNeXt with a WTConv2d in the place of every depthwise convolution, so all that timm does with a ConvNeXt
works: num_classes, in_chans, features_only, drop_path_rate, ... Parameter names are those of the public checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

try:
    from timm.layers import to_ntuple, trunc_normal_
    from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
    from timm.models.convnext import ConvNeXt
except ImportError as error:
    raise ImportError("wtconv.networks needs timm (pip install 'timm>=1.0')") from error

from wtconv.layers import WTConv2d

__all__ = ["WTConvNeXt"]  # register_model adds the entry points


class WTConvNeXt(ConvNeXt):
    """timm's ConvNeXt with WTConv layers.

    Takes ConvNeXt's arguments and, per stage or one for all, `wt_levels`. `wtconv_class` makes the layers, with WTConv2d's
    arguments; another class serves to compare. Dilation, which an output_stride below 32 asks for, is not applied to the
    WTConv layers (nor is it in the public network): their receptive field is large as it is.
    """

    def __init__(
        self,
        *args: Any,
        kernel_sizes: int | Sequence[int] = 5,
        wt_levels: int | Sequence[int] = (5, 4, 3, 2),
        wtconv_class: Callable[..., nn.Module] | None = None,
        **kwargs: Any,
    ):
        kernel_sizes, wt_levels = _per_stage("kernel_sizes", kernel_sizes), _per_stage("wt_levels", wt_levels)
        super().__init__(*args, kernel_sizes=kernel_sizes, **kwargs)
        layer = wtconv_class or WTConv2d
        for stage, kernel, levels in zip(self.stages, kernel_sizes, wt_levels, strict=True):
            for block in stage.blocks:
                old = block.conv_dw
                bias = old.bias is not None
                with torch.device(old.weight.device):
                    new = layer(old.in_channels, old.out_channels, kernel_size=kernel, bias=bias, wt_levels=levels)
                block.conv_dw = new.to(old.weight.dtype).apply(_initialise)

    def no_weight_decay(self) -> set[str]:
        """timm's optimizers keep the decay off these: scales, which would be pulled to zero, and fixed filters."""
        names = (name for name, _ in self.named_parameters() if ".conv_dw." in name)
        return {name for name in names if "_scale." in name or "wt_filter" in name}


def _per_stage(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    values = to_ntuple(4)(value)
    if len(values) != 4:
        raise ValueError(f"WTConvNeXt: {name} must be one number or four, one a stage, got {value!r}")
    return values


def _initialise(module: nn.Module) -> None:
    # As timm does for every convolution of a ConvNeXt.
    if isinstance(module, nn.Conv2d):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "stem.0",
        "classifier": "head.fc",
        "paper_ids": "arXiv:2407.05848",
        "paper_name": "Wavelet Convolutions for Large Receptive Fields",
        "origin_url": "https://github.com/BGU-CS-VIL/WTConv",
        **kwargs,
    }


default_cfgs = generate_default_cfgs({f"wtconvnext_{size}": _cfg() for size in ("tiny", "small", "base")})


def _create(variant: str, pretrained: bool, arguments: dict[str, Any]) -> WTConvNeXt:
    return build_model_with_cfg(
        WTConvNeXt,
        variant,
        pretrained,
        feature_cfg={"out_indices": (0, 1, 2, 3), "flatten_sequential": True},
        **arguments,
    )


@register_model
def wtconvnext_tiny(pretrained: bool = False, **kwargs: Any) -> WTConvNeXt:
    arguments = {"depths": (3, 3, 9, 3), "dims": (96, 192, 384, 768)}
    return _create("wtconvnext_tiny", pretrained, arguments | kwargs)


@register_model
def wtconvnext_small(pretrained: bool = False, **kwargs: Any) -> WTConvNeXt:
    arguments = {"depths": (3, 3, 27, 3), "dims": (96, 192, 384, 768)}
    return _create("wtconvnext_small", pretrained, arguments | kwargs)


@register_model
def wtconvnext_base(pretrained: bool = False, **kwargs: Any) -> WTConvNeXt:
    arguments = {"depths": (3, 3, 27, 3), "dims": (128, 256, 512, 1024)}
    return _create("wtconvnext_base", pretrained, arguments | kwargs)
