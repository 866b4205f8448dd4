"""Times WTConv2d against the plain PyTorch layer and a depthwise nn.Conv2d, in one run, and writes a results page.

Usage: python bench/torch/bench.py [--shapes stages|large|all|none] [--batch 16] [--network] [--out docs/results/torch-cpu]

Rounds are interleaved: each contender once a round, the median over the rounds. Answers are checked before they are
timed. A step is forward and backward to x and every parameter. Ratios are other / wtconv: above 1, wtconv is faster.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path

import torch
import wtconv
from torch import nn
from wtconv import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import commit, cpu_name, forward, in_turn, peak_bytes, step  # noqa: E402

STAGES = [(96, 56, 5), (192, 28, 4), (384, 14, 3), (768, 7, 2)]  # channels, height = width, levels
KERNEL = 5


def median_times(contenders: dict, budget: float, rounds: int) -> tuple[dict[str, float], int]:
    """Median milliseconds of each, over as many rounds as the budget of seconds allows, 5 at least."""
    times = in_turn(contenders, "cpu", budget, rounds)
    return {name: statistics.median(t) for name, t in times.items()}, len(next(iter(times.values())))


def compare(batch: int, channels: int, size: int, levels: int, budget: float, rounds: int) -> dict:
    torch.manual_seed(0)
    x = torch.randn(batch, channels, size, size, requires_grad=True)
    ours = wtconv.WTConv2d(channels, channels, KERNEL, wt_levels=levels)
    plain = reference.WTConv2d(channels, channels, KERNEL, wt_levels=levels)
    plain.load_state_dict(ours.state_dict())
    modules = {"wtconv": ours, "plain": plain}
    for k in (KERNEL, 7):
        modules[f"depthwise {k}x{k}"] = nn.Conv2d(channels, channels, k, padding="same", groups=channels)
    y = ours(x)
    torch.testing.assert_close(y, plain(x), rtol=1e-4, atol=1e-4)
    dy = torch.randn_like(y)
    copy = torch.empty_like(x)
    calls = {"copy": lambda: copy.copy_(x.detach()), **{n: forward(m, x.detach()) for n, m in modules.items()}}
    steps = {n: step(m, x, dy) for n, m in modules.items()}
    last, last_dy = (t.detach().contiguous(memory_format=torch.channels_last) for t in (x, dy))
    calls["channels_last"] = forward(ours, last)
    steps["channels_last"] = step(ours, last.clone(memory_format=torch.preserve_format).requires_grad_(), last_dy)
    forward_ms, forward_rounds = median_times(calls, budget, rounds)
    step_ms, step_rounds = median_times(steps, budget, rounds)
    memory = {n: peak_bytes(step(m, x, dy), "cpu") / x.nbytes for n, m in modules.items()}
    gradients = sum(p.nbytes for p in ours.parameters() if p.requires_grad) / x.nbytes
    return {
        "shape": [batch, channels, size, size],
        "kernel": KERNEL,
        "levels": levels,
        "forward_ms": forward_ms,
        "forward_rounds": forward_rounds,
        "step_ms": step_ms,
        "step_rounds": step_rounds,
        "step_peak_memory_in_x": memory,
        "parameter_gradients_in_x": gradients,
    }


def host_overhead() -> dict[str, float]:
    """Microseconds of a call where there is next to nothing to compute: (1, 1, 7, 7), two levels."""
    x = torch.randn(1, 1, 7, 7)
    layer, conv = wtconv.WTConv2d(1, 1, KERNEL, wt_levels=2), nn.Conv2d(1, 1, KERNEL, padding=2)
    dy = torch.randn(1, 1, 7, 7)
    trained = x.clone().requires_grad_()
    calls = {
        "forward": forward(layer, x),
        "forward that records gradients": lambda: layer(trained),
        "step": step(layer, trained, dy),
        "nn.Conv2d forward": forward(conv, x),
        "nn.Conv2d step": step(conv, trained, dy),
    }
    # Each in a loop of its own: in turns they would push each other out of the caches.
    return {name: 1e3 * median_times({name: call}, 2, 2000)[0][name] for name, call in calls.items()}


def network(budget: float, rounds: int, batch: int = 8, size: int = 224) -> dict:
    """A training step of WTConvNeXt-T, on our layer and on the plain one."""
    import timm
    from wtconv import networks  # noqa: F401, registers the models

    torch.manual_seed(0)
    ours = timm.create_model("wtconvnext_tiny", num_classes=1000)
    plain = timm.create_model("wtconvnext_tiny", num_classes=1000)
    for parent in list(plain.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, wtconv.WTConv2d):
                arguments = child.in_channels, child.in_channels, child.kernel_size[0], child.stride[0]
                layer = reference.WTConv2d(*arguments, child.base_conv.bias is not None, child.wt_levels)
                setattr(parent, name, layer)
    plain.load_state_dict(ours.state_dict())
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))

    def train(model):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

        def run():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return run

    times, done = median_times({"wtconv": train(ours), "plain": train(plain)}, budget, rounds)
    return {"model": "wtconvnext_tiny", "batch": batch, "size": size, "step_ms": times, "rounds": done}


def machine() -> dict:
    return {
        "command": "python " + " ".join(sys.argv),
        "commit": commit(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "load_average": Path("/proc/loadavg").read_text().split()[0],
        "torch": torch.__version__,
        "wtconv": wtconv.__version__,
        "backend": wtconv.backends()[0].description,
        "python": platform.python_version(),
    }


def page(results: dict) -> str:
    m = results["machine"]
    lines = [
        "# PyTorch on the CPU",
        "",
        f"`{m['command']}`, commit {m['commit']}: {m['cpu']}, {m['threads']} threads, torch {m['torch']}, "
        f"Python {m['python']}, backend cpu ({m['backend']}), load average before the run {m['load_average']}.",
        "",
        "float32, k = 5, medians. A ratio is the other's time over ours: above 1 the layer is faster. The plain layer is "
        "`wtconv.reference`, the composition of PyTorch operators; depthwise is nn.Conv2d with as many groups as channels.",
    ]
    for what in ("forward", "step") if results["layers"] else ():
        lines += [
            "",
            f"## {'Forward (inference mode)' if what == 'forward' else 'Training step: forward, gradients of x and all parameters'}",
            "",
            "| (B, C, H, W), levels | plain / ours | depthwise 5x5 / ours | depthwise 7x7 / ours | ours, ms | plain, ms | "
            "depthwise 5x5, ms | depthwise 7x7, ms | ours in channels_last, ms |"
            + (" copy, ms |" if what == "forward" else ""),
            "|---|" + "---|" * (9 if what == "forward" else 8),
        ]
        for r in results["layers"]:
            t = r[f"{what}_ms"]
            others = [t["plain"], t["depthwise 5x5"], t["depthwise 7x7"]]
            cells = [f"{o / t['wtconv']:.2f}" for o in others] + [f"{v:.2f}" for v in (t["wtconv"], *others)]
            cells += [f"{t['channels_last']:.2f}"]
            cells += [f"{t['copy']:.2f}"] if what == "forward" else []
            lines.append(f"| {tuple(r['shape'])}, {r['levels']} | " + " | ".join(cells) + " |")
    lines += (
        []
        if not results["layers"]
        else [
            "",
            "## Memory",
            "",
            "The most held at once during a step beyond what was there before, in units of x. Results are y and dx, 2 "
            "together, and the parameters' gradients; the rest of ours is scratch memory, a fixed amount for each thread, "
            "whatever the batch.",
            "",
            "| (B, C, H, W), levels | ours | of it parameters' gradients | of it scratch | plain | depthwise 5x5 |",
            "|---|---|---|---|---|---|",
        ]
    )
    for r in results["layers"]:
        memory = r["step_peak_memory_in_x"]
        gradients = r["parameter_gradients_in_x"]
        parts = [
            memory["wtconv"],
            gradients,
            memory["wtconv"] - 2 - gradients,
            memory["plain"],
            memory["depthwise 5x5"],
        ]
        cells = [f"{part:.2f}" for part in parts]
        lines.append(f"| {tuple(r['shape'])}, {r['levels']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## Overhead of a call",
        "",
        "(1, 1, 7, 7), two levels, in microseconds:",
        "",
        "| call | us |",
        "|---|---|",
    ]
    lines += [f"| {name} | {us:.0f} |" for name, us in results["host_us"].items()]
    if n := results.get("network"):
        t = n["step_ms"]
        lines += [
            "",
            "## WTConvNeXt-T",
            "",
            f"A training step with AdamW, batch {n['batch']}, {n['size']}x{n['size']}: {t['wtconv']:.0f} ms; on the plain "
            f"layer {t['plain']:.0f} ms, {t['plain'] / t['wtconv']:.2f} times as long ({n['rounds']} rounds).",
        ]
    if rounds := [r[k] for r in results["layers"] for k in ("forward_rounds", "step_rounds")]:
        lines += [
            "",
            f"Rounds: {min(rounds)} to {max(rounds)}, contenders in turn within each; one warm-up call before.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=("stages", "large", "all", "none"), default="all")
    parser.add_argument("--batch", type=int, nargs="+", default=[16])
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for each table cell group")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, help="path without suffix: writes .json and .md")
    a = parser.parse_args()
    shapes = [(b, *s) for b in a.batch for s in STAGES] if a.shapes in ("stages", "all") else []
    shapes += [(8, 64, 128, 3)] if a.shapes in ("large", "all") else []
    results = {"machine": machine(), "host_us": host_overhead()}
    results["layers"] = [compare(*shape, a.budget, a.rounds) for shape in shapes]
    if a.network:
        results["network"] = network(4 * a.budget, a.rounds)
    text = page(results)
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        a.out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
