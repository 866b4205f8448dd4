#!/usr/bin/env python3
"""Segments images with a small U-Net whose encoder has standard, dilated or WTConv layers, and compares the three.

    python examples/segment.py --data nuclei                 # nuclei/images/NAME.png and nuclei/masks/NAME.png
    python examples/segment.py --data nuclei --seeds 0 1 2 --device cuda --amp bf16
    python examples/segment.py --smoke                       # generated shapes: shows that it works, and nothing else

Encoders are equal in depth and width, and differ in the 5x5 depthwise layer of each block: as it is, dilated by 2^L, or
WTConv with L levels. One table at the end: parameters, mean intersection over union, latency, memory of a training step.
A folder holds images/ and masks/ with the same names, and of these pairs every fifth is kept for the test; or train/ and
val/ hold such a folder each. A mask's pixel values are its classes. Takes all options of train.py; interrupted, the same
command goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import train
from torch import Tensor, nn
from wtconv.baselines import LAYERS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from measure import peak_bytes  # noqa: E402

ENCODERS = {"standard": "depthwise", "dilated": "dilated", "WTConv": "wtconv", "large kernel": "large-kernel"}
IGNORED = -100  # cross_entropy's ignore_index
STRIDE = 16  # of the deepest stage


# ---------------------------------------------------------------------------------------------------------------------
# Data


class Pairs(train.Images):
    """Images and masks. Training crops are cut and mirrored at random; test images are whole, and come one at a time."""

    def __init__(self, pairs: list[tuple[Path, Path]], channels: int, values: np.ndarray, whole: bool, options):
        super().__init__(options)
        self.pairs, self.channels, self.values, self.whole = pairs, channels, values, whole
        self.classes, self.size = [str(v) for v in values], options.image_size or 128

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, batch: train.Batch) -> tuple[Tensor, Tensor]:
        u = self._random(batch)
        items = [self._load(int(i), None if u is None else u[row]) for row, i in enumerate(batch.indices)]
        images, labels = (torch.from_numpy(np.stack(part)) for part in zip(*items))
        return images.permute(0, 3, 1, 2).contiguous(), labels

    def _load(self, index: int, u: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        image, mask = self.pairs[index]
        x = read_image(image, "L" if self.channels == 1 else "RGB").astype(np.float32)
        x = (x - x.mean()) / (x.std() + 1)
        labels = np.searchsorted(self.values, read_mask(mask))
        if labels.shape != x.shape[:2]:
            raise SystemExit(f"{mask} is {labels.shape}, its image {x.shape[:2]} pixels")
        if self.whole:
            height, width = (-n % STRIDE for n in labels.shape)
        else:
            height, width = (max(0, self.size - n) for n in labels.shape)
        x = np.pad(x, ((0, height), (0, width), (0, 0)))
        labels = np.pad(labels, ((0, height), (0, width)), constant_values=IGNORED)
        if self.whole:
            return x, labels
        at = (0.5, 0.5) if u is None else u[:2]
        top, left = (int(a * (n - self.size + 1)) for a, n in zip(at, labels.shape))
        x, labels = (a[top : top + self.size, left : left + self.size] for a in (x, labels))
        if u is not None:
            down, across, turn = 1 - 2 * int(u[2] < 0.5), 1 - 2 * int(u[3] < 0.5), u[3] * 2 % 1 < 0.5
            x, labels = (a[::down, ::across] for a in (x, labels))
            if turn:
                x, labels = x.swapaxes(0, 1), labels.swapaxes(0, 1)
        return x, labels


def read_image(path: Path, mode: str) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as file:
        pixels = np.asarray(file.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def read_mask(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as file:
        if len(file.getbands()) != 1:
            raise SystemExit(f"{path} has mode {file.mode}; a mask has one channel, whose values are classes")
        return np.asarray(file).astype(np.int64)


def find_pairs(folder: Path) -> list[tuple[Path, Path]]:
    parts = [folder / name for name in ("images", "masks")]
    for part in parts:
        if not part.is_dir():
            raise SystemExit(f"--data: no folder {part}; images/ and masks/ with the same names are needed")
    images, masks = ({file.stem: file for file in sorted(part.iterdir()) if file.is_file()} for part in parts)
    if unpaired := sorted(images.keys() ^ masks.keys()):
        raise SystemExit(f"--data: {folder}: {len(unpaired)} names have no image or no mask: {', '.join(unpaired[:5])}")
    return [(images[name], masks[name]) for name in sorted(images)]


def load_pairs(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    from PIL import Image

    folder: Path = options.data
    if (folder / "train").is_dir():
        parts = find_pairs(folder / "train"), find_pairs(folder / "val")
    else:
        pairs = find_pairs(folder)
        parts = ([p for i, p in enumerate(pairs) if (i % 5 == 4) == test] for test in (False, True))
    parts = [p[:limit] for p, limit in zip(parts, (options.train_images, options.test_images))]
    if not all(parts):
        raise SystemExit(f"--data: too few images in {folder}")
    values = np.unique(np.concatenate([np.unique(read_mask(mask)) for part in parts for _, mask in part]))
    if not 2 <= len(values) <= 256:
        raise SystemExit(f"--data: the masks hold {len(values)} different values; they are classes, 2 to 256")
    modes = set()
    for image, _ in parts[0] + parts[1]:
        with Image.open(image) as file:
            modes.add(file.mode)
    channels = 1 if modes <= {"1", "L"} else 3
    return tuple(Pairs(part, channels, values, whole, options) for part, whole in zip(parts, (False, True)))


def make_shapes(folder: Path, count: int = 40, size: int = 64) -> None:
    """Bright circles and rectangles, two classes, under noise."""
    from PIL import Image

    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size]
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        mask = np.zeros((size, size), np.uint8)
        for kind in (1, 2, 1, 2):
            y, x, radius = rng.integers(8, size - 8, 2).tolist() + [rng.integers(4, 12)]
            distance = np.hypot(rows - y, columns - x) if kind == 1 else np.maximum(abs(rows - y), abs(columns - x))
            mask[distance <= radius] = kind
        pixels = 60.0 * (mask > 0) + 80 + rng.normal(0, 20, mask.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{i:03}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{i:03}.png")


# ---------------------------------------------------------------------------------------------------------------------
# The network and its task


class Up(nn.Module):
    """Doubles the size of x, and merges what the encoder saw at that size."""

    def __init__(self, channels: int, skipped: int):
        super().__init__()
        self.conv = nn.Conv2d(channels + skipped, skipped, 3, padding=1)
        self.norm = nn.GroupNorm(1, skipped)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.gelu(self.norm(self.conv(torch.cat([x, skip], 1))))


class UNet(nn.Module):
    """An encoder of ConvNeXt blocks at half to a sixteenth of the size, and a light decoder."""

    def __init__(
        self,
        in_chans: int,
        num_classes: int,
        layer: Callable[..., nn.Module],
        width: int = 16,
        depth: int = 2,
        levels: Sequence[int] = (4, 3, 2, 1),
    ):
        super().__init__()
        widths = [width << stage for stage in range(len(levels))]
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 2, stride=2) for before, after in zip([in_chans, *widths], widths)
        )
        self.encoder = nn.ModuleList(
            nn.Sequential(*(train.Block(channels, level, layer) for _ in range(depth)))
            for channels, level in zip(widths, levels)
        )
        self.up = nn.ModuleList(Up(below, above) for below, above in zip(widths[:0:-1], widths[-2::-1]))
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down, stage in zip(self.down, self.encoder):
            x = stage(down(x))
            skips.append(x)
        for up, skip in zip(self.up, skips[-2::-1]):
            x = up(x, skip)
        return F.interpolate(self.head(x), scale_factor=2.0, mode="bilinear")


class Segmenter(train.Trainer):
    score = "miou"
    load = staticmethod(load_pairs)

    @staticmethod
    def build(options: argparse.Namespace, data: Pairs) -> nn.Module:
        torch.manual_seed(options.seed)
        return UNet(data.channels, len(data.classes), LAYERS[options.layer], **dict(options.model_kwargs))

    @torch.inference_mode()
    def test(self, dataset: Pairs) -> dict[str, Any]:
        """Loss, intersection over union of each class and their mean, over all pixels of a set."""
        self.model.eval()
        classes = len(dataset.classes)
        loss, confusion = 0.0, torch.zeros(classes * classes, dtype=torch.int64, device=self.ranks.device)
        mine = range(self.ranks.rank, len(dataset), self.ranks.world)
        batches = [train.Batch(None, np.array([i])) for i in mine]
        for x, y in train.loader(dataset, batches, self.options):
            x, y = self._inputs(x, y)
            mean, logits = self._loss(self.model, x, y)
            seen = y != IGNORED
            confusion += torch.bincount((y * classes + logits.argmax(1))[seen], minlength=classes * classes)
            loss += mean.double()
        loss, *confusion = self.ranks.sum(loss, *confusion)
        table = np.array(confusion).reshape(classes, classes)
        union = table.sum(0) + table.sum(1) - table.diagonal()
        iou = table.diagonal()[union > 0] / union[union > 0]
        return {"loss": loss / len(dataset), "miou": float(iou.mean()), "iou": iou.tolist()}


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


def latency(trainer: Segmenter, x: Tensor, seconds: float) -> float:
    """Median milliseconds of a forward pass."""
    device = trainer.ranks.device
    trainer.model.eval()
    times: list[float] = []
    with torch.inference_mode(), torch.autocast(device.type, dtype=trainer.amp, enabled=trainer.amp is not None):
        x = x.to(device)
        end = time.perf_counter() + seconds
        while len(times) < 8 or time.perf_counter() < end:
            start = time.perf_counter()
            trainer.model(x)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])


def training_memory(trainer: Segmenter, x: Tensor, y: Tensor) -> int:
    """Most bytes held during forward and backward, beyond model and optimizer."""
    trainer.gradients(x, y, 0)
    trainer.optimizer.zero_grad(set_to_none=True)
    return peak_bytes(lambda: trainer.gradients(x, y, 0), trainer.ranks.device.type)


@torch.inference_mode()
def predict(trainer: Segmenter, x: Tensor) -> np.ndarray:
    return trainer.model.eval()(x.to(trainer.ranks.device)).argmax(1)[0].cpu().numpy()


def train_and_measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    tests, results = [], {}
    for seed in options.seeds:
        out = options.out / f"{ENCODERS[name]}-{seed}"
        chosen = argparse.Namespace(**vars(options) | {"layer": ENCODERS[name], "seed": seed, "out": out})
        print(f"{name} encoder, seed {seed}", file=sys.stderr)
        tests.append(train.run(chosen, Segmenter))
        if seed == options.seeds[0]:
            data, test = load_pairs(chosen)
            trainer = Segmenter(Segmenter.build(chosen, data), chosen, train.Ranks(options.device), 1)
            trainer.restore(torch.load(out / "last.pt", map_location=trainer.ranks.device, weights_only=True))
            batch = train.epoch_batches(len(data), chosen.batch_size, 0, 0, 0, 1)[0]
            shown = np.linspace(0, len(test) - 1, 5).astype(int)
            pictures = [test[train.Batch(None, shown[i : i + 1])] for i in range(len(shown))]
            results = {
                "parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
                "latency_ms": latency(trainer, pictures[0][0], options.seconds),
                "latency_size": list(pictures[0][0].shape),
                "training_memory_mib": training_memory(trainer, *data[batch]) / 2**20,
                "pictures": [(x[0, 0].numpy(), y[0].numpy(), predict(trainer, x)) for x, y in pictures],
            }
    return results | {"miou": [t["miou"] for t in tests], "iou": [t["iou"] for t in tests]}


# ---------------------------------------------------------------------------------------------------------------------
# Reporting


def report(results: dict[str, Any], options: argparse.Namespace, command: str) -> str:
    train_set, test_set = load_pairs(options)
    some = next(iter(results.values()))
    lines = ["# Segmentation: standard, dilated and WTConv encoder", ""]
    if options.smoke:
        lines += [
            "**A smoke run on generated shapes: it shows that the program works, and nothing about encoders.**",
            "",
        ]
    lines += [
        f"`{command}`: {len(train_set)} images for training, {len(test_set)} for the test, {len(train_set.classes)} classes, "
        f"{len(options.seeds)} seed{'s' * (len(options.seeds) > 1)}, torch {torch.__version__} on "
        f"{torch.cuda.get_device_name() if options.device == 'cuda' else f'{torch.get_num_threads()} CPU thread(s)'}. "
        f"mIoU is that of the last epoch, over all pixels of whole test images, with the range over seeds; latency of one image "
        f"{tuple(some['latency_size'])}; memory of a step (forward and backward) at batch {options.batch_size} and "
        f"{train_set.size} x {train_set.size}, beyond model and optimizer.",
        "",
        "| encoder | parameters | mIoU, % | range | latency, ms | training memory, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        miou = [100 * m for m in r["miou"]]
        lines.append(
            f"| {name} | {r['parameters']:,} | {statistics.mean(miou):.1f} | {min(miou):.1f} to {max(miou):.1f} "
            f"| {r['latency_ms']:.1f} | {r['training_memory_mib']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], classes: int, picture: Path) -> None:
    if (pyplot := train.plotter()) is None:
        return
    some = next(iter(results.values()))["pictures"]
    rows = ["image", "mask", *results]
    figure, grid = pyplot.subplots(
        len(rows), len(some), figsize=(1.8 * len(some), 1.8 * len(rows)), layout="constrained", squeeze=False
    )
    for row, (name, line) in enumerate(zip(rows, grid)):
        for column, axes in enumerate(line):
            image, mask, _ = some[column]
            axes.set(xticks=[], yticks=[])
            if row == 0:
                axes.imshow(image, cmap="gray")
            else:
                labels = mask if row == 1 else results[name]["pictures"][column][2]
                axes.imshow(np.where(mask == IGNORED, 0, labels), vmin=0, vmax=classes - 1, interpolation="nearest")
        line[0].set_ylabel(name)
    train.write_atomically(picture, lambda file: figure.savefig(file, format="png", dpi=110))
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    p = train.parser()
    p.description = __doc__
    p.add_argument("--encoders", nargs="+", choices=ENCODERS, default=["standard", "dilated", "WTConv"])
    p.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run an encoder and seed")
    p.add_argument("--seconds", type=float, default=3.0, help="to measure a latency for, default %(default)s")
    p.add_argument("--smoke", action="store_true", help="generated shapes, few steps: does the program work?")
    p.set_defaults(data=None, out=Path("out/segment"), epochs=20, batch_size=16, lr=2e-3, warmup=20, model="unet")
    options = p.parse_args(arguments)
    train.require_one_process(p.prog)
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.smoke:
        options.data = options.out / "shapes"
        options.image_size, options.epochs, options.batch_size, options.seconds = 48, 4, 8, 0.1
        make_shapes(options.data)
    if options.data is None:
        raise SystemExit("--data FOLDER is needed: a folder with images/ and masks/; or --smoke for generated shapes")
    results = {name: train_and_measure(name, options) for name in options.encoders}
    command = shlex.join(["python", "examples/segment.py", *(arguments or sys.argv[1:])])
    text = report(results, options, command)
    draw(results, len(load_pairs(options)[0].classes), options.out / "segment.png")
    for r in results.values():
        del r["pictures"]
    whole = {"command": command, "smoke": options.smoke, "encoders": results}
    train.write_atomically(options.out / "segment.json", lambda file: file.write(json.dumps(whole, indent=1).encode()))
    train.write_atomically(options.out / "segment.md", lambda file: file.write(text.encode()))
    print(text)


if __name__ == "__main__":
    main()
