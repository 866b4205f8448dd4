"""Reruns the published evaluation of WTConv on GPUs (arXiv 2608.10805) on this machine, and prints its tables with ours beside.

    python bench/paper/run.py --device cuda --out docs/results/h200/paper    measures what is missing, then reports
    python bench/paper/run.py --report --out docs/results/h200/paper         reports what was measured

OUT/results.jsonl holds every measurement; an interrupted run goes on where it stopped. OUT/report.md and OUT/*.png are made of
it. Parts: `layers` (latency and peak memory of a forward and of a training step, against the plain layer and plain
convolutions), `ablation` (the three published reformulations one by one, then the fused backends), `agreement` (errors against
float64), `compiled` (the plain layer under torch.compile), `traffic` (the I/O model, and counters where ncu is). The most
telling measurements come first, so that --budget SECONDS cuts off the rest.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import wtconv
from torch import Tensor, nn
from tqdm import tqdm
from wtconv import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import measure  # noqa: E402
import report  # noqa: E402
from results import Store, summary  # noqa: E402

PARTS = ("layers", "ablation", "agreement", "compiled", "traffic")
PASSES = ("forward", "step")
# The published sweep, and the shape of its table of absolute figures, which comes first.
SWEEP = [(8, c, h, h) for h in (256, 128, 512) for c in (64, 32, 128)]
SMOKE = {"shapes": ["1x4x32x32", "1x2x16x16"], "kernels": [3], "levels": [1, 2], "dtypes": ["fp32", "bf16"]}
SWITCHES = ("recompute_analysis", "collapse_synthesis", "fold_scales")
BASELINE = {"cpu": "unfused", "cuda": "cuda-unfused"}  # the backend whose switches are the published reformulations
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int, int, int]
    dtype: str
    kernel: int
    levels: int

    def key(self, method: str, what: str) -> dict[str, Any]:
        """A plain convolution's does not depend on the layer beside which it was measured."""
        key = {"method": method, "pass": what, "dtype": self.dtype, "shape": list(self.shape)}
        return key if method.startswith(("depthwise", "dense")) else key | {"k": self.kernel, "L": self.levels}

    def name(self) -> str:
        b, c, h, w = self.shape
        return f"n{b}c{c}h{h}w{w}k{self.kernel}l{self.levels}_{self.dtype.replace('fp', 'f')}"


def ablation_methods(device: str) -> list[str]:
    """The baseline with none, one, two and three switches, then the backends that need one pass."""
    available = [b.name for b in wtconv.backends() if b.device == device and not b.unavailable]
    base = BASELINE[device]
    steps = ["+".join([base, *SWITCHES[:on]]) for on in range(4)] if base in available else []
    same = (base, "cuda-levels", "reference")  # cuda-levels is cuda-unfused with all three
    return steps + [name for name in available if name not in same]


def layer(method: str, case: Case, device: str) -> nn.Module:
    """By name: plain, compiled, wtconv (the backend that is chosen here), a backend's name, `depthwise 7`, `dense 7`."""
    torch.manual_seed(0)
    channels, dtype = case.shape[1], measure.DTYPES[case.dtype]
    if method.startswith(("depthwise", "dense")):
        kind, size = method.split()
        groups = channels if kind == "depthwise" else 1
        return nn.Conv2d(channels, channels, int(size), padding="same", groups=groups).to(device, dtype)
    arguments = (channels, channels, case.kernel)
    if method in ("plain", "compiled"):
        made = reference.WTConv2d(*arguments, wt_levels=case.levels)
    else:
        backend = "" if method == "wtconv" else method
        made = wtconv.WTConv2d(*arguments, wt_levels=case.levels, backend=backend)
    with torch.no_grad():  # scales of both signs, the same for all
        generator = torch.Generator().manual_seed(1)
        for scale in (made.base_scale, *made.wavelet_scale):
            scale.weight.copy_(torch.randn(scale.weight.shape, generator=generator))
    return made.to(device, dtype)


def check(case: Case, modules: dict[str, nn.Module], x: Tensor) -> None:
    """Every WTConv layer gives what the plain one gives, before any is timed."""
    with torch.inference_mode(), measure.full_precision():
        results = {n: m(x).float() for n, m in modules.items() if hasattr(m, "wavelet_convs")}
    expected = results.get("plain", next(iter(results.values()), None))
    for name, y in results.items():
        error = ((y - expected).norm() / expected.norm()).item()
        if not error < TOLERANCE[case.dtype]:
            raise ValueError(f"{name} differs from {next(iter(results))} on {case.name()}: relative error {error:.3g}")


def time_layers(case: Case, methods: list[str], options: argparse.Namespace, store: Store) -> None:
    """Latency and peak memory of the methods that are still missing, in turn."""
    missing = {what: [m for m in methods if case.key(m, what) not in store] for what in PASSES}
    needed = sorted({m for ms in missing.values() for m in ms}, key=methods.index)
    if not needed:
        return
    device, dtype = options.device, measure.DTYPES[case.dtype]
    torch.manual_seed(2)
    x = torch.randn(case.shape, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn_like(x)
    modules = {m: layer(m, case, device) for m in needed}
    check(case, modules, x.detach())
    if "compiled" in modules:
        torch._dynamo.reset()  # or the graphs of earlier cases count against its limit, and it would run uncompiled
        modules["compiled"] = torch.compile(modules["compiled"], dynamic=False, backend=options.compiler)
    for what, wanted in missing.items():
        calls: dict[str, Callable[[], None]] = {}
        for m in wanted:
            calls[m] = measure.forward(modules[m], x.detach()) if what == "forward" else measure.step(modules[m], x, dy)
            try:
                calls[m]()
            except torch.cuda.OutOfMemoryError:
                store.add(case.key(m, what), failed="out of memory")
                del calls[m]
            except Exception as error:
                if m != "compiled":
                    raise
                store.add(case.key(m, what), failed=f"{type(error).__name__}: {error}"[:500])
                del calls[m]
        if not calls:
            continue
        times = measure.in_turn(
            calls, device, options.seconds * len(calls), options.rounds, block_ms=10.0 if device == "cuda" else 0.0
        )
        for m, call in calls.items():
            held = x.nbytes + sum(p.nbytes for p in modules[m].parameters()) + (dy.nbytes if what == "step" else 0)
            extra = measure.peak_bytes(call, device)
            store.add(case.key(m, what), ms=summary(times[m]), peak=held + extra, extra=extra)


def exact(module: nn.Module) -> nn.Module:
    """The plain composition in float64, with Haar's taps as they are and not as the float32 product nearest to them."""
    twin = copy.deepcopy(module).double()
    with torch.no_grad():
        for taps in (twin.wt_filter, twin.iwt_filter):
            taps.copy_(taps.sign() * 0.5)
    return twin


def outcome(module: nn.Module, x: Tensor, dy: Tensor) -> dict[str, list[Tensor]]:
    x = x.detach().requires_grad_()
    weights = [module.base_conv.weight, *(conv.weight for conv in module.wavelet_convs)]
    scales = [module.base_scale.weight, *(scale.weight for scale in module.wavelet_scale)]
    y = module(x)
    dx, *gradients = torch.autograd.grad(y, [x, *weights, *scales], dy)
    return {"y": [y.detach()], "dx": [dx], "dw": gradients[: len(weights)], "ds": gradients[len(weights) :]}


def tiles(t: Tensor) -> Tensor:
    """Rows of 64 neighbours: 8 x 8 pixels of an image, 64 parameters in a row."""
    if t.dim() == 4 and min(t.shape[2:]) >= 8 and t.shape[1] > 1:
        return t.unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, 64)
    flat = t.reshape(-1)
    return flat[: flat.numel() // 64 * 64].reshape(-1, 64) if flat.numel() >= 64 else flat[None]


def rms(t: Tensor) -> Tensor:
    return t.square().mean(-1).sqrt()


def agree(case: Case, method: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Errors of a method and of the plain layer against float64 on the same rounded inputs, for y and every gradient."""
    torch.manual_seed(3)
    dtype = measure.DTYPES[case.dtype]
    x = torch.randn(case.shape, device=options.device, dtype=dtype)
    dy = torch.randn_like(x)
    plain = layer("plain", case, options.device)
    with measure.full_precision():
        expected = outcome(exact(plain), x.double(), dy.double())
        found = {"plain": outcome(plain, x, dy), "ours": outcome(layer(method, case, options.device), x, dy)}
    result = {}
    for name, right in expected.items():
        right = [t.double() for t in right]
        error = {who: [a.double() - b for a, b in zip(them[name], right)] for who, them in found.items()}
        size = rms(torch.cat([t.reshape(-1) for t in right]))
        values = {who: (rms(torch.cat([t.reshape(-1) for t in e])) / size).item() for who, e in error.items()}
        values["largest"] = max(e.abs().max().item() for e in error["ours"])
        floor = 0.05 * torch.finfo(dtype).eps
        values["worst tile"] = max(
            (rms(tiles(a)) / torch.maximum(rms(tiles(b)), floor * rms(tiles(r))).clamp_min(1e-300)).max().item()
            for a, b, r in zip(error["ours"], error["plain"], right)
        )
        result[name] = values
    return result


def find_tool(named: Path | None) -> str | None:
    places = [named] if named else [measure.ROOT / "build" / p / "wtconv" for p in ("dev", "bench", "ci")]
    return next((str(p) for p in places if p.exists()), None if named else shutil.which("wtconv"))


def io_model(options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """By levels: elements through main memory in units of x, by formulation, from the tool."""
    if "traffic" not in options.parts:
        return {}
    if not (tool := find_tool(options.tool)):
        print("skipped: the I/O model; there is no tool `wtconv` here (--tool PATH, or build/dev/wtconv)")
        return {}
    found = {}
    for level in options.levels:
        case = Case(options.shapes[0], "fp32", options.kernels[0], level)
        done = subprocess.run([tool, "model", "--json", case.name()], check=True, capture_output=True, text=True)
        of_case = json.loads(done.stdout)["cases"][0]
        found[level] = {
            f["formulation"]: (f["elements_read"] + f["elements_written"]) / of_case["elements"]
            for f in of_case["formulations"]
        }
    return found


def count_bytes(case: Case, method: str, what: str) -> dict[str, Any]:
    """Device memory traffic of one call by hardware counters, in units of x: this script again, under ncu."""
    metrics = ["dram__bytes_read.sum", "dram__bytes_write.sum"]
    child = [sys.executable, __file__, "--counted", json.dumps([asdict(case), method, what])]
    ncu = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base"]
    done = subprocess.run(
        [*ncu, "--metrics", ",".join(metrics), *child], capture_output=True, text=True, timeout=300, check=False
    )
    rows = [r for r in csv.DictReader(x for x in done.stdout.splitlines() if x.startswith('"')) if r.get("Metric Name")]
    if done.returncode or not rows:
        raise RuntimeError(f"ncu: exit {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    b, c, h, w = case.shape
    size = b * c * h * w * measure.DTYPES[case.dtype].itemsize
    read, written = (
        sum(float(r["Metric Value"].replace(",", "")) for r in rows if r["Metric Name"] == m) for m in metrics
    )
    return {"read": read / size, "written": written / size, "kernels": len(rows) // 2}


def counted(case: Case, method: str, what: str) -> None:
    """What runs under ncu."""
    x = torch.randn(case.shape, device="cuda", dtype=measure.DTYPES[case.dtype], requires_grad=True)
    module, dy = layer(method, case, "cuda"), torch.randn_like(x)
    call = measure.forward(module, x.detach()) if what == "forward" else measure.step(module, x, dy)
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def convolutions(kernel: int) -> list[str]:
    return [f"{kind} {k}" for k in sorted({kernel, 7}) for kind in ("depthwise", "dense")]


def work(options: argparse.Namespace, store: Store) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, what to do), the most telling first; what is in the store already does nothing."""
    first, *others = options.shapes
    kernels, dtypes, levels = options.kernels, options.dtypes, options.levels
    deepest, parts = max(levels), options.parts

    def layers(shape, dtype, kernel, level):
        case = Case(shape, dtype, kernel, level)
        methods = ["plain", "wtconv", *convolutions(kernel)]
        return f"layers {case.name()}", lambda: time_layers(case, methods, options, store)

    def agreement(shape, dtype, kernel, level):
        case = Case(shape, dtype, kernel, level)
        key = case.key("wtconv", "agreement")

        def run():
            if key not in store:
                store.add(key, errors=agree(case, "wtconv", options))

        return f"agreement {case.name()}", run

    def ablation(dtype, kernel, level):
        case = Case(first, dtype, kernel, level)
        methods = ["plain", *ablation_methods(options.device)]
        return f"ablation {case.name()}", lambda: time_layers(case, methods, options, store)

    def compiled(dtype, kernel, level):
        case = Case(first, dtype, kernel, level)
        return f"compiled {case.name()}", lambda: time_layers(case, ["compiled"], options, store)

    def traffic(method, what, level):
        case = Case(first, "fp32", kernels[0], level)
        key = case.key(method, f"traffic of {what}")

        def run():
            if key not in store:
                store.add(key, counted=count_bytes(case, method, what))

        return f"traffic {case.name()} {method} {what}", run

    if "agreement" in parts:
        published, many = options.agreement_shapes
        yield from (agreement(many, d, k, deepest) for k in kernels for d in dtypes)
        yield from (agreement(published, d, k, level) for k in kernels for d in dtypes for level in levels)
    if "layers" in parts:
        yield from (layers(first, d, kernels[0], level) for d in dtypes for level in reversed(levels))
    if "ablation" in parts:
        yield from (ablation(dtypes[0], kernels[0], level) for level in reversed(levels))
    if "layers" in parts:
        yield from (layers(first, d, k, level) for k in kernels[1:] for d in dtypes for level in reversed(levels))
        for dtype in dtypes:
            for kernel in kernels:
                yield from (layers(s, dtype, kernel, level) for level in reversed(levels) for s in others)
    if "ablation" in parts:
        yield from (ablation(d, k, level) for d in dtypes for k in kernels for level in reversed(levels))
    if "compiled" in parts:
        yield from (compiled(d, k, deepest) for k in kernels for d in dtypes)
        yield from (compiled(d, k, level) for k in kernels for d in dtypes for level in reversed(levels))
    if "traffic" in parts:
        if options.device == "cuda" and shutil.which("ncu"):
            methods = ["wtconv", *ablation_methods("cuda")[:4], "plain"]
            yield from (traffic(m, what, deepest) for m in methods for what in PASSES)
        else:
            tqdm.write("skipped: traffic by counters; it needs a GPU and ncu")


def parser() -> argparse.ArgumentParser:
    p = measure.parser(__doc__, "out/paper")
    p.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    p.add_argument("--shapes", nargs="+", metavar="BxCxHxW", help="default: the published sweep, 8x64x256x256 first")
    p.add_argument("--kernels", nargs="+", type=int, default=[5, 3])
    p.add_argument("--levels", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    p.add_argument("--seconds", type=float, default=0.5, help="for each layer and pass, default %(default)s")
    p.add_argument("--rounds", type=int, default=50, help="at most, default %(default)s")
    p.add_argument("--tool", type=Path, help="the wtconv tool, for the I/O model")
    p.add_argument("--counted", help=argparse.SUPPRESS)  # under ncu
    return p


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.counted:
        case, method, what = json.loads(options.counted)
        return counted(Case(**case), method, what)
    results = options.out / "results.jsonl"
    options.agreement_shapes = [(2, 32, 64, 64), (64, 16, 56, 56)]  # the published one, and one of long sums
    if options.smoke:
        vars(options).update(SMOKE, agreement_shapes=[(1, 4, 32, 32), (8, 4, 28, 28)], rounds=5, seconds=0.0)
        options.parts = [part for part in options.parts if part != "compiled"]  # takes minutes
    options.shapes = [tuple(map(int, s.split("x"))) for s in options.shapes] if options.shapes else SWEEP
    if bad := [s for s in options.shapes if len(s) != 4]:
        raise SystemExit(f"--shapes takes BxCxHxW, such as 8x64x256x256, got {'x'.join(map(str, bad[0]))}")
    if options.report:
        return report.write(Store(results, {}), options.out, io_model(options))
    store = Store(results, measure.about(options.device), options.fresh)
    budget = measure.Budget(options.budget)
    jobs, attempt = list(work(options, store)), measure.Attempts()
    with tqdm(jobs, unit="case", dynamic_ncols=True) as bar:
        for name, run in bar:
            if budget.is_spent():
                tqdm.write(f"the budget of {options.budget:g} s is spent before {name}; run again for the rest")
                break
            bar.set_description(name)
            attempt(name, run)
            if options.device == "cuda":
                torch.cuda.empty_cache()
    report.write(store, options.out, io_model(options))
    attempt.finish()


if __name__ == "__main__":
    main()
