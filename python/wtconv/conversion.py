"""Swapping layers of an existing model in place: public WTConv layers, and depthwise convolutions, for this package's.

The new layer takes over the old one's parameters as the very same objects. So optimizers, weight tying, requires_grad,
dtype and device stay as they are; hooks and the training flag move along.
"""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Callable

import torch
from torch import nn

from wtconv._ops import MAX_KERNEL, MAX_LEVELS
from wtconv.general import WaveletFilters, canonical_name, haar_filters
from wtconv.layers import WTConv2d
from wtconv.wtconv1d import WTConv1d


@dataclasses.dataclass
class Conversion:
    """What `convert` did. Prints as a list."""

    model: nn.Module  # the model given, or the new layer where the model itself was one
    swapped: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (name, what it became)
    left: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (name, why)

    def __str__(self) -> str:
        lines = [f"wtconv.convert: {len(self.swapped)} swapped, {len(self.left)} left"]
        lines += [f"  {name or '(the model itself)'}: {what}" for name, what in self.swapped]
        lines += [f"  {name or '(the model itself)'}: left, {why}" for name, why in self.left]
        return "\n".join(lines)


class _Left(Exception):
    """Why a layer cannot be swapped."""


def convert(
    model: nn.Module,
    *,
    depthwise: bool = False,
    wt_levels: int | Callable[[str, nn.Conv2d], int] = 1,
    select: Callable[[str, nn.Module], bool] | None = None,
    check: bool = True,
    backend: str = "",
) -> Conversion:
    """Swaps layers of `model` in place and returns what was swapped, what was left, and why.

    Public WTConv layers, recognised by their parameters' names, become WTConv2d or WTConv1d with the same outputs. With
    `depthwise`, depthwise nn.Conv2d layers become WTConv2d as `from_conv2d` makes them, with `wt_levels` levels (a
    number, or a function of the layer's name and the layer). `select(name, layer)` restricts what is considered.

    `check` runs every public layer and its successor once on small random input, and leaves a layer that computes
    something else than its parameters' names promise.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: model must be an nn.Module, got {model!r}")
    report = Conversion(model)
    successors: dict[int, nn.Module] = {}  # a layer used in several places becomes one layer used in several places
    # What torch.compile and DistributedDataParallel noted about a module when they wrapped it stays as it was then.
    compiled = {id(m._modules["_orig_mod"]) for m in model.modules() if "_orig_mod" in m._modules}
    wrappers = (m for m in model.modules() if isinstance(m, nn.parallel.DistributedDataParallel))
    distributed = {id(m) for wrapper in wrappers for m in wrapper.modules()}

    def successor(name: str, module: nn.Module) -> nn.Module | None:
        if id(module) in successors:
            return successors[id(module)]
        if select is not None and not select(name, module):
            return None
        try:
            if isinstance(module, WaveletFilters):
                raise _Left("it is this package's already")
            if isinstance(module, torch.jit.ScriptModule):
                raise _Left("TorchScript modules cannot be changed")
            public = _is_public_layer(module)
            if not public and not (depthwise and _is_depthwise(module)):
                return None
            if id(module) in compiled:
                raise _Left("torch.compile would go on calling the old layer: convert first, then compile")
            if public:
                new = _from_public_layer(module, backend)
                if check:
                    _check_same(module, new)
            else:
                if id(module) in distributed:
                    raise _Left(
                        "its new parameters would be unknown to DistributedDataParallel: convert first, then wrap"
                    )
                levels = wt_levels(name, module) if callable(wt_levels) else wt_levels
                new = _from_conv2d(module, levels, backend)
            _take_over_module_state(module, new)
        except _Left as reason:
            report.left.append((name, str(reason)))
            successors[id(module)] = module
            return module
        report.swapped.append((name, _describe(module, new)))
        successors[id(module)] = new
        return new

    def walk(prefix: str, module: nn.Module) -> None:
        for key, child in module._modules.items():
            if child is None:
                continue
            name = f"{prefix}.{key}" if prefix else key
            new = successor(name, child)
            if new is not None:
                module._modules[key] = new
            elif id(child) not in visited:
                visited.add(id(child))
                walk(name, child)

    visited = {id(model)}
    new = successor("", model)
    if new is None:
        walk("", model)
    else:
        report.model = new
    return report


def from_conv2d(conv: nn.Conv2d, wt_levels: int = 1, *, backend: str = "") -> WTConv2d:
    """A WTConv2d that starts out with the output of a depthwise convolution.

    It takes over the convolution's weight and bias as the same objects; its wavelet scales start at zero, so that the
    wavelet branch adds nothing until training moves them. Everything new is trained if conv.weight is.
    """
    try:
        new = _from_conv2d(conv, wt_levels, backend)
        _take_over_module_state(conv, new)
    except _Left as reason:
        raise ValueError(f"from_conv2d: {conv}: {reason}") from None
    return new


def _from_conv2d(conv: nn.Conv2d, wt_levels: int, backend: str) -> WTConv2d:
    if type(conv) is not nn.Conv2d:
        raise _Left(f"only nn.Conv2d itself is known, not {type(conv).__name__}")
    kernel, stride = conv.kernel_size, conv.stride
    if not conv.groups == conv.in_channels == conv.out_channels:
        raise _Left(
            "it is not depthwise: in_channels, out_channels and groups are "
            f"{conv.in_channels}, {conv.out_channels} and {conv.groups}"
        )
    if kernel[0] != kernel[1]:
        raise _Left(f"its kernel is not square: {kernel}")
    if stride[0] != stride[1]:
        raise _Left(f"its stride differs between height and width: {stride}")
    if conv.dilation != (1, 1):
        raise _Left(f"its dilation is {conv.dilation}, not 1")
    if conv.padding_mode != "zeros":
        raise _Left(f"its padding_mode is {conv.padding_mode!r}, not 'zeros'")
    if conv.padding != "same" and (kernel[0] % 2 == 0 or conv.padding != (kernel[0] // 2, kernel[0] // 2)):
        raise _Left(f"its padding is {conv.padding}, not the one that keeps the size with kernel {kernel}")
    _require_plain_parameters(conv)

    weight = conv.weight
    bias = conv.bias is not None
    new = _build(
        WTConv2d, conv.in_channels, kernel[0], stride[0], bias, wt_levels, backend, weight.device, weight.dtype
    )
    with torch.no_grad():
        for scale in new.wavelet_scale:
            scale.weight.zero_()
    for parameter in (*new.wavelet_convs.parameters(), *new.wavelet_scale.parameters(), new.base_scale.weight):
        parameter.requires_grad_(weight.requires_grad)
    new.base_conv.weight = weight
    new.base_conv.bias = conv.bias
    return new


def _canonical(module: nn.Module) -> dict[str, nn.Parameter]:
    return {canonical_name(name): parameter for name, parameter in module.named_parameters(remove_duplicate=False)}


_KNOWN = re.compile(
    r"(base_conv\.(weight|bias)|base_scale\.weight|wavelet_(convs|scale)\.\d+\.weight|i?wt_filter|stride_filter)"
)


def _is_public_layer(module: nn.Module) -> bool:
    parts = {name.split(".")[0] for name in _canonical(module)}
    return {"base_conv", "base_scale"} <= parts


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1


def _from_public_layer(module: nn.Module, backend: str) -> WaveletFilters:
    for part in module.modules():
        _require_plain_parameters(part)
        if part is not module and _has_hooks(part):
            raise _Left("one of its parts has hooks, which would run no more")
    named = _canonical(module)
    further = [name for name in named if not _KNOWN.fullmatch(name)] + [name for name, _ in module.named_buffers()]
    if further:
        raise _Left(f"it has further parameters or buffers: {', '.join(further)}")
    weight = named["base_conv.weight"]
    levels = sum(name.startswith("wavelet_convs.") for name in named)
    stride = getattr(module, "stride", 1)
    stride = stride[0] if isinstance(stride, tuple) else stride
    if weight.dim() not in (3, 4) or not isinstance(stride, int):
        raise _Left(f"its base weight has shape {tuple(weight.shape)} and its stride is {stride!r}")

    layer = WTConv2d if weight.dim() == 4 else WTConv1d
    if layer is WTConv2d and levels > MAX_LEVELS:
        raise _Left(f"its {levels} levels are more than {MAX_LEVELS}")
    bias = "base_conv.bias" in named
    # On the meta device, so that no random numbers are drawn for values that are replaced.
    new = _build(layer, weight.shape[0], weight.shape[2], stride, bias, levels, backend, "meta", weight.dtype)
    if "wt_filter" not in named:  # the later layouts know Haar only
        filters = haar_filters(weight.shape[0], weight.dim() - 2)
        new.set_filters(*(f.to(weight.device, weight.dtype) for f in filters))
    expected = dict(new.named_parameters())
    missing = [name for name in expected if name not in named and "wt_filter" not in name]
    if missing:
        raise _Left(f"it lacks {', '.join(missing)}")
    for name, parameter in named.items():
        if name == "stride_filter":
            continue
        # Filters may be longer than Haar's.
        if name not in expected or expected[name].shape != parameter.shape and "wt_filter" not in name:
            raise _Left(f"{name} of shape {tuple(parameter.shape)} has no place in a layer of {levels} levels")
        owner, _, leaf = name.rpartition(".")
        setattr(new.get_submodule(owner), leaf, parameter)
    if not new.has_haar_filters():
        new.wt_type = "custom"
    return new


def _build(layer, channels, kernel, stride, bias, levels, backend, device, dtype):
    if layer is WTConv2d and kernel > MAX_KERNEL:
        raise _Left(f"its kernel of {kernel} is larger than {MAX_KERNEL}")
    arguments = {} if layer is WTConv1d else {"backend": backend}
    return layer(channels, channels, kernel, stride, bias, levels, device=device, dtype=dtype, **arguments)


def _require_plain_parameters(module: nn.Module) -> None:
    if hasattr(module, "parametrizations") or any(
        type(p) is not nn.Parameter for p in module._parameters.values() if p is not None
    ):
        raise _Left("its parameters are parametrized or of a kind of their own")
    if type(module) is nn.Conv2d and not {"weight", "bias"} <= module._parameters.keys():  # weight_norm of old, pruning
        raise _Left("its weight or bias is not a plain parameter")


_HOOKS = [name for name in nn.Module().__dict__ if "hook" in name]


def _has_hooks(module: nn.Module) -> bool:
    return any(module.__dict__.get(name) for name in _HOOKS)


def _take_over_module_state(old: nn.Module, new: nn.Module) -> None:
    new.train(old.training)
    # The very same dictionaries: handles made by register_*_hook go on to remove hooks.
    for name in _HOOKS:
        hooks = old.__dict__.get(name)
        if not hooks:
            continue
        new.__dict__[name] = hooks
        for hook in hooks.values() if isinstance(hooks, dict) else ():
            if getattr(hook, "with_module", False):  # state_dict hooks hold the module they are called with
                hook.module = weakref.ref(new)


@torch.no_grad()
def _check_same(old: nn.Module, new: nn.Module) -> None:
    """Compares two layers on random input, past their hooks. Meta tensors have nothing to compare."""
    weight = new.base_conv.weight
    if weight.device.type == "meta":
        return
    generator = torch.Generator("cpu").manual_seed(0)
    tolerance = {torch.float64: 1e-5, torch.float32: 1e-4}.get(weight.dtype, 3e-2)
    size = (9, 6) if weight.dim() == 4 else (13,)
    x = torch.randn(2, weight.shape[0], *size, generator=generator, device="cpu").to(weight)
    try:
        expected = old.forward(x)
    except Exception as error:
        raise _Left(f"it could not be run for comparison (check=False skips that): {error}") from error
    y = new.forward(x)
    if expected.shape != y.shape:
        raise _Left(
            f"it computes something else: {tuple(x.shape)} becomes {tuple(expected.shape)}, not {tuple(y.shape)}"
        )
    difference = (expected.double() - y.double()).abs().max() / expected.double().abs().max().clamp_min(1e-30)
    if not difference <= tolerance:
        raise _Left(f"it computes something else: outputs differ by {difference:.1e} of the largest")


def _describe(old: nn.Module, new: nn.Module) -> str:
    what = f"{type(old).__name__} -> {type(new).__name__}({new.extra_repr()})"
    return what if new.has_haar_filters() else what + ", slow path: its filters are not Haar's"
