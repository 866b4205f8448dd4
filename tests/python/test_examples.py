"""examples/train.py as users run it: killed and resumed, on several processes, on folders of images."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("tqdm")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import train  # noqa: E402

fashion_mnist = pytest.mark.skipif(
    not train.FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
SHORT = ["--epochs=2", "--batch-size=32", "--train-images=512", "--test-images=256", "--warmup=4", "--log-every=1"]
SHORT += ["--device=cpu", "--deterministic"]


def command(out, *arguments, processes=1):
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, str(EXAMPLES / "train.py"), *SHORT, f"--out={out}", *arguments]


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}  # the same sums in every run


def run(out, *arguments, processes=1):
    done = subprocess.run(
        command(out, *arguments, processes=processes), env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def lines(out, kind):
    return [m for m in train.read_metrics(out / "metrics.jsonl") if m["kind"] == kind]


def size(path):
    return path.stat().st_size if path.exists() else 0


def without_times(metrics):
    return [{k: v for k, v in m.items() if k != "images_per_s"} for m in metrics]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run without interruption."""
    out = tmp_path_factory.mktemp("straight")
    run(out)
    return out


@fashion_mnist
def test_a_run_leaves_metrics_a_picture_and_checkpoints(straight):
    losses = [m["loss"] for m in lines(straight, "train")]
    assert [m["step"] for m in lines(straight, "train")] == list(range(1, 33))
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:4])
    assert [m["step"] for m in lines(straight, "test")] == [16, 32]
    assert (straight / "curves.png").read_bytes().startswith(b"\x89PNG")
    best = torch.load(straight / "best.pt", weights_only=True)
    assert best["model"].keys() == torch.load(straight / "last.pt", weights_only=True)["model"].keys()
    (header,) = lines(straight, "run")
    assert header["options"]["layer"] == "wtconv" and header["parameters"] > 50_000


@fashion_mnist
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(straight, tmp_path):
    """SIGKILL at moments spread over start, training and the writing of checkpoints, of which there is one a step."""
    rng = np.random.default_rng(0)
    starts = 0
    while starts < 4:
        before = size(tmp_path / "metrics.jsonl")
        process = subprocess.Popen(
            command(tmp_path, "--checkpoint-every=1"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Wait until it has written something new, then a random while.
        for _ in range(12000):
            if process.poll() is not None or size(tmp_path / "metrics.jsonl") > before + 400:
                break
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.3)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        starts += 1
        for name in ("last.pt", "best.pt"):  # whatever is there is whole
            if (tmp_path / name).exists():
                torch.load(tmp_path / name, weights_only=True)
        if lines(tmp_path, "test")[1:]:
            break
    assert len(lines(tmp_path, "train")) < 32 or starts > 1, "no kill came before the end"
    (tmp_path / ".last.pt.tmp").write_bytes(b"half a checkpoint")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 99, "lo')
    run(tmp_path, "--checkpoint-every=1")
    assert not list(tmp_path.glob(".*.tmp"))
    for kind in ("train", "test"):
        assert without_times(lines(tmp_path, kind)) == without_times(lines(straight, kind))
    resumed, expected = (torch.load(out / "last.pt", weights_only=True) for out in (tmp_path, straight))
    assert resumed["step"] == expected["step"] == 32
    for name, value in expected["model"].items():
        assert torch.equal(resumed["model"][name], value), name
    for number, slot in expected["optimizer"]["state"].items():
        for name, value in slot.items():
            assert torch.equal(resumed["optimizer"]["state"][number][name], value), (number, name)
    # Nothing is left to do; the same command says the same again.
    assert "test accuracy" in run(tmp_path).stdout
    # Other options would make it another training.
    other = subprocess.run(command(tmp_path, "--lr=0.1"), env=environment(), capture_output=True, text=True)
    assert other.returncode != 0 and "lr=0.003, this run has 0.1" in other.stderr


@pytest.fixture(scope="module")
def straight_two(tmp_path_factory):
    """A run of two processes without interruption."""
    out = tmp_path_factory.mktemp("straight_two")
    done = run(out, processes=2)
    assert "Grad strides" not in done.stderr and "UserWarning" not in done.stderr, done.stderr
    return out


@fashion_mnist
def test_two_processes_train_like_one(straight, straight_two):
    one, two = (lines(out, "train") for out in (straight, straight_two))
    # The same data and gradients, up to the rounding of sums in another order, which training then amplifies.
    for a, b in list(zip(one, two, strict=True))[:8]:
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=1e-3)
    for a, b in zip(lines(straight, "test"), lines(straight_two, "test"), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=0.02)


def process_of_rank(rank, out):
    """The process id of one rank of the torchrun that writes into out, or None."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"--out={out}" in (folder / "cmdline").read_text().split("\0"):
                if f"RANK={rank}" in (folder / "environ").read_text().split("\0"):
                    return int(folder.name)
        except OSError:  # it has ended
            pass
    return None


@fashion_mnist
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
def test_when_a_rank_is_killed_the_rest_ends_and_the_run_goes_on_to_the_same_bits(straight_two, tmp_path):
    every = 3
    for rank in (1, 0):
        start = torch.load(tmp_path / "last.pt", weights_only=True)["step"] if rank == 0 else 0
        torchrun = subprocess.Popen(
            command(tmp_path, f"--checkpoint-every={every}", processes=2),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        reached = 0
        while torchrun.poll() is None and reached < start + 5:
            time.sleep(0.005)
            reached = max((m["step"] for m in lines(tmp_path, "train")), default=0)
        os.kill(process_of_rank(rank, tmp_path), signal.SIGKILL)
        assert torchrun.wait(timeout=120) != 0
        reached = max(m["step"] for m in lines(tmp_path, "train"))
        assert start + 5 <= reached < 32, "the kill came too late"
        # Written by rank 0 after the line of its step, so one more step than `every` may be lost, and never more.
        kept = torch.load(tmp_path / "last.pt", weights_only=True)["step"]
        assert kept >= reached - every, (kept, reached)
    run(tmp_path, f"--checkpoint-every={every}", processes=2)
    starts = [m["step"] for m in lines(tmp_path, "run")]
    assert starts[-1] == kept > 0
    for kind in ("train", "test"):
        assert without_times(lines(tmp_path, kind)) == without_times(lines(straight_two, kind))
    resumed, expected = (torch.load(out / "last.pt", weights_only=True)["model"] for out in (tmp_path, straight_two))
    for name, value in expected.items():
        assert torch.equal(resumed[name], value), name


WORKER = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import train
options = train.parser().parse_args(sys.argv[3:])
ranks = train.Ranks(options.device)
options.device = ranks.device
data, _ = train.load_data(options)
trainer = train.Trainer(train.build_model(options, 1, 10), options, ranks, 10)
batch = train.epoch_batches(len(data), options.batch_size, 0, 0, ranks.rank, ranks.world)[0]
trainer.gradients(*data[batch], 0)
if ranks.rank == 0:
    torch.save({n: p.grad for n, p in trainer.model.named_parameters() if p.requires_grad}, sys.argv[2])
ranks.close()
del trainer  # its group's threads end here; one that still held a backward's all-reduce would wait for ever
"""


@fashion_mnist
def test_gradients_of_two_processes_equal_those_of_one(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    gradients = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]):
        out = tmp_path / f"{len(launcher)}.pt"
        arguments = [str(EXAMPLES), str(out), *SHORT, "--clip=inf"]
        done = subprocess.run(
            [sys.executable, *launcher, str(tmp_path / "worker.py"), *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        gradients.append(torch.load(out))
    one, two = gradients
    for name, expected in one.items():
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(two[name], expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item(), msg=name)


@fashion_mnist
def test_training_with_our_layer_is_training_with_the_plain_one():
    """200 steps in single precision from the same initial values: loss curves agree to 1e-3."""
    curves = []
    for layer in ("wtconv", "reference"):
        chosen = options(f"--layer={layer}", "--batch-size=8", "--train-images=1600")
        data, _ = train.load_data(chosen)
        trainer = train.Trainer(train.build_model(chosen, 1, 10), chosen, train.Ranks("cpu"), 200)
        batches = train.epoch_batches(len(data), 8, 0, 0, 0, 1)
        curves.append([float(trainer.step(*data[batch], step)[0]) for step, batch in enumerate(batches)])
    ours, plain = map(np.array, curves)
    assert len(ours) == 200 and ours[-40:].mean() < 0.6 * ours[:40].mean()
    np.testing.assert_allclose(ours, plain, rtol=1e-3)


def picture_folder(root, classes=("blue", "red"), count=20):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 120, (40 + i, 52, 3), dtype=np.uint8)
            pixels[..., 2 - 2 * label] += 100
            image.fromarray(pixels).save(root / name / f"{i:02}.png")


def test_folder_of_images_with_amp_workers_and_a_timm_network(tmp_path):
    pytest.importorskip("timm")
    picture_folder(tmp_path / "data" / "train")
    picture_folder(tmp_path / "data" / "val", count=4)
    network = ["--model=convnext_atto", "--wt-levels=1", "--drop-path=0.1", "--channels-last"]
    run(
        tmp_path / "out",
        f"--data={tmp_path / 'data'}",
        "--image-size=32",
        "--batch-size=10",
        "--amp=bf16",
        "--workers=2",
        *network,
    )
    assert len(lines(tmp_path / "out", "train")) == 8
    assert lines(tmp_path / "out", "test")[-1]["accuracy"] >= 0.5


def options(*arguments):
    parsed = train.parser().parse_args([*SHORT, *arguments])
    parsed.device = torch.device("cpu")
    return parsed


def test_images_do_not_depend_on_batches_or_workers(tmp_path):
    picture_folder(tmp_path)
    data, _ = train.load_data(options(f"--data={tmp_path}", "--image-size=16"))
    assert len(data) == 36  # every tenth of 40 is for the test
    together, _ = data[train.Batch(3, np.arange(8))]
    for i in (0, 5):
        assert torch.equal(data[train.Batch(3, np.array([i]))][0][0], together[i])
    assert not torch.equal(data[train.Batch(4, np.arange(8))][0], together)
    plain, _ = data[train.Batch(None, np.arange(8))]
    assert torch.equal(data[train.Batch(None, np.arange(8))][0], plain) and not torch.equal(plain, together)
    whole = train.epoch_batches(36, 8, 0, 3, 0, 1)
    halves = [train.epoch_batches(36, 8, 0, 3, rank, 2) for rank in range(2)]
    assert len(whole) == 4
    for batch, *parts in zip(whole, *halves, strict=True):
        assert np.array_equal(batch.indices, np.concatenate([part.indices for part in parts]))
    assert len(np.unique(np.concatenate([b.indices for b in whole]))) == 32


@fashion_mnist
def test_augmentation_of_small_images():
    data, _ = train.load_data(options())
    assert data.images.shape == (512, 28, 28)
    plain = data[train.Batch(None, np.arange(64))][0]
    moved = data[train.Batch(0, np.arange(64))][0]
    background = plain.min()
    kinds = set()
    for before, after in zip(plain[:, 0], moved[:, 0]):
        padded = torch.nn.functional.pad(before[None], (2, 2, 2, 2), value=background.item())[0]
        found = {
            (dy, dx, mirrored)
            for dy in range(5)
            for dx in range(5)
            for mirrored in (False, True)
            if torch.equal(padded[dy : dy + 28, dx : dx + 28], after.flip(1) if mirrored else after)
        }
        assert found
        kinds |= found
    assert len(kinds) > 20


def test_errors_name_the_value(tmp_path):
    with pytest.raises(SystemExit, match="no folder .*nowhere.*dataset-fashion-mnist"):
        train.load_data(options(f"--data={tmp_path / 'nowhere'}"))
    with pytest.raises(SystemExit, match="holds 0 class folders"):
        train.load_data(options(f"--data={tmp_path}"))


def test_files_are_replaced_whole(tmp_path):
    path = tmp_path / "file"
    train.write_atomically(path, lambda file: file.write(b"old"))

    def fails(file):
        file.write(b"new, but")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.write_atomically(path, fails)
    assert path.read_bytes() == b"old"
