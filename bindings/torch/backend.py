"""Build backend: scikit-build-core's, which asks for torch only where the environment has none.

The operators need torch's headers. With a torch already installed they are read from there, also under build isolation;
otherwise torch becomes a build requirement, so that `pip install .` works in an empty environment. Never imports torch.
"""

from find_torch import find_torch
from scikit_build_core import build as _build
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_TORCH = "torch>=2.11"


def get_requires_for_build_wheel(config_settings=None):
    return _build.get_requires_for_build_wheel(config_settings) + ([] if find_torch() else [_TORCH])


def get_requires_for_build_editable(config_settings=None):
    return _build.get_requires_for_build_editable(config_settings) + ([] if find_torch() else [_TORCH])
