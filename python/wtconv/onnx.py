"""ONNX export: the operator in standard ONNX operators (opset 17 and later), for any batch, height and width.

    torch.onnx.export(model, (x,), "model.onnx", dynamo=True, dynamic_shapes=...,
                      custom_translation_table=wtconv.onnx.translation_table())

Layers on the general path (other wavelets) and WTConv1d are PyTorch operators and need no table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import numpy as np
    from onnxscript import opset18 as op
except ImportError as error:
    raise ImportError("wtconv.onnx needs onnxscript (pip install onnx onnxscript)") from error

from wtconv import _ops, general


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What torch.onnx.export needs as its custom_translation_table."""
    return {_ops._forward: _forward}


_FLOAT, _DOUBLE = 1, 11  # onnx.TensorProto's numbers


def _forward(x, base_weight, base_bias, base_scale, wavelet_weight, wavelet_scale, stride=1, backend=""):
    """The composition of the operator; a name of a backend means nothing here.

    Bands are computed with channels moved into the batch: (B, C, h, w) is seen as (B * C, 1, h, w), and a level's bands
    as (B * C, 4, h / 2, w / 2) by the wavelet and as (B, 4 C, h / 2, w / 2) by the filters.
    """
    channels, kernel = base_weight.shape[0], base_weight.shape[2]
    before, after = (kernel - 1) // 2, kernel // 2
    same = [before, before, after, after]
    compute = _DOUBLE if x.dtype == _DOUBLE else _FLOAT  # half types are computed in fp32, as the operator does
    dtype = np.float64 if compute == _DOUBLE else np.float32
    haar = op.Constant(value=_tensor(general.haar_filters(1, 2)[0].numpy().astype(dtype)))
    original = x

    def cast(value):
        return value if value is None or value.dtype == compute else op.Cast(value, to=compute)

    def shape(*sizes):  # 0 copies an extent
        return op.Constant(value_ints=list(sizes))

    def convolve(x, weight, bias, scale, groups):
        """Depthwise; the scale goes into weight and bias, which the exporter folds."""
        scale = op.Reshape(cast(scale), shape(-1, 1, 1, 1))
        weight = op.Mul(cast(weight), scale)
        if bias is None:
            return op.Conv(x, weight, group=groups, pads=same)
        bias = op.Mul(cast(bias), op.Reshape(scale, shape(-1)))
        return op.Conv(x, weight, bias, group=groups, pads=same)

    x = cast(x)
    y = convolve(x, base_weight, base_bias, base_scale, channels)
    low = op.Reshape(x, shape(-1, 1, 0, 0))
    sizes, filtered = [], []
    for weight, scale in zip(wavelet_weight, wavelet_scale):
        sizes.append(op.Shape(low, start=2))
        # The zero at the bottom and right serves odd sizes; even ones never reach it.
        bands = op.Conv(low, haar, strides=[2, 2], pads=[0, 0, 1, 1])
        low = op.Slice(bands, shape(0), shape(1), shape(1))
        bands = convolve(op.Reshape(bands, shape(-1, 4 * channels, 0, 0)), weight, None, scale, 4 * channels)
        filtered.append(op.Reshape(bands, shape(-1, 4, 0, 0)))
    rest = None
    for size, bands in zip(reversed(sizes), reversed(filtered)):
        if rest is not None:
            ll, others = (op.Slice(bands, shape(i), shape(n), shape(1)) for i, n in ((0, 1), (1, 4)))
            bands = op.Concat(op.Add(ll, rest), others, axis=1)
        rest = op.ConvTranspose(bands, haar, strides=[2, 2])
        rest = op.Slice(rest, shape(0, 0), size, shape(2, 3))
    if rest is not None:
        y = op.Add(y, op.Reshape(rest, shape(-1, channels, 0, 0)))
    if stride > 1:
        end = np.iinfo(np.int64).max
        y = op.Slice(y, shape(0, 0), shape(end, end), shape(2, 3), shape(stride, stride))
    return y if original.dtype == compute else op.Cast(y, to=original.dtype)


def _tensor(values: np.ndarray):
    from onnx import numpy_helper

    return numpy_helper.from_array(values)
