"""WTConv, the wavelet convolution layer, for PyTorch."""

from wtconv import general, reference
from wtconv.wtconv1d import WTConv1d

__all__ = ["WTConv1d", "general", "reference"]
