"""WTConv, the wavelet convolution layer, for PyTorch."""

from wtconv import reference

__all__ = ["reference"]
