"""What is installed and whether it computes correctly: show() and self_check()."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wtconv import _ops, functional

__version__ = torch.ops.wtconv.version()


@dataclass(frozen=True)
class Backend:
    name: str
    device: str  # "cpu" or "cuda"
    description: str
    unavailable: str  # why it cannot run on this machine; empty if it can


def backends() -> list[Backend]:
    """All backends of this build in order of preference."""
    return [Backend(*line.split("\t")) for line in torch.ops.wtconv.describe_backends().splitlines()]


def show() -> None:
    """Prints versions, devices and backends, and why one is missing."""
    print(f"wtconv {__version__} ({_ops.LIBRARY})")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}")
    print(f"cpu: {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for i in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(i)
        print(f"cuda:{i}: {device.name}, sm_{device.major}{device.minor}, {device.total_memory >> 20} MiB")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "no CUDA device found"
        print(f"cuda: {why}")
    found = backends()
    for b in found:
        print(f"backend {b.name} ({b.device}): {b.unavailable or b.description}")
    if _ops.CUDA_MISSING:
        print(f"backend cuda: {_ops.CUDA_MISSING}")


def self_check(verbose: bool = True) -> None:
    """Runs every available backend on golden vectors, forward and all gradients; raises RuntimeError on a difference.

    The vectors are small integers, so that every sum is exact in float32 in any order: equality, not a tolerance.
    """
    cases = json.loads(Path(__file__).with_name("golden.json").read_text())
    for backend in backends():
        if backend.unavailable or (backend.device == "cuda" and not torch.cuda.is_available()):
            continue
        for case in cases:
            exact = golden_input(case)
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                inputs, dy = tree_map(lambda t, dtype=dtype: t.to(backend.device, dtype), exact)
                _check_case(case, backend, dtype, inputs, dy)
        if verbose:
            print(f"wtconv: backend {backend.name} agrees with {len(cases)} golden vectors in 4 types")


def golden_input(case: dict) -> tuple[list[Tensor], Tensor]:
    """([x, base_weight, base_bias, base_scale, *wavelet_weight, *wavelet_scale], dy) of a case: small integers."""
    b, c, h, w, k, levels, stride = (case[n] for n in ("b", "c", "h", "w", "k", "levels", "stride"))
    state = case["seed"]

    def integers(*shape, low=-2, high=2, scale=1.0):
        nonlocal state
        values = []
        for _ in range(torch.Size(shape).numel()):
            state = (state * 1103515245 + 12345) % 2**31
            values.append(low + (state >> 16) % (high - low + 1))
        return torch.tensor(values, dtype=torch.float64, device="cpu").reshape(shape) * scale

    inputs = [integers(b, c, h, w), integers(c, 1, k, k), integers(c), integers(1, c, 1, 1)]
    inputs += [integers(4 * c, 1, k, k) for _ in range(levels)]
    inputs += [integers(1, 4 * c, 1, 1, scale=0.5) for _ in range(levels)]
    return inputs, integers(b, c, -(-h // stride), -(-w // stride))


def evaluate(inputs: list[Tensor], dy: Tensor, function) -> list[Tensor]:
    """y and the gradients of <dy, y> with respect to all inputs."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    levels = (len(inputs) - 4) // 2
    with torch.enable_grad():
        y = function(*inputs[:4], inputs[4 : 4 + levels], inputs[4 + levels :])
        return [y.detach(), *torch.autograd.grad(y, inputs, dy)]


def _check_case(case: dict, backend: Backend, dtype: torch.dtype, inputs: list[Tensor], dy: Tensor) -> None:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        results = evaluate(inputs, dy, lambda *p: functional.wtconv2d(*p, case["stride"], backend.name))
    names = ["y", *(f"gradient {i}" for i in range(len(results) - 1))]
    for name, result, golden in zip(names, results, case["golden"], strict=True):
        expected = torch.tensor(golden, dtype=torch.float64, device="cpu").to(dtype).reshape(result.shape)
        wrong = (result.cpu() != expected).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise RuntimeError(
                f"wtconv: backend {backend.name} computes {name}{list(at)} = {result[at].item()} in {dtype} on case "
                f"{ {n: v for n, v in case.items() if n != 'golden'} }, the right value is {expected[at].item()}"
            )
