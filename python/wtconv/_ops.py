"""What surrounds the compiled operators: fake kernels, gradients, autocast, vmap and the FLOP formula.

The operators are multilinear: y is linear in x, and in each (weight, scale, bias). So the gradients of the gradients are
calls of the same two operators with other arguments, and no further kernels exist.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import _C, Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import has_torch_function
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import register_flop_formula

LIBRARY = Path(__file__).with_name("_wtconv.so")
if not LIBRARY.exists():
    raise ImportError(
        f"wtconv: {LIBRARY} is missing: install the package (pip install .), do not import its source tree"
    )
torch.ops.load_library(LIBRARY)


def _load_cuda(library: Path) -> str:
    """Loads the CUDA backend, which registers itself with the core in LIBRARY. Returns why it is not there, or ""."""
    if not library.exists():
        return "not in this build (built without a CUDA compiler)"
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"it cannot be loaded: {error}"
    return ""


# Without a GPU it loads, too: then it says itself that it finds none.
CUDA_MISSING = _load_cuda(LIBRARY.with_name("_wtconv_cuda.so"))

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


# What bindings/torch/ops.cpp and src/core/validate.cpp refuse, in their order and words. Written a second time because
# sizes may be symbols here; tests/python/test_operators.py compares the messages. Only the backend's name is not looked
# at: another machine may run the graph.
MAX_LEVELS, MAX_KERNEL = 8, 15
_DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
_OTHER_DTYPES = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def _refuse(message: str):
    raise ValueError(f"wtconv: {message}")


def require_tensor(x) -> None:
    if not isinstance(x, Tensor) and not has_torch_function((x,)):
        raise TypeError(f"wtconv: x must be a torch.Tensor, got {type(x).__name__}")


def _text(values) -> str:
    return "(" + ", ".join(str(v) for v in values) + ")"


def _is_dense(t: Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(t.shape), reversed(t.stride())):
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True


def _check_device_and_dtype(t: Tensor, name: str, x: Tensor) -> None:
    if t.device != x.device:
        _refuse(f"{name} must be on x's device {x.device}, got {t.device}")
    if t.dtype not in _DTYPES:
        _refuse(f"{name} must be float32, float64, float16 or bfloat16, got {_OTHER_DTYPES.get(t.dtype, t.dtype)}")
    if t.dim() > 4:
        _refuse(f"{name} has too many dimensions: {_text(t.shape)}")


def _check_shape(t: Tensor, name: str, expected: tuple, flat: bool = False) -> None:
    sizes, strides = list(t.shape), list(t.stride())
    if name != "dy" and not _is_dense(t):
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    if flat:
        kept = [i for i, n in enumerate(sizes) if n != 1]
        sizes, strides = ([sizes[i] for i in kept], [strides[i] for i in kept]) if kept else ([1], [1])
    if len(sizes) != len(expected) or any(n != e for n, e in zip(sizes, expected)):
        got = f"{_DTYPES[t.dtype]} {_text(sizes)} strides {_text(strides)}"
        _refuse(f"{name} must have shape {_text(expected)}, got {got}")


def _check_dtype_of_parameter(t: Tensor, name: str, x: Tensor, base_weight: Tensor) -> None:
    own, compute = x.dtype, torch.float64 if x.dtype == torch.float64 else torch.float32
    if t.dtype not in (own, compute):
        or_f32 = "" if own == compute else " or f32"
        _refuse(f"{name} must be {_DTYPES[own]}{or_f32} where x is {_DTYPES[own]}, got {_DTYPES[t.dtype]}")
    if t.dtype != base_weight.dtype:
        _refuse(f"{name} must have base_weight's dtype {_DTYPES[base_weight.dtype]}, got {_DTYPES[t.dtype]}")


def _out_size(x: Tensor, stride: int) -> tuple:
    return (x.shape[2] + stride - 1) // stride, (x.shape[3] + stride - 1) // stride


def _check(
    x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride: int, dy=None, mask: int = 0
) -> None:
    if x.dim() != 4:
        _refuse(f"x must have shape (batch, channels, height, width), got {_text(x.shape)}")
    shape = base_weight.shape
    if base_weight.dim() != 4 or shape[1] != 1 or shape[2] != shape[3]:
        _refuse(f"base_weight must have shape (channels, 1, k, k), got {_text(shape)}")
    channels, kernel, levels = shape[0], shape[2], len(wavelet_weight)
    if x.shape[1] != channels:
        _refuse(f"x must have {channels} channels, as the weights have, got {x.shape[1]}: shape {_text(x.shape)}")
    if levels != len(wavelet_scale) or levels > MAX_LEVELS:
        _refuse(
            f"wavelet_weight and wavelet_scale must have one entry a level, at most {MAX_LEVELS}, "
            f"got {levels} and {len(wavelet_scale)}"
        )
    if not 1 <= stride < 2**31:
        _refuse(f"stride must be at least 1, got {stride}")
    if kernel > MAX_KERNEL:
        _refuse(f"the kernel must be at most {MAX_KERNEL}, got {kernel}")
    parameters = [("base_weight", base_weight, (channels, 1, kernel, kernel), False)]
    if base_bias is not None:
        parameters.append(("base_bias", base_bias, (channels,), False))
    parameters.append(("base_scale", base_scale, (channels,), True))
    for i, (weight, scale) in enumerate(zip(wavelet_weight, wavelet_scale)):
        parameters.append((f"wavelet_weight[{i}]", weight, (4 * channels, 1, kernel, kernel), False))
        parameters.append((f"wavelet_scale[{i}]", scale, (4 * channels,), True))
    _check_device_and_dtype(x, "x", x)
    for name, t, *_ in parameters:
        _check_device_and_dtype(t, name.split("[")[0], x)
    if dy is not None:
        _check_device_and_dtype(dy, "dy", x)
        if not 0 <= mask < 1 << (4 + 2 * levels):
            _refuse(f"mask is out of range: {mask}")
        if mask & 4 and base_bias is None:
            _refuse("the gradient of base_bias is asked for, but there is no base_bias")
    for name, least, got in (
        ("channels", 1, x.shape[1]),
        ("height", 1, x.shape[2]),
        ("width", 1, x.shape[3]),
    ):
        if got < least:
            _refuse(f"{name} must be at least {least}, got {got}")
    if kernel < 1:
        _refuse(f"kernel must be in 1..{MAX_KERNEL}, got {kernel}")
    if dy is not None:
        if dy.dtype != x.dtype:
            _refuse(f"dy must have the problem's dtype {_DTYPES[x.dtype]}, got {_DTYPES[dy.dtype]}")
        _check_shape(dy, "dy", (x.shape[0], channels, *_out_size(x, stride)))
    for name, t, expected, flat in parameters:
        _check_shape(t, name, expected, flat)
        _check_dtype_of_parameter(t, name, x, base_weight)


def _shown(error: RuntimeError, *arguments) -> Exception:
    """What to raise for an error of a kernel: from torch 2.15 on its ValueErrors arrive as RuntimeErrors."""
    if type(error) is RuntimeError:
        try:
            _check(*arguments)
        except ValueError as refusal:
            return refusal
        except Exception:  # what is not even a tensor keeps the kernel's error
            pass
    return error


@torch.library.register_fake("wtconv::forward")
def _(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend):
    _check(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
    return _empty_image(x, *_out_size(x, stride))


@torch.library.register_fake("wtconv::backward")
def _(dy, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, mask, backend):
    _check(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, dy, mask)
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


@functools.lru_cache(maxsize=4096)
def _mask(needed: tuple[bool, ...]) -> int:
    mask = 0
    for i, asked in enumerate(needed):
        mask |= asked << i
    return mask


def _unpack(results: list[Tensor], mask: int, count: int) -> list[Tensor | None]:
    if len(results) == count:
        return results
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


class _Node(_SingleLevelFunction):
    @staticmethod
    def _compiled_autograd_key(ctx):  # autograd.Function's, without which compiled autograd cannot cache the node
        return (ctx._autograd_function_id,)


class _Forward(_Node):
    @staticmethod
    def forward(ctx, keyset, stride, backend, *inputs):
        with _below_autograd():
            if keyset is None:
                y = _forward(*_grouped(inputs), stride, backend)
            else:
                y = _forward.redispatch(keyset, *_grouped(inputs), stride, backend)
        _save(ctx, *inputs)
        ctx.stride, ctx.backend = stride, backend
        return y

    @staticmethod
    def backward(ctx, dy):
        inputs = ctx.saved_tensors
        mask = _mask(ctx.needs_input_grad[3:])
        arguments = (dy, *_grouped(inputs), ctx.stride, mask, ctx.backend)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not _nothing_above_autograd(inputs):
            results = _backward(*arguments)
        else:
            with _C._AutoDispatchBelowAutograd():
                results = _backward(*arguments)
        return (None, None, None, *_unpack(results, mask, len(inputs)))

    @staticmethod
    def jvp(ctx, *tangents):
        return _derivative_of_forward(ctx, ctx.saved_tensors, tangents[3:])


class _Backward(_Node):
    @staticmethod
    def forward(ctx, keyset, stride, mask, backend, dy, *inputs):
        with _below_autograd():
            results = _backward.redispatch(keyset, dy, *_grouped(inputs), stride, mask, backend)
        _save(ctx, dy, *inputs)
        ctx.set_materialize_grads(False)
        ctx.stride, ctx.mask, ctx.backend = stride, mask, backend
        return tuple(results)

    @staticmethod
    def backward(ctx, *cotangents):
        """The gradients of <cotangents, the operator's results>, which is <dy, derivative of y in their direction>."""
        dy, *inputs = ctx.saved_tensors
        tangents = _unpack(cotangents, ctx.mask, len(inputs))
        need_dy, *need = ctx.needs_input_grad[4:]
        ddy = _derivative_of_forward(ctx, inputs, tangents) if need_dy else None
        return (None, None, None, None, ddy, *_derivative_of_backward(ctx, dy, inputs, tangents, _mask(tuple(need))))

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
        there = mask & _mask(tuple(i not in slots and replaced[i] is not None for i in range(len(inputs))))
        if there:
            results = _backward(dy, *_grouped(replaced), ctx.stride, there, ctx.backend)
            total = [_add(a, b) for a, b in zip(total, _unpack(results, there, len(inputs)))]
    return total


def _save(ctx, *tensors) -> None:
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def _below_autograd():
    return _below_autograd_in_functorch() if _C._are_functorch_transforms_active() else _C._AutoDispatchBelowAutograd()


@contextmanager
def _below_autograd_in_functorch():
    # An autograd.Function turns gradients off in its forward, but the next level of torch.func records there.
    with _C._AutoDispatchBelowAutograd(), torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _apply(function, *arguments):
    """Records `function`. Inside torch.func's transforms too: there a kernel runs once for each of their levels."""
    if not _C._are_functorch_transforms_active():
        return function.apply(*arguments)
    with enable_single_level_autograd_function():
        return function.apply(*arguments)


def _needs_gradient(tensors) -> bool:
    return (torch.is_grad_enabled() and _C._any_requires_grad(*tensors)) or forward_ad._current_level >= 0


# A call from Python passes the dispatcher twice, on its way to the functions below and again to the kernel: 15 us. Where
# nothing above autograd, or autocast alone, would look at the call, forward() and the step backward start below them.


def _dispatch_state() -> tuple:
    return _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()


def _state_of_a_new_thread() -> tuple:
    """The one without autocast, functorch, modes and tracing, whatever the importing thread is doing."""
    states = []
    thread = threading.Thread(target=lambda: states.append(_dispatch_state()))
    thread.start()
    thread.join()
    return states[0]


_PLAIN_STATE = _state_of_a_new_thread()


def _nothing_above_autograd(tensors) -> bool:
    return _dispatch_state() == _PLAIN_STATE and forward_ad._current_level < 0 and not has_torch_function(tensors)


def forward(
    x: Tensor,
    base_weight: Tensor,
    base_bias: Tensor | None,
    base_scale: Tensor,
    wavelet_weight: list[Tensor],
    wavelet_scale: list[Tensor],
    stride: int,
    backend: str,
) -> Tensor:
    """wtconv::forward."""
    require_tensor(x)
    if not torch.compiler.is_compiling():
        device = x.device.type
        if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
            return _autocast_forward(
                device, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend
            )
        tensors = (x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale)
        if _nothing_above_autograd(tensors):
            arguments = (x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
            try:
                if torch.is_grad_enabled() and _C._any_requires_grad(*tensors):
                    return _Forward.apply(None, stride, backend, *tensors)
                with _C._AutoDispatchBelowAutograd():
                    return _forward(*arguments, backend)
            except RuntimeError as error:
                raise _shown(error, *arguments) from None
    return _forward(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend)


def _autograd_forward(keyset, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, backend):
    keyset = keyset & _C._after_autograd_keyset
    tensors = (x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale)
    arguments = (x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
    try:
        if _needs_gradient(tensors):
            return _apply(_Forward, keyset, stride, backend, *tensors)
        with _C._AutoDispatchBelowAutograd():
            return _forward.redispatch(keyset, *arguments, backend)
    except RuntimeError as error:
        raise _shown(error, *arguments) from None


def _autograd_backward(
    keyset, dy, x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride, mask, backend
):
    keyset = keyset & _C._after_autograd_keyset
    tensors = (dy, x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale)
    arguments = (x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride)
    try:
        if _needs_gradient(tensors):
            return list(_apply(_Backward, keyset, stride, mask, backend, *tensors))
        with _C._AutoDispatchBelowAutograd():
            return _backward.redispatch(keyset, dy, *arguments, mask, backend)
    except RuntimeError as error:
        raise _shown(error, *arguments, dy, mask) from None


_library = torch.library.Library("wtconv", "IMPL")  # lives as long as the process
_library.impl("forward", _autograd_forward, "Autograd", with_keyset=True)
_library.impl("backward", _autograd_backward, "Autograd", with_keyset=True)


# Autocast: x is cast, the parameters are not. The kernels take fp32 parameters with a 16-bit x and sum in fp32 anyway.


_AUTOCAST_KEYS = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(_C.DispatchKey.AutocastCUDA)


def _autocast_forward(device, *arguments):
    *tensors, stride, backend = arguments
    with _C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
        return forward(*cast_for_autocast(device, *tensors), stride, backend)


def cast_for_autocast(device, x, base_weight, *parameters):
    if x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device:
        x = x.to(torch.get_autocast_dtype(device))
        if base_weight.dtype not in (x.dtype, torch.float32):  # a half model in the other half type
            base_weight, *parameters = _to_float((base_weight, *parameters))
    return (x, base_weight, *parameters)


def _to_float(item):
    return item.float() if isinstance(item, Tensor) else item and [_to_float(t) for t in item]


_library.impl("forward", functools.partial(_autocast_forward, "cpu"), "AutocastCPU")
_library.impl("forward", functools.partial(_autocast_forward, "cuda"), "AutocastCUDA")


# torch.func.vmap. Over the images alone it is one call with a longer batch; otherwise one call for each entry.


def _select(argument, dims, i):
    if isinstance(argument, (list, tuple)):
        return [_select(a, d, i) for a, d in zip(argument, dims)]
    if dims is None:
        return argument
    if argument.shape[dims] == 0:  # there is no entry, one of the same shape tells the results' shapes
        return argument.new_zeros(argument.shape[:dims] + argument.shape[dims + 1 :])
    return argument.select(dims, i)


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
            sizes = (info.batch_size, first[0].shape[1])
            return tree_map(lambda r: r.unflatten(0, sizes), result), tree_map(lambda _: 0, result)

        def entry(i):
            return operator(*(_select(argument, dims, i) for argument, dims in zip(arguments, in_dims)))

        results = [entry(i) for i in range(max(1, info.batch_size))]
        stacked = tree_map(lambda *r: torch.stack(r)[: info.batch_size], *results)
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
