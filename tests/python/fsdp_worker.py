"""One of the processes of test_distributed.py: a network under FSDP2 beside the same one whole."""

import os
import time
import warnings

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
import wtconv.networks  # noqa: F401, registers the network
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from wtconv import general

warnings.simplefilter("error")
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

looks = 0
is_haar = general.is_haar


def counted(*filters):
    global looks
    looks += 1
    return is_haar(*filters)


general.is_haar = counted


def network():
    torch.manual_seed(0)
    # Widths that do not divide among two. A block starts at 1e-6 of its branch, which would hide the layers.
    shape = {"dims": (5, 10, 12, 14), "depths": (1, 1, 1, 1)}
    return timm.create_model("wtconvnext_tiny", num_classes=5, ls_init_value=1.0, **shape)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


whole, sharded = network(), network()
mesh = init_device_mesh("cpu", (world,))
for stage in sharded.stages:
    for block in stage.blocks:
        fully_shard(block, mesh=mesh)
fully_shard(sharded, mesh=mesh)
layer = sharded.stages[0].blocks[0].conv_dw
assert layer.has_haar_filters(), "of sharded filters"
optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (whole, sharded)]

x, y = torch.randn(8, 3, 64, 64), torch.arange(8) % 5
for number in range(3):
    step(whole, optimizers[0], x, y)
    looks = 0
    step(sharded, optimizers[1], x.chunk(world)[rank], y.chunk(world)[rank])
    assert number == 0 or looks == 0, "the filters are looked at in every step"
    for (name, expected), found in zip(whole.named_parameters(), sharded.parameters(), strict=True):
        for kind, a, b in (("gradient", found.grad, expected.grad), ("value", found, expected)):
            if b is not None:
                largest = b.abs().max().item()
                assert largest > 0 or kind == "value", name
                torch.testing.assert_close(
                    a.full_tensor(), b, rtol=1e-3, atol=1e-4 * largest, msg=lambda m: f"{number}: {name} {kind}: {m}"
                )

# State dicts, in parts and whole, there and back.
whole_state = StateDictOptions(full_state_dict=True)
parts = {name: value.clone() for name, value in sharded.state_dict().items()}
everything = get_model_state_dict(sharded, options=whole_state)


def outputs():
    with torch.no_grad():
        y = sharded(x)
    sharded.reshard()  # a root stays whole after a forward, for the backward that would follow
    return y


before = outputs()
for load in (
    lambda: sharded.load_state_dict(parts),
    lambda: set_model_state_dict(sharded, dict(everything), options=whole_state),
):
    step(sharded, optimizers[1], x, y)
    load()
    assert layer.has_haar_filters()
    assert torch.equal(outputs(), before)

# What is loaded into the parts decides at the next forward: filters that are not Haar's take the general path.
everything[next(name for name in everything if name.endswith("iwt_filter"))].mul_(2)
warnings.simplefilter("ignore", general.SlowPathNotice)
set_model_state_dict(sharded, dict(everything), options=whole_state)
whole.load_state_dict(everything)
after = outputs()
torch.testing.assert_close(after, whole(x), rtol=1e-4, atol=1e-4)
assert not torch.allclose(after, before, rtol=1e-3)

print(f"rank {rank}: all equal", flush=True)
dist.barrier()
time.sleep(1)  # gloo's threads, see examples/train.py
dist.destroy_process_group()
os._exit(0)  # a worker crashed once in 50 runs, perhaps as Python took PyTorch down: that is not what is tested
