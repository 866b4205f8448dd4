"""Wavelets other than Haar: filters of any wavelet or checkpoint, evaluated by the plain composition.

The fast operators know Haar only. A layer keeps its filters as parameters, because checkpoints hold them and some hold
other values than those of the layer's wt_type. So the filters decide, not the name they came from: WaveletFilters watches
them, and a layer whose filters are not Haar's takes the path of this module.
"""

from __future__ import annotations

import contextlib
import operator
import re
import warnings
from collections.abc import Sequence

import torch
from torch import _C, Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from wtconv import _ops, reference

# Far above the rounding of any dtype (1/2 is exact in all, 1/sqrt(2) within 4e-3 in bf16), far below another wavelet.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}


# The layer was published in three layouts. These names of the later two (CUDA and Triton; Metal) mean these of the first.
_NAMES_OF_OTHER_LAYOUTS = {
    r"base_(weight|bias)": r"base_conv.\1",
    r"base_scale": r"base_scale.weight",
    r"wt_weights\.(\d+)": r"wavelet_convs.\1.weight",
    r"(?:wt|wavelet)_scales\.(\d+)": r"wavelet_scale.\1.weight",
}

_notice_given = False


class SlowPathNotice(UserWarning):
    """Given once a process, when a layer first takes the general path."""


def notice(layer: str, reason: str) -> None:
    """Says once that the slow path is taken. Inside torch.compile it stays silent: warnings break the graph."""
    global _notice_given
    if _notice_given or torch.compiler.is_compiling():
        return
    _notice_given = True
    warnings.warn(
        f"{layer} takes the slow path of plain PyTorch operators: {reason}. Results are right; only Haar filters "
        "(wt_type='db1') have fast kernels. This notice is given once.",
        SlowPathNotice,
        stacklevel=3,
    )


def canonical_name(name: str) -> str:
    """The first layout's name of a parameter of a public layer; other names stay."""
    for pattern, replacement in _NAMES_OF_OTHER_LAYOUTS.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def is_haar(wt_filter: Tensor, iwt_filter: Tensor) -> bool:
    """True if both filter banks, (bands * channels, 1, 2[, 2]), are Haar's in every channel."""
    dims = wt_filter.dim() - 2
    if any(f.shape[1:] != (1, *[2] * dims) for f in (wt_filter, iwt_filter)):
        return False
    channels = wt_filter.shape[0] // 2**dims
    expected = haar_filters(channels, dims)
    return all(
        torch.allclose(f.detach().to("cpu", torch.float64), e, rtol=0, atol=_TOLERANCE.get(f.dtype, 1e-6))
        for f, e in zip((wt_filter, iwt_filter), expected)
    )


def haar_filters(channels: int, dims: int) -> tuple[Tensor, Tensor]:
    """(wt_filter, iwt_filter) of Haar in double precision, on the CPU."""
    low, high = (torch.tensor([1.0, sign], dtype=torch.float64, device="cpu") for sign in (1.0, -1.0))
    if dims == 1:
        bank = torch.stack([low, high]) / 2**0.5
    else:
        bank = torch.stack([torch.outer(rows, columns) for columns in (low, high) for rows in (low, high)]) / 2
    bank = bank[:, None].repeat(channels, *[1] * (dims + 1))
    return bank, bank.clone()


class WaveletFilters(nn.Module):
    """Base of the layers: holds wt_filter and iwt_filter and knows whether they are Haar's.

    Filters change in more ways than load_state_dict (a broadcast by DDP, an average of weights, an optimizer where they
    are trained), so the answer is kept with the tensors it holds for and their version counters, and found anew when these move.
    """

    def set_filters(self, wt_filter: Tensor, iwt_filter: Tensor) -> None:
        self.wt_filter = nn.Parameter(wt_filter, requires_grad=False)
        self.iwt_filter = nn.Parameter(iwt_filter, requires_grad=False)
        self._haar, self._haar_key = True, None
        if (
            wt_filter.device.type == "meta"
        ):  # no values to read: what a meta layer is made of is decided when it is filled
            self._haar = all(n == 2 for n in wt_filter.shape[2:])
        else:
            self.has_haar_filters()
            self._haar_key = None  # once more at the first call: old code loads with parameter.data.copy_(...)

    def has_haar_filters(self) -> bool:
        """True if the fast operators compute this layer."""
        wt_filter, iwt_filter = tensor_of(self, "wt_filter"), tensor_of(self, "iwt_filter")
        if wt_filter.requires_grad or iwt_filter.requires_grad:
            return False
        if torch.compiler.is_compiling():
            # Looked at while the graph is made, with the real filters; a later eager call sees a later change, and
            # the graph is made again, since it holds for this value of _haar.
            self._look_at_filters()
            return self._haar
        return self._look_at_filters()

    @torch.compiler.assume_constant_result
    def _look_at_filters(self) -> bool:
        wt_filter, iwt_filter = tensor_of(self, "wt_filter"), tensor_of(self, "iwt_filter")
        if isinstance(wt_filter, FakeTensor):  # no values to read
            return self._haar
        # One tuple, because other threads may look, too. No weak references: a tensor that has some cannot be swapped.
        known, now = self._haar_key, (_version(wt_filter), _version(iwt_filter))
        if known is None or known[0] is not wt_filter or known[1] is not iwt_filter or known[2] != now:
            # A DTensor holds a part; a forward under FSDP sees the whole. While a CUDA graph records, nothing can be read.
            unreadable = wt_filter.device.type == "meta" or hasattr(wt_filter, "device_mesh")
            if unreadable or (wt_filter.is_cuda and torch.cuda.is_current_stream_capturing()):
                return self._haar
            with _untraced():
                haar = is_haar(_all_entries(wt_filter), _all_entries(iwt_filter))
            if any(_C._functorch.is_functorch_wrapped_tensor(bank) for bank in (wt_filter, iwt_filter)):
                return haar  # they live for one call of torch.func
            known = self._haar_key = wt_filter, iwt_filter, now, haar
            self._haar = haar
        return known[3]

    def __getstate__(self):
        return {**self.__dict__, "_haar_key": None}  # a copy has filters of its own

    def _load_from_state_dict(self, state_dict, prefix, *args):
        # What is loaded is this module's own copy of the dictionary, and its parts are loaded from it next.
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key[len(prefix) :]
            if canonical_name(name) != name:
                state_dict[prefix + canonical_name(name)] = state_dict.pop(key)
                # The later layouts hold no filters: they know Haar only.
                if self.has_haar_filters():
                    state_dict.setdefault(prefix + "wt_filter", self.wt_filter.detach())
                    state_dict.setdefault(prefix + "iwt_filter", self.iwt_filter.detach())
        # Early versions of the first layout kept their stride as a filter of ones.
        stride_filter = state_dict.get(prefix + "stride_filter")
        if stride_filter is not None and bool((stride_filter == 1).all()):
            del state_dict[prefix + "stride_filter"]
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._haar_key = None
        self.has_haar_filters()


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """module.<name>. Not a parameter but computed where a parametrization is in charge, or weight_norm, spectral_norm or
    pruning as torch.nn.utils has them: these compute it in a hook before the module's forward, which is not called here.
    """
    found = module._parameters.get(name)
    if found is not None:
        return found
    for hook in module._forward_pre_hooks.values():
        if name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None)):
            hook(module, ())
    return getattr(module, name)


def integer(layer: str, name: str, value, least: int, most: int) -> int:
    """value as an int; NumPy's integers are some, too."""
    try:
        number = int(operator.index(value))
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError(f"{layer}: {name} must be an integer in {least}..{most}, got {value!r}")
    return number


@contextlib.contextmanager
def _untraced():
    """torch.jit.trace records nothing here, and sizes are numbers."""
    state = _C._get_tracing_state()
    _C._set_tracing_state(None)
    try:
        yield
    finally:
        _C._set_tracing_state(state)


def _all_entries(bank: Tensor) -> Tensor:
    """The filters of all entries that torch.func.vmap runs over, one after another."""
    while _C._functorch.is_functorch_wrapped_tensor(bank):
        dim = _C._functorch.maybe_get_bdim(bank)
        bank = _C._functorch.get_unwrapped(bank)
        if dim >= 0:
            bank = bank.movedim(dim, 0).flatten(0, 1)
    return bank


def _version(tensor: Tensor) -> int:
    # Every change in place moves the version, but for one through .data. Inference tensors have none.
    return -1 if tensor.is_inference() else tensor._version


def wtconv2d(
    x: Tensor,
    base_weight: Tensor,
    base_bias: Tensor | None,
    base_scale: Tensor,
    wavelet_weight: Sequence[Tensor],
    wavelet_scale: Sequence[Tensor],
    stride: int,
    wt_filter: Tensor,
    iwt_filter: Tensor,
) -> Tensor:
    """The layer for any filters. Like the operators: what is refused, sums in fp32 for half types, result in autocast's
    type or x's.
    """
    _ops.require_tensor(x)
    arguments = (x, base_weight, base_bias, base_scale, list(wavelet_weight), list(wavelet_scale))
    if _autocasts(x.device.type):
        arguments = _ops.cast_for_autocast(x.device.type, *arguments)
    if not torch.jit.is_tracing():  # there sizes are no numbers
        _ops._check(*arguments, stride)
        _check_filters(x.shape[1], wt_filter=wt_filter, iwt_filter=iwt_filter)
    notice("WTConv2d", "its filters are trained" if wt_filter.requires_grad else "its filters are not Haar's")
    return in_full_precision(
        reference.wtconv2d,
        *arguments,
        stride,
        wt_filter,
        iwt_filter,
    )


def _check_filters(channels: int, **banks: Tensor) -> None:
    for name, bank in banks.items():
        sizes = tuple(bank.shape)
        if sizes != (4 * channels, 1, *sizes[2:3] * 2) or sizes[2] % 2 or sizes[2] < 2:
            raise ValueError(f"wtconv: {name} must have shape ({4 * channels}, 1, n, n) with an even n, got {sizes}")


def in_full_precision(function, x: Tensor, *arguments) -> Tensor:
    _ops._check_device_and_dtype(x, "x", x)
    device = x.device.type
    out = torch.get_autocast_dtype(device) if _autocasts(device) and x.dtype != torch.float64 else x.dtype
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32

    def cast(a):
        if isinstance(a, list):
            return [cast(t) for t in a]
        return a.to(compute) if isinstance(a, Tensor) else a

    with torch.autocast(device, enabled=False) if _autocasts(device) else contextlib.nullcontext():
        return function(x.to(compute), *(cast(a) for a in arguments)).to(out)


def _autocasts(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
