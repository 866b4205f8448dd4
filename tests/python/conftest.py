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


def pytest_configure(config):
    # Of the plain composition, which is the oracle here.
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel lengths:UserWarning")
