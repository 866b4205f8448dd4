"""wtconv::forward and wtconv::backward: values, layouts, gradients of gradients, fake kernels, refusals."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wtconv
from oracle import BACKENDS, assert_right, evaluate, grouped, operator, random_inputs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode
from wtconv import _ops, reference

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import measure  # noqa: E402

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def names_of(inputs):
    levels = (len(inputs) - 4) // 2
    names = ["x", "base_weight", "base_bias", "base_scale"]
    return names + [f"wavelet_weight[{i}]" for i in range(levels)] + [f"wavelet_scale[{i}]" for i in range(levels)]


def bits_equal(a, b):
    return all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", range(1, 9))
def test_values(backend, kernel):
    """Every kernel size, odd and even, over level counts, strides, sizes, bias and dtypes."""
    cases = itertools.product((0, 1, 3), (1, 2, 3), ((1, 1), (7, 7), (9, 14)), (True, False))
    for i, (levels, stride, (h, w), bias) in enumerate(cases):
        dtype = list(DTYPES.values())[(i + kernel) % 4]
        half = dtype in (torch.float16, torch.bfloat16)
        inputs, dy = random_inputs(
            2,
            3,
            h,
            w,
            kernel,
            levels,
            stride,
            bias=bias,
            dtype=dtype,
            parameters=torch.float32 if half and i % 3 else None,
        )
        results = evaluate(inputs, dy, operator(stride, backend))
        assert_right(results, inputs, dy, stride, f"k{kernel} l{levels} s{stride} {h}x{w} {dtype} bias={bias}")
        assert all(r.dtype == t.dtype for r, t in zip(results[1:], (t for t in inputs if t is not None), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("levels", range(7))
def test_every_size(backend, levels):
    """Every H and W in 1..33: each of them at least once, along two diagonals."""
    for i, (h, w) in enumerate([(n, (n * 7) % 33 + 1) for n in range(1, 34)] + [(1, n) for n in (1, 2, 33)]):
        inputs, dy = random_inputs(1, 2, h, w, 3 if i % 2 else 4, levels)
        assert_right(evaluate(inputs, dy, operator(1, backend)), inputs, dy, 1, f"l{levels} {h}x{w}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_channel_counts_and_unaligned_bases(backend):
    for c, w in itertools.product((1, 3, 7, 30, 96, 100), (1, 5, 7, 9, 17)):
        inputs, dy = random_inputs(2, c, 5, w, 3, 2)
        shifted = []
        for t in inputs:
            room = torch.empty(t.numel() + 1)
            shifted.append(room[1:].view(t.shape).copy_(t))
        results = evaluate(shifted, dy, operator(1, backend))
        assert_right(results, inputs, dy, 1, f"c{c} w{w}")


def sliced(t):
    big = torch.full((t.shape[0] + 1, t.shape[1] + 2, 2 * t.shape[2], t.shape[3] + 3), float("nan"), dtype=t.dtype)
    return big[1:, 1:-1, ::2, 2:-1].copy_(t)


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced": sliced,
    "sliced channels_last": lambda t: sliced(t.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda t: t[:1, :, :1].expand_as(t),
    "batch last": lambda t: t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, layout):
    """x and dy in any layout give the values of contiguous ones; the result is dense in x's memory format."""
    for dtype, (h, w), stride in itertools.product((torch.float32, torch.bfloat16), ((7, 6), (12, 20)), (1, 2)):
        (x, *parameters), dy = random_inputs(3, 5, h, w, 3, 2, stride, dtype=dtype)
        x, dy = LAYOUTS[layout](x), LAYOUTS[layout](dy)
        results = evaluate([x, *parameters], dy, operator(stride, backend))
        assert_right(results, [x, *parameters], dy, stride, layout)
        y, dx = results[:2]
        memory_format = torch.channels_last if "channels_last" in layout else torch.contiguous_format
        assert y.is_contiguous(memory_format=memory_format) and dx.is_contiguous(memory_format=memory_format)


def channels_last(t):
    """With the strides of that format also where an extent of 1 leaves a choice."""
    return torch.empty(t.shape, memory_format=torch.channels_last).copy_(t) if t.dim() == 4 else t


def test_layouts_of_parameters():
    """A parameter's gradient has its strides; parameters that are not dense are read right."""
    inputs, dy = random_inputs(2, 6, 8, 8, 3, 2)
    dense = evaluate(inputs, dy, operator(1))
    last = [channels_last(t) for t in inputs]
    assert last[1].stride() == (9, 1, 3, 1)
    results = evaluate(last, dy, operator(1))
    assert bits_equal([r.contiguous() for r in results], dense)
    assert [r.stride() for r in results[1:]] == [t.stride() for t in last]
    spread = [torch.stack([t, t], -1)[..., 0] for t in inputs]
    results = evaluate(spread, dy, operator(1))
    assert bits_equal([r.contiguous() for r in results], dense)
    assert all(r.is_contiguous() for r in results[1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_bits_every_run_and_any_number_of_threads(backend):
    inputs, dy = random_inputs(4, 6, 15, 18, 5, 3)
    first = evaluate(inputs, dy, operator(1, backend))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert bits_equal(first, evaluate(inputs, dy, operator(1, backend)))
    finally:
        torch.set_num_threads(before)
    torch.use_deterministic_algorithms(True)
    try:
        assert bits_equal(first, evaluate(inputs, dy, operator(1, backend)))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_thousand_repeated_calls():
    inputs, dy = random_inputs(1, 3, 7, 7, 3, 2)
    first = evaluate(inputs, dy, operator(1))
    for _ in range(1000):
        assert bits_equal(first, evaluate(inputs, dy, operator(1)))


class Masks(TorchDispatchMode):
    """Records the masks of the backward calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is _ops._backward:
            self.seen.append(args[8])
        return function(*args, **(kwargs or {}))


def test_any_subset_of_gradients():
    inputs, dy = random_inputs(2, 2, 6, 5, 3, 2)
    everything = _ops._backward(dy, *grouped(inputs), 1, 2 ** len(inputs) - 1, "")
    for mask in range(2 ** len(inputs)):
        some = _ops._backward(dy, *grouped(inputs), 1, mask, "")
        assert bits_equal(some, [g for i, g in enumerate(everything) if mask >> i & 1]), f"mask {mask:b}"
    asked = [t.requires_grad_(i in (3, 5)) for i, t in enumerate(t.clone() for t in inputs)]
    y = wtconv.functional.wtconv2d(*grouped(asked))
    with Masks() as masks:
        y.backward(dy)
    assert masks.seen == [1 << 3 | 1 << 5], "work that nobody asked for"
    assert [t.grad is not None for t in asked] == [i in (3, 5) for i in range(len(asked))]
    assert torch.equal(asked[3].grad, everything[3]) and torch.equal(asked[5].grad, everything[5])


@pytest.mark.parametrize("stride, bias, levels", [(1, True, 2), (2, False, 1), (3, True, 0)])
def test_gradients_of_gradients(stride, bias, levels):
    inputs, _ = random_inputs(1, 2, 5, 4, 2 + levels, levels, bias=bias, dtype=torch.float64)
    leaves = [t if t is None else t.requires_grad_() for t in inputs]
    there = [t for t in leaves if t is not None]

    def function(*tensors):
        it = iter(tensors)
        return operator(stride)(*grouped([None if t is None else next(it) for t in leaves]))

    assert torch.autograd.gradcheck(function, there, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, there, check_fwd_over_rev=True)


def fake_cases():
    for layout, (h, w), c, stride in itertools.product(LAYOUTS, ((1, 1), (5, 8), (8, 1)), (1, 4), (1, 2)):
        (x, *parameters), dy = random_inputs(2, c, h, w, 3, 1, stride)
        yield [LAYOUTS[layout](x), *parameters], dy, stride
    (x, *parameters), dy = random_inputs(0, 4, 6, 5, 3, 1)
    yield [x, *parameters], dy, 1
    yield [x.to(memory_format=torch.channels_last), *parameters], dy, 1


def test_fake_strides_are_the_real_ones():
    for inputs, dy, stride in fake_cases():
        inputs = [inputs[0], *(channels_last(t) for t in inputs[1:])]
        mask = 2 ** len(inputs) - 1
        real = [_ops._forward(*grouped(inputs), stride, ""), *_ops._backward(dy, *grouped(inputs), stride, mask, "")]
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(t) for t in inputs]
            fake_dy = mode.from_tensor(dy)
            fake = [
                _ops._forward(*grouped(fakes), stride, ""),
                *_ops._backward(fake_dy, *grouped(fakes), stride, mask, ""),
            ]
        for r, f in zip(real, fake, strict=True):
            assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype), inputs[0].stride()


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(dtype):
    for bias, levels, layout in ((True, 2, torch.channels_last), (False, 0, torch.contiguous_format)):
        inputs, dy = random_inputs(2, 3, 6, 7, 3, levels, bias=bias, dtype=DTYPES[dtype], layout=layout)
        arguments = grouped([t if t is None else t.requires_grad_() for t in inputs])
        mask = sum(1 << i for i, t in enumerate(inputs) if t is not None)
        torch.library.opcheck(_ops._forward, (*arguments, 1, ""))
        torch.library.opcheck(_ops._backward, (dy.requires_grad_(), *arguments, 1, mask, ""))
        torch.library.opcheck(_ops._backward, (dy, *arguments, 1, 1, BACKENDS[-1]))


def test_saved_for_backward_is_x_and_the_parameters():
    inputs, _ = random_inputs(2, 3, 8, 8, 3, 2)
    leaves = [t.requires_grad_() for t in inputs]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        operator(1)(*grouped(leaves))
    assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in leaves} and len(saved) == len(leaves)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = operator(1)(*grouped(leaves))
        assert y.grad_fn is None and not y.requires_grad


def test_memory_of_a_step():
    """y, dx and the parameters' gradients; beside them a scratch memory for each thread, whatever the batch."""
    extra = []
    for batch in (32, 128):
        inputs, dy = random_inputs(batch, 16, 16, 16, 5, 3)
        leaves = [t.requires_grad_() for t in inputs]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            y = operator(1)(*grouped(leaves))
            torch.autograd.grad(y, leaves, dy)
        sizes = list(allocations(profile))
        assert sizes.count(inputs[0].nbytes) == 2, "y and dx"
        extra.append(sum(sizes) - 2 * inputs[0].nbytes - sum(t.nbytes for t in inputs[1:]))
    assert extra[0] == extra[1] < 4 << 20, extra


def allocations(profile):
    """Bytes of each allocation in a profile."""
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack += event.children
        if event.tag.name == "Allocation" and event.extra_fields.alloc_size > 0:
            yield event.extra_fields.alloc_size


def test_flops():
    """The operator's own count: the filters' multiply-adds twice, 8 additions for each transform of a block."""
    inputs, dy = random_inputs(2, 3, 9, 14, 5, 2, 2)
    blocks = 2 * 3 * (5 * 7 + 3 * 4)
    filters = 2 * 25 * (2 * 3 * 5 * 7 + 4 * blocks)
    with FlopCounterMode(display=False) as counter:
        evaluate(inputs, dy, operator(2))
    counts = counter.get_flop_counts()["Global"]
    assert counts[torch.ops.wtconv.forward] == filters + 16 * blocks
    assert counts[torch.ops.wtconv.backward] == 2 * filters + 24 * blocks
    # Beside them, what the plain layer's convolutions count: the same filters, and transforms as products.
    x, *_ = inputs
    with FlopCounterMode(display=False) as plain:
        reference.wtconv2d(*grouped(inputs), 1)
    with FlopCounterMode(display=False) as ours:
        operator(1)(*grouped(inputs))
    assert 0.5 * plain.get_total_flops() < ours.get_total_flops() < plain.get_total_flops()


@pytest.mark.parametrize("switches", ["recompute_analysis", "collapse_synthesis", "fold_scales", "all"])
def test_switches_of_the_baseline(switches):
    """The published reformulations: the same answer with other intermediates."""
    switches = "recompute_analysis+collapse_synthesis+fold_scales" if switches == "all" else switches
    inputs, dy = random_inputs(2, 3, 32, 32, 3, 3)
    held = []
    for name in ("unfused", f"unfused+{switches}"):
        assert_right(evaluate(inputs, dy, operator(1, name)), inputs, dy, 1)
        held.append(measure.peak_bytes(lambda name=name: operator(1, name)(*grouped(inputs)), "cpu"))
    assert held[0] != held[1] and held[0] > 3 * inputs[0].nbytes


def refusals():
    """name: (operator, arguments, words of the message)"""
    (x, *ps), dy = random_inputs(2, 4, 6, 6, 3, 1)
    bw, bb, bs, ww, ws = ps
    flipped = bw.transpose(2, 3)

    def call(x=x, bw=bw, bb=bb, bs=bs, ww=(ww,), ws=(ws,), stride=1, backend=""):
        return _ops._forward, [x, bw, bb, bs, list(ww), list(ws), stride, backend]

    def back(dy=dy, x=x, bb=bb, stride=1, mask=1):
        return _ops._backward, [dy, x, bw, bb, bs, [ww], [ws], stride, mask, ""]

    return {
        "channels": (*call(x[:, :3]), ["4 channels", "got 3"]),
        "rank": (*call(x[0]), ["(batch, channels, height, width)", "(4, 6, 6)"]),
        "dtype of x": (*call(x.int()), ["float32", "Int"]),
        "mixed dtypes": (*call(x.double()), ["base_weight", "f64", "got f32"]),
        "half with other half": (*call(x.half(), bw.bfloat16()), ["base_weight", "f16 or f32", "got bf16"]),
        "dtypes of parameters": (*call(x.half(), ws=[ws.half()]), ["wavelet_scale[0]", "f32", "got f16"]),
        "dtype of a parameter": (*call(bb=bb.long()), ["base_bias", "Long"]),
        "kernel shape": (*call(bw=bw[:, :, :2]), ["(channels, 1, k, k)", "(4, 1, 2, 3)"]),
        "kernel size": (*call(bw=torch.randn(4, 1, 16, 16), ww=(), ws=()), ["at most 15", "got 16"]),
        "empty kernel": (*call(bw=torch.randn(4, 1, 0, 0), ww=(), ws=()), ["kernel", "got 0"]),
        "bias shape": (*call(bb=bb[:3]), ["base_bias", "(4)", "(3)"]),
        "bias rank": (*call(bb=bb[:, None]), ["base_bias", "(4)", "(4, 1)"]),
        "scale shape": (*call(bs=bs[:, :3]), ["base_scale", "(4)", "(3)"]),
        "scale in another order": (*call(bs=bs.view(2, 2)), ["base_scale", "(4)", "(2, 2)"]),
        "scale not dense": (*call(bs=torch.randn(1, 6, 1, 1)[:, ::2]), ["base_scale", "(4)", "(3)"]),
        "too many dimensions": (*call(bs=bs[None]), ["base_scale", "(1, 1, 4, 1, 1)"]),
        "wavelet shape": (*call(ww=[ww[:8]]), ["wavelet_weight[0]", "(16, 1, 3, 3)"]),
        "wavelet kernel": (*call(ww=[ww, ww[..., 1:]], ws=[ws] * 2), ["wavelet_weight[1]", "(16, 1, 3, 2)"]),
        "wavelet scale": (*call(ws=[ws[:, 1:]]), ["wavelet_scale[0]", "(16)", "(15)"]),
        "levels": (*call(ws=()), ["one entry a level", "1 and 0"]),
        "too many levels": (*call(ww=[ww] * 9, ws=[ws] * 9), ["at most 8", "got 9"]),
        "stride": (*call(stride=0), ["stride", "got 0"]),
        "large stride": (*call(stride=2**31), ["stride", f"got {2**31}"]),
        "backend": (*call(backend="fast"), ["'fast'", *BACKENDS]),
        "backend's switch": (*call(backend="unfused+fold"), ["'unfused+fold'", "+fold_scales"]),
        "switch without backend": (*call(backend="+fold_scales"), ["'+fold_scales'"]),
        "empty image": (*call(x[:, :, :0]), ["height", "0"]),
        "no channels": (*call(x[:, :0], bw[:0], bb[:0], bs[:, :0], (), ()), ["channels", "0"]),
        "device": (*call(bs=bs.to("meta")), ["base_scale", "meta"]),
        "layout": (*call(x.to_sparse()), ["Sparse"]),
        "no tensor": (*call([1.0]), ["Tensor", "list"]),
        "dy": (*back(dy[:, :, :5]), ["dy", "(2, 4, 6, 6)"]),
        "dy with a stride": (*back(stride=2), ["dy", "(2, 4, 3, 3)"]),
        "dy's dtype": (*back(dy.double()), ["dy", "f32", "f64"]),
        "dy's rank": (*back(dy[None]), ["dy", "too many dimensions"]),
        "dy expanded": (*back(dy[:1, :3].expand(2, -1, -1, -1)), ["dy", "(2, 3, 6, 6)"]),
        "dy transposed": (*back(flipped.new_zeros(2, 4, 5, 6).transpose(2, 3)), ["dy", "(2, 4, 6, 5)"]),
        "mask": (*back(mask=64), ["mask", "64"]),
        "negative mask": (*back(mask=-1), ["mask", "-1"]),
        "bias mask": (*back(bb=None, mask=4), ["base_bias"]),
    }


def message_of(operation, arguments):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        operation(*arguments)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("name", refusals())
def test_refusals(name):
    """One exception, with what was expected and what came."""
    operation, arguments, words = refusals()[name]
    _, message = message_of(operation, arguments)
    for word in words:
        assert word in message, message
    if operation is _ops._forward and name != "no tensor":  # by the shorter way, too
        assert message_of(wtconv.functional.wtconv2d, arguments)[1] == message


# These fail before a kernel is called; and a graph may be made where another backend runs it.
BACKENDS_NAME = {"backend", "backend's switch", "switch without backend"}


@pytest.mark.parametrize("name", sorted(refusals().keys() - {*BACKENDS_NAME, "layout", "no tensor"}))
def test_fake_kernels_refuse_the_same_in_the_same_words(name):
    operation, arguments, _ = refusals()[name]
    real = message_of(operation, arguments)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = tree_map(lambda t: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t, arguments)
        assert message_of(operation, fakes) == real


def test_layer_and_fake_kernels_know_the_cores_limits():
    header = (Path(__file__).resolve().parents[2] / "include/wtconv/problem.hpp").read_text()
    assert f"max_levels = {_ops.MAX_LEVELS};" in header and f"max_kernel = {_ops.MAX_KERNEL};" in header


def test_hostile_calls_never_end_the_process():
    script = Path(__file__).with_name("hostile.py")
    done = subprocess.run([sys.executable, script, "2000"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_extreme_values():
    """Finite wherever a float32 evaluation rounded at the end is; nan stays where the filter reaches."""
    inputs, dy = random_inputs(1, 1, 32, 32, 3, 5, dtype=torch.float16, parameters=torch.float32)
    inputs[0] = torch.full_like(inputs[0], 3000.0)  # LL of level 5 is 96000, above float16's largest
    inputs[1:] = [torch.full_like(t, 1e-3) for t in inputs[1:]]
    assert_right(evaluate(inputs, dy * 0.01, operator(1)), inputs, dy * 0.01, 1)
    x = torch.zeros(1, 1, 16, 16)
    x[0, 0, 3, 3] = float("nan")
    w = torch.ones(1, 1, 3, 3)
    y = wtconv.functional.wtconv2d(x, w, None, torch.ones(1))
    assert torch.isnan(y).sum() == 9 and torch.isnan(y[0, 0, 2:5, 2:5]).all()


@pytest.mark.nightly
def test_past_2_31_elements_in_one_plane():
    """Offsets in memory past 2^31, forward and backward: the last corner is that of a small image."""
    size, corner, part = 46352, 128, 512
    cut = size - part
    a, b = torch.randn(size).half(), torch.randn(size).half()
    x = torch.add(a[:, None], b)[None, None].requires_grad_()
    assert x.numel() > 2**31 and x.is_contiguous()
    (_, *parameters), _ = random_inputs(1, 1, 8, 8, 3, 2, parameters=torch.float32)
    small = x.detach()[..., cut:, cut:].clone().requires_grad_()
    dy = torch.randn(part // 8, part // 8).half()
    results = []
    for image, stride in ((x, 8), (small, 8)):
        y = operator(stride)(*grouped([image, *parameters]))
        whole = torch.zeros_like(y)
        whole[..., -len(dy) :, -len(dy) :] = dy
        (dx,) = torch.autograd.grad(y, image, whole)
        results.append((y[..., -corner // 8 :, -corner // 8 :].clone(), dx[..., -corner:, -corner:].clone()))
        del y, whole, dx
    assert results[0][0].abs().max() > 0 and results[0][1].abs().max() > 0
    assert bits_equal(*results)


@pytest.mark.nightly
def test_past_2_31_elements_in_many_planes():
    """x is one image many times: every result is that image's."""
    inputs, dy = random_inputs(1, 1, 64, 64, 3, 2, 32, dtype=torch.float16, parameters=torch.float32)
    one = inputs[0]
    many = one.expand(2**19 + 1, -1, -1, -1)
    assert many.numel() > 2**31
    y = operator(32)(many, *grouped(inputs)[1:])
    assert torch.equal(y, operator(32)(one, *grouped(inputs)[1:]).expand_as(y))
    mask = 1 << 1 | 1 << 5  # weights alone: sums over all planes, so many times those of one up to rounding
    sums = _ops._backward(dy.expand(len(many), -1, -1, -1), many, *grouped(inputs)[1:], 32, mask, "")
    alone = _ops._backward(dy, one, *grouped(inputs)[1:], 32, mask, "")
    for s, a in zip(sums, alone, strict=True):
        torch.testing.assert_close(s / len(many), a, rtol=1e-4, atol=1e-5)
