"""Where a small layer's training step on a GPU spends its time, which is on the host.

Usage: python bench/torch/step_parts.py OUT.json

Rounds in turn: ours as it is, with the dispatcher's first round, and with autograd in the calling thread; depthwise 5 x 5;
an autograd.Function that computes nothing but has as many inputs; one C++ node. (least, median) of 15 rounds of 30 calls,
in microseconds. "parts" are medians between clock readings inside one step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import wtconv
from torch import nn
from wtconv import _ops

SHAPES = [(64, 768, 7, 2), (64, 384, 14, 3), (1, 8, 7, 2)]  # batch, channels, height = width, levels
PARTS = ["forward", "to the device thread", "backward", "back to the caller", "freeing"]


class Nothing(torch.autograd.Function):
    """As many inputs and gradients, no work."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx, dy):
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def interleaved(calls: dict, n: int = 30, rounds: int = 15) -> dict[str, tuple[int, int]]:
    for call in calls.values():
        for _ in range(20):
            call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(n):
                call()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / n * 1e6)
    return {name: (round(min(t)), round(statistics.median(t))) for name, t in times.items()}


def one_thread(call):
    def run():
        with torch.autograd.set_multithreading_enabled(False):
            call()

    return run


def dispatched(call):
    shorter = _ops._nothing_above_autograd

    def run():
        _ops._nothing_above_autograd = lambda tensors: False
        try:
            call()
        finally:
            _ops._nothing_above_autograd = shorter

    return run


def parts(layer, x, leaves, dy) -> dict[str, int]:
    backward, stamps, now = _ops._Forward.backward, [], time.perf_counter

    def timed(ctx, dy):
        begin = now()
        result = backward(ctx, dy)
        stamps[-1] += [begin, now()]
        return result

    _ops._Forward.backward = staticmethod(timed)
    try:
        for _ in range(200):
            stamps.append([now()])
            y = layer(x)
            stamps[-1].append(now())
            gradients = torch.autograd.grad(y, leaves, dy)
            stamps[-1].append(now())
            del y, gradients
            stamps[-1].append(now())
    finally:
        _ops._Forward.backward = staticmethod(backward)
    medians = [statistics.median(s[i + 1] - s[i] for s in stamps[50:]) for i in range(len(PARTS))]
    return {name: round(1e6 * m) for name, m in zip(PARTS, medians)}


def measure(b, c, h, levels) -> dict:
    x = torch.randn(b, c, h, h, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    ours = wtconv.WTConv2d(c, c, 5, wt_levels=levels, device="cuda")
    depthwise = nn.Conv2d(c, c, 5, padding=2, groups=c, device="cuda")
    leaves = [x, *(p for p in ours.parameters() if p.requires_grad)]
    steps = {
        "ours": lambda: torch.autograd.grad(ours(x), leaves, dy),
        "depthwise": lambda: torch.autograd.grad(depthwise(x), [x, *depthwise.parameters()], dy),
        "python node": lambda: torch.autograd.grad(Nothing.apply(*leaves), leaves, dy),
        "c++ node": lambda: torch.autograd.grad(x * 2, [x], dy),
    }
    steps |= {f"{name}, one thread": one_thread(call) for name, call in steps.items()}
    steps |= {"ours, dispatched": dispatched(steps["ours"]), "ours, forward": lambda: ours(x)}
    return interleaved(steps) | {"parts": parts(ours, x, leaves, dy)}


def main() -> None:
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wtconv": wtconv.__version__,
        "unit": "us",
    }
    results = {str(shape): measure(*shape) for shape in SHAPES}
    for shape, times in results.items():
        print(shape, *(f"  {name}: {t}" for name, t in times.items()), sep="\n")
    text = json.dumps({"command": "bench/torch/step_parts.py", **about, "results": results}, indent=1)
    Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
