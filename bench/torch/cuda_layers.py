"""Times layers on a GPU, eager, in one run: WTConv2d, nn.Conv2d depthwise k x k and 7 x 7, the plain WTConv layer, a copy.

Usage: python bench/torch/cuda_layers.py OUT.json

All are timed in turn over rotating inputs (beyond the L2 cache): a round is as many calls in a row as take 20 ms, 20 at
most, between device events; the median of 5 to 30 rounds. What Python and PyTorch cost is in it wherever the GPU waits for
it. A step is a forward and the gradients of x and of every parameter. The answer is checked against the plain layer first.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch
import wtconv
from torch import nn
from wtconv import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import DTYPES, alternating, commit, forward, in_turn, step  # noqa: E402

# batch, channels, height = width, kernel, levels
SHAPES = [
    (64, 96, 56, 5, 5),
    (64, 192, 28, 5, 4),
    (64, 384, 14, 5, 3),
    (64, 768, 7, 5, 2),
    (64, 96, 56, 3, 5),
    (8, 64, 128, 5, 3),
    (8, 64, 256, 5, 3),
    (8, 64, 256, 3, 3),
    (8, 64, 512, 5, 5),
]
ROTATED = 150 << 20


def calls_of(layer, xs, dys) -> dict:
    return {
        "forward": alternating(forward(layer, x) for x in xs),
        "step": alternating(step(layer, x, dy) for x, dy in zip(xs, dys)),
    }


def copy(target, x):
    source = x.detach()
    return lambda: target.copy_(source)


def run(b, c, h, k, levels, dtype) -> dict:
    size = b * c * h * h * dtype.itemsize
    count = max(1, min(8, ROTATED // size))
    xs = [torch.randn(b, c, h, h, device="cuda", dtype=dtype, requires_grad=True) for _ in range(count)]
    dys = [torch.randn_like(xs[0]) for _ in range(count)]
    ours = wtconv.WTConv2d(c, c, k, wt_levels=levels, device="cuda", dtype=dtype, backend="cuda")
    plain = reference.WTConv2d(c, c, k, wt_levels=levels)
    plain.load_state_dict(ours.state_dict())
    plain = plain.to("cuda", dtype)
    with torch.inference_mode():
        got, expected = ours(xs[0]).float(), plain(xs[0]).float()
        error = ((got - expected).norm() / expected.norm()).item()
        del got, expected
    if not error < (1e-5 if dtype == torch.float32 else 2e-2):
        raise SystemExit(f"{(b, c, h, k, levels, dtype)}: relative error {error}")
    target = torch.empty_like(xs[0], requires_grad=False)
    layers = {"wtconv": ours}
    for size in sorted({k, 7}):
        layers[f"depthwise {size}"] = nn.Conv2d(c, c, size, padding="same", groups=c, device="cuda", dtype=dtype)
    if dtype == torch.float32:
        layers["plain"] = plain
    calls = {(name, what): call for name, layer in layers.items() for what, call in calls_of(layer, xs, dys).items()}
    calls["copy", ""] = alternating(copy(target, x) for x in xs)
    times = {
        key: statistics.median(t)
        for key, t in in_turn(calls, "cuda", seconds=1.0, rounds=30, block_ms=20.0, warm_up=3).items()
    }
    return {"copy": times["copy", ""]} | {n: {w: times[n, w] for w in ("forward", "step")} for n in layers}


def main() -> None:
    out = Path(sys.argv[1])
    rows = []
    print(f"{'case':26} {'copy':>7} {'forward':>8} {'/dw k':>6} {'/dw 7':>6} {'step':>8} {'/dw k':>6} {'/dw 7':>6}")
    for name, dtype in DTYPES.items():
        for shape in SHAPES:
            b, c, h, k, levels = shape
            r = run(*shape, dtype)
            torch.cuda.empty_cache()
            case = f"n{b}c{c}h{h}w{h}k{k}l{levels}_{name.replace('fp', 'f')}"
            rows.append({"case": case, **r})
            line = f"{case:26} {r['copy']:7.4f}"
            for what in ("forward", "step"):
                ours = r["wtconv"][what]
                line += f" {ours:8.4f}" + "".join(f" {r[f'depthwise {s}'][what] / ours:6.2f}" for s in (k, 7))
            print(line, flush=True)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    about |= {"commit": commit(), "wtconv": wtconv.__version__, "unit": "ms"}
    out.write_text(json.dumps({"command": "bench/torch/cuda_layers.py", **about, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
