#!/usr/bin/env python3
"""Is training with this package's layer the same as with the plain PyTorch layer? Trains with both and compares.

    python examples/compare_training.py                                     # Fashion-MNIST, the small network
    python examples/compare_training.py --data photos --model wtconvnext_tiny --image-size 128 --batch-size 64

All runs see the same images in the same order. The plain layer is trained from two sets of initial values and ours from
the same two. Training is the same if, from the same values, ours lies nearer to the plain layer than the plain layer's two
curves to one another: loss by loss and averaged over a window of steps. The exit status says so; --out holds compare.json,
compare.md, compare.png and a folder a run. Takes all options of train.py; interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import train

PLAIN = "reference"


def precision(amp: str) -> str:
    return "fp32" if amp == "off" else f"autocast {amp}"


def smooth(losses: np.ndarray, window: int) -> np.ndarray:
    return np.convolve(losses, np.ones(window) / window, mode="valid")


def deviation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())


def judge(plain: list[np.ndarray], ours: list[np.ndarray], window: int) -> dict[str, Any]:
    """Mean absolute differences of loss curves: between the two of the plain layer, and of ours from the plain layer."""
    verdict: dict[str, Any] = {"same": True}
    for name, width in (("each step", 1), (f"average of {window} steps", window)):
        p, o = ([smooth(curve, width) for curve in curves] for curves in (plain, ours))
        noise, apart = deviation(*p), [deviation(a, b) for a, b in zip(p, o, strict=True)]
        verdict[name] = {"plain from plain": noise, "ours from plain": apart}
        verdict["same"] &= bool(np.max(apart) < noise)  # false for NaN
    return verdict


def train_all(options: argparse.Namespace, amp: str) -> dict[str, list[dict[str, Any]]]:
    """Loss curve, final test and parameters of each run."""
    runs: dict[str, list[dict[str, Any]]] = {PLAIN: [], options.layer: []}
    for layer, done in runs.items():
        for seed in options.init_seeds:
            out = options.out / f"{amp}-{layer}-{seed}"
            changed = {"layer": layer, "init_seed": seed, "amp": amp, "out": out, "log_every": 1}
            print(f"{layer}, initial values {seed}, amp {amp}", file=sys.stderr)
            test = train.run(argparse.Namespace(**vars(options) | changed))
            lines = train.read_metrics(out / "metrics.jsonl")
            losses = [line["loss"] for line in lines if line["kind"] == "train"]
            header = next(line for line in lines if line["kind"] == "run")
            done.append({"losses": losses, "test": test, **{k: header[k] for k in ("parameters", "device", "torch")}})
    return runs


def draw(results: dict[str, Any], window: int, picture: Path) -> None:
    if (pyplot := train.plotter()) is None:
        return
    figure, rows = pyplot.subplots(len(results), 2, figsize=(11, 4 * len(results)), layout="constrained", squeeze=False)
    for (amp, result), (left, right) in zip(results.items(), rows):
        curves = {layer: [np.array(r["losses"]) for r in runs] for layer, runs in result["runs"].items()}
        plain, ours = curves.values()
        for layer, style in zip(curves, ("-", "--")):
            for seed, curve in enumerate(curves[layer]):
                name = "plain" if layer == PLAIN else layer
                left.plot(
                    range(window, len(curve) + 1),
                    smooth(curve, window),
                    style,
                    color=f"C{seed}",
                    label=f"{name}, initial values {seed + 1}",
                )
        right.semilogy(np.abs(plain[0] - plain[1]), color="0.6", label="plain from plain")
        for seed, (a, b) in enumerate(zip(plain, ours)):
            right.semilogy(np.abs(a - b), color=f"C{seed}", label=f"ours from plain, initial values {seed + 1}")
        left.set(title=f"{precision(amp)}: loss, average of {window} steps", xlabel="step", ylabel="loss")
        right.set(title=f"{precision(amp)}: difference of losses", xlabel="step", ylim=(1e-8, None))
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
    train.write_atomically(picture, lambda file: figure.savefig(file, format="png", dpi=110))
    pyplot.close(figure)


def report(results: dict[str, Any], command: str) -> str:
    some = next(iter(results.values()))["runs"][PLAIN][0]
    lines = [
        "# Is training with wtconv the same?",
        "",
        f"`{command}`: {len(some['losses'])} steps of a network of {some['parameters']:,} parameters, torch "
        f"{some['torch']} on {some['device']}. Mean absolute difference of training losses over all steps, the same images in "
        "the same order: of the plain layer's two runs, which differ in their initial values, and of ours from the plain layer "
        "with the same initial values (the larger of two).",
        "",
        "| precision | losses compared | plain from plain | ours from plain | ratio | same? |",
        "|---|---|---|---|---|---|",
    ]
    for amp, result in results.items():
        for name, value in result["verdict"].items():
            if name != "same":
                noise, apart = value["plain from plain"], max(value["ours from plain"])
                verdict = "yes" if apart < noise else "no"
                lines.append(
                    f"| {precision(amp)} | {name} | {noise:.2g} | {apart:.2g} | {apart / noise:.2g} | {verdict} |"
                )
    lines += ["", "| precision | layer | initial values | first loss | last loss | test loss | test accuracy |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for amp, result in results.items():
        for layer, runs in result["runs"].items():
            for seed, run in enumerate(runs):
                losses, test = run["losses"], run["test"]
                lines.append(
                    f"| {precision(amp)} | {'plain' if layer == PLAIN else layer} | {seed + 1} "
                    f"| {losses[0]:.5f} | {losses[-1]:.5f} | {test['loss']:.4f} | {100 * test['accuracy']:.2f}% |"
                )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    p = train.parser()
    p.description = __doc__
    p.add_argument("--precisions", nargs="+", choices=("off", "bf16", "fp16"), default=["off", "bf16"])
    p.add_argument("--init-seeds", type=int, nargs=2, default=[0, 1], help="of the two sets of initial values")
    p.add_argument("--window", type=int, default=20, help="steps over which losses are averaged, default %(default)s")
    p.set_defaults(out=Path("out/compare_training"), steps=300, warmup=20)
    options = p.parse_args(arguments)
    train.require_one_process(p.prog)
    if options.layer == PLAIN:
        raise SystemExit(f"--layer {PLAIN} is what the other is compared with")
    if not 1 <= options.window <= options.steps:
        raise SystemExit(f"--window {options.window} must be 1 to the {options.steps} steps")
    results = {}
    for amp in options.precisions:
        runs = train_all(options, amp)
        plain, ours = ([np.array(r["losses"]) for r in done] for done in runs.values())
        results[amp] = {"verdict": judge(plain, ours, options.window), "runs": runs}
    command = shlex.join(["python", "examples/compare_training.py", *(arguments or sys.argv[1:])])
    text = report(results, command)
    whole = {"command": command, "precisions": results}
    train.write_atomically(options.out / "compare.json", lambda file: file.write(json.dumps(whole, indent=1).encode()))
    train.write_atomically(options.out / "compare.md", lambda file: file.write(text.encode()))
    draw(results, options.window, options.out / "compare.png")
    print(text)
    different = [amp for amp, result in results.items() if not result["verdict"]["same"]]
    if different:
        raise SystemExit(f"training differs more than two runs of the plain layer do, with amp {', '.join(different)}")


if __name__ == "__main__":
    main()
