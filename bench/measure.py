"""What the benchmarks share: timing in turn, peak memory, what a run says about itself.

A step is a forward and the gradients of x and of every parameter. Times on a GPU are those of device events around a
block of calls; what Python costs is in them wherever the GPU waits for it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import wtconv
from torch import Tensor, nn
from tqdm import tqdm

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROOT = Path(__file__).resolve().parents[1]


def forward(module: nn.Module, x: Tensor) -> Callable[[], None]:
    def run():
        with torch.inference_mode():
            module(x)

    return run


def step(module: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], None]:
    parameters = [p for p in module.parameters() if p.requires_grad]

    def run():
        torch.autograd.grad(module(x), [x, *parameters], dy)

    return run


def alternating(calls: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """One call of each in turn: inputs that rotate through more memory than a cache holds."""
    calls, count = list(calls), 0

    def run():
        nonlocal count
        calls[count % len(calls)]()
        count += 1

    return run


def graphed(calls: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """All of these calls as one CUDA graph: Python and PyTorch cost nothing in a replay."""
    calls = list(calls)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made at first use must not be captured
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def kernels(call: Callable[[], Any]) -> list[tuple[str, float]]:
    """(name, microseconds) of all that the GPU does in a call, copies and fills too."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [(e.name, e.time_range.elapsed_us()) for e in on_gpu]


def block(call: Callable[[], None], calls: int, device: str) -> float:
    """Milliseconds of one call, of `calls` in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return 1e3 * (time.perf_counter() - start) / calls
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / calls


def in_turn(
    contenders: dict[str, Callable[[], None]],
    device: str,
    seconds: float,
    rounds: int = 50,
    least: int = 5,
    block_ms: float = 0.0,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Milliseconds of a call in every round. Each contender has one block a round, and a slow moment hits all alike.

    Rounds end after `seconds`, but not before `least` of them. A block is one call, or as many as take `block_ms`, 20 at most.
    """
    sizes = {}
    for name, call in contenders.items():
        for _ in range(warm_up):
            call()
        sizes[name] = 1
        if block_ms:
            sizes[name] = max(1, min(20, int(block_ms / max(block(call, 2, device), 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= least and time.perf_counter() - start > seconds:
            break
        for name, call in contenders.items():
            times[name].append(block(call, sizes[name], device))
    return times


def peak_bytes(call: Callable[[], None], device: str) -> int:
    """Most bytes held at once during a call beyond what was there before, as PyTorch's allocator counts them.

    On the CPU the allocations that its profiler records are summed up; what a library takes from the system by itself is in
    neither figure.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events, stack = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack += event.children
        if event.tag.name == "Allocation":
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
    held = peak = 0
    for _, size in sorted(events):
        held += size
        peak = max(peak, held)
    return peak


def parser(description: str | None, out: str) -> argparse.ArgumentParser:
    """What every resumable benchmark takes; each adds its own."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out", type=Path, default=Path(out), help="default %(default)s")
    p.add_argument("--report", action="store_true", help="only report what is in --out")
    p.add_argument("--fresh", action="store_true", help="forget earlier results in --out")
    p.add_argument("--budget", type=float, help="stop after so many seconds")
    p.add_argument("--smoke", action="store_true", help="tiny shapes: proves the script")
    p.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    p.add_argument("--compiler", default="inductor", help="torch.compile's backend, default %(default)s")
    return p


class Budget:
    """Seconds that a run may take; None: as long as it needs."""

    def __init__(self, seconds: float | None):
        self._end = None if seconds is None else time.monotonic() + seconds

    def is_spent(self) -> bool:
        return self._end is not None and time.monotonic() > self._end


def open_blocks(model: nn.Module) -> None:
    """A ConvNeXt scales its blocks' results by 1e-6 at first: a comparison that should see them takes 1."""
    for name, parameter in model.named_parameters():
        if name.endswith(".gamma"):
            nn.init.ones_(parameter)


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 as it says: no TF32 in convolutions and products."""
    settings = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [s.allow_tf32 for s in settings]
    try:
        for s in settings:
            s.allow_tf32 = False
        yield
    finally:
        for s, allowed in zip(settings, before):
            s.allow_tf32 = allowed


class Attempts:
    """Runs one measurement after the other; what one raises is printed, and said again at the end, not the end of all."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:
            self.failed.append(name)
            tqdm.write(f"{name}:\n{traceback.format_exc()}", file=sys.stderr)

    def finish(self) -> None:
        if self.failed:
            raise SystemExit(f"{len(self.failed)} failed: {', '.join(self.failed)}")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit() -> str:
    """Where there is no checkout, WTCONV_COMMIT says it (as ci/gpu does)."""
    if name := os.environ.get("WTCONV_COMMIT"):
        return name
    name = _git("rev-parse", "--short", "HEAD")
    return name + (" and changes" if _git("status", "--porcelain", "-uno") else "") if name else "unknown"


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())


def _relative(name: str) -> str:
    path = Path(name).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else name


def about(device: str) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "wtconv": wtconv.__version__, "Python": platform.python_version()}
    if device == "cuda":
        versions |= {"CUDA": torch.version.cuda, "cuDNN": str(torch.backends.cudnn.version())}
    name = torch.cuda.get_device_name() if device == "cuda" else f"{cpu_name()}, {torch.get_num_threads()} threads"
    return {
        "command": " ".join(["python", _relative(sys.argv[0]), *sys.argv[1:]]),
        "commit": commit(),
        "device": name,
        "versions": versions,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
