#!/usr/bin/env python3
"""Trains an image classifier whose depthwise layers are WTConv, the plain WTConv or plain depthwise convolutions.

    python examples/train.py                                            # Fashion-MNIST, a small network
    python examples/train.py --layer depthwise --out out/depthwise      # the same network with nn.Conv2d
    python examples/train.py --data photos --model wtconvnext_tiny --image-size 224 --amp bf16
    torchrun --nproc-per-node 2 examples/train.py --batch-size 256      # the batch is shared among the processes

The output folder holds metrics.jsonl, curves.png, last.pt and best.pt. Run the same command again to go on after an
interruption, whenever it came: files are replaced whole, and everything random is a function of the seed and the step.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gzip
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import wtconv
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from wtconv.baselines import LAYERS

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


# ---------------------------------------------------------------------------------------------------------------------
# Data. A dataset is asked for whole batches: dataset[Batch(epoch, indices)] gives images (b, c, h, w) and labels (b,).


class Batch(NamedTuple):
    epoch: int | None  # decides the augmentation; None: none
    indices: np.ndarray


def uniforms(seed: int, epoch: int, count: int) -> np.ndarray:
    """Four numbers in [0, 1) an image, the same for any number of processes, workers and restarts."""
    return np.random.Generator(np.random.Philox(key=[seed, 2 * epoch + 1])).random((count, 4), dtype=np.float32)


class Images(Dataset):
    channels: int
    classes: list[str]
    size: int
    labels: np.ndarray

    def __init__(self, options: argparse.Namespace):
        self.seed, self.augment = options.seed, options.augment
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def _random(self, batch: Batch) -> np.ndarray | None:
        if batch.epoch is None or not self.augment:
            return None
        if batch.epoch != self._epoch:
            self._epoch, self._uniforms = batch.epoch, uniforms(self.seed, batch.epoch, len(self))
        return self._uniforms[batch.indices]


class Idx(Images):
    """A set in MNIST's format. Augmented by shifts of up to two pixels and mirroring."""

    channels = 1

    def __init__(self, folder: Path, part: str, limit: int | None, options: argparse.Namespace):
        super().__init__(options)
        images, labels = (read_idx(folder / f"{part}-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
        self.images, self.labels = torch.from_numpy(images[:limit]), labels[:limit].astype(np.int64)
        self.classes = [str(label) for label in range(int(labels.max()) + 1)]
        self.size = options.image_size or images.shape[1]

    def __getitem__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.images[torch.from_numpy(batch.indices)]
        u = self._random(batch)
        if u is not None:
            rows, columns = x.shape[1:]
            shift = torch.from_numpy((u[:, :2] * 5).astype(np.int64))
            mirror = torch.from_numpy(u[:, 2] < 0.5)
            across = torch.arange(columns)
            across = torch.where(mirror[:, None], columns - 1 - across, across)
            padded = F.pad(x, (2, 2, 2, 2))
            image = torch.arange(len(x))[:, None, None]
            down = (torch.arange(rows) + shift[:, :1])[:, :, None]
            x = padded[image, down, (across + shift[:, 1:])[:, None, :]]
        x = (x[:, None].float() / 255 - 0.286) / 0.353
        if self.size != x.shape[-1]:
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True)
        return x, torch.from_numpy(self.labels[batch.indices])


@functools.lru_cache(maxsize=4)  # a comparison trains on the same files many times
def read_idx(path: Path) -> np.ndarray:
    with gzip.open(path) as file:
        header = np.frombuffer(file.read(4), np.uint8)
        shape = np.frombuffer(file.read(4 * int(header[3])), ">i4")
        return np.frombuffer(bytearray(file.read()), np.uint8).reshape(shape)


class ImageFolder(Images):
    """One folder a class. Training images are cut at random (8% to all of the area) and mirrored."""

    channels = 3
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, files: list[tuple[Path, int]], classes: list[str], options: argparse.Namespace):
        super().__init__(options)
        self.files = [file for file, _ in files]
        self.labels = np.array([label for _, label in files], np.int64)
        self.classes, self.size = classes, options.image_size or 224

    def __getitem__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        u = self._random(batch)
        images = [self._load(int(i), None if u is None else u[row]) for row, i in enumerate(batch.indices)]
        x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
        mean, deviation = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (self.mean, self.deviation))
        return ((x - mean) / deviation).contiguous(), torch.from_numpy(self.labels[batch.indices])

    def _load(self, index: int, u: np.ndarray | None) -> np.ndarray:
        from PIL import Image

        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        width, height = image.size
        if u is None:
            side = min(width, height) * 0.95
            w = h = side
            left, top = (width - w) / 2, (height - h) / 2
        else:
            area, ratio = width * height * (0.08 + 0.92 * u[0]), math.exp((2 * u[1] - 1) * math.log(4 / 3))
            w, h = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
            left, top = (width - w) * u[2], (height - h) * (u[3] * 2 % 1)
        box = (left, top, left + w, top + h)
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box, reducing_gap=2.0)
        pixels = np.asarray(image)
        return pixels[:, ::-1] if u is not None and u[3] < 0.5 else pixels


def list_images(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    kinds = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
    return [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in kinds
    ]


def load_data(options: argparse.Namespace) -> tuple[Images, Images]:
    """(training set, test set)."""
    folder: Path = options.data
    if not folder.is_dir():
        raise SystemExit(
            f"--data: no folder {folder}. Fashion-MNIST comes with Debian's package dataset-fashion-mnist "
            "(apt-get install dataset-fashion-mnist); a folder of images needs one folder a class."
        )
    if (folder / "train-images-idx3-ubyte.gz").exists():
        train = Idx(folder, "train", options.train_images, options)
        return train, Idx(folder, "t10k", options.test_images, options)
    split = (folder / "train").is_dir()
    root = folder / "train" if split else folder
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    if len(classes) < 2:
        raise SystemExit(f"--data: {root} holds {len(classes)} class folders, two or more are needed")
    files = list_images(root, classes)
    if split:
        test_root = next((folder / name for name in ("val", "test") if (folder / name).is_dir()), None)
        if test_root is None:
            raise SystemExit(f"--data: {folder} has train/ but neither val/ nor test/")
        train_files, test_files = files, list_images(test_root, classes)
    else:
        train_files = [file for number, file in enumerate(files) if number % 10 != 9]
        test_files = [file for number, file in enumerate(files) if number % 10 == 9]
    train_files = shuffled(train_files, 0)[: options.train_images]
    test_files = shuffled(test_files, 0)[: options.test_images]
    return ImageFolder(train_files, classes, options), ImageFolder(test_files, classes, options)


def shuffled(items: list, seed: int) -> list:
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))]


def epoch_batches(count: int, size: int, seed: int, epoch: int, rank: int, world: int) -> list[Batch]:
    """This process's share of every batch of an epoch. A rest that fills no batch sits this epoch out."""
    order = np.random.Generator(np.random.Philox(key=[seed, 2 * epoch])).permutation(count)
    share = size // world
    return [
        Batch(epoch, order[start + rank * share : start + (rank + 1) * share])
        for start in range(0, count - size + 1, size)
    ]


def loader(dataset: Images, batches: list[Batch], options: argparse.Namespace) -> DataLoader:
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=batches,
        num_workers=options.workers,
        pin_memory=options.device.type == "cuda",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Networks


class Block(nn.Module):
    """ConvNeXt's block: a depthwise layer, a norm, two 1x1 layers, a residual."""

    def __init__(self, channels: int, levels: int, layer: Callable[..., nn.Module]):
        super().__init__()
        self.conv_dw = layer(channels, channels, kernel_size=5, wt_levels=levels)
        self.norm = nn.LayerNorm(channels)
        self.expand, self.contract = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        return x + self.contract(F.gelu(self.expand(y))).permute(0, 3, 1, 2)


class SmallNet(nn.Module):
    """Two stages of `depth` blocks, for images of 28 pixels and up. As it is, about 0.1 M parameters."""

    def __init__(
        self, in_chans: int, num_classes: int, layer: Callable[..., nn.Module], width: int = 32, depth: int = 2
    ):
        super().__init__()
        self.stem = nn.Conv2d(in_chans, width, 4, stride=2, padding=1)
        self.stage1 = nn.Sequential(*(Block(width, 2, layer) for _ in range(depth)))
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.stage2 = nn.Sequential(*(Block(2 * width, 1, layer) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean((2, 3))))


def build_model(options: argparse.Namespace, in_chans: int, num_classes: int) -> nn.Module:
    torch.manual_seed(options.seed if options.init_seed is None else options.init_seed)
    layer, more = LAYERS[options.layer], dict(options.model_kwargs)
    if options.model == "small":
        return SmallNet(in_chans, num_classes, layer, **more)
    import timm
    import wtconv.networks  # registers wtconvnext_*

    arguments = {"in_chans": in_chans, "num_classes": num_classes, "drop_path_rate": options.drop_path, **more}
    if options.model.startswith("wtconvnext"):
        return timm.create_model(options.model, wtconv_class=layer, **arguments)
    model = timm.create_model(options.model, **arguments)
    if options.layer not in ("wtconv", "depthwise"):
        raise SystemExit(f"--layer {options.layer}: {options.model} is made of nn.Conv2d; take wtconv or depthwise")
    if options.layer == "wtconv":
        wtconv.convert(model, depthwise=True, wt_levels=options.wt_levels)
    return model


# ---------------------------------------------------------------------------------------------------------------------
# Files


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Replaces a file as a whole: whoever reads it, after whatever interruption, finds the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file. The last one may have been cut short."""
    lines = []
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return lines


class Metrics:
    """metrics.jsonl: one object a line. What an interrupted run wrote beyond its checkpoint is taken back."""

    def __init__(self, path: Path, step: int):
        kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
        write_atomically(path, lambda file: file.write("".join(json.dumps(m) + "\n" for m in kept).encode()))
        self._file = open(path, "a")

    def __call__(self, kind: str, step: int, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()


def plotter() -> Any:
    """matplotlib.pyplot, drawing into files, or None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_curves(metrics: Path, picture: Path, score: str) -> None:
    if (pyplot := plotter()) is None:
        return
    lines = read_metrics(metrics)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for kind, style in (("train", "-"), ("test", "o-")):
        points = [(m["step"], m["loss"]) for m in lines if m["kind"] == kind]
        if points:
            left.plot(*zip(*points), style, label=kind)
    scores = [(m["step"], 100 * m[score]) for m in lines if m["kind"] == "test"]
    if scores:
        right.plot(*zip(*scores), "o-", label="test")
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel=f"{score}, %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend() if axes.lines else None
    write_atomically(picture, lambda file: figure.savefig(file, format="png", dpi=120))
    pyplot.close(figure)


# ---------------------------------------------------------------------------------------------------------------------
# Training


class Ranks:
    """The processes of a torchrun, or the one of a plain run."""

    def __init__(self, device: str):
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo", device_id=self.device if cuda else None)

    def sum(self, *values: float | Tensor) -> list[float]:
        total = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values])
        if self.world > 1:
            dist.all_reduce(total)
        return total.tolist()

    def from_first(self, value: Any) -> Any:
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def close(self) -> None:
        if self.world > 1:
            # A thread of gloo drops the last all-reduce of a backward some time after it is done and needs Python for that;
            # a process that ends before hangs or aborts (pytorch/pytorch#190489). It cannot be waited for, so let it run.
            dist.barrier()
            time.sleep(1)
            dist.destroy_process_group()


class Trainer:
    """A model and its optimizer; one call a step. Nothing random is kept: every step is seeded by its number.

    This is what `run` needs to know of a task; another task derives from it (segment.py).
    """

    score = "accuracy"  # what of test()'s results is best when highest
    load = staticmethod(load_data)
    build = staticmethod(lambda options, data: build_model(options, data.channels, len(data.classes)))

    def __init__(self, model: nn.Module, options: argparse.Namespace, ranks: Ranks, steps: int):
        self.options, self.ranks, self.steps = options, ranks, steps
        self.model = model.to(ranks.device)
        if options.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        # Biases, norms and scales are one-dimensional at heart; decay would only pull them to zero.
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decayed = [p for p in trained if p.squeeze().dim() > 1]
        rest = [p for p in trained if p.squeeze().dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=options.lr, weight_decay=options.decay
        )
        self.amp = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.amp]
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=self.amp is torch.float16)
        self.network: nn.Module = self.model
        if options.compile:
            self.network = torch.compile(self.network)
        if ranks.world > 1:
            self.network = nn.parallel.DistributedDataParallel(self.network)

    def learning_rate(self, step: int) -> float:
        warmup = min(self.options.warmup, self.steps)
        if step < warmup:
            return self.options.lr * (step + 1) / warmup
        return self.options.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))

    def _inputs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        return x.to(self.ranks.device, non_blocking=True, memory_format=layout), y.to(
            self.ranks.device, non_blocking=True
        )

    def _loss(self, network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.ranks.device.type, dtype=self.amp, enabled=self.amp is not None):
            logits = network(x)
        smoothing = self.options.smoothing if network.training else 0.0
        scores = logits.float().movedim(1, -1).flatten(0, -2)  # one label an image, or one a pixel
        return F.cross_entropy(scores, y.flatten(), label_smoothing=smoothing), logits

    def gradients(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """(loss of this process's share, gradient norm); gradients are those of the mean over the whole batch."""
        torch.manual_seed((self.options.seed << 32) + step * self.ranks.world + self.ranks.rank)
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss, _ = self._loss(self.network, *self._inputs(x, y))
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        return loss.detach(), nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)

    def step(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        loss, norm = self.gradients(x, y, step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss, norm

    @torch.inference_mode()
    def test(self, dataset: Images) -> dict[str, float]:
        """Loss and accuracy over a set, shared among the processes."""
        self.model.eval()
        loss, right, count = 0.0, 0.0, 0
        mine = np.arange(self.ranks.rank, len(dataset), self.ranks.world)
        size = max(1, self.options.batch_size // self.ranks.world)
        batches = [Batch(None, mine[start : start + size]) for start in range(0, len(mine), size)]
        for x, y in loader(dataset, batches, self.options):
            x, y = self._inputs(x, y)
            mean, logits = self._loss(self.model, x, y)
            loss, right, count = loss + mean.double() * len(y), right + (logits.argmax(1) == y).sum(), count + len(y)
        loss, right, count = self.ranks.sum(loss, right, count)
        return {"loss": loss / count, "accuracy": right / count}

    def state(self, **more: Any) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            **more,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])


# What a checkpoint and the run that resumes it must agree on.
BINDING = ("layer", "model", "wt_levels", "image_size", "train_images", "batch_size", "epochs", "lr", "decay", "warmup")
BINDING += ("clip", "amp", "seed", "drop_path", "augment", "steps", "smoothing", "model_kwargs", "init_seed")


def load_checkpoint(path: Path, options: argparse.Namespace, ranks: Ranks) -> dict[str, Any] | None:
    state = None
    if ranks.rank == 0:
        for leftover in path.parent.glob(".*.tmp"):
            leftover.unlink()
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
    state = ranks.from_first(state)
    if state:
        for name in BINDING:
            made, now = state["options"].get(name), getattr(options, name)
            if made != now:
                raise SystemExit(
                    f"{path} was made with {name}={made!r}, this run has {now!r}. "
                    "Take the same options, another --out, or --fresh."
                )
    return state


def run(options: argparse.Namespace, task: type[Trainer] = Trainer) -> dict[str, Any]:
    """Trains to the end and returns the results of the last test."""
    ranks = Ranks(options.device)
    options.device = ranks.device
    first = ranks.rank == 0
    if options.batch_size % ranks.world:
        raise SystemExit(f"--batch-size {options.batch_size} does not divide among {ranks.world} processes")
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    train, test = task.load(options)
    if len(train) < options.batch_size:
        raise SystemExit(f"--batch-size {options.batch_size} is more than the {len(train)} training images")
    per_epoch = len(train) // options.batch_size
    steps = options.steps or per_epoch * options.epochs

    trainer = task(task.build(options, train), options, ranks, steps)
    if first:
        options.out.mkdir(parents=True, exist_ok=True)
        if options.fresh:
            (options.out / "last.pt").unlink(missing_ok=True)
    last = options.out / "last.pt"
    start, best = 0, 0.0
    if state := load_checkpoint(last, options, ranks):
        trainer.restore(state)
        start, best = state["step"], state["best"]
    metrics = Metrics(options.out / "metrics.jsonl", start) if first else lambda *_, **__: None
    metrics("run", start, **describe(options, ranks, trainer.model))

    result: dict[str, Any] = {}
    with tqdm(total=steps, initial=start, disable=None if first else True, dynamic_ncols=True) as bar:
        step = start
        while step < steps:
            epoch = step // per_epoch
            batches = epoch_batches(len(train), options.batch_size, options.seed, epoch, ranks.rank, ranks.world)
            clock, since = time.perf_counter(), step
            done = step - epoch * per_epoch
            for x, y in loader(train, batches[done : done + steps - step], options):
                loss, norm = trainer.step(x, y, step)
                step += 1
                bar.update()
                if step % options.log_every == 0 or step == steps:
                    (mean,) = ranks.sum(loss / ranks.world)
                    rate = (step - since) * options.batch_size / (time.perf_counter() - clock)
                    clock, since = time.perf_counter(), step
                    metrics(
                        "train",
                        step,
                        epoch=epoch,
                        loss=mean,
                        gradient_norm=float(norm) if math.isfinite(norm) else None,  # fp16 steps that are skipped
                        lr=trainer.learning_rate(step - 1),
                        images_per_s=round(rate, 1),
                    )
                    bar.set_postfix(loss=f"{mean:.3f}", refresh=False)
                    if not math.isfinite(mean):
                        raise SystemExit(f"the loss is {mean} at step {step}")
                if step % per_epoch and step % options.checkpoint_every == 0 and first:
                    save(last, trainer, options, step, best)
            result = trainer.test(test)
            metrics("test", step, epoch=epoch, **result)
            if first:
                bar.write(f"epoch {epoch + 1}: {summary(result, task)}", file=sys.stderr)
                if result[task.score] > best:
                    best = result[task.score]
                    write_atomically(
                        options.out / "best.pt", lambda file: torch.save({"model": trainer.model.state_dict()}, file)
                    )
                draw_curves(options.out / "metrics.jsonl", options.out / "curves.png", task.score)
                save(last, trainer, options, step, best)
    if not result:  # nothing was left to do
        result = trainer.test(test)
    ranks.close()
    return result


def summary(result: dict[str, Any], task: type[Trainer] = Trainer) -> str:
    return f"test {task.score} {100 * result[task.score]:.2f}%, loss {result['loss']:.4f}"


def save(path: Path, trainer: Trainer, options: argparse.Namespace, step: int, best: float) -> None:
    state = trainer.state(step=step, best=best, options={name: getattr(options, name) for name in BINDING})
    write_atomically(path, lambda file: torch.save(state, file))


def describe(options: argparse.Namespace, ranks: Ranks, model: nn.Module) -> dict[str, Any]:
    return {
        "options": {k: v if isinstance(v, int | float | str | None) else str(v) for k, v in vars(options).items()},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "processes": ranks.world,
        "device": torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "wtconv": wtconv.__version__,
    }


def require_one_process(program: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SystemExit(f"{program} runs as one process, not under torchrun (WORLD_SIZE={os.environ['WORLD_SIZE']})")


def keyword(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a Python literal as value") from None


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--data", type=Path, default=FASHION_MNIST, help="Fashion-MNIST's folder, or images in class folders"
    )
    p.add_argument("--out", type=Path, default=Path("out/train"), help="output folder, default %(default)s")
    p.add_argument("--fresh", action="store_true", help="start anew where --out holds a checkpoint")
    p.add_argument("--layer", choices=LAYERS, default="wtconv")
    p.add_argument("--model", default="small", help="small, wtconvnext_tiny or any network of timm")
    p.add_argument(
        "--model-kwargs",
        type=keyword,
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="more arguments of the network: width=64 depth=3, or 'dims=(32,64,128,256)' for one of timm",
    )
    p.add_argument("--wt-levels", type=int, default=2, help="levels where a network of timm is converted")
    p.add_argument("--image-size", type=int, help="default: 28 for Fashion-MNIST, 224 for a folder")
    p.add_argument("--no-augment", dest="augment", action="store_false", help="train on the images as they are")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--steps", type=int, help="stop after so many steps, whatever --epochs says")
    p.add_argument("--batch-size", type=int, default=128, help="of all processes together, default %(default)s")
    p.add_argument("--lr", type=float, default=3e-3, help="highest learning rate, default %(default)s")
    p.add_argument("--decay", type=float, default=0.05, help="weight decay, default %(default)s")
    p.add_argument("--warmup", type=int, default=100, help="steps of warm-up, default %(default)s")
    p.add_argument("--smoothing", type=float, default=0.0, help="of the labels, default %(default)s")
    p.add_argument("--clip", type=float, default=1.0, help="largest gradient norm, default %(default)s")
    p.add_argument("--drop-path", type=float, default=0.0, help="stochastic depth of a network of timm")
    p.add_argument("--amp", choices=("off", "bf16", "fp16"), default="off", help="autocast's type")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--compile", action="store_true", help="torch.compile the network")
    p.add_argument("--workers", type=int, default=0, help="processes that load images")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--init-seed", type=int, help="seed of the initial values alone, default: --seed")
    p.add_argument("--deterministic", action="store_true", help="same bits in every run")
    p.add_argument("--log-every", type=int, default=20, help="steps between lines of metrics")
    p.add_argument("--checkpoint-every", type=int, default=200, help="steps between checkpoints within an epoch")
    p.add_argument("--train-images", type=int, help="use only so many")
    p.add_argument("--test-images", type=int, help="use only so many")
    return p


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    result = run(options)
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{summary(result)}; see {options.out}/")


if __name__ == "__main__":
    main()
