"""Networks of WTConv layers under FSDP2, on two gloo processes of the CPU. DDP: test_examples.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("timm")


def test_a_network_sharded_by_fsdp_trains_like_a_whole_one():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(Path(__file__).with_name("fsdp_worker.py"))],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all equal") == 2
