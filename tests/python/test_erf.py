"""wtconv.erf: receptive fields of layers and networks; wtconv.baselines, whose fields are known."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from wtconv import WTConv2d, baselines, erf

timm = pytest.importorskip("timm")
pytest.importorskip("matplotlib")


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("levels", [0, 1, 2, 4])
def test_field_of_the_layer(kernel, levels):
    layer = WTConv2d(1, 1, kernel_size=kernel, wt_levels=levels, bias=False)
    assert erf.side(layer, kernel * 2**levels + 2) == kernel * 2**levels
    assert erf.weights(layer) == kernel**2 * (1 + 4 * levels)


def test_equal_weights_hide_the_field():
    """Why erf.reach takes random weights: Haar bands with the same weights cancel."""
    layer = WTConv2d(1, 1, kernel_size=3, wt_levels=1, bias=False).double()
    for name, p in layer.named_parameters():
        if "wt_filter" not in name:
            p.data.fill_(1.0)
    x = torch.zeros(1, 1, 16, 16, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, 0, 8, 8], x)
    assert (gradient != 0).sum() < erf.reach(layer, 16, 8, 8).sum() == 36


def test_fields_of_the_baselines():
    for kernel, levels in ((3, 0), (5, 1), (5, 3)):
        arguments = {"kernel_size": kernel, "wt_levels": levels}
        for name, layer in baselines.LAYERS.items():
            assert layer(2, 2, **arguments)(torch.randn(1, 2, 9, 14)).shape == (1, 2, 9, 14), name
            assert layer(2, 2, **arguments, stride=2)(torch.randn(1, 2, 9, 14)).shape == (1, 2, 5, 7), name
        assert erf.side(baselines.depthwise(1, 1, **arguments), 50) == kernel
        assert erf.side(baselines.dilated(1, 1, **arguments), 50) == (kernel - 1) * 2**levels + 1
        expected = min(31, kernel * 2**levels + (levels > 0))
        assert erf.side(baselines.large_kernel(1, 1, **arguments), 50) == expected


def test_table():
    rows = erf.field_table(kernels=(5,), most_levels=5, plane=32)
    assert [r["side"] for r in rows] == [5, 10, 20, 40, 80, 160]
    assert [r["weights"] for r in rows] == [25, 125, 225, 325, 425, 525]
    # 3 levels see all of a plane of 32 from its middle, and from a corner the last three blocks of eight.
    assert rows[2]["middle"] == (20 / 32) ** 2 and rows[3]["middle"] == 1 and rows[3]["corner"] == (24 / 32) ** 2


@pytest.mark.parametrize("stride, middle", [(1, (20, 20)), (2, (20.5, 20.5))])
def test_contributions_of_a_known_network(stride, middle):
    conv = nn.Conv2d(3, 2, 6, stride, padding=2 if stride == 2 else 3, bias=False)
    conv.weight.data.normal_()
    images = [torch.rand(3, 40, 40) for _ in range(4)]

    def features(x):
        return conv(x)[:, :, :40, :40]

    share, found = erf.contributions(features, images)
    assert found == middle and share.sum() == pytest.approx(1)
    total = torch.zeros(6, 6)
    for image in images:
        y = features(image[None])
        at = y.shape[2] // 2
        on = (y[0, :, at, at] > 0).float()
        total += (on[:, None, None, None] * conv.weight.detach()).sum(0).relu().sum(0)
    start = at * stride - (2 if stride == 2 else 3)
    torch.testing.assert_close(share[start : start + 6, start : start + 6].float(), total / total.sum())


def test_squares():
    even = torch.full((40, 40), 1 / 1600, dtype=torch.float64)
    found = erf.squares(even, (19.5, 19.5))
    assert [s["side"] for s in found.values()] == [18, 30, 40]  # 18 is the first even side with 18^2 >= 20% of 40^2
    assert [s["area"] for s in found.values()] == [18**2 / 1600, 30**2 / 1600, 1]
    point = torch.zeros(9, 9, dtype=torch.float64)
    point[4, 4], point[4, 6] = 0.6, 0.4
    assert [s["side"] for s in erf.squares(point, (4, 4)).values()] == [1, 1, 5]


def test_networks_side_by_side(tmp_path, capsys):
    """As users run it, on generated images."""
    image = pytest.importorskip("PIL.Image")
    torch.manual_seed(0)
    for i in range(3):
        pixels = torch.randint(0, 255, (30 + i, 41, 3), dtype=torch.uint8)
        image.fromarray(pixels.numpy()).save(tmp_path / f"{i}.png")
    network = erf.load_network("dilated", False)
    torch.save({"model": {**network.state_dict(), "head.fc.weight": torch.ones(2)}}, tmp_path / "dilated.pt")
    few = ["--size=96", "--count=2", "--device=cpu", f"--images={tmp_path}", f"--out={tmp_path / 'out'}"]
    models = ["wtconv", "large-kernel", f"dilated@{tmp_path / 'dilated.pt'}", "dilated", "depthwise", "convnext_atto"]
    erf.main([*models, "resnet18", *few])
    results = json.loads((tmp_path / "out" / "erf.json").read_text())
    assert results["images"] == 2 and list(results["models"]) == [*models, "resnet18"]
    for r in results["models"].values():
        sides = [s["side"] for s in r["squares"].values()]
        assert 1 <= sides[0] <= sides[1] <= sides[2] <= 96
    found = results["models"]
    assert found[models[2]]["squares"] == found["dilated"]["squares"]  # it is the checkpoint of that very network
    assert found["dilated"]["squares"]["99%"]["side"] < found["wtconv"]["squares"]["99%"]["side"]
    assert (tmp_path / "out" / "erf.png").read_bytes().startswith(b"\x89PNG")
    assert "| large-kernel |" in capsys.readouterr().out


def test_errors_name_what_to_give(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="no network 'nothing': give wtconv, large-kernel"):
        erf.load_network("nothing", False)
    with pytest.raises(SystemExit, match="cannot read .*none.pt: No such file"):
        erf.load_network(f"wtconv@{tmp_path}/none.pt", False)
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(SystemExit, match="other.pt is not of wtconv: it has no stem"):
        erf.load_network(f"wtconv@{tmp_path}/other.pt", False)
    with pytest.raises(SystemExit, match="no folder .*nowhere: give --images"):
        erf.main([f"--images={tmp_path}/nowhere"])
    with pytest.raises(SystemExit, match="holds no image"):
        erf.main([f"--images={tmp_path}"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="pip install 'wtconv\\[erf\\]'"):
        erf.main([])


def test_as_a_command():
    done = subprocess.run([sys.executable, "-m", "wtconv.erf", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "MODEL" in done.stdout and "2203.06717" in done.stdout
