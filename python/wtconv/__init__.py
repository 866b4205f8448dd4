"""WTConv, the wavelet convolution layer, for PyTorch."""

from wtconv import _private  # noqa: F401 # isort: skip: first of all, what this torch lacks
from wtconv import functional, general, reference
from wtconv.conversion import Conversion, convert, from_conv2d
from wtconv.info import __version__, backends, self_check, show
from wtconv.layers import WTConv2d
from wtconv.separable import WTConvSeparable
from wtconv.wtconv1d import WTConv1d

__all__ = [
    "Conversion",
    "WTConv1d",
    "WTConv2d",
    "WTConvSeparable",
    "__version__",
    "backends",
    "convert",
    "from_conv2d",
    "functional",
    "general",
    "reference",
    "self_check",
    "show",
]
