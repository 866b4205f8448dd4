#!/usr/bin/env python3
"""WTConv learns Fashion-MNIST: the first steps beside the plain PyTorch layer, then training to the end.

python examples/demo.py              # about two minutes on two cores
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import train
import wtconv


def first_steps(layer: str, options: argparse.Namespace, state: dict | None, steps: int) -> tuple[dict, list, float]:
    """(initial values, losses, images a second) of the first steps, on the same images from the same initial values."""
    options = argparse.Namespace(**vars(options) | {"layer": layer})
    ranks = train.Ranks(options.device.type)
    data, _ = train.load_data(options)
    model = train.build_model(options, data.channels, len(data.classes))
    if state is not None:
        model.load_state_dict(state)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = train.Trainer(model, options, ranks, steps)
    losses, warm = [], steps // 4
    for number, batch in enumerate(train.epoch_batches(len(data), options.batch_size, 0, 0, 0, 1)[:steps]):
        if number == warm:
            start = time.perf_counter()
        losses.append(float(trainer.step(*data[batch], number)[0]))
    return state, losses, (steps - warm) * options.batch_size / (time.perf_counter() - start)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("out/demo"))
    p.add_argument("--steps", type=int, default=40, help="steps that both layers take, default %(default)s")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--train-images", type=int, default=60000)
    arguments = p.parse_args()
    options = train.parser().parse_args(
        [
            f"--out={arguments.out}",
            f"--epochs={arguments.epochs}",
            f"--train-images={arguments.train_images}",
            "--batch-size=64",
            "--no-augment",  # in so few epochs it would only slow the learning
            "--fresh",
        ]
    )
    options.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    print(
        f"wtconv {wtconv.__version__}, torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads"
    )
    print(
        "A network of four WTConv blocks on Fashion-MNIST, with this package's layer and with plain PyTorch operators.\n"
    )
    state, ours, rate = first_steps("wtconv", options, None, arguments.steps)
    _, plain, plain_rate = first_steps("reference", options, state, arguments.steps)
    print("step   loss, wtconv   loss, plain")
    for step in sorted({0, 1, 4, 9, 19, arguments.steps - 1}):
        if step < arguments.steps:
            print(f"{step + 1:4}   {ours[step]:12.6f}   {plain[step]:11.6f}")
    apart = max(abs(a - b) / b for a, b in zip(ours, plain))
    print(f"largest relative difference in {arguments.steps} steps: {apart:.1e}")
    print(
        f"images a second, trained: wtconv {rate:.0f}, plain {plain_rate:.0f}: {rate / plain_rate:.1f} times as fast\n"
    )
    if apart > 1e-3:
        raise SystemExit(f"the losses should agree to 1e-3, they differ by {apart:.1e}")

    options.device = options.device.type
    start = time.perf_counter()
    result = train.run(options)
    print(
        f"test accuracy {100 * result['accuracy']:.2f}% after {arguments.epochs} epochs in "
        f"{time.perf_counter() - start:.0f} s; curves in {arguments.out}/curves.png"
    )
    if arguments.train_images >= 60000 and result["accuracy"] < 0.88:
        raise SystemExit("expected an accuracy of 88% or more")


if __name__ == "__main__":
    main()
