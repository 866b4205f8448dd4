"""Looks for shapes where the layer is slower than what it replaces, and for promises of speed that it breaks.

    python bench/sweep.py --device cuda --out docs/results/h200 --budget 180    measures what is missing, then reports
    python bench/sweep.py --report --out docs/results/h200                      reports what was measured

Families: `sweep` (8 images, 32 to 128 channels of 128 to 512 pixels, 1 to 5 levels), `stages` (of the standard networks, 1 to
256 images), `random` (60 shapes: odd, prime, thin). Forward and training step, eager, against one depthwise k x k
convolution, in turn; small shapes in a CUDA graph too, where Python costs nothing; apart from these, with few repeats, the
plain layer. `checks` are promises with a limit. OUT/sweep.jsonl holds every measurement, and an interrupted run goes on where
it stopped; OUT/sweep.md is made of it. Families take turns, so that --budget SECONDS cuts off a part of each.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import wtconv
from torch import Tensor, nn
from tqdm import tqdm
from wtconv import reference

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # noqa: E402
from results import Store, about_runs, summary, table  # noqa: E402

PASSES = ("forward", "step")
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1e-1}
ROTATED, GRAPHED = 150 << 20, 16 << 20  # bytes of x: of all inputs that take turns; up to which a graph is timed too
STAGES = [(96, 56, 5), (192, 28, 4), (384, 14, 3), (768, 7, 2)]  # channels, height = width, levels
RANDOM = 60


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int, int, int]
    kernel: int
    levels: int
    dtype: str = "fp32"

    def name(self) -> str:
        b, c, h, w = self.shape
        return f"n{b}c{c}h{h}w{w}k{self.kernel}l{self.levels}_{self.dtype.replace('fp', 'f')}"

    def bytes(self) -> int:
        return math.prod(self.shape) * measure.DTYPES[self.dtype].itemsize


def random_cases(count: int, largest: int) -> list[Case]:
    """The same at every call: thin ones first, then sides that are odd, prime or anything, up to so many elements."""
    draw = random.Random(5)
    thin = [(8, 32, 5, 1000), (64, 256, 1, 1), (8, 32, 1000, 5), (4, 64, 1, 777), (2, 16, 2048, 3), (16, 48, 2, 2)]
    found = [Case(s, (3, 5, 7)[i % 3], 1 + i % 5) for i, s in enumerate(s for s in thin if math.prod(s) <= largest)]
    primes = [n for n in range(2, 400) if all(n % d for d in range(2, n))]
    sides = [lambda: draw.choice(primes), lambda: 2 * draw.randrange(1, 150) + 1, lambda: draw.randrange(1, 300)]
    while len(found) < count:
        shape = (draw.randrange(1, 65), draw.randrange(1, 257), draw.choice(sides)(), draw.choice(sides)())
        if math.prod(shape) <= largest:
            found.append(Case(shape, draw.choice((3, 5, 7)), draw.randrange(1, 6)))
    return found[:count]


def families(smoke: bool) -> dict[str, list[Case]]:
    if smoke:
        stages = [Case((2, 4, h, h), 5, levels) for _, h, levels in STAGES[2:]]
        return {"sweep": [Case((1, 2, 32, 32), 3, 2)], "stages": stages, "random": random_cases(3, 1 << 14)}
    sides, channels, levels = (128, 256, 512), (32, 64, 128), range(1, 6)
    return {
        "sweep": [Case((8, c, h, h), k, n) for c in channels for h in sides for n in levels for k in (3, 5)],
        "stages": [Case((b, c, h, h), k, n) for b in (1, 8, 64, 256) for c, h, n in STAGES for k in (3, 5)],
        "random": random_cases(RANDOM, 1 << 26),
    }


class Setting:
    """A case's layer and rotating inputs. Layouts are those of memory, x and dy alike."""

    def __init__(self, case: Case, device: str, layout: Callable[[Tensor], Tensor] = Tensor.contiguous):
        torch.manual_seed(2)
        self.case, self.dtype = case, measure.DTYPES[case.dtype]
        count = max(1, min(8, ROTATED // max(case.bytes(), 1)))
        made = [torch.randn(case.shape, device=device, dtype=self.dtype) for _ in range(2 * count)]
        self.xs = [layout(t).detach().requires_grad_() for t in made[:count]]
        self.dys = [layout(t) for t in made[count:]]
        self.device, self.layer = device, None

    def ours(self) -> nn.Module:
        """Checked on one image's first channels against the plain layer."""
        if self.layer is None:
            c = self.case.shape[1]
            self.layer = wtconv.WTConv2d(c, c, self.case.kernel, wt_levels=self.case.levels).to(self.device, self.dtype)
            few = min(c, 2)
            plain = self.plain(few)
            with torch.no_grad():
                state = self.layer.state_dict()
                for name, mine in plain.state_dict().items():
                    mine.copy_(state[name][tuple(slice(n) for n in mine.shape)])
            with torch.inference_mode(), measure.full_precision():
                y, expected = self.layer(self.xs[0])[:1, :few].float(), plain(self.xs[0][:1, :few]).float()
            error = ((y - expected).norm() / expected.norm()).item()
            if not error < TOLERANCE[self.case.dtype]:
                raise ValueError(f"{self.case.name()}: relative error {error:.3g}")
        return self.layer

    def plain(self, channels: int | None = None) -> nn.Module:
        c = channels or self.case.shape[1]
        layer = reference.WTConv2d(c, c, self.case.kernel, wt_levels=self.case.levels)
        return layer.to(self.device, self.dtype)

    def depthwise(self) -> nn.Module:
        c = self.case.shape[1]
        return nn.Conv2d(c, c, self.case.kernel, padding="same", groups=c).to(self.device, self.dtype)

    def calls(self, layer: nn.Module, what: str) -> list[Callable[[], None]]:
        if what == "forward":
            return [measure.forward(layer, x.detach()) for x in self.xs]
        return [measure.step(layer, x, dy) for x, dy in zip(self.xs, self.dys)]


def time_layers(case: Case, options: argparse.Namespace, store: Store) -> None:
    """Ours and depthwise k x k in turn; small cases in a graph too."""
    ways = ["eager"] + (["graph"] if options.device == "cuda" and case.bytes() <= GRAPHED else [])
    keys = {(way, what): {"case": case.name(), "against": "depthwise", "way": way, "pass": what}
            for way in ways for what in PASSES}  # fmt: skip
    if all(key in store for key in keys.values()):
        return
    setting = Setting(case, options.device)
    layers = {"ours": setting.ours(), "other": setting.depthwise()}
    contenders, calls_in = {}, {}
    for way, what in keys:
        for who, layer in layers.items():
            calls = setting.calls(layer, what)
            calls_in[way, what, who] = len(calls) if way == "graph" else 1
            contenders[way, what, who] = measure.graphed(calls) if way == "graph" else measure.alternating(calls)
    times = measure.in_turn(contenders, options.device, options.seconds, options.rounds, block_ms=options.block_ms)
    for (way, what), key in keys.items():
        ms = {who: summary([t / calls_in[way, what, who] for t in times[way, what, who]]) for who in layers}
        store.add(key, bytes=case.bytes(), ms=ms)


def time_plain(case: Case, options: argparse.Namespace, store: Store) -> None:
    """The plain layer, 10 to 50 times slower: few calls, of one input. Ours beside it, as often."""
    keys = {what: {"case": case.name(), "against": "plain", "way": "eager", "pass": what} for what in PASSES}
    if all(key in store for key in keys.values()):
        return
    setting = Setting(case, options.device)
    layers = {"ours": setting.ours(), "other": setting.plain()}
    for what, key in keys.items():
        contenders = {who: setting.calls(layer, what)[0] for who, layer in layers.items()}
        try:
            times = measure.in_turn(contenders, options.device, seconds=0.0, least=3)
        except torch.cuda.OutOfMemoryError:
            store.add(key, failed="out of memory")
            continue
        store.add(key, bytes=case.bytes(), ms={who: summary(t) for who, t in times.items()})


# ---------------------------------------------------------------------------------------------------------------------
# Checks: a value that must not pass a limit.

CHECKS = {  # name: (title, unit)
    "channels-last": ("channels-last over contiguous", ""),
    "16-bit types": ("the slower of fp16 and bf16 over the other", ""),
    "strided": ("strided input over contiguous and one copy", ""),
    "from Python": ("step of a small plane from Python", " ms"),
    "graph": ("step of a small plane in a CUDA graph over its kernels' times", ""),
    "launches": ("kernels", ""),
}
STRIDED = {  # from dense images to views as large: how much wider, and what is seen
    "slice": ((2, 2), lambda t: t[:, :, 1:-1, 1:-1]),
    "every other column": ((0, None), lambda t: t[..., ::2]),
    "transposed": ((0, 0), lambda t: t.transpose(2, 3)),
}


def strided(view: str, t: Tensor) -> Tensor:
    """The same numbers, elsewhere."""
    (more_rows, more_columns), see = STRIDED[view]
    b, c, h, w = t.shape
    if view == "transposed":
        h, w = w, h
    wide = 2 * w if more_columns is None else w + more_columns
    return see(t.new_zeros(b, c, h + more_rows, wide)).copy_(t)


def ratios(settings: dict[str, Setting], what: str, options: argparse.Namespace, **more: Callable) -> dict[str, float]:
    """Median milliseconds of each, in turn."""
    calls = {name: measure.alternating(s.calls(s.ours(), what)) for name, s in settings.items()} | more
    times = measure.in_turn(calls, options.device, options.seconds, options.rounds, block_ms=options.block_ms)
    return {name: summary(t)["median"] for name, t in times.items()}


def check_layouts(case: Case, what: str, options: argparse.Namespace) -> tuple[float, dict]:
    to_last = partial(Tensor.contiguous, memory_format=torch.channels_last)
    settings = {"contiguous": Setting(case, options.device)}
    settings["channels-last"] = Setting(case, options.device, to_last)
    ms = ratios(settings, what, options)
    return ms["channels-last"] / ms["contiguous"], ms


def check_types(case: Case, what: str, options: argparse.Namespace) -> tuple[float, dict]:
    settings = {dtype: Setting(replace(case, dtype=dtype), options.device) for dtype in ("fp16", "bf16")}
    ms = ratios(settings, what, options)
    return max(ms.values()) / min(ms.values()), ms


def check_strided(view: str, case: Case, what: str, options: argparse.Namespace) -> tuple[float, dict]:
    settings = {"contiguous": Setting(case, options.device), "strided": Setting(case, options.device)}
    s = settings["strided"]
    s.xs = [strided(view, x.detach()).requires_grad_() for x in s.xs]
    copies = measure.alternating([x.detach().contiguous for x in s.xs])
    ms = ratios(settings, what, options, copy=copies)
    return ms["strided"] / (ms["contiguous"] + ms["copy"]), ms


def check_python(case: Case, options: argparse.Namespace) -> tuple[float, dict]:
    ms = ratios({"step": Setting(case, options.device)}, "step", options)
    return ms["step"], ms


def check_graph(case: Case, options: argparse.Namespace) -> tuple[float, dict]:
    setting = Setting(case, options.device)
    calls = setting.calls(setting.ours(), "step")
    replay = measure.graphed(calls)
    times = measure.in_turn(
        {"graph": replay}, options.device, options.seconds, options.rounds, block_ms=options.block_ms
    )
    kernels = sum(us for _, us in measure.kernels(lambda: [call() for call in calls])) / 1e3
    ms = {"graph": summary(times["graph"])["median"] / len(calls), "kernels": kernels / len(calls)}
    return ms["graph"] / ms["kernels"], ms


def check_launches(case: Case, what: str, options: argparse.Namespace) -> tuple[float, dict]:
    """In all that the GPU does: copies and fills count."""
    setting = Setting(case, options.device)
    call = setting.calls(setting.ours(), what)[0]
    call()
    found = measure.kernels(call)
    return len(found), {"names": sorted({name for name, _ in found})}


def checks(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], float, Callable[[], tuple[float, dict]]]]:
    """(key, limit, what to do)"""
    images = 2 if options.smoke else 64
    stages = [Case((images, c if not options.smoke else 8, h, h), 5, n) for c, h, n in STAGES]
    large = Case((1, 2, 64, 64) if options.smoke else (8, 64, 256, 256), 5, 3)
    if options.smoke:
        stages = stages[2:]
    small = [s for s in stages if s.shape[2] <= 14]

    def one(name: str, case: Case, limit: float, run: Callable, **more: str) -> tuple:
        return {"check": name, "case": case.name(), **more}, limit, run

    for what in PASSES:
        for case in [*stages, large]:
            for dtype in options.dtypes:
                if dtype != "bf16":
                    typed = replace(case, dtype=dtype)
                    run = partial(check_layouts, typed, what, options)
                    yield one("channels-last", typed, 1.15, run, **{"pass": what})
            if {"fp16", "bf16"} <= set(options.dtypes):
                typed = replace(case, dtype="bf16")
                yield one("16-bit types", typed, 1.05, partial(check_types, case, what, options), **{"pass": what})
        for case in (stages[0], large):
            for view in STRIDED:
                run = partial(check_strided, view, case, what, options)
                yield one("strided", case, 1.0, run, view=view, **{"pass": what})
    if options.device != "cuda":
        tqdm.write(
            "skipped: what a small plane's step costs from Python and in a graph, and its launches; they need a GPU"
        )
        return
    for case in small:
        for dtype in options.dtypes:
            typed = replace(case, dtype=dtype)
            yield one("from Python", typed, 0.25, partial(check_python, typed, options))
            yield one("graph", typed, 1.3, partial(check_graph, typed, options))
            for what, most in (("forward", 2), ("step", 5)):
                run = partial(check_launches, typed, what, options)
                yield one("launches", typed, most, run, **{"pass": what})


# ---------------------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace, store: Store) -> list[tuple[str, Callable[[], None]]]:
    """(name, what to do): checks, then a part of every family by turns; the plain layer's 16-bit types last."""

    def check(key, limit, run):
        def work():
            if key not in store:
                value, figures = run()
                store.add(key, value=value, limit=limit, figures=figures)

        return " ".join(key.values()), work

    jobs: list[tuple[float, str, Callable[[], None]]] = []
    for cases in families(options.smoke).values():
        typed = [replace(c, dtype=d) for c in cases for d in options.dtypes]
        halves = [[c for c in typed if (c.dtype == "fp32") == early] for early in (True, False)]
        for how, lists in ((time_layers, [typed]), (time_plain, halves)):
            for late, chosen in enumerate(lists):
                random.Random(1).shuffle(chosen)
                for i, case in enumerate(chosen):
                    name = f"{case.name()} {how.__name__.removeprefix('time_')}"
                    jobs.append((late + (i + 0.5) / len(chosen), name, partial(how, case, options, store)))
    jobs.sort(key=lambda job: job[0])
    return [check(*c) for c in checks(options)] + [job[1:] for job in jobs]


def worst(store: Store, against: str, way: str, what: str) -> list[str]:
    """A section: how often ours is faster, and where it is slowest beside the other."""
    name = {"depthwise": "depthwise k x k", "plain": "the plain layer"}[against]
    title = f"## {what.capitalize()}{' in a CUDA graph' if way == 'graph' else ''} against {name}"
    key = {"against": against, "way": way, "pass": what}
    of_key = [r for r in store.results if key.items() <= r["key"].items()]
    found = sorted((r for r in of_key if "ms" in r), key=faster)
    if not found:
        return []
    slower, failed = sum(faster(r) < 1 for r in found), len(of_key) - len(found)
    counts = f"{len(found)} cases, {slower} of them slower" + (f", {failed} more out of memory" if failed else "")
    lines = ["", title, "", f"{counts}. The worst ten:", ""]
    rows = [[r["key"]["case"], f"{r['ms']['ours']['median']:.4f}", f"{r['ms']['other']['median']:.4f}", f"{faster(r):.2f}"]
            for r in found[:10]]  # fmt: skip
    return [*lines, table(["case", "ours, ms", f"{name}, ms", "times faster"], rows)]


def faster(record: dict[str, Any]) -> float:
    return record["ms"]["other"]["median"] / record["ms"]["ours"]["median"]


def check_rows(store: Store) -> list[list[str]]:
    rows = []
    for name, (title, unit) in CHECKS.items():
        of_name = [r for r in store.results if r["key"].get("check") == name]
        for limit in sorted({r["limit"] for r in of_name}):
            found = sorted((r for r in of_name if r["limit"] == limit), key=lambda r: r["value"], reverse=True)
            broken, first = sum(r["value"] > limit for r in found), found[0]
            where = " ".join(v for k, v in first["key"].items() if k != "check")
            passes = {r["key"].get("pass", "") for r in found}
            what = f"{title}, {' and '.join(sorted(passes))}" if passes != {""} else title
            verdict = "pass" if not broken else f"FAIL in {broken} of {len(found)}"
            rows.append([what, f"{limit:g}{unit}", f"{first['value']:.3g}{unit}", where, verdict])
    return rows


def write_report(store: Store, out: Path) -> None:
    store.require_results()
    keys = {"checks": sum("check" in r["key"] for r in store.results)}
    keys["cases"] = len({(r["key"]["case"], r["key"]["against"]) for r in store.results if "against" in r["key"]})
    lines = ["# Shapes where the layer could be slower, and checks", "", about_runs(store.runs), ""]
    measured = f"{keys['cases']} comparisons of a case and {keys['checks']} checks"
    lines += [f"{measured}; {store.runs[-1]['planned']} were planned. Times are medians.", ""]
    lines += ["## Checks", "", table(["what", "limit", "worst", "where", "verdict"], check_rows(store))]
    for against, way in (("depthwise", "eager"), ("depthwise", "graph"), ("plain", "eager")):
        for what in PASSES:
            lines += worst(store, against, way, what)
    text = "\n".join(lines) + "\n"
    (out / "sweep.md").write_text(text)
    print(text)
    print(f"written: {out / 'sweep.md'}")


def parser() -> argparse.ArgumentParser:
    p = measure.parser(__doc__, "out/sweep")
    p.add_argument(
        "--seconds", type=float, default=0.05, help="for the rounds of a case, default %(default)s; 5 at least"
    )
    p.add_argument("--rounds", type=int, default=30, help="at most, default %(default)s")
    return p


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    options.block_ms = 5.0 if options.device == "cuda" else 0.0
    results = options.out / "sweep.jsonl"
    if options.report:
        return write_report(Store(results, {}), options.out)
    store = Store(results, measure.about(options.device), options.fresh)
    jobs, attempt, budget = work(options, store), measure.Attempts(), measure.Budget(options.budget)
    store.about["planned"] = len(jobs)
    with tqdm(jobs, unit="case", dynamic_ncols=True) as bar:
        for name, run in bar:
            if budget.is_spent():
                tqdm.write(f"the budget of {options.budget:g} s is spent before {name}; run again for the rest")
                break
            bar.set_description(name)
            attempt(name, run)
            if options.device == "cuda" and torch.cuda.memory_reserved() > 16 << 30:
                torch.cuda.empty_cache()
    write_report(store, options.out)
    attempt.finish()


if __name__ == "__main__":
    main()
