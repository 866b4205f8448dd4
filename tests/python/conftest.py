"""The tests run against the installed package (`make python`).

Without installing: build with -DWTCONV_BUILD_TORCH=ON, `cmake --install BUILD --component python --prefix python`, and
set PYTHONPATH=python.
"""

import pytest
import torch

# The problems are tiny. On a busy machine two OpenMP threads wait for each other longer than one computes; tests of
# threads ask for them.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pytest_collection_modifyitems(config, items):
    if not config.option.markexpr:  # no -m: without those that take minutes or gigabytes
        slow = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: takes minutes or gigabytes; run with -m nightly")
    # Of the plain composition, which is the oracle here.
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel lengths:UserWarning")
