"""The Python of the documents runs as it is printed."""

import importlib
import re
from pathlib import Path

import pytest
import torch
import wtconv
from torch import nn
from wtconv import reference

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "docs/pytorch.md"]


def blocks(document):
    text = (ROOT / document).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield document, text[: match.start()].count("\n") + 1, match[1]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_there_is_some(document):
    assert list(blocks(document))


@pytest.mark.parametrize("document, line, code", [block for document in DOCUMENTS for block in blocks(document)])
def test_block(document, line, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # What the text around a block speaks of.
    names = {
        "wtconv": wtconv,
        "conv": nn.Conv2d(8, 8, 3, padding=1, groups=8),
        "model": nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), reference.WTConv2d(8, 8), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        ),
    }
    if "timm" in code:
        timm = pytest.importorskip("timm")
        importlib.import_module("wtconv.networks")
        torch.save(timm.create_model("wtconvnext_tiny").state_dict(), "WTConvNeXt_tiny_5_300e_ema.pth")
    if "wtconv.onnx" in code:
        pytest.importorskip("onnxscript")
    exec(compile("\n" * line + code, str(ROOT / document), "exec"), {} if document == "README.md" else names)
    if "report" in names:
        assert "wtconv.convert: 1 swapped" in capsys.readouterr().out
