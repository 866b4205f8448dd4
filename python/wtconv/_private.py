"""The names this package uses that PyTorch does not promise to keep.

They are looked up on import, so that a torch that lacks some is named at once, with all of them, and not one at a time
in the middle of a training. The tests find uses that are not listed here.
"""

from __future__ import annotations

import importlib

import torch

NAMES = (
    "torch._C.DispatchKey",
    "torch._C.DispatchKeySet",
    "torch._C._AutoDispatchBelowAutograd",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C._after_autograd_keyset",
    "torch._C._any_requires_grad",
    "torch._C._are_functorch_transforms_active",
    "torch._C._dispatch_tls_local_exclude_set",
    "torch._C._dispatch_tls_local_include_set",
    "torch._C._functorch.get_unwrapped",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.maybe_get_bdim",
    "torch._C._get_tracing_state",
    "torch._C._set_tracing_state",
    "torch._functorch.utils.enable_single_level_autograd_function",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.forward_ad._set_fwd_grad_enabled",
    "torch.autograd.function._SingleLevelFunction",
    "torch.nn.Module._load_from_state_dict",
    "torch.Tensor._version",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
)


def is_there(name: str) -> bool:
    parts = name.split(".")
    found = torch
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return False
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def check(names=NAMES) -> None:
    if missing := [name for name in names if not is_there(name)]:
        raise ImportError(f"wtconv: torch {torch.__version__} lacks what this version uses: {', '.join(missing)}")


check()
