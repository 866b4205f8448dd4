"""What surrounds the compiled operators: fake kernels, gradients, autocast, vmap and the FLOP formula.

The operators are multilinear: y is linear in x, and in each (weight, scale, bias). So the gradients of the gradients are
calls of the same two operators with other arguments, and no further kernels exist.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import _C, Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import register_flop_formula

LIBRARY = Path(__file__).with_name("_wtconv.so")
if not LIBRARY.exists():
    raise ImportError(
        f"wtconv: {LIBRARY} is missing: install the package (pip install .), do not import its source tree"
    )
torch.ops.load_library(LIBRARY)

_forward = torch.ops.wtconv.forward.default
_backward = torch.ops.wtconv.backward.default


# Fake kernels. Shapes and strides are those of bindings/torch/ops.cpp; wrong arguments fail here as they do there.


def _is_channels_last(x: Tensor) -> bool:
    """Tensor.suggest_memory_format()'s rule, for fake tensors."""
    sizes, strides = x.shape, x.stride()
    least = 0
    for d in (1, 3, 2, 0):
        if sizes[d] == 0 or strides[d] < least:
            return False
        if d == 0 and least == strides[1]:
            return False
        least = strides[d] * sizes[d] if sizes[d] > 1 else strides[d]
    return True


def _empty_image(x: Tensor, height, width) -> Tensor:
    memory_format = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
    return torch.empty(
        (x.shape[0], x.shape[1], height, width), dtype=x.dtype, device=x.device, memory_format=memory_format
    )


def _empty_gradient(parameter: Tensor) -> Tensor:
    dense = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    same = all(n == 1 or a == b for n, a, b in zip(parameter.shape, parameter.stride(), dense.stride()))
    return dense.as_strided(parameter.shape, parameter.stride()) if same else dense


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _check(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride):
    def require(condition, message):
        if not condition:
            raise ValueError(f"wtconv: {message}")

    require(x.dim() == 4, f"x must have shape (batch, channels, height, width), got {tuple(x.shape)}")
    shape = tuple(base_weight.shape)
    require(
        len(shape) == 4 and shape[1] == 1 and shape[2] == shape[3],
        f"base_weight must have shape (channels, 1, k, k), got {shape}",
    )
    channels, kernel = shape[0], shape[2]
    require(x.shape[1] == channels, f"x must have {channels} channels, as the weights have, got {tuple(x.shape)}")
    require(stride >= 1, f"stride must be at least 1, got {stride}")
    require(
        len(wavelet_weight) == len(wavelet_scale),
        "wavelet_weight and wavelet_scale must have one entry a level, "
        f"got {len(wavelet_weight)} and {len(wavelet_scale)}",
    )
    require(x.dtype in _DTYPES, f"x must be float32, float64, float16 or bfloat16, got {x.dtype}")
    named = [("base_scale", base_scale, channels)]
    if base_bias is not None:
        named.append(("base_bias", base_bias, channels))
    for weight, scale in zip(wavelet_weight, wavelet_scale):
        expected = (4 * channels, 1, kernel, kernel)
        require(
            tuple(weight.shape) == expected, f"wavelet_weight must have shape {expected}, got {tuple(weight.shape)}"
        )
        named += [("wavelet_weight", weight, math.prod(expected)), ("wavelet_scale", scale, 4 * channels)]
    for name, tensor, count in [("base_weight", base_weight, math.prod(shape)), *named]:
        require(tensor.numel() == count, f"{name} must have {count} elements, got {tuple(tensor.shape)}")
        require(tensor.device == x.device, f"{name} must be on x's device {x.device}, got {tensor.device}")
        require(
            tensor.dtype == base_weight.dtype and tensor.dtype in (x.dtype, _compute_dtype(x.dtype)),
            f"{name} must be {x.dtype} or {_compute_dtype(x.dtype)} where x is {x.dtype}, got {tensor.dtype}",
        )


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.register_fake("wtconv::forward")
def _(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend):
    _check(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
    return _empty_image(x, (x.shape[2] + stride - 1) // stride, (x.shape[3] + stride - 1) // stride)


@torch.library.register_fake("wtconv::backward")
def _(dy, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, mask, backend):
    _check(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
    parameters = [base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale]
    dx = [_empty_image(x, x.shape[2], x.shape[3])] if mask & 1 else []
    return dx + [_empty_gradient(p) for i, p in enumerate(parameters, 1) if mask >> i & 1]


# Gradients. The formulas work on flat lists [x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale].
#
# torch.library.register_autograd would do, but takes 60 us a call to handle arguments that are lists of tensors. So its
# work is done here: kernels for the Autograd key that call functions of flat arguments.


def _grouped(flat) -> tuple:
    """The arguments of the operators from a flat list."""
    levels = (len(flat) - 4) // 2
    return (*flat[:4], list(flat[4 : 4 + levels]), list(flat[4 + levels :]))


def _mask(needed) -> int:
    mask = 0
    for i, asked in enumerate(needed):
        mask |= asked << i
    return mask


def _unpack(results: list[Tensor], mask: int, count: int) -> list[Tensor | None]:
    results = iter(results)
    return [next(results) if mask >> i & 1 else None for i in range(count)]


def _replacements(inputs, tangents):
    """The operator's derivative in a direction is a sum of the operator at other inputs: (replaced slots, inputs) each.

    y is a sum of products of an image (x), a filter (a weight, or the bias) and a scale. The product rule replaces one
    kind of factor by its tangents at a time; factors without a tangent are replaced by zeros.
    """
    count = len(inputs)
    levels = (count - 4) // 2
    for slots in ([0], [1, 2, *range(4, 4 + levels)], [3, *range(4 + levels, count)]):
        if all(tangents[i] is None for i in slots):
            continue
        replaced = list(inputs)
        for i in slots:
            if inputs[i] is not None:
                replaced[i] = tangents[i] if tangents[i] is not None else torch.zeros_like(inputs[i])
        if slots == [0]:
            replaced[2] = None  # the bias's term has no image
        yield slots, replaced


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class _Forward(_SingleLevelFunction):
    @staticmethod
    def forward(ctx, keyset, stride, backend, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.stride, ctx.backend = stride, backend
        with _below_autograd():
            return _forward.redispatch(keyset, *_grouped(inputs), stride, backend)

    @staticmethod
    def backward(ctx, dy):
        inputs = ctx.saved_tensors
        mask = _mask(ctx.needs_input_grad[3:])
        results = _backward(dy, *_grouped(inputs), ctx.stride, mask, ctx.backend)
        return (None, None, None, *_unpack(results, mask, len(inputs)))

    @staticmethod
    def jvp(ctx, *tangents):
        return _derivative_of_forward(ctx, ctx.saved_tensors, tangents[3:])


class _Backward(_SingleLevelFunction):
    @staticmethod
    def forward(ctx, keyset, stride, mask, backend, dy, *inputs):
        ctx.save_for_backward(dy, *inputs)
        ctx.save_for_forward(dy, *inputs)
        ctx.set_materialize_grads(False)
        ctx.stride, ctx.mask, ctx.backend = stride, mask, backend
        with _below_autograd():
            return tuple(_backward.redispatch(keyset, dy, *_grouped(inputs), stride, mask, backend))

    @staticmethod
    def backward(ctx, *cotangents):
        """The gradients of <cotangents, the operator's results>, which is <dy, derivative of y in their direction>."""
        dy, *inputs = ctx.saved_tensors
        tangents = _unpack(cotangents, ctx.mask, len(inputs))
        need_dy, *need = ctx.needs_input_grad[4:]
        ddy = _derivative_of_forward(ctx, inputs, tangents) if need_dy else None
        return (None, None, None, None, ddy, *_derivative_of_backward(ctx, dy, inputs, tangents, _mask(need)))

    @staticmethod
    def jvp(ctx, *tangents):
        dy, *inputs = ctx.saved_tensors
        ddy, *tangents = tangents[4:]
        results = _derivative_of_backward(ctx, dy, inputs, tangents, ctx.mask)
        if ddy is not None:
            more = _backward(ddy, *_grouped(inputs), ctx.stride, ctx.mask, ctx.backend)
            results = [_add(a, b) for a, b in zip(results, _unpack(more, ctx.mask, len(inputs)))]
        return tuple(
            torch.zeros_like(inputs[i]) if results[i] is None else results[i]
            for i in range(len(inputs))
            if ctx.mask >> i & 1
        )


def _derivative_of_forward(ctx, inputs, tangents):
    total = None
    for _, replaced in _replacements(inputs, tangents):
        total = _add(total, _forward(*_grouped(replaced), ctx.stride, ctx.backend))
    return total


def _derivative_of_backward(ctx, dy, inputs, tangents, mask) -> list[Tensor | None]:
    """The gradient with respect to a factor, in the direction of the others' tangents: it does not depend on itself."""
    total = [None] * len(inputs)
    for slots, replaced in _replacements(inputs, tangents):
        there = mask & _mask(i not in slots and replaced[i] is not None for i in range(len(inputs)))
        if there:
            results = _backward(dy, *_grouped(replaced), ctx.stride, there, ctx.backend)
            total = [_add(a, b) for a, b in zip(total, _unpack(results, there, len(inputs)))]
    return total


@contextmanager
def _below_autograd():
    with _C._AutoDispatchBelowAutograd():
        if not _C._are_functorch_transforms_active():
            yield
        else:  # an autograd.Function turns gradients off in its forward, but the next level of torch.func records there
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                yield


def _apply(function, *arguments):
    """Records `function`. Inside torch.func's transforms too: there a kernel runs once for each of their levels."""
    if not _C._are_functorch_transforms_active():
        return function.apply(*arguments)
    with enable_single_level_autograd_function():
        return function.apply(*arguments)


def _needs_gradient(tensors) -> bool:
    return (torch.is_grad_enabled() and _C._any_requires_grad(*tensors)) or forward_ad._current_level >= 0


def _autograd_forward(keyset, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend):
    keyset = keyset & _C._after_autograd_keyset
    tensors = (x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale)
    if _needs_gradient(tensors):
        return _apply(_Forward, keyset, stride, backend, *tensors)
    with _C._AutoDispatchBelowAutograd():
        return _forward.redispatch(keyset, *tensors[:4], wavelet_weight, wavelet_scale, stride, backend)


def _autograd_backward(
    keyset, dy, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, mask, backend
):
    keyset = keyset & _C._after_autograd_keyset
    tensors = (dy, x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale)
    if _needs_gradient(tensors):
        return list(_apply(_Backward, keyset, stride, mask, backend, *tensors))
    with _C._AutoDispatchBelowAutograd():
        return _backward.redispatch(keyset, *tensors[:5], wavelet_weight, wavelet_scale, stride, mask, backend)


_library = torch.library.Library("wtconv", "IMPL")  # lives as long as the process
_library.impl("forward", _autograd_forward, "Autograd", with_keyset=True)
_library.impl("backward", _autograd_backward, "Autograd", with_keyset=True)


# Autocast: x is cast, the parameters are not. The kernels take fp32 parameters with a 16-bit x and sum in fp32 anyway.


def _autocast_forward(device):
    keys = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(_C.DispatchKey.AutocastCUDA)

    def forward(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend):
        with _C._ExcludeDispatchKeyGuard(keys):
            if x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device:
                x = x.to(torch.get_autocast_dtype(device))
                if base_weight.dtype not in (x.dtype, torch.float32):  # a half model in the other half type
                    parameters = (base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale)
                    base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale = _to_float(parameters)
            return _forward(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend)

    return forward


def _to_float(item):
    return item.float() if isinstance(item, Tensor) else item and [_to_float(t) for t in item]


_library.impl("forward", _autocast_forward("cpu"), "AutocastCPU")
_library.impl("forward", _autocast_forward("cuda"), "AutocastCUDA")


# torch.func.vmap. Over the images alone it is one call with a longer batch; otherwise one call for each entry.


def _select(argument, dims, i):
    if isinstance(argument, (list, tuple)):
        return [_select(a, d, i) for a, d in zip(argument, dims)]
    return argument if dims is None else argument.select(dims, i)


def _vmap(operator, images: int):
    """The rule of an operator whose first `images` arguments are (B, C, H, W)."""

    def rule(info, in_dims, *arguments):
        rest = tree_leaves(in_dims[images:], is_leaf=lambda d: d is None)
        folds = operator is _forward or arguments[-2] == 1  # of the gradients, only dx keeps the entries apart
        if folds and all(d is None for d in rest):
            first = [
                a.movedim(d, 0) if d is not None else a.expand(info.batch_size, *a.shape)
                for a, d in zip(arguments[:images], in_dims)
            ]
            result = operator(*(a.flatten(0, 1) for a in first), *arguments[images:])
            return tree_map(lambda r: r.unflatten(0, (info.batch_size, -1)), result), tree_map(lambda _: 0, result)

        def entry(i):
            return operator(*(_select(argument, dims, i) for argument, dims in zip(arguments, in_dims)))

        results = [entry(i) for i in range(info.batch_size)]
        stacked = tree_map(lambda *r: torch.stack(r), *results)
        return stacked, tree_map(lambda _: 0, stacked)

    return rule


torch.library.register_vmap("wtconv::forward", _vmap(_forward, 1))
torch.library.register_vmap("wtconv::backward", _vmap(_backward, 2))


# FLOPs, as torch counts a convolution: two for each multiply-add of a filter. A level's analysis and synthesis take
# eight additions each for every 2x2 block. Scales are folded into the weights and cost nothing that grows with x.


def _sizes(x_shape, levels):
    blocks, (batch, channels, height, width) = 0, x_shape
    for _ in range(levels):
        height, width = (height + 1) // 2, (width + 1) // 2
        blocks += height * width
    return batch * channels * blocks


def _flops(x_shape, base_weight_shape, levels, stride, *, filters, transforms):
    batch, channels, height, width = x_shape
    kept = batch * channels * -(-height // stride) * -(-width // stride)
    blocks = _sizes(x_shape, levels)
    taps = base_weight_shape[2] * base_weight_shape[3]
    return filters * 2 * taps * (kept + 4 * blocks) + transforms * 8 * blocks


@register_flop_formula(torch.ops.wtconv.forward)
def _(x_shape, base_weight_shape, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, *_, **__):
    return _flops(x_shape, base_weight_shape, len(wavelet_weight), stride, filters=1, transforms=2)


@register_flop_formula(torch.ops.wtconv.backward)
def _(
    dy_shape, x_shape, base_weight_shape, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, mask, *_, **__
):
    # dy is analysed once; dx needs a synthesis, the parameters an analysis of x.
    image, parameters = mask & 1, int(mask > 1)
    levels, filters, transforms = len(wavelet_weight), image + parameters, 1 + image + parameters
    return _flops(x_shape, base_weight_shape, levels, stride, filters=filters, transforms=transforms)
