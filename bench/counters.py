#!/usr/bin/env python3
"""Hardware counters of the CUDA kernels, by Nsight Compute: what limits each, and its device memory traffic.

    python bench/counters.py build/cuda/tests/cuda/wtconv_cuda_bench --out docs/results/h200 [CASE...]

Each case runs once, forward and backward. OUT/counters.csv has a line a kernel, OUT/traffic.csv two a case. No torch here. Where
ncu is missing or may not read counters, it says so and leaves the files alone. The GPU's clocks are left alone too.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from results import SIZES, elements, multiply_adds, parse_case  # noqa: E402

CASES = [
    "n64c96h56w56k5l5_f32", "n64c192h28w28k5l4_f32", "n8c64h256w256k5l3_f32", "n64c96h56w56k5l5_f16",
    "n64c384h14w14k5l3_f32", "n64c768h7w7k5l2_f32", "n8c64h512w512k5l5_f32", "n8c64h128w128k5l3_f32",
    "n64c192h28w28k5l4_f16", "n64c384h14w14k5l3_f16", "n64c96h56w56k3l5_f32", "n64c96h56w56k5l5_f32_nhwc",
]  # fmt: skip
AT_ONCE = 4  # cases in one run of ncu: its start takes seconds, and a run cut short gives nothing
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "ns": "gpu__time_duration.sum",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "instructions": "smsp__inst_executed.sum",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "issue_per_cycle": "smsp__issue_active.avg.per_cycle_active",
    "fma": "smsp__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "barrier": STALLED.format("barrier"),
    "long_scoreboard": STALLED.format("long_scoreboard"),
    "short_scoreboard": STALLED.format("short_scoreboard"),
    "warps": "smsp__warps_active.avg.per_cycle_active",
}
# The matrix units' counter, which has several names; the first that this ncu knows.
TENSOR = ["smsp__inst_executed_pipe_tensor", "sm__inst_executed_pipe_tensor", "sm__inst_executed_pipe_tensor_op_hmma"]
COLUMNS = [
    "case", "pass", "kernel", "ms", "issue_pct", "fma_pct", "tensor_pct", "shared_pct", "wavefronts_a_plane",
    "conflicts_a_plane", "barrier_pct", "long_scoreboard_pct", "short_scoreboard_pct", "instructions_a_plane",
    "least_a_plane", "read_over_x", "written_over_x", "warps_a_multiprocessor",
]  # fmt: skip
REFUSED = ("ERR_NVGPUCTRPERM", "Failed to initialize the profiler", "LibraryNotLoaded")


class NotPermitted(Exception):
    pass


def launches(text: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel, {metric: value}) in the order of the launches, from what `ncu --csv` prints between other lines."""
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        name = re.search(r"(\w+_kernel)\b", row["Kernel Name"])
        _, values = found.setdefault(row["ID"], (name[1] if name else row["Kernel Name"], {}))
        try:
            values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # n/a
            pass
    return list(found.values())


def passes(kernels: list[str]) -> list[str]:
    """What each kernel of a step belongs to. The input gradient is the forward's kernels once more, and comes next."""
    half = next((n for n in range(1, len(kernels) // 2 + 1) if kernels[:n] == kernels[n : 2 * n]), None)
    if half is None:
        raise ValueError(f"no forward and input gradient in {kernels}")
    return ["forward"] * half + ["input gradient"] * half + ["weight gradient"] * (len(kernels) - 2 * half)


def by_case(cases: list[str], found: list[tuple[str, dict]]) -> list[tuple[str, list[tuple[str, str, dict]]]]:
    """(case, [(pass, kernel, values)]): the closing kernel ends a step."""
    steps: list[list[tuple[str, dict]]] = [[]]
    for name, values in found:
        steps[-1].append((name, values))
        if name == "finish_kernel":
            steps.append([])
    if len(steps) != len(cases) + 1 or steps[-1]:
        raise ValueError(f"{len(steps) - 1} closing kernels of {len(cases)} cases")
    kinds = [passes([name for name, _ in step]) for step in steps[:-1]]
    return [(c, [(p, *s) for p, s in zip(kind, step)]) for c, kind, step in zip(cases, kinds, steps)]


def counters_row(case: str, kind: str, kernel: str, values: dict[str, float], tensor: str | None) -> dict[str, str]:
    """Least instructions: multiply-adds by whole warps or, on the matrix units, by products of 16 x 8 x 16."""
    shape, dtype = parse_case(case)
    v = {name: values.get(metric, float("nan")) for name, metric in METRICS.items()}
    size, planes = elements(shape) * SIZES[dtype], shape[0] * shape[1]
    share = 100 * v["issue_per_cycle"] / v["warps"]  # of a warp's time, from warps that wait for each issue
    least = multiply_adds(shape, 1) / planes / (2048 if "matrix" in kernel else 32)
    filters = kernel not in ("finish_kernel", "pool_kernel")
    row = {
        "ms": f"{v['ns'] / 1e6:.4f}",
        "issue_pct": f"{v['issue']:.0f}",
        "fma_pct": f"{v['fma']:.0f}",
        "tensor_pct": f"{values.get(tensor, float('nan')):.0f}" if tensor else "",
        "shared_pct": f"{v['shared']:.0f}",
        "wavefronts_a_plane": f"{v['wavefronts'] / planes:.0f}",
        "conflicts_a_plane": f"{v['conflicts'] / planes:.0f}",
        **{f"{s}_pct": f"{share * v[s]:.0f}" for s in ("barrier", "long_scoreboard", "short_scoreboard")},
        "instructions_a_plane": f"{v['instructions'] / planes:.0f}",
        "least_a_plane": f"{least:.0f}" if filters else "",
        "read_over_x": f"{v['read'] / size:.3f}",
        "written_over_x": f"{v['written'] / size:.3f}",
        "warps_a_multiprocessor": f"{4 * v['warps']:.1f}",
    }
    return {"case": case, "pass": kind, "kernel": kernel, **row}


def traffic_rows(case: str, step: list[tuple[str, str, dict[str, float]]]) -> list[list[str]]:
    shape, dtype = parse_case(case)
    size, rows = elements(shape) * SIZES[dtype], []
    for which, kinds in (("forward", ("forward",)), ("step", ("forward", "input gradient", "weight gradient"))):
        of = [values for kind, _, values in step if kind in kinds]
        sums = [sum(values[METRICS[m]] for values in of) / size for m in ("read", "written")]
        rows.append([case, which, str(len(of)), *(f"{s:.3f}" for s in sums)])
    return rows


def ncu(arguments: list[str], timeout: float) -> str:
    done = subprocess.run(["ncu", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    text = done.stdout + done.stderr
    if any(reason in text for reason in REFUSED):
        raise NotPermitted(next(line for line in text.splitlines() if any(reason in line for reason in REFUSED)))
    if done.returncode:
        raise SystemExit(f"ncu: exit {done.returncode}: {text[-1000:]}")
    return done.stdout


def tensor_metric(known: str) -> str | None:
    names = set(re.findall(r"\b\w+__\w+", known))
    return next((f"{name}.avg.pct_of_peak_sustained_active" for name in TENSOR if name in names), None)


def measure(bench: Path, cases: list[str], tensor: str | None) -> list[tuple[str, list]]:
    found = []
    metrics = ",".join([*METRICS.values(), *([tensor] if tensor else [])])
    for i in range(0, len(cases), AT_ONCE):
        some = cases[i : i + AT_ONCE]
        print(f"{i} of {len(cases)} cases; now {' '.join(some)}", flush=True)
        options = ["--clock-control", "none", "--csv", "--print-units", "base", "--metrics", metrics]
        found += by_case(some, launches(ncu([*options, str(bench), "--once", *some], timeout=120)))
    return found


def write(out: Path, steps: list[tuple[str, list]], tensor: str | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "counters.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(counters_row(case, *launch, tensor) for case, step in steps for launch in step)
    with open(out / "traffic.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "pass", "kernels", "read_over_x", "written_over_x"])
        for case, step in steps:
            writer.writerows(traffic_rows(case, step))
    print((out / "counters.csv").read_text())


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench", type=Path, help="wtconv_cuda_bench")
    p.add_argument("cases", nargs="*", default=CASES, help="default: the stages and larger planes")
    p.add_argument("--out", type=Path, default=Path("out/counters"))
    options = p.parse_args(arguments)
    if not shutil.which("ncu"):
        print("skipped: counters; there is no ncu here")
        return
    if not options.bench.exists():
        raise SystemExit(f"there is no {options.bench}")
    try:
        tensor = tensor_metric(ncu(["--query-metrics"], timeout=60))
        steps = measure(options.bench.resolve(), options.cases, tensor)
    except NotPermitted as why:
        print(f"skipped: counters; ncu may not read them here: {why}")
        return
    write(options.out, steps, tensor)


if __name__ == "__main__":
    main()
