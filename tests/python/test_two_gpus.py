"""What needs two devices: layers on the second GPU, DataParallel, FSDP2, and a rank that is killed.

In nightly tests FSDP2 and the killed rank also run on two CPU ranks over gloo, so that this file proves itself without GPUs;
test_distributed.py and test_examples.py say more about those.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from oracle import layer_and_plain

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs two GPUs, this machine has {torch.cuda.device_count()}"
)
devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.nightly), pytest.param("cuda", marks=needs_two)]
)
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def y_and_gradients(layer, x, dy):
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *(p for p in layer.parameters() if p.requires_grad)], dy)]


@needs_two
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [56, 7, 256])
def test_a_layer_on_the_second_gpu_while_the_first_is_current(size, dtype):
    """Forward and backward, from this thread and from another: the same bits as on the first."""
    layer, _ = layer_and_plain(8, 8, 5, wt_levels=3, dtype=dtype)
    x, dy = torch.randn(2, 2, 8, size, size).to(dtype)
    results = {}

    def run(name, device):
        assert torch.cuda.current_device() == 0
        results[name] = y_and_gradients(layer.to(device), x.to(device), dy.to(device))
        assert torch.cuda.current_device() == 0

    run("first", "cuda:0")
    run("second", "cuda:1")
    thread = threading.Thread(target=run, args=("another thread", "cuda:1"))
    thread.start()
    thread.join()
    assert all(t.device == torch.device("cuda:1") for t in results["second"])
    for name in ("second", "another thread"):
        for found, expected in zip(results[name], results["first"], strict=True):
            assert torch.equal(found.cpu(), expected.cpu()), name


@needs_two
def test_data_parallel():
    layer = layer_and_plain(8, 8, 5, wt_levels=3)[0].to("cuda:0")
    x, dy = torch.randn(2, 6, 8, 33, 56, device="cuda:0")
    one = y_and_gradients(layer, x, dy)
    both = y_and_gradients(torch.nn.DataParallel(layer, device_ids=[0, 1]), x, dy)
    for found, expected in zip(both, one, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


FSDP = """
import os, sys, time, timm, torch, torch.distributed as dist
import wtconv.networks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device_type, out = sys.argv[1:]
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
device = torch.device(device_type, int(os.environ.get("LOCAL_RANK", "0"))) if device_type == "cuda" else torch.device("cpu")
if device_type == "cuda":
    torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
model = timm.create_model("wtconvnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=10).to(device)
if world > 1:
    mesh = init_device_mesh(device_type, (world,))
    for stage in model.stages:
        for block in stage.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
generator, losses = torch.Generator().manual_seed(1), []
for _ in range(20):
    x, y = torch.randn(8, 3, 64, 64, generator=generator), torch.randint(10, (8,), generator=generator)
    share = slice(rank * 8 // world, (rank + 1) * 8 // world)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x[share].to(device)), y[share].to(device))
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    if world > 1:
        dist.all_reduce(mean)
        mean /= world
    losses.append(mean.item())
if rank == 0:
    torch.save(losses, out)
if world > 1:
    dist.barrier()
    time.sleep(1)  # gloo's last all-reduce is dropped by a thread, which a process must outlive (pytorch#190489)
    dist.destroy_process_group()
"""


@devices
def test_twenty_steps_under_fsdp2(device, tmp_path):
    """Weights sharded over two ranks train as whole ones do."""
    pytest.importorskip("timm")
    (tmp_path / "fsdp.py").write_text(FSDP)
    losses = []
    for launcher in ([sys.executable], LAUNCH):
        out = tmp_path / f"{len(launcher)}.pt"
        command = [*launcher, str(tmp_path / "fsdp.py"), device, str(out)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append(torch.load(out))
    one, two = losses
    assert len(one) == 20 and len(set(one)) == 20
    assert two == pytest.approx(one, rel=1e-4)


def train_command(out, device, *arguments):
    options = ["--epochs=2", "--batch-size=32", "--train-images=384", "--test-images=64", "--warmup=4", "--log-every=1"]
    options += ["--deterministic", "--checkpoint-every=1", f"--device={device}", f"--out={out}"]
    return [*LAUNCH, str(EXAMPLES / "train.py"), *options, *arguments]


def ranks_of(launcher):
    """Process ids of the ranks: the launcher's children."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return [int(c) for c in children if b"train.py" in Path(f"/proc/{c}/cmdline").read_bytes()]


@devices
def test_a_killed_rank_costs_the_steps_since_the_checkpoint(device, tmp_path):
    """kill -9 of one of two ranks in mid-training ends the run; the same command goes on to the same weights."""
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    done = subprocess.run(
        train_command(straight, device), env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "UserWarning" not in done.stderr and "Grad strides" not in done.stderr, done.stderr
    with open(tmp_path / "log", "w") as log:
        run = subprocess.Popen(train_command(broken, device), env=ENVIRONMENT, stdout=log, stderr=log)
        try:
            metrics = broken / "metrics.jsonl"
            for _ in range(12000):
                steps = metrics.read_text().count('"kind": "train"') if metrics.exists() else 0
                if steps >= 3 or run.poll() is not None:
                    break
                time.sleep(0.01)
            assert 3 <= steps < 24 and run.poll() is None, (tmp_path / "log").read_text()[-3000:]
            os.kill(ranks_of(run)[-1], signal.SIGKILL)
            assert run.wait(timeout=120) != 0  # the launcher ends the other rank
        finally:
            if run.poll() is None:
                run.kill()
    before = torch.load(broken / "last.pt", weights_only=True)["step"]
    assert 2 <= before < 24
    done = subprocess.run(
        train_command(broken, device), env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    resumed, expected = (torch.load(out / "last.pt", weights_only=True) for out in (broken, straight))
    assert resumed["step"] == expected["step"] == 24
    for name, value in expected["model"].items():
        assert torch.equal(resumed["model"][name], value), name
