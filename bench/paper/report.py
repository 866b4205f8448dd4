"""Tables and pictures of bench/paper, made of results.jsonl alone."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from results import Store, about_runs, table  # noqa: E402

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
OURS = "WTConv, this library"
NAMES = {"plain": "WTConv, plain PyTorch", "compiled": "WTConv, plain PyTorch, torch.compile", "wtconv": OURS}
SWITCHES = {"recompute_analysis": "+ analysis recomputed", "collapse_synthesis": "+ synthesis in one pass"}
SWITCHES |= {"fold_scales": "+ scales folded"}


class Results:
    """Measurements of layers by method, pass and case."""

    def __init__(self, store: Store):
        self.layers = [r for r in store.results if r["key"]["pass"] in ("forward", "step") and "ms" in r]
        self.failed = [r for r in store.results if "failed" in r]
        self._found = {self._name(r["key"]): r for r in self.layers}

    @staticmethod
    def _name(key: dict[str, Any]) -> tuple:
        return (key["method"], key["pass"], key["dtype"], *key["shape"], key.get("k"), key.get("L"))

    def get(self, method: str, what: str, dtype: str, shape: Iterable[int], k: int, level: int) -> dict | None:
        is_plain_convolution = method.startswith(("depthwise", "dense"))
        k, level = (None, None) if is_plain_convolution else (k, level)
        return self._found.get((method, what, dtype, *shape, k, level))

    def values(self, name: str) -> list:
        found = {r["key"][name] if name != "shape" else tuple(r["key"][name]) for r in self.layers if name in r["key"]}
        return sorted(found, key=lambda v: ("fp32", "fp16", "bf16").index(v) if name == "dtype" else v)

    def ratios(self, method: str, what: str, quantity: str, dtype: str, k: int, level: int) -> list[float]:
        """For every shape where both were measured: plain / method for ms, method / plain for peak."""
        found = []
        for shape in self.values("shape"):
            mine = self.get(method, what, dtype, shape, k, level)
            plain = self.get("plain", what, dtype, shape, k, level)
            if mine and plain:
                if quantity == "ms":
                    found.append(plain["ms"]["median"] / mine["ms"]["median"])
                else:
                    found.append(mine["peak"] / plain["peak"])
        return found


def mean(ratios: list[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.2f}" if ratios else ""


def number_of(counts: list[int]) -> str:
    counts = [n for n in counts if n]
    if not counts:
        return "0"
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def relative_table(results: Results, what: str, quantity: str, k: int) -> str | None:
    levels = results.values("L")
    published = PUBLISHED[f"{what} {'speedup' if quantity == 'ms' else 'memory'}"].get(str(k), {})
    rows = []
    for dtype in results.values("dtype"):
        for method in (
            *(f"{kind} {size}" for size in sorted({k, 7}) for kind in ("depthwise", "dense")),
            "compiled",
            "wtconv",
        ):
            found = [results.ratios(method, what, quantity, dtype, k, level) for level in levels]
            if not any(found):
                continue
            theirs = published.get(method, {}).get(dtype, [])
            cells = [
                mean(r) + (f" ({theirs[level - 1]:.2f})" if r and level <= len(theirs) else "")
                for level, r in zip(levels, found)
            ]
            rows.append(
                [NAMES.get(method, method + f"x{method.split()[-1]}"), dtype, *cells, number_of([*map(len, found)])]
            )
        if rows and (theirs := published.get("fused", {}).get(dtype)):
            cells = [f"({theirs[level - 1]:.2f})" if level <= len(theirs) else "" for level in levels]
            rows.append(["WTConv, fused, as published", dtype, *cells, "(9)"])
    return table(["layer", "type", *(f"L = {level}" for level in levels), "shapes"], rows) if rows else None


def ablation_rows(results: Results) -> list[tuple[str, str]]:
    """(method, what to call it), in the order of the published table."""
    methods = {r["key"]["method"] for r in results.layers}
    based = sorted((m for m in methods if m.startswith(("unfused", "cuda-unfused"))), key=lambda m: m.count("+"))
    rows = [("plain", NAMES["plain"])] if based else []
    for method in based:
        base, *switches = method.split("+")
        rows.append((method, SWITCHES[switches[-1]] if switches else f"backend `{base}`, no reformulation"))
    rows += [(m, f"backend `{m}`, one pass") for m in ("cpu", "cuda") if m in methods]
    return rows


def ablation_table(results: Results, quantity: str, what: str, dtype: str, k: int) -> str | None:
    levels = results.values("L")
    published = PUBLISHED["ablation"].get(f"{what} {'speedup' if quantity == 'ms' else 'memory'}", {})
    rows, last = [], None
    for method, name in ablation_rows(results):
        found = [results.ratios(method, what, quantity, dtype, k, level) for level in levels]
        if not any(found):
            continue
        theirs = published.get(method.split("+")[-1], []) if "+" in method and (dtype, k) == ("fp32", 5) else []
        cells = [
            mean(r) + (f" ({theirs[level - 1]:.2f})" if r and level <= len(theirs) else "")
            for level, r in zip(levels, found)
        ]
        rows.append([name, *cells])
        last = method
    return table(["layer", *(f"L = {level}" for level in levels)], rows) if rows and last != "plain" else None


def absolute_table(results: Results, shape: tuple, dtype: str, k: int, level: int) -> str | None:
    published = PUBLISHED["absolute"] if (shape, dtype, k, level) == ((8, 64, 256, 256), "fp32", 3, 3) else {}
    methods = ["plain", "compiled", *(m for m, _ in ablation_rows(results)[1:])]
    methods += [f"{kind} {size}" for size in sorted({k, 7}) for kind in ("depthwise", "dense")] + ["wtconv"]
    rows = []
    for method in methods:
        name = {m: n for m, n in ablation_rows(results)}.get(method) or NAMES.get(
            method, f"{method}x{method.split()[-1]}"
        )
        cells = []
        for what in ("forward", "step"):
            found = results.get(method, what, dtype, shape, k, level)
            if not found:
                cells += ["", "", ""]
                continue
            t = found["ms"]
            cells += [f"{t['median']:.3f}", f"{t['q1']:.3f} to {t['q3']:.3f}", f"{t['min']:.3f} to {t['max']:.3f}"]
        peaks = [results.get(method, what, dtype, shape, k, level) for what in ("forward", "step")]
        cells += [f"{p['peak'] / 2**20:.1f}" if p else "" for p in peaks]
        if published:
            theirs = published.get("fused" if method == "wtconv" else method)
            cells.append(" / ".join(f"{v:g}" for v in theirs) if theirs else "")
        if any(cells):
            rows.append([name, *cells])
    head = ["layer"]
    for what in ("forward", "step"):
        head += [f"{what}, ms", "quartiles", "extremes"]
    head += ["peak of a forward, MiB", "of a step"] + (["published: ms, ms, MiB"] if published else [])
    return table(head, rows) if rows else None


def agreement_table(store: Store) -> str | None:
    rows = []
    for r in store.results:
        if r["key"]["pass"] != "agreement":
            continue
        key, cells, worst = r["key"], [], 0.0
        for name in ("y", "dx", "dw", "ds"):
            e = r["errors"][name]
            cells.append(f"{e['ours']:.1e} / {e['plain']:.1e}, {e['worst tile']:.2f}")
            worst = max(worst, e["worst tile"])
        rows.append(
            [
                "x".join(map(str, key["shape"])),
                key["dtype"],
                str(key["k"]),
                str(key["L"]),
                *cells,
                "yes" if worst <= 2 else "NO",
            ]
        )
    return table(["x", "type", "k", "L", "y", "dx", "dw", "ds", "within twice"], rows) if rows else None


def traffic_table(store: Store, models: dict[int, dict[str, float]]) -> str | None:
    counted = [r for r in store.results if "counted" in r]
    parts = []
    if models:
        names = list(next(iter(models.values())))
        rows = [[f"L = {level}", *(f"{models[level][n]:.2f}" for n in names)] for level in sorted(models)]
        parts.append("By the I/O model:\n\n" + table(["", *names], rows))
    if counted:
        rows = [
            [r["key"]["method"], r["key"]["pass"].split()[-1], str(r["key"]["L"]), str(r["counted"]["kernels"])]
            + [f"{r['counted'][n]:.2f}" for n in ("read", "written")]
            for r in counted
        ]
        parts.append(
            "By hardware counters:\n\n" + table(["layer", "pass", "L", "kernels", "read / x", "written / x"], rows)
        )
    else:
        parts.append("No hardware counters in these results: they need a GPU and `ncu`.")
    return "\n\n".join(parts) if models or counted else None


def pictures(results: Results, out: Path) -> list[str]:
    """Names of the files written."""
    try:
        import matplotlib
    except ImportError:
        print("no pictures: matplotlib is not installed")
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    levels, kernels, written = results.values("L"), results.values("k"), []
    titles = {"ms": "times faster than the plain layer", "peak": "peak memory over that of the plain layer"}
    for quantity, file in (("ms", "latency.png"), ("peak", "memory.png")):
        figure, axes = pyplot.subplots(2, len(kernels), figsize=(5.5 * len(kernels), 7.5), squeeze=False, sharex=True)
        drawn = False
        for row, what in enumerate(("forward", "step")):
            for column, k in enumerate(kernels):
                axis = axes[row][column]
                axis.set_title(f"{what}, k = {k}")
                axis.set_ylabel(titles[quantity])
                for method in (f"depthwise {k}", "depthwise 7", "compiled", "wtconv"):
                    for dtype, style in zip(("fp32", "fp16", "bf16"), ("-", "--", ":")):
                        points = [(v, results.ratios(method, what, quantity, dtype, k, v)) for v in levels]
                        points = [(v, statistics.geometric_mean(r)) for v, r in points if r]
                        if points:
                            color = {"wtconv": "C3", "depthwise 7": "C0", "compiled": "C2"}.get(method, "C1")
                            axis.plot(*zip(*points), style, color=color, marker="o", ms=3, label=f"{method}, {dtype}")
                            drawn = True
                theirs = (
                    PUBLISHED[f"{what} {'speedup' if quantity == 'ms' else 'memory'}"].get(str(k), {}).get("fused", {})
                )
                if "fp32" in theirs:
                    axis.plot(
                        range(1, 6), theirs["fp32"], color="0.5", marker="x", label="published, fused, fp32 (RTX A6000)"
                    )
                if quantity == "ms":
                    axis.set_yscale("log")
                axis.set_xticks(levels)
                axis.grid(alpha=0.3)
        axes[-1][0].set_xlabel("levels")
        axes[0][0].legend(fontsize=7)
        figure.tight_layout()
        if drawn:
            figure.savefig(out / file, dpi=120)
            written.append(file)
        pyplot.close(figure)
    return written


def section(title: str, text: str | None) -> list[str]:
    return ["", f"## {title}", "", text] if text else []


def write(store: Store, out: Path, models: dict[int, dict[str, float]]) -> None:
    store.require_results()
    results = Results(store)
    lines = ["# The published evaluation, rerun", "", about_runs(store.runs), ""]
    lines += [
        "In brackets: the published figure for the same cell. " + PUBLISHED["source"],
        "",
        "Plain is `wtconv.reference`, the composition of PyTorch operators; depthwise and dense are nn.Conv2d. A step is a forward "
        "and the gradients of x and of every parameter. Each cell is the geometric mean over the shapes where both were measured "
        "(last column: how many; the published sweep has 9) of ratios of medians. Peak memory is what PyTorch's allocator held at "
        "most, with x, the parameters and, in a step, dy. Convolutions in fp32 may use TF32 where PyTorch allows it by default.",
    ]  # fmt: skip
    names = {"step": "Training step", "forward": "Inference"}
    for k in results.values("k"):
        for what in ("step", "forward"):
            title = f"{names[what]}, k = {k}: times faster than the plain layer"
            lines += section(title, relative_table(results, what, "ms", k))
        for what in ("step", "forward"):
            title = f"{names[what]}, k = {k}: peak memory over that of the plain layer (lower is better)"
            lines += section(title, relative_table(results, what, "peak", k))
    for dtype in results.values("dtype"):
        for k in results.values("k"):
            for quantity, label in (
                ("ms", "times faster than the plain layer"),
                ("peak", "peak memory over the plain layer's"),
            ):
                for what in ("step", "forward"):
                    title = f"The three reformulations, {names[what].lower()}, {dtype}, k = {k}: {label}"
                    lines += section(title, ablation_table(results, quantity, what, dtype, k))
    shapes = [(8, 64, 256, 256)] if (8, 64, 256, 256) in results.values("shape") else results.values("shape")[-1:]
    for shape in shapes:
        for dtype in results.values("dtype"):
            for k in results.values("k"):
                level = 3 if 3 in results.values("L") else max(results.values("L"))
                title = f"Absolute figures, {'x'.join(map(str, shape))}, {dtype}, k = {k}, L = {level}"
                lines += section(title, absolute_table(results, shape, dtype, k, level))
    agreement = agreement_table(store)
    if agreement:
        lines += section(
            "Numerical agreement",
            "Errors against the same operator in float64 on the same rounded inputs, scales of both signs: root mean square over "
            "that of the result, ours / plain, then the worst ratio of ours to plain over tiles of 64 values. The contract allows "
            "2.\n\n" + agreement,
        )
    lines += section("Memory traffic, in units of x", traffic_table(store, models))
    if results.failed:
        rows = [
            [str(r["key"]["method"]), r["key"]["pass"], json.dumps(r["key"]), r["failed"][:80]] for r in results.failed
        ]
        lines += section("Not measured", table(["layer", "pass", "case", "why"], rows))
    files = pictures(results, out) if results.layers else []
    lines += [line for file in files for line in ("", f"![{file}]({file})")]
    text = "\n".join(lines) + "\n"
    (out / "report.md").write_text(text)
    print(text)
    print(f"written: {out / 'report.md'}" + "".join(f", {out / f}" for f in files))
