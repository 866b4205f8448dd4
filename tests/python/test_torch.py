"""The layer under the rest of PyTorch: compile, export, autocast, torch.func, data loaders, distributed training."""

import ast
import itertools
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
import wtconv
from oracle import grouped, layer_and_plain, operator, random_inputs, randomise
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint


def trained(module):
    return {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def layer_for(levels=2, **kwargs):
    return randomise(wtconv.WTConv2d(4, 4, 3, wt_levels=levels, **kwargs))


def step(module, x, dy=None):
    """The result and all gradients."""
    x = x.detach().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward(torch.ones_like(y) if dy is None else dy)
    return [y.detach(), x.grad, *(p.grad for p in module.parameters() if p.requires_grad)]


def assert_same(a, b):
    for u, v in zip(a, b, strict=True):
        torch.testing.assert_close(u, v, rtol=1e-5, atol=1e-5 * max(1, v.abs().max().item() if v.numel() else 1))
        assert u.stride() == v.stride()


SIZES = [(2, 4, 8, 8), (3, 4, 9, 6), (1, 4, 7, 13)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compile(dynamic, layout):
    """Whole graph, forward and backward, several sizes of both parities, strides as in eager mode."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.ReLU(), layer_for(), nn.GELU(), layer_for(1, stride=2)).to(memory_format=layout)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in SIZES:
        x = torch.randn(size).to(memory_format=layout)
        assert_same(step(compiled, x), step(net, x))
    with torch.no_grad():
        assert_same([compiled(x)], [net(x)])
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16


def test_compile_with_inductor_copies_nothing():
    """Generated code for a channels_last network: no layout copy around the operator, the same strides as eager."""
    torch._dynamo.reset()
    layer = layer_for()
    for x in (torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last), torch.randn(2, 4, 9, 7)[:, :, 1:, ::2]):
        compiled = torch.compile(layer, fullgraph=True)
        with torch.no_grad():
            y, codes = torch._inductor.utils.run_and_get_code(compiled, x)
        assert_same([y], [layer(x)])
        (code,) = codes
        assert "torch.ops.wtconv.forward.default" in code and "cpp_fused" not in code, code


def test_export():
    dims = {0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=2), 3: torch.export.Dim("w", min=2)}
    layer = layer_for().eval()
    program = torch.export.export(layer, (torch.randn(SIZES[0]),), dynamic_shapes=(dims,), strict=True)
    for size in SIZES:
        x = torch.randn(size)
        assert torch.equal(program.module()(x), layer(x))


def test_trace_at_one_size_runs_at_others(tmp_path):
    layer = layer_for().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(layer, torch.randn(SIZES[0]))
        traced.save(tmp_path / "traced.pt")
        loaded = torch.jit.load(tmp_path / "traced.pt")
    for size in SIZES:
        x = torch.randn(size)
        assert torch.equal(traced(x), layer(x)) and torch.equal(loaded(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """x fp32 or half, stride 1 and 2, bias or not: result in autocast's type, gradients fp32; inside and outside."""
    for source, stride, bias, inside in itertools.product((torch.float32, dtype), (1, 2), (True, False), (True, False)):
        layer = randomise(wtconv.WTConv2d(4, 4, 3, stride, bias, 2))
        x = torch.randn(2, 4, 9, 8).to(source).requires_grad_()
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.1)
        with torch.autocast("cpu", dtype):
            y = layer(x)
            loss = y.float().square().mean()
            if inside:
                scaler.scale(loss).backward()
        if not inside:
            scaler.scale(loss).backward()
        assert y.dtype == dtype and x.grad.dtype == source
        assert torch.equal(y, wtconv.functional.wtconv2d(x.to(dtype), *_parameters(layer), stride))
        before = {n: p.detach().clone() for n, p in layer.named_parameters() if p.requires_grad}
        assert all(
            p.grad.dtype == torch.float32 and p.grad.abs().sum() > 0 for p in layer.parameters() if p.requires_grad
        )
        scaler.step(optimizer)
        scaler.update()
        assert all(not torch.equal(before[n], p) for n, p in layer.named_parameters() if p.requires_grad)


def _parameters(layer):
    convs, scales = [c.weight for c in layer.wavelet_convs], [s.weight for s in layer.wavelet_scale]
    return layer.base_conv.weight, layer.base_conv.bias, layer.base_scale.weight, convs, scales


def test_autocast_casts_no_parameter_and_spares_float64():
    layer = layer_for()
    x = torch.randn(2, 4, 8, 8)
    layer(x)  # the first call looks at the filters
    with torch.autocast("cpu", torch.bfloat16), torch.profiler.profile() as profile:
        layer(x)
    assert sum(e.count for e in profile.key_averages() if e.key == "aten::to") == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert layer_for().double()(x.double()).dtype == torch.float64
        assert layer_for().half()(x).dtype == torch.bfloat16


def test_views_and_expanded_gradients():
    layer, plain = layer_and_plain(4, 4, 3, 1, True, 2)
    big = torch.randn(3, 8, 20, 18)
    views = [big[:, 2:6, 1::2, 3:-2], big[1:2, :4].expand(5, -1, -1, -1), big.permute(0, 1, 3, 2)[:, ::2]]
    for x in views:
        for dy in (None, torch.randn(()), torch.randn(1, 4, 1, 1)):
            y = layer(x)
            dy = torch.ones(()).expand_as(y) if dy is None else dy.expand_as(y)
            ours, theirs = step(layer, x, dy), step(plain, x, dy)
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(1, b.abs().max().item()))


def test_checkpointing():
    net = nn.Sequential(layer_for(), nn.GELU(), layer_for(1))
    x = torch.randn(SIZES[1])
    for reentrant in (True, False):
        assert_same(step(_Checkpointed(net, reentrant), x), step(net, x))


class _Checkpointed(nn.Module):
    def __init__(self, net, reentrant):
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=self.reentrant)


X = torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(1))
BATCHED = torch.randn(3, 2, 4, 7, 6, generator=torch.Generator().manual_seed(2))
TRANSFORMS = {
    "grad": lambda m: grad(lambda x: m(x).sin().sum())(X),
    "grad of parameters": lambda m: grad(lambda p: functional_call(m, p, X).sin().sum())(trained(m)),
    "grad of grad": lambda m: grad(lambda x: grad(lambda x: m(x).sin().sum())(x).cos().sum())(X),
    "vmap": lambda m: vmap(m)(BATCHED),
    "vmap at another dimension": lambda m: vmap(m, in_dims=2)(BATCHED.movedim(0, 2)),
    "per-sample gradients": lambda m: vmap(
        grad(lambda p, x: functional_call(m, p, x[None]).sin().sum()), in_dims=(None, 0)
    )(trained(m), X),
    "ensemble": lambda m: vmap(lambda p: functional_call(m, p, X))(
        {n: torch.stack([p, 2 * p]) for n, p in trained(m).items()}
    ),
    "jacrev": lambda m: jacrev(m)(X[:1]),
    "jacfwd": lambda m: jacfwd(m)(X[:1]),
    "jvp": lambda m: jvp(m, (X,), (X.sin(),)),
    "jvp of parameters": lambda m: jvp(
        lambda p: functional_call(m, p, X), (trained(m),), ({n: p.sin() for n, p in trained(m).items()},)
    ),
    "vjp": lambda m: vjp(m, X)[1](X.cos()),
    "hessian": lambda m: hessian(lambda x: m(x).sin().sum())(X[:1, :, :3, :3]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_torch_func(name):
    layer, plain = layer_and_plain(4, 4, 3, 1, True, 2)
    for ours, theirs in zip(*(tree_leaves(TRANSFORMS[name](m)) for m in (layer, plain)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * max(1, theirs.abs().max().item()))


# (dimension of the results, function of a model and the batch's size)
BATCHES = {
    "x": (0, lambda m, n: vmap(m)(BATCHED[:n])),
    "x at another dimension": (1, lambda m, n: vmap(m, in_dims=2, out_dims=1)(BATCHED[:n].movedim(0, 2))),
    "dx": (0, lambda m, n: vmap(grad(lambda x: m(x).sum()))(BATCHED[:n])),
    "per-sample gradients": (
        0,
        lambda m, n: vmap(grad(lambda p, x: functional_call(m, p, x[None]).sum()), (None, 0))(trained(m), X[:n]),
    ),
    "parameters": (
        0,
        lambda m, n: vmap(lambda p: functional_call(m, p, X))({k: p[None][:n] for k, p in trained(m).items()}),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_vmap_over_nothing(name):
    """The results of an empty batch have the shapes of those of one entry, but for the batch."""
    layer, (dim, function) = layer_for(), BATCHES[name]
    for none, one in zip(*(tree_leaves(function(layer, n)) for n in (0, 1)), strict=True):
        expected = list(one.shape)
        assert expected[dim] == 1
        expected[dim] = 0
        assert list(none.shape) == expected


def test_shorter_way_only_where_nothing_looks_at_the_call(monkeypatch):
    """The call from Python skips the dispatcher's first round where no mode, no transform and no subclass is there."""
    layer, x = layer_for(), X.clone().requires_grad_()
    rounds = []
    dispatched = wtconv._ops._apply
    monkeypatch.setattr(wtconv._ops, "_apply", lambda *a: rounds.append(1) or dispatched(*a))

    def count(call):
        rounds.clear()
        call()
        return len(rounds)

    assert count(lambda: layer(x).sum().backward()) == 0
    assert count(lambda: torch.autograd.grad(layer(x).sum(), x, create_graph=True)) == 1  # the backward's own graph
    assert count(lambda: grad(lambda t: layer(t).sum())(X)) > 0
    assert count(lambda: jvp(layer, (X,), (X,))) > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert count(lambda: layer(x).sum().backward()) == 0
        assert count(lambda: grad(lambda t: layer(t).sum())(X)) > 0
        with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
            assert count(lambda: layer(x)) == 1
        assert counter.get_total_flops() > 0
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert count(lambda: layer(x)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert count(lambda: torch.jit.trace(layer, x, check_trace=False)) == 1

    class Subclass(torch.Tensor):
        pass

    assert count(lambda: layer(x.detach().as_subclass(Subclass).requires_grad_())) == 1
    assert isinstance(layer(X.as_subclass(Subclass)), Subclass)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(X.as_subclass(Subclass))
        assert isinstance(y, Subclass) and y.dtype == torch.bfloat16


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_autograd(backend):
    layer, plain = layer_and_plain(4, 4, 3, 1, True, 2)
    x = X.clone().requires_grad_()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True)):
        layer(x).sin().sum().backward()
    (expected,) = torch.autograd.grad(plain(x).sin().sum(), x)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


def test_private_names_of_torch_are_listed():
    """_private.NAMES is what breaks with a future torch: all of it is there, and nothing else is used."""
    _private = wtconv._private
    assert [n for n in _private.NAMES if not _private.is_there(n)] == []
    with pytest.raises(ImportError, match=r"lacks what this version uses: torch\._C\._gone, torch\.gone\._too"):
        _private.check((*_private.NAMES, "torch._C._gone", "torch.gone._too"))
    used = set()
    for path in Path(wtconv.__file__).parent.glob("*.py"):
        used |= {name for name in torch_names(ast.parse(path.read_text())) if re.search(r"\._[^_]", name)}
    assert len(used) > 10
    assert not {
        u for u in used if not any(f"{n}.".startswith(f"{u}.") or u.startswith(f"{n}.") for n in _private.NAMES)
    }


def torch_names(tree):
    """The dotted names under torch that a module imports or looks up."""
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    yield from known.values()
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in known:
            yield ".".join([known[node.id], *reversed(parts)])


def script(text, *arguments, timeout=240):
    """Runs a program with warnings as errors where they are ours; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_data_loader_workers_after_the_parent_used_the_layer():
    """Forked workers run the layer on one thread and do not hang."""
    out = script(
        """
        import os, torch, wtconv
        from torch.utils.data import DataLoader, Dataset
        torch.set_num_threads(2)
        layer = wtconv.WTConv2d(3, 3, wt_levels=2).requires_grad_(False)
        images = torch.randn(8, 3, 32, 32)
        expected = layer(images)  # the parent's threads exist from here

        class Transformed(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return layer(images[i : i + 1])[0], torch.get_num_threads()

        def first_call(worker):  # before the loader's own threads, which start with the first batch
            before = os.listdir("/proc/self/task")
            layer(images)
            assert os.listdir("/proc/self/task") == before, "the layer started threads in a worker"

        for _, threads in DataLoader(Transformed(), batch_size=2, num_workers=2, worker_init_fn=first_call):
            assert threads.tolist() == [1, 1], threads
        got = torch.cat([y for y, *_ in DataLoader(Transformed(), batch_size=4, num_workers=2)])
        assert torch.allclose(got, expected, atol=1e-6)
        before = len(os.listdir("/proc/self/task"))
        layer(images)
        # Fewer is the loader's own thread, which ends some time.
        assert len(os.listdir("/proc/self/task")) <= before, "the layer has threads of its own"
        print("done")
        """
    )
    assert "done" in out


def test_uses_torchs_threads():
    """One thread pool in the process: as many threads after the layer's first call as after PyTorch's own."""
    out = script(
        """
        import os, torch, wtconv
        torch.set_num_threads(3)
        torch.randn(1000, 1000).exp()
        before = len(os.listdir("/proc/self/task"))
        layer = wtconv.WTConv2d(8, 8, wt_levels=2)
        layer(torch.randn(8, 8, 64, 64)).sum().backward()
        print(before, len(os.listdir("/proc/self/task")))
        """
    )
    before, after = map(int, out.split())
    assert after <= before + 1  # the autograd engine may start one


def test_distributed(tmp_path):
    """Two gloo ranks, contiguous and channels_last: gradients of one process, no warning, the same on both ranks."""
    out = script(
        """
        import sys, time, warnings, torch, wtconv
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from torch import nn

        def network():
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(3, 6, 1), wtconv.WTConv2d(6, 6, 3, wt_levels=2), nn.Conv2d(6, 2, 1))

        def work(rank, path):
            warnings.simplefilter("error")
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
            x = torch.randn(4, 3, 9, 8, generator=torch.Generator().manual_seed(1))
            for layout in (torch.contiguous_format, torch.channels_last):
                alone = network().to(memory_format=layout)
                alone(x.to(memory_format=layout)).square().mean().backward()
                net = nn.parallel.DistributedDataParallel(network().to(memory_format=layout))
                part = x[2 * rank : 2 * rank + 2].to(memory_format=layout)
                for _ in range(2):
                    net.zero_grad()
                    net(part).square().mean().backward()
                for a, b in zip(net.module.parameters(), alone.parameters(), strict=True):
                    assert (a.grad is None) == (b.grad is None)
                    assert a.grad is None or torch.allclose(a.grad, b.grad, atol=1e-5)
            dist.barrier()
            time.sleep(1)  # gloo's threads, see examples/train.py
            dist.destroy_process_group()

        if __name__ == "__main__":
            mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
            print("done")
        """,
        str(tmp_path / "rendezvous"),
    )
    assert "done" in out


def test_import_compiles_nothing(tmp_path):
    """Import and first call with no compiler to be found."""
    out = script(
        """
        import os
        os.environ["PATH"] = os.environ["CC"] = os.environ["CXX"] = "/nonexistent"
        import torch, wtconv
        print(tuple(wtconv.WTConv2d(2, 2)(torch.randn(1, 2, 5, 5)).shape))
        """
    )
    assert out.strip() == "(1, 2, 5, 5)"


def test_host_overhead_is_dispatch_alone():
    """A call is one operator: nothing else runs, so nothing else can be slow. Times are in bench/torch."""
    inputs, dy = random_inputs(1, 4, 7, 7, 5, 2)
    leaves = [t.requires_grad_() for t in inputs]
    with torch.profiler.profile() as profile:
        y = operator(1)(*grouped(leaves))
        torch.autograd.grad(y, leaves, dy)
    names = {e.key for e in profile.key_averages()}
    assert {n for n in names if n.startswith("wtconv::")} == {"wtconv::forward", "wtconv::backward"}
    assert not {n for n in names if n.startswith("aten::")} - {"aten::empty", "aten::empty_strided", "aten::detach"}, (
        names
    )
