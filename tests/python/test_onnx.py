"""ONNX export as standard operators, run by ONNX Runtime at sizes other than the exported one."""

import importlib

import numpy as np
import pytest
import torch
import wtconv
from torch import nn
from torch.export import Dim

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
translation = importlib.import_module("wtconv.onnx")  # not skipped: it is ours

IMAGES = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}


def export(model, x, path, dynamic=IMAGES, **kwargs):
    torch.onnx.export(
        model,
        (x,),
        path,
        dynamo=True,
        dynamic_shapes=(dynamic,),
        custom_translation_table=translation.translation_table(),
        external_data=False,
        verbose=False,
        **kwargs,
    )
    graph = onnx.load(path)
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    onnx.checker.check_model(graph)
    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    return graph, lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def randomised(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    return layer.eval()


@pytest.mark.parametrize(
    "channels, kernel, stride, bias, levels, opset",
    [
        (3, 5, 1, True, 3, None),
        (4, 4, 2, False, 2, 17),
        (5, 3, 3, True, 5, 18),
        (2, 3, 1, True, 0, None),
    ],
)
def test_a_hundred_sizes(tmp_path, channels, kernel, stride, bias, levels, opset):
    torch.manual_seed(0)
    layer = randomised(wtconv.WTConv2d(channels, channels, kernel, stride, bias, levels))
    graph, run = export(layer, torch.randn(2, channels, 14, 15), tmp_path / "layer.onnx", opset_version=opset)
    assert opset is None or graph.opset_import[0].version == opset
    rng = np.random.default_rng(0)
    parities = set()
    for _ in range(100):
        batch, height, width = (int(n) for n in rng.integers(1, (4, 48, 48)))
        parities.add((height % 2, width % 2))
        x = torch.randn(batch, channels, height, width)
        y = layer(x).detach()
        torch.testing.assert_close(run(x), y, rtol=0, atol=2e-6 * y.abs().max().item())
    assert len(parities) == 4


def test_half_precision_is_computed_in_single(tmp_path):
    layer = randomised(wtconv.WTConv2d(4, 4, 3, wt_levels=2)).half()
    _, run = export(layer, torch.randn(2, 4, 9, 9).half(), tmp_path / "half.onnx")
    for size in ((9, 9), (6, 11)):
        x = torch.randn(1, 4, *size).half()
        y = layer(x).detach()
        assert run(x).dtype == torch.float16
        torch.testing.assert_close(run(x), y, rtol=2e-3, atol=2e-3 * y.abs().max().item())


def test_a_network(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        wtconv.WTConv2d(8, 8, 5, 2, wt_levels=2),
        nn.GELU(),
        wtconv.WTConvSeparable(8, 12, 3, wt_levels=3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()
    _, run = export(model, torch.randn(2, 1, 28, 28), tmp_path / "network.onnx")
    for size in ((28, 28), (27, 40)):
        x = torch.randn(3, 1, *size)
        torch.testing.assert_close(run(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_other_wavelets(tmp_path):
    """The general path consists of PyTorch operators and exports without help, at the parities of the example."""
    layer = randomised(wtconv.WTConv1d(3, 3, 5, wt_levels=2))
    _, run = export(layer, torch.randn(2, 3, 21), tmp_path / "sequence.onnx", {0: Dim.DYNAMIC, 2: Dim.DYNAMIC})
    for length in (21, 20, 7, 64):
        x = torch.randn(1, 3, length)
        torch.testing.assert_close(run(x), layer(x).detach(), rtol=1e-4, atol=1e-4)
    pytest.importorskip("pywt")
    layer = randomised(wtconv.WTConv2d(3, 3, 5, wt_levels=2, wt_type="db2"))
    _, run = export(layer, torch.randn(2, 3, 16, 21), tmp_path / "db2.onnx")
    for size in ((16, 21), (15, 8), (30, 31)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(run(x), layer(x).detach(), rtol=1e-4, atol=1e-4)
