"""Training of WTConvNeXt on several GPUs (or CPU ranks, over gloo): images a second, efficiency, gradients.

    python bench/scaling.py --ranks 1 2 --out docs/results/h200x2/scaling.json    starts itself on 1, then on 2 ranks
    torchrun --nproc-per-node 2 bench/scaling.py                                  one number of ranks

DistributedDataParallel, one GPU a rank, --batch images a rank; a step is forward, cross-entropy, backward and an SGD update. Before
it is timed, one step's gradients are compared with those of one process on the joined batch: in fp32, deterministic, and in fp64,
where a difference cannot be rounding. The file is written after each number of ranks; warnings that a run printed are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
import torch.distributed as dist
import wtconv.networks  # noqa: F401, registers wtconvnext_*
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # noqa: E402
from results import summary, table  # noqa: E402

# Of the difference's norm over the gradient's: what is judged, and the limit.
LIMITS = {"fp32": ("all", 1e-6), "fp64": ("worst parameter", 1e-12)}
CLASSES = 1000


def network(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    small = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)} if options.smoke else {}
    model = timm.create_model(f"wtconvnext_{options.size}", num_classes=CLASSES, **small)
    return model.to(memory_format=torch.channels_last if options.channels_last else torch.contiguous_format)


def batch(count: int, options: argparse.Namespace, seed: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, options.image, options.image, generator=generator, dtype=dtype)
    return images, torch.randint(CLASSES, (count,), generator=generator)


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


def compare_gradients(dtype: torch.dtype, rank: int, world: int, device: torch.device, options) -> dict[str, float]:
    """Of one step on `world` ranks and on one with the joined batch: the difference, over all and in the worst parameter."""
    torch.use_deterministic_algorithms(True)
    with measure.full_precision():
        images, labels = (t.to(device) for t in batch(world * options.check_batch, options, 1, dtype))
        mine = slice(rank * options.check_batch, (rank + 1) * options.check_batch)
        one, each = network(options).to(device, dtype), network(options).to(device, dtype)
        measure.open_blocks(one)
        measure.open_blocks(each)
        found = gradients(DistributedDataParallel(each), images[mine], labels[mine])
        expected = gradients(one, images, labels)
    torch.use_deterministic_algorithms(False)
    errors, sizes = (torch.stack([t.double().norm() for t in ts]) for ts in (
        [a - b for a, b in zip(found, expected)], expected))  # fmt: skip
    return {"all": (errors.norm() / sizes.norm()).item(), "worst parameter": (errors / sizes).max().item()}


def time_steps(dtype: str, world: int, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    model = DistributedDataParallel(network(options).to(device))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    images, labels = batch(options.batch, options, 2 + dist.get_rank())
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    images, labels = images.to(device, memory_format=layout), labels.to(device)
    autocast = torch.autocast(device.type, measure.DTYPES[dtype]) if dtype != "fp32" else nullcontext()

    def step():
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(options.warm_up):
        step()
    times = []
    for _ in range(options.rounds):
        dist.barrier()
        mine = torch.tensor([measure.block(step, options.steps, device.type)], device=device)
        dist.all_reduce(mine, dist.ReduceOp.MAX)  # the slowest rank's
        times.append(mine.item())
    ms = summary(times)
    return {"ms": ms, "images_per_s": 1e3 * world * options.batch / ms["median"]}


def worker(options: argparse.Namespace) -> None:
    """One rank; the first writes what was measured to --out."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None
    )
    result: dict[str, Any] = {"ranks": world, "gradients": {}, "training": {}}
    for name, dtype in (("fp32", torch.float32), ("fp64", torch.float64)):
        result["gradients"][name] = compare_gradients(dtype, rank, world, device, options)
    for dtype in options.dtypes:
        result["training"][dtype] = time_steps(dtype, world, device, options)
    if rank == 0:
        add(options.out, measure.about(options.device), result, options)
    dist.barrier()
    if device.type == "cpu":
        time.sleep(1)  # gloo's last all-reduce is dropped by a thread, which a process must outlive (pytorch#190489)
    dist.destroy_process_group()
    for name, (which, limit) in LIMITS.items():
        if not (error := result["gradients"][name][which]) <= limit:
            raise SystemExit(f"gradients of {world} ranks differ from one process's in {name}, {which}: {error:.3g}")


def add(out: Path, about: dict[str, Any], result: dict[str, Any], options: argparse.Namespace) -> None:
    """One number of ranks into the file, replaced whole."""
    setting = {n: getattr(options, n) for n in ("size", "batch", "image", "channels_last", "check_batch")}
    found = json.loads(out.read_text()) if out.exists() else {"runs": []}
    kept = [r for r in found["runs"] if r["ranks"] != result["ranks"]]
    runs = sorted([*kept, {**result, "setting": setting, "about": about}], key=lambda r: r["ranks"])
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    part.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    part.replace(out)


def launch(ranks: int, options: argparse.Namespace, arguments: list[str]) -> None:
    """This script on so many ranks; what it warns about goes into the file."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} | os.environ
    with tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run([*command, *arguments], env=environment, stderr=errors, check=False).returncode
        errors.seek(0)
        text = errors.read()
    if code:
        raise SystemExit(f"{ranks} ranks: exit {code}\n{text[-3000:]}")
    found = json.loads(options.out.read_text())
    for run in found["runs"]:
        if run["ranks"] == ranks:
            run["warnings"] = [line for line in text.splitlines() if "Warning" in line or "Grad strides" in line]
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def report(out: Path) -> str:
    runs = json.loads(out.read_text())["runs"]
    one = next((r for r in runs if r["ranks"] == 1), None)
    rows = []
    for r in runs:
        for dtype, t in r["training"].items():
            base = one["training"].get(dtype) if one and one["setting"] == r["setting"] else None
            faster = t["images_per_s"] / base["images_per_s"] if base else None
            rows.append([
                str(r["ranks"]), dtype, f"{t['ms']['median']:.2f}", f"{t['ms']['q1']:.2f} to {t['ms']['q3']:.2f}",
                f"{t['images_per_s']:.1f}", f"{faster:.2f}" if faster else "",
                f"{100 * faster / r['ranks']:.1f}%" if faster else "",
                *(f"{r['gradients'][name][which]:.1e}" for name, (which, _) in LIMITS.items()), str(len(r.get("warnings", []))),
            ])  # fmt: skip
    head = ["ranks", "type", "step, ms", "quartiles", "images/s", "times one rank", "efficiency"]
    head += ["gradients differ, fp32", "fp64, worst parameter", "warnings"]
    setting, about = runs[-1]["setting"], runs[-1]["about"]
    what = f"WTConvNeXt-{setting['size']}, {setting['batch']} images of {setting['image']} pixels a rank, "
    return f"{what}{about['device']}, commit {about['commit']}\n\n" + table(head, rows)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--ranks", nargs="+", type=int, help="numbers of ranks to start; default: 1, 2, 4, ... of this machine"
    )
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out", type=Path, default=Path("out/scaling.json"), help="default %(default)s")
    p.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    p.add_argument("--batch", type=int, default=64, help="images a rank, default %(default)s")
    p.add_argument("--check-batch", type=int, default=8, help="images a rank where gradients are compared")
    p.add_argument("--image", type=int, default=224)
    p.add_argument(
        "--dtypes", nargs="+", choices=measure.DTYPES, default=["fp32", "bf16"], help="other than fp32: autocast"
    )
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--steps", type=int, default=10, help="in a round")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--warm-up", type=int, default=5, help="steps before")
    p.add_argument("--smoke", action="store_true", help="a tiny network and image: proves the script")
    return p


def main() -> None:
    options = parser().parse_args()
    if options.smoke:
        vars(options).update(batch=4, check_batch=2, image=32, steps=2, rounds=3, warm_up=1)
    if "RANK" in os.environ:
        return worker(options)
    most = torch.cuda.device_count() if options.device == "cuda" else 2
    numbers = options.ranks or [n for n in (1, 2, 4, 8) if n <= most]
    if options.device == "cuda" and max(numbers) > most:
        raise SystemExit(f"--ranks {max(numbers)}: this machine has {most} GPUs")
    for ranks in tqdm(numbers, unit="run"):
        launch(ranks, options, [*sys.argv[1:], f"--device={options.device}"])
    print(report(options.out))


if __name__ == "__main__":
    main()
