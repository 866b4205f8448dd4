"""Whole networks: WTConvNeXt against ConvNeXt (timm), inference and training step, and what dominates in them.

    python bench/network/run.py --device cuda --out docs/results/h200/network    measures what is missing, then reports
    python bench/network/run.py --report --out docs/results/h200/network         reports what was measured
    python bench/network/run.py --profile --out docs/results/h200/network        time by kind of kernel, and every layout copy

A training step is a forward, cross-entropy, backward and an SGD update, as published; under fp16 autocast the loss is scaled
by a constant. Each group of networks is timed in turn, both layouts of both. OUT/results.jsonl holds every measurement; an
interrupted run goes on where it stopped. The most telling come first: --budget SECONDS cuts off the rest.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
import wtconv
import wtconv.networks  # registers wtconvnext_*
from torch import nn
from tqdm import tqdm
from wtconv import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import measure  # noqa: E402
from results import Store, about_runs, summary, table  # noqa: E402

PASSES = ("forward", "step")
SIZES = ("tiny", "small", "base")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
NAMES = {"convnext": "ConvNeXt", "wtconvnext": "WTConvNeXt", "plain": "WTConvNeXt on the plain layer"}
NAMES["transposed"] = "WTConvNeXt, the layer between two transpositions"
KINDS = tuple(NAMES)
# Images a second on an RTX A6000: compiled, fp32, batch 64 at 224.
PUBLISHED = {"forward": (1382.6, 421.3, 973.5), "step": (248.8, 165.8, 263.9)}
CLASSES = 1000


class Transposed(wtconv.WTConv2d):
    """The layer on contiguous images in a network of channels_last ones: what its kernels for these must not exceed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Setting:
    size: str = "tiny"
    batch: int = 64
    image: int = 224
    dtype: str = "fp32"  # fp16 and bf16: autocast
    compiled: bool = False

    def key(self, kind: str, layout: str, what: str) -> dict[str, Any]:
        return {"network": kind, "layout": layout, "pass": what} | vars(self)

    def name(self) -> str:
        return f"{self.size} {self.batch}x{self.image} {self.dtype}{' compiled' if self.compiled else ''}"


def network(kind: str, size: str, options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"num_classes": CLASSES} | ({"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)} if options.smoke else {})
    layers = {"plain": reference.WTConv2d, "transposed": Transposed}
    if kind in layers:
        arguments["wtconv_class"] = layers[kind]
    name = f"{'convnext' if kind == 'convnext' else 'wtconvnext'}_{size}"
    with torch.device(options.device):
        return timm.create_model(name, **arguments)


def autocast(dtype: str, device: str):
    return nullcontext() if dtype == "fp32" else torch.autocast(device, measure.DTYPES[dtype])


def calls_of(model: nn.Module, setting: Setting, layout: str, options: argparse.Namespace) -> dict[str, Callable]:
    """What is timed of a network: a forward in evaluation mode, a training step."""
    torch.manual_seed(1)
    shape = (setting.batch, 3, setting.image, setting.image)
    images = torch.randn(shape, device=options.device).contiguous(memory_format=LAYOUTS[layout])
    labels = torch.randint(CLASSES, (setting.batch,), device=options.device)
    trained, tested = model, copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], lr=1e-4)
    scale = 1024.0 if setting.dtype == "fp16" else 1.0
    if setting.compiled:
        trained, tested = (torch.compile(m, dynamic=False, backend=options.compiler) for m in (trained, tested))

    def forward():
        with torch.inference_mode(), autocast(setting.dtype, options.device):
            tested(images)

    def step():
        optimizer.zero_grad()
        with autocast(setting.dtype, options.device):
            loss = nn.functional.cross_entropy(trained(images), labels)
        (scale * loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"forward": forward, "step": step}


def check(size: str, image: int, options: argparse.Namespace) -> None:
    """The network gives what it gives on the plain layer, before anything is timed."""
    ours, plain = (network(kind, size, options).eval() for kind in ("wtconvnext", "plain"))
    measure.open_blocks(ours)
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, image, image, device=options.device)
    with torch.inference_mode(), measure.full_precision():
        a, b = ours(images), plain(images)
    error = ((a - b).norm() / b.norm()).item()
    if not error < 1e-5:
        raise SystemExit(f"WTConvNeXt differs from its twin on the plain layer: relative error {error:.3g}")


def time_networks(setting: Setting, kinds: tuple[str, ...], options: argparse.Namespace, store: Store) -> None:
    pairs = [(kind, layout) for kind in kinds for layout in options.layouts]
    missing = [(*pair, what) for pair in pairs for what in options.passes if setting.key(*pair, what) not in store]
    if not missing:
        return
    if setting.compiled:
        torch._dynamo.reset()
    prepared, failed = {}, set()
    for kind, layout in dict.fromkeys((kind, layout) for kind, layout, _ in missing):
        model = network(kind, setting.size, options).to(memory_format=LAYOUTS[layout])
        weights = sum(p.nbytes for p in model.parameters())
        for what, call in calls_of(model, setting, layout, options).items():
            if (kind, layout, what) not in missing:
                continue
            try:
                call()
                prepared[kind, layout, what] = (call, weights)
            except torch.cuda.OutOfMemoryError:
                failed.add((kind, layout, what))
    for kind, layout, what in failed:
        store.add(setting.key(kind, layout, what), failed="out of memory")
    pixels = 4 * 3 * setting.batch * setting.image**2
    for what in options.passes:
        calls = {key: call for key, (call, _) in prepared.items() if key[2] == what}
        if not calls:
            continue
        times = measure.in_turn(calls, options.device, options.seconds * len(calls), options.rounds, warm_up=2)
        for (kind, layout, _), call in calls.items():
            extra = measure.peak_bytes(call, options.device)
            peak = extra + prepared[kind, layout, what][1] + pixels
            ms = summary(times[kind, layout, what])
            rate = 1e3 * setting.batch / ms["median"]
            store.add(setting.key(kind, layout, what), ms=ms, images_per_s=rate, peak=peak, extra=extra)


def work(options: argparse.Namespace) -> Iterator[tuple[Setting, tuple[str, ...]]]:
    """The most telling first; what an earlier item measured is skipped."""
    both = ("convnext", "wtconvnext")
    first = Setting(options.sizes[0], options.batches[0], options.images[0])
    yield from ((replace(first, dtype=d), both) for d in options.dtypes)
    yield from ((replace(first, dtype=d), (*both, "transposed")) for d in options.dtypes)
    rest = [
        Setting(size, batch, image, dtype)
        for image in options.images
        for size in options.sizes
        for batch in options.batches
        for dtype in options.dtypes
    ]
    compiled = [replace(first, dtype=d, compiled=True) for d in options.dtypes] if options.compile else []
    yield from ((s, both) for s in (*compiled, *rest))
    yield from ((replace(first, dtype=d), KINDS) for d in options.dtypes)
    if options.compile:
        yield from ((replace(s, compiled=True), both) for s in rest)


def best(store: Store, setting: Setting, kind: str, what: str) -> dict[str, Any] | None:
    """A network in its fastest layout."""
    found = [store.get(setting.key(kind, layout, what)) for layout in LAYOUTS]
    found = [f for f in found if f and "ms" in f]
    return min(found, key=lambda f: f["ms"]["median"]) if found else None


def settings_of(store: Store) -> list[Setting]:
    found = {}
    for r in store.results:
        if r["key"]["pass"] in PASSES:
            found[Setting(**{k: r["key"][k] for k in vars(Setting())})] = None
    return sorted(
        found,
        key=lambda s: (s.compiled, SIZES.index(s.size), s.image, s.batch, ("fp32", "fp16", "bf16").index(s.dtype)),
    )


def name_of(kind: str, size: str) -> str:
    return NAMES[kind].replace("ConvNeXt", f"ConvNeXt-{size[0].upper()}", 1)


def network_table(store: Store, what: str) -> str:
    rows = []
    for setting in settings_of(store):
        against = best(store, setting, "convnext", what)
        for kind in KINDS:
            for layout in LAYOUTS:
                r = store.get(setting.key(kind, layout, what))
                if not r:
                    continue
                cells = [
                    f"{NAMES[kind]}-{setting.size[0].upper()}",
                    str(setting.batch),
                    str(setting.image),
                    setting.dtype,
                ]
                cells += [layout, "compiled" if setting.compiled else "eager"]
                if "failed" in r:
                    rows.append([*cells, r["failed"], "", "", "", ""])
                    continue
                t = r["ms"]
                ratio = f"{against['ms']['median'] / t['median']:.2f}" if against else ""
                rows.append([
                    *cells, f"{t['median']:.2f}", f"{t['q1']:.2f} to {t['q3']:.2f}", f"{r['images_per_s']:.1f}",
                    ratio, f"{r['peak'] / 2**20:.0f}",
                ])  # fmt: skip
    head = ["network", "batch", "image", "type", "layout", "mode", "ms", "quartiles", "images/s"]
    return table([*head, "against ConvNeXt", "peak, MiB"], rows)


def report(store: Store, out: Path) -> None:
    store.require_results()
    timed = [r for r in store.results if r["key"]["pass"] in PASSES]
    profiles = [r for r in store.results if "kinds" in r]
    lines = ["# Whole networks", "", about_runs(store.runs)]
    titles = {"forward": "Inference", "step": "Training step (forward, cross-entropy, backward, SGD update)"}
    for what in PASSES if timed else ():
        published = ", ".join(f"{NAMES[k]} {v:g}" for k, v in zip(("convnext", "plain", "wtconvnext"), PUBLISHED[what]))
        lines += ["", f"## {titles[what]}", "", network_table(store, what), ""]
        lines += [
            "`against ConvNeXt`: times faster than ConvNeXt of the same size in whichever layout is faster for it, same type and "
            f"mode. Published, images/s at batch 64, fp32, compiled, RTX A6000 (arXiv 2608.10805): {published}."
        ]
    for r in profiles:
        lines += ["", *profile_page(r)]
    text = "\n".join(lines) + "\n"
    (out / "report.md").write_text(text)
    print(text)
    print(f"written: {out / 'report.md'}")


# ---------------------------------------------------------------------------------------------------------------------
# Profile

# The innermost operator among its callers that names a kind decides: a copy that LayerNorm asks for is a copy.
OPERATORS = {
    "layer": ("wtconv::", "conv_depthwise", "_depthwise"),
    "cast": ("aten::_to_copy",),
    "LayerNorm": ("native_layer_norm",),
    "Linear": ("aten::addmm", "aten::mm", "aten::bmm", "aten::matmul", "aten::linear", "_linear"),
    "GELU": ("aten::gelu",),
    "scale and sum": ("aten::mul", "aten::add", "aten::sum", "aten::div"),
    "optimizer": ("Optimizer.", "aten::_foreach", "aten::_fused"),
}
COPIES = ("aten::copy_", "aten::clone", "aten::contiguous")


def kind_of(event) -> str:
    """Of a profiler's event, by its own name and its callers'."""
    at = event
    while at is not None:
        if at.name == "aten::copy_" and at.cpu_parent is not None and at.cpu_parent.name == "aten::addmm":
            return "Linear"  # its bias, spread over the rows of the result
        if at.name in COPIES and not any(parent.name == "aten::_to_copy" for parent in callers(at)):
            return "layout copies"
        if "convolution" in at.name and len(at.input_shapes or []) > 1:
            weights = [s for s in at.input_shapes if len(s) == 4 and s[1] == 1 and s[2] == s[3]]
            return "layer" if weights else "other convolutions"
        for kind, names in OPERATORS.items():
            if any(name in at.name for name in names):
                return kind
        at = at.cpu_parent
    return "other"


def callers(event) -> list:
    found, at = [], event.cpu_parent
    while at is not None:
        found.append(at)
        at = at.cpu_parent
    return found


def layouts_of_inputs(model: nn.Module, setting: Setting, layout: str, options: argparse.Namespace) -> dict[str, int]:
    """How many of the depthwise layers get their input in each layout."""
    seen: dict[str, int] = collections.Counter()

    def look(_, inputs):
        found = [n for n, f in LAYOUTS.items() if inputs[0].is_contiguous(memory_format=f)]
        seen[found[0] if len(found) == 1 else "both" if found else "other"] += 1

    hooks = [m.register_forward_pre_hook(look) for n, m in model.named_modules() if n.endswith("conv_dw")]
    calls_of(model, replace(setting, batch=2), layout, options)["step"]()
    for hook in hooks:
        hook.remove()
    return dict(seen)


def profile(kind: str, layout: str, setting: Setting, what: str, options: argparse.Namespace) -> dict[str, Any]:
    """{kind of kernel: ms}, layout copies as (asked for by, shape, number, ms), and in what layout inputs reach the layers."""
    model = network(kind, setting.size, options).to(memory_format=LAYOUTS[layout])
    call = calls_of(model, setting, layout, options)[what]
    seen = layouts_of_inputs(model, setting, layout, options)
    for _ in range(2):
        call()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if options.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, record_shapes=True) as recorded:
        call()
        if options.device == "cuda":
            torch.cuda.synchronize()
    times: dict[str, float] = collections.defaultdict(float)
    copies: dict[tuple, list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for event in recorded.events():
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue
        us = event.self_device_time_total if options.device == "cuda" else event.self_cpu_time_total
        if us <= 0:
            continue
        found = kind_of(event)
        times[found] += us / 1e3
        if found == "layout copies" and event.name == "aten::copy_":
            names = [e.name for e in callers(event) if e.name not in (*COPIES, "aten::to")]
            shape = tuple((event.input_shapes or [[]])[0])
            entry = copies[names[0] if names else "the network itself", shape]
            entry[0] += 1
            entry[1] += us / 1e3
    found = sorted(copies.items(), key=lambda item: -item[1][1])
    return {
        "kinds": dict(sorted(times.items(), key=lambda item: -item[1])),
        "inputs": seen,
        "copies": [[asked, list(shape), int(n), ms] for (asked, shape), (n, ms) in found],
    }


def profile_page(r: dict[str, Any]) -> list[str]:
    key, total = r["key"], sum(r["kinds"].values())
    mode = f"{key['layout']}, batch {key['batch']} at {key['image']}, {key['dtype']}"
    lines = [f"## Profile: {name_of(key['network'], key['size'])}, {key['pass'].split()[-1]}, {mode}", ""]
    rows = [[kind, f"{ms:.3f}", f"{100 * ms / total:.1f}"] for kind, ms in r["kinds"].items()]
    seen = ", ".join(f"{n} {name}" for name, n in r["inputs"].items())
    lines += [
        table(["kind", "ms", "% of all"], rows),
        "",
        f"Layout in which inputs reach the depthwise layers: {seen}.",
        "",
    ]
    if r["copies"]:
        rows = [[asked, "x".join(map(str, shape)), str(n), f"{ms:.3f}"] for asked, shape, n, ms in r["copies"][:20]]
        lines += [table(["layout copy asked for by", "shape", "number", "ms"], rows)]
    else:
        lines += ["No layout copies."]
    return lines


# ---------------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = measure.parser(__doc__, "out/network")
    p.add_argument("--profile", action="store_true", help="profile the first setting instead of timing")
    p.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    p.add_argument("--batches", nargs="+", type=int, default=[64, 1, 256], help="the first is measured first")
    p.add_argument("--images", nargs="+", type=int, default=[224, 384])
    p.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    p.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES))
    p.add_argument("--no-compile", dest="compile", action="store_false", help="eager only")
    p.add_argument("--seconds", type=float, default=1.0, help="for each network and pass, default %(default)s")
    p.add_argument("--rounds", type=int, default=30, help="at most, default %(default)s")
    return p


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    results = options.out / "results.jsonl"
    if options.report:
        return report(Store(results, {}), options.out)
    if options.smoke:
        vars(options).update(sizes=["tiny"], batches=[2], images=[32], dtypes=["fp32", "bf16"], rounds=5, seconds=0.0)
        options.compile = False
    store = Store(results, measure.about(options.device), options.fresh)
    budget, attempt = measure.Budget(options.budget), measure.Attempts()
    if options.profile:
        setting = Setting(options.sizes[0], options.batches[0], options.images[0])
        jobs = [
            (replace(setting, dtype=d), kind, layout, what)
            for d in options.dtypes
            for what in options.passes
            for kind in ("wtconvnext", "convnext")
            for layout in options.layouts
        ]
        for setting, kind, layout, what in tqdm(jobs, unit="profile", dynamic_ncols=True):
            key = setting.key(kind, layout, f"profile of {what}")
            if key not in store and not budget.is_spent():
                job = functools.partial(profile, kind, layout, setting, what, options)
                attempt(f"profile of {kind} {layout} {what}", lambda job=job, key=key: store.add(key, **job()))
    else:
        check(options.sizes[0], options.images[0], options)
        jobs = list(dict.fromkeys(work(options)))
        with tqdm(jobs, unit="setting", dynamic_ncols=True) as bar:
            for setting, kinds in bar:
                if budget.is_spent():
                    tqdm.write(
                        f"the budget of {options.budget:g} s is spent before {setting.name()}; run again for the rest"
                    )
                    break
                bar.set_description(setting.name())
                attempt(setting.name(), functools.partial(time_networks, setting, kinds, options, store))
                if options.device == "cuda":
                    torch.cuda.empty_cache()
    report(store, options.out)
    attempt.finish()


if __name__ == "__main__":
    main()
