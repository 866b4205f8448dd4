"""Effective receptive fields, side by side: python -m wtconv.erf [MODEL ...]

    python -m wtconv.erf                                        # four small networks of equal depth, as initialised
    python -m wtconv.erf wtconv@out/wtconv/best.pt dilated@out/dilated/best.pt --images photos
    python -m wtconv.erf wtconvnext_tiny convnext_tiny --pretrained --images photos --size 1024
    python -m wtconv.erf --table                                # parameters against receptive field, nothing else

MODEL is a network of timm, or wtconv, large-kernel, dilated or depthwise: the same small network with these layers
(examples/train.py trains them; its option --model-kwargs takes what --table prints). @FILE loads a checkpoint.

Which pixels matter to the middle of the last feature map? As Ding et al. (arXiv 2203.06717) measure it, after Luo et al.
(arXiv 1701.04128): the gradient of the middle cell, its channels rectified and summed, with respect to the image; its positive
part, summed over colours and averaged over real images. The share of a square around that cell is its part of the sum.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wtconv.baselines import LAYERS
from wtconv.layers import WTConv2d

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BUILT_IN = ("wtconv", "large-kernel", "dilated", "depthwise")
# A block's branch is added as it is: ConvNeXt's initial factor of 1e-6 would leave the patches of the stem.
SMALL = {"dims": (24, 48, 96, 192), "depths": (1, 1, 3, 1), "ls_init_value": 1.0}
SHARES = (0.2, 0.5, 0.99)


# ---------------------------------------------------------------------------------------------------------------------
# Receptive field of a layer


def reach(layer: nn.Module, size: int, row: int, column: int) -> Tensor:
    """Which pixels of a size x size plane can change an output pixel of a depthwise layer: a boolean plane.

    The layer gets random weights: with equal ones in every band, Haar bands cancel and hide most of the field.
    """
    generator = torch.Generator().manual_seed(0)
    for name, p in layer.named_parameters():
        if "wt_filter" not in name:
            p.data = torch.rand(p.shape, generator=generator, dtype=torch.float64) + 0.1
    x = torch.zeros(1, layer.in_channels, size, size, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer.double()(x)[0, 0, row, column], x)
    return gradient[0, 0] != 0


def side(layer: nn.Module, bound: int) -> int:
    """Side of the square that a pixel in the middle of a large plane sees."""
    seen = reach(layer, 2 * bound, bound, bound)
    rows, columns = seen.any(1).nonzero(), seen.any(0).nonzero()
    height, width = (int(n.max() - n.min()) + 1 for n in (rows, columns))
    if height != width or max(height, width) >= 2 * bound - 1:
        raise ValueError(f"the field of {layer} is {height} x {width} in a plane of {2 * bound}")
    return height


def weights(layer: nn.Module) -> int:
    """Trained weights a channel, without bias and scales (which fold into the weights)."""
    return sum(m.weight.numel() for m in layer.modules() if isinstance(m, nn.Conv2d)) // layer.in_channels


def field_table(kernels: Sequence[int] = (3, 5), most_levels: int = 8, plane: int = 512) -> list[dict[str, Any]]:
    """Parameters against receptive field, measured: a row for each kernel and number of levels."""
    rows = []
    for kernel in kernels:
        for levels in range(most_levels + 1):
            layer = WTConv2d(1, 1, kernel_size=kernel, wt_levels=levels, bias=False)
            rows.append(
                {
                    "kernel": kernel,
                    "levels": levels,
                    "weights": weights(layer),
                    "side": side(layer, kernel * 2**levels + 2),
                    "middle": reach(layer, plane, plane // 2, plane // 2).double().mean().item(),
                    "corner": reach(layer, plane, plane - 1, plane - 1).double().mean().item(),
                }
            )
    return rows


def print_table(rows: list[dict[str, Any]], plane: int) -> None:
    print(
        f"Weights a channel and receptive field of one layer, measured by gradients; and the share of a {plane} x {plane}"
    )
    print("plane that its middle pixel sees, and the pixel in a corner.\n")
    print("| k | levels | weights a channel | field | weights of one kernel of that size | middle sees | corner sees |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['kernel']} | {r['levels']} | {r['weights']:,} | {r['side']} x {r['side']} | {r['side'] ** 2:,} "
            f"| {100 * r['middle']:.1f}% | {100 * r['corner']:.1f}% |"
        )
    half = plane // 2
    goals = {f"The field of one kernel of {half} x {half} ({half**2:,} weights)": ("side", half)}
    goals |= {f"All of {plane} x {plane} from the {place}": (place, 1.0) for place in ("middle", "corner")}
    print()
    for goal, (key, least) in goals.items():
        enough = {r["kernel"]: r for r in reversed(rows) if r[key] >= least}
        means = (f"{r['levels']} levels of {k} x {k}, {r['weights']:,} weights" for k, r in sorted(enough.items()))
        print(f"{goal}: {'; or '.join(means)}.")
    keywords = shlex.join(f"{name}={value}" for name, value in SMALL.items())
    print(f"\nThe built-in networks: --model wtconvnext_tiny --model-kwargs {keywords}")


# ---------------------------------------------------------------------------------------------------------------------
# Effective receptive field of a network


def contributions(features: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> tuple[Tensor, tuple[float, float]]:
    """(what each pixel contributes, adding up to 1; row and column of the cell's middle, in pixels)."""
    total = 0
    for image in images:
        x = image[None].requires_grad_()
        y = features(x)
        if y.dim() != 4:
            raise ValueError(f"expected feature maps (N, C, H, W), got shape {tuple(y.shape)}")
        at = y.shape[2] // 2, y.shape[3] // 2
        (gradient,) = torch.autograd.grad(F.relu(y[:, :, at[0], at[1]]).sum(), x)
        total = total + F.relu(gradient)[0].sum(0).double().cpu()
    whole = total.sum()
    if not 0 < whole < float("inf"):
        raise ValueError(f"the gradients add up to {float(whole)}")
    middle = tuple((a + 0.5) * image / cells - 0.5 for a, image, cells in zip(at, x.shape[2:], y.shape[2:]))
    return total / whole, middle


def energy(share: Tensor, middle: tuple[float, float]) -> Tensor:
    """Share of the r-th smallest square around the middle, for r = 0, 1, ..."""
    rows, columns = ((torch.arange(n) - m).abs() for n, m in zip(share.shape, middle))
    ring = torch.maximum(rows[:, None], columns[None]).floor().long()
    return torch.bincount(ring.flatten(), weights=share.flatten()).cumsum(0)


def side_of(radius: Any, middle: tuple[float, float]) -> Any:
    """Its side: the middle is that of a pixel, or lies between two."""
    return 2 * radius + (1 if middle[0] % 1 == 0 else 2)


def squares(share: Tensor, middle: tuple[float, float]) -> dict[str, dict[str, float]]:
    """For each of SHARES the smallest square around the middle that holds it, and its part of the image's area."""
    inside, result = energy(share, middle), {}
    for wanted in SHARES:
        radius = int((inside < wanted * (1 - 1e-9)).sum())
        rows, columns = (int(((torch.arange(n) - m).abs() < radius + 1).sum()) for n, m in zip(share.shape, middle))
        result[f"{100 * wanted:g}%"] = {"side": side_of(radius, middle), "area": rows * columns / share.numel()}
    return result


def load_network(model: str, pretrained: bool) -> nn.Module:
    try:
        import timm

        import wtconv.networks  # noqa: F401, registers wtconvnext_*
    except ImportError as error:
        raise SystemExit("wtconv.erf takes its networks from timm: pip install 'wtconv[erf]'") from error
    name, _, file = model.partition("@")
    torch.manual_seed(0)
    if name in BUILT_IN:
        network = timm.create_model("wtconvnext_tiny", wtconv_class=LAYERS[name], num_classes=0, **SMALL)
    elif timm.is_model(name):
        network = timm.create_model(name, pretrained=pretrained, num_classes=0)
    else:
        raise SystemExit(f"no network {name!r}: give {', '.join(BUILT_IN)}, or a name of timm.list_models()")
    if file:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except OSError as error:
            raise SystemExit(f"cannot read {file}: {error.strerror}") from error
        for key in ("model", "state_dict"):
            state = state.get(key, state)
        try:
            # The classifier is not part of the features.
            missing = network.load_state_dict(
                {k: v for k, v in state.items() if k in network.state_dict()}, strict=False
            )
        except RuntimeError as error:
            raise SystemExit(f"{file} is not of {name}: {error}") from error
        if missing.missing_keys:
            raise SystemExit(f"{file} is not of {name}: it has no {', '.join(missing.missing_keys[:3])}")
    return network.eval().requires_grad_(False)


def features_of(network: nn.Module, stage: int) -> Callable[[Tensor], Tensor]:
    """The network up to the feature map of a stage."""
    if hasattr(network, "forward_intermediates"):
        return lambda x: network.forward_intermediates(x, indices=[stage], intermediates_only=True)[0]
    if stage != -1:
        raise SystemExit(f"--stage: {type(network).__name__} of this timm has no feature maps of single stages")
    return network.forward_features


def load_images(folder: Path, count: int, size: int) -> list[Tensor]:
    """Images (3, size, size), normalised as ImageNet's are."""
    mean, deviation = (torch.tensor(v).reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    if not folder.is_dir():
        raise SystemExit(
            f"no folder {folder}: give --images FOLDER with images of any kind, or install Fashion-MNIST (on Debian: "
            "apt-get install dataset-fashion-mnist)"
        )
    idx = folder / "t10k-images-idx3-ubyte.gz"
    if idx.exists():
        with gzip.open(idx) as file:
            pixels = torch.frombuffer(bytearray(file.read(16 + count * 784)), dtype=torch.uint8)[16:]
        images = list(pixels.reshape(-1, 1, 28, 28).expand(-1, 3, -1, -1).float() / 255)
    else:
        from PIL import Image

        kinds = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
        files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in kinds]
        if not files:
            raise SystemExit(f"--images: {folder} holds no image ({' '.join(sorted(kinds))})")
        images = []
        for i in range(min(count, len(files))):  # spread over the folder, which may be sorted by class
            with Image.open(files[i * len(files) // min(count, len(files))]) as file:
                rgb = file.convert("RGB")
            edge = min(rgb.size)
            left, top = ((n - edge) // 2 for n in rgb.size)
            pixels = torch.frombuffer(
                bytearray(rgb.crop((left, top, left + edge, top + edge)).tobytes()), dtype=torch.uint8
            )
            images.append(pixels.reshape(edge, edge, 3).permute(2, 0, 1).float() / 255)
    resized = (F.interpolate(i[None], (size, size), mode="bicubic", antialias=True)[0].clamp(0, 1) for i in images)
    return [(image - mean) / deviation for image in resized]


def draw(results: dict[str, dict[str, Any]], pyplot: Any, picture: Path) -> None:
    count = len(results)
    figure, panels = pyplot.subplots(1, count + 1, figsize=(3.4 * (count + 1), 4.2), layout="constrained")
    short = [model.partition("@")[0] for model in results]
    names = short if len(set(short)) == count else list(results)  # files tell them apart
    for name, result, axes in zip(names, results.values(), panels):
        share = result["share"]
        relative = (share / share.max()).clamp(min=1e-6).log10()
        axes.imshow(relative.numpy(), vmin=-5, vmax=0, cmap="magma", interpolation="nearest")
        for (wanted, square), color in zip(result["squares"].items(), ("white", "cyan", "lime")):
            corner = [m - square["side"] / 2 for m in reversed(result["middle"])]
            axes.add_patch(pyplot.Rectangle(corner, square["side"], square["side"], fill=False, color=color))
        sides = ", ".join(f"{wanted}: {square['side']}" for wanted, square in result["squares"].items())
        axes.set(xticks=[], yticks=[], xlim=(-0.5, share.shape[1] - 0.5), ylim=(share.shape[0] - 0.5, -0.5))
        axes.set_title(f"{name}\n{result['parameters'] / 1e6:.2f} M parameters\n{sides}", fontsize="small")
        inside = energy(share, result["middle"])
        panels[-1].plot(
            side_of(torch.arange(len(inside)), result["middle"]).tolist(), (100 * inside).tolist(), label=name
        )
    panels[-1].set(xlabel="side of the square, pixels", ylabel="contribution inside, %", ylim=(0, 101))
    panels[-1].grid(alpha=0.3)
    panels[-1].legend(fontsize="x-small")
    figure.savefig(picture, dpi=90, bbox_inches="tight")
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(
        prog="python -m wtconv.erf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", metavar="MODEL", default=BUILT_IN, help=f"default: {' '.join(BUILT_IN)}")
    p.add_argument("--images", type=Path, default=FASHION_MNIST, help="folder of images, default %(default)s")
    p.add_argument("--size", type=int, default=416, help="images are scaled to this size, default %(default)s")
    p.add_argument("--count", type=int, default=32, help="images, default %(default)s")
    p.add_argument("--stage", type=int, default=-1, help="of which feature map, default the last")
    p.add_argument("--pretrained", action="store_true", help="timm's weights for networks of timm")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out", type=Path, default=Path("out/erf"), help="for erf.png and erf.json, default %(default)s")
    p.add_argument("--table", action="store_true", help="print parameters against receptive field")
    options = p.parse_args(arguments)
    if options.table:
        return print_table(field_table(), 512)
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("wtconv.erf draws with matplotlib: pip install 'wtconv[erf]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    images = load_images(options.images, options.count, options.size)
    results = {}
    for model in options.models:
        network = load_network(model, options.pretrained).to(options.device)
        share, middle = contributions(features_of(network, options.stage), [i.to(options.device) for i in images])
        results[model] = {
            "parameters": sum(p.numel() for n, p in network.named_parameters() if "wt_filter" not in n),
            "squares": squares(share, middle),
            "share": share,
            "middle": middle,
        }
    options.out.mkdir(parents=True, exist_ok=True)
    draw(results, pyplot, options.out / "erf.png")
    kept = {name: {k: v for k, v in r.items() if k != "share"} for name, r in results.items()}
    setting = {"images": len(images), "folder": str(options.images), "size": options.size, "stage": options.stage}
    (options.out / "erf.json").write_text(json.dumps({**setting, "models": kept}, indent=1))
    print(
        f"{len(images)} images of {options.size} x {options.size}: side of the square, and its part of the image, that holds"
    )
    print(f"| network | parameters | {' | '.join(f'{100 * s:g}%' for s in SHARES)} |\n|---|---|{'---|' * len(SHARES)}")
    for name, r in results.items():
        cells = [f"{s['side']} ({100 * s['area']:.1f}%)" for s in r["squares"].values()]
        print(f"| {name} | {r['parameters']:,} | {' | '.join(cells)} |")
    print(f"See {options.out}/erf.png")


if __name__ == "__main__":
    main()
