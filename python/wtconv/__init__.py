"""WTConv, the wavelet convolution layer, for PyTorch."""

from wtconv import functional, general, reference
from wtconv.info import __version__, backends, self_check, show
from wtconv.layers import WTConv2d
from wtconv.wtconv1d import WTConv1d

__all__ = [
    "WTConv1d",
    "WTConv2d",
    "__version__",
    "backends",
    "functional",
    "general",
    "reference",
    "self_check",
    "show",
]
