"""examples/compare_training.py and examples/segment.py: small runs of each, and what their parts promise."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("tqdm")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import compare_training  # noqa: E402
import segment  # noqa: E402
import train  # noqa: E402
from test_examples import fashion_mnist  # noqa: E402

# ---------------------------------------------------------------------------------------------------------------------


@fashion_mnist
def test_training_is_compared(tmp_path, capsys):
    few = ["--steps=8", "--window=3", "--batch-size=16", "--train-images=256", "--test-images=32", "--device=cpu"]
    compare_training.main([f"--out={tmp_path}", *few])
    results = json.loads((tmp_path / "compare.json").read_text())["precisions"]
    assert list(results) == ["off", "bf16"]
    for amp, bound in (("off", 1e-5), ("bf16", 2e-2)):
        assert results[amp]["verdict"]["same"] is True
        plain, ours = (np.array([r["losses"] for r in runs]) for runs in results[amp]["runs"].values())
        assert plain.shape == ours.shape == (2, 8)
        np.testing.assert_allclose(ours, plain, rtol=bound)
        assert np.abs(plain[0] - plain[1]).mean() > 1e-2
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "compare.md").read_text() in capsys.readouterr().out
    # Another training is found out: here, losses that are 10% lower.
    for amp in ("off", "bf16"):
        for seed in (0, 1):
            path = tmp_path / f"{amp}-wtconv-{seed}" / "metrics.jsonl"
            lines = train.read_metrics(path)
            for line in lines:
                if line["kind"] == "train":
                    line["loss"] *= 0.9
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit, match="amp off, bf16"):
        compare_training.main([f"--out={tmp_path}", *few])


def test_verdict():
    rng = np.random.default_rng(0)
    decay, noise = np.exp(-np.arange(100) / 30), rng.normal(0, 0.1, (3, 100))
    plain = [decay + noise[0], 1.1 * decay + noise[1]]
    assert compare_training.judge(plain, [p + 1e-4 for p in plain], 10)["same"]
    assert not compare_training.judge(plain, [plain[0], plain[1] + 0.5], 10)["same"]
    # Noise that hides a difference step by step is averaged away.
    verdict = compare_training.judge([noise[0] + 1, noise[1] + 1], [noise[0] + 1.08, noise[1] + 1.08], 20)
    assert max(verdict["each step"]["ours from plain"]) < verdict["each step"]["plain from plain"]
    assert not verdict["same"]
    assert not compare_training.judge(plain, [plain[0], plain[1] * np.nan], 10)["same"]


# ---------------------------------------------------------------------------------------------------------------------


def test_segmentation_of_generated_shapes(tmp_path, capsys):
    """A smoke run: it shows that the program works, and nothing about encoders."""
    arguments = ["--smoke", "--device=cpu", f"--out={tmp_path}"]
    segment.main(arguments)
    text = capsys.readouterr().out
    assert "smoke run on generated shapes" in text
    results = json.loads((tmp_path / "segment.json").read_text())
    assert results["smoke"] is True and list(results["encoders"]) == ["standard", "dilated", "WTConv"]
    for r in results["encoders"].values():
        assert r["miou"][0] > 0.4 and len(r["iou"][0]) == 3  # background alone would be 0.3
        assert r["latency_ms"] > 0 and r["training_memory_mib"] > 1
    parameters = [r["parameters"] for r in results["encoders"].values()]
    assert parameters[0] == parameters[1] < parameters[2]
    assert (tmp_path / "segment.png").read_bytes().startswith(b"\x89PNG")
    segment.main(arguments)  # nothing is left to train
    again = json.loads((tmp_path / "segment.json").read_text())["encoders"]
    assert [r["iou"] for r in again.values()] == [r["iou"] for r in results["encoders"].values()]


def options(folder, *arguments):
    parsed = train.parser().parse_args([f"--data={folder}", "--image-size=32", *arguments])
    parsed.device = torch.device("cpu")
    return parsed


def test_image_and_mask_are_moved_together(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for i, shape in enumerate([(40, 50), (20, 36), (64, 33), (32, 32), (45, 37)]):
        mask = rng.integers(0, 3, shape).astype(np.uint8)
        mask[:2] = [[0], [2]]
        image.fromarray(mask * 100).save(tmp_path / "images" / f"{i}.png")
        image.fromarray(mask * 7).save(tmp_path / "masks" / f"{i}.png")
    data, test = segment.load_pairs(options(tmp_path))
    assert data.classes == ["0", "7", "14"] and len(data) == 4 and len(test) == 1 and data.channels == 1
    kinds = set()
    for epoch in range(12):
        x, y = data[train.Batch(epoch, np.arange(4))]
        assert x.shape == (4, 1, 32, 32) and y.shape == (4, 32, 32)
        for pixels, labels in zip(x[:, 0], y):
            seen = labels != segment.IGNORED
            values = [pixels[labels == label].unique() for label in range(3)]
            assert all(len(v) == 1 for v in values) and values[0] < values[1] < values[2]
            assert seen.any()
        kinds.add(tuple(y[3].flatten().tolist()))
    assert len(kinds) > 4  # the image of just that size: only mirrored and turned, in eight ways
    x, y = test[train.Batch(None, np.array([0]))]
    assert x.shape == (1, 1, 48, 48) and (y[0, :45, :37] != segment.IGNORED).all()
    assert (y[0, 45:] == segment.IGNORED).all() and (y[0, :, 37:] == segment.IGNORED).all()


def test_intersection_over_union(tmp_path):
    segment.make_shapes(tmp_path, count=10, size=40)
    chosen = options(tmp_path, "--model-kwargs", "width=2")
    _, test = segment.load_pairs(chosen)
    trainer = segment.Segmenter(segment.Segmenter.build(chosen, test), chosen, train.Ranks("cpu"), 1)
    found = trainer.test(test)
    truth, predicted = [], []
    for i in range(len(test)):
        x, y = test[train.Batch(None, np.array([i]))]
        predicted.append(segment.predict(trainer, x)[:40, :40].ravel())
        truth.append(y[0, :40, :40].numpy().ravel())
    truth, predicted = np.concatenate(truth), np.concatenate(predicted)
    expected = [((truth == c) & (predicted == c)).sum() / ((truth == c) | (predicted == c)).sum() for c in range(3)]
    assert found["iou"] == pytest.approx(expected) and found["miou"] == pytest.approx(np.mean(expected))
    assert max(expected) > 0


@pytest.mark.parametrize("program", [compare_training, segment])
def test_not_under_torchrun(program, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="one process.*WORLD_SIZE=2"):
        program.main(["--smoke"] if program is segment else [])


def test_errors_name_what_is_wrong(tmp_path):
    image = pytest.importorskip("PIL.Image")
    with pytest.raises(SystemExit, match="no folder .*images"):
        segment.load_pairs(options(tmp_path))
    segment.make_shapes(tmp_path, count=6)
    (tmp_path / "masks" / "003.png").unlink()
    with pytest.raises(SystemExit, match="1 names have no image or no mask: 003"):
        segment.load_pairs(options(tmp_path))
    for mask in (tmp_path / "masks").iterdir():
        image.new("L", (64, 64), 255).save(mask)
    (tmp_path / "images" / "003.png").unlink()
    with pytest.raises(SystemExit, match="masks hold 1 different values"):
        segment.load_pairs(options(tmp_path))
    with pytest.raises(SystemExit, match="--data FOLDER is needed"):
        segment.main([f"--out={tmp_path}"])
