"""The operators on a GPU: against the plain PyTorch layer in float64, and what PyTorch does around them."""

import copy

import pytest
import torch
import torch.nn.functional as F
import wtconv
from wtconv import reference

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here, no GPU test ran", allow_module_level=True)
if not any(b.name == "cuda" and not b.unavailable for b in wtconv.backends()):
    why = wtconv._ops.CUDA_MISSING or next(b.unavailable for b in wtconv.backends() if b.name == "cuda")
    pytest.skip(f"no CUDA backend that can run: {why}", allow_module_level=True)

# batch, channels, height, width, kernel, levels: one for each strategy
SHAPES = [
    (33, 5, 7, 7, 5, 2),
    (5, 3, 56, 56, 5, 5),
    (3, 4, 14, 15, 3, 3),
    (1, 2, 150, 131, 5, 4),
    (2, 3, 20, 20, 4, 2),
]
DTYPES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def trained(layer):
    return [p for p in layer.parameters() if p.requires_grad]  # Haar's taps are not


def layers(channels, kernel, levels, stride=1, dtype=torch.float32):
    torch.manual_seed(0)
    ours = wtconv.WTConv2d(channels, channels, kernel, stride, wt_levels=levels, device="cuda", dtype=dtype)
    with torch.no_grad():
        for p in trained(ours):
            p.copy_(torch.randn_like(p) * 0.3)
    plain = reference.WTConv2d(channels, channels, kernel, stride, wt_levels=levels)
    plain.load_state_dict(ours.state_dict())
    return ours, plain.double().cuda()


def close(got, expected, tolerance):
    scale = expected.abs().amax().clamp_min(1e-6)
    error = ((got.double() - expected).abs().amax() / scale).item()
    assert error < tolerance, f"relative error {error:.3g} over {tolerance:.3g}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_layer_and_gradients(shape, dtype, layout):
    b, c, h, w, k, levels = shape
    ours, plain = layers(c, k, levels, dtype=dtype)
    x = torch.randn(b, c, h, w, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, expected = ours(x), plain(exact)
    assert y.is_contiguous(memory_format=layout)
    dy = torch.randn_like(y)
    y.backward(dy)
    expected.backward(dy.double())
    close(y, expected, 4 * DTYPES[dtype])
    close(x.grad, exact.grad, 4 * DTYPES[dtype])
    for p, q in zip(trained(ours), trained(plain), strict=True):
        close(p.grad, q.grad, 20 * DTYPES[dtype])


# As the published ablation: each reformulation in addition to those before it.
@pytest.mark.parametrize("switches", ["", "+recompute_analysis", "+collapse_synthesis", "+fold_scales"], ids=str)
def test_reformulations_by_name(switches):
    ours, plain = layers(3, 5, 3)
    order = ["+recompute_analysis", "+collapse_synthesis", "+fold_scales"]
    ours.backend = "cuda-unfused" + "".join(order[: order.index(switches) + 1] if switches else [])
    x = torch.randn(2, 3, 21, 30, device="cuda", requires_grad=True)
    exact = x.detach().double().requires_grad_()
    y, expected = ours(x), plain(exact)
    dy = torch.randn_like(y)
    y.backward(dy)
    expected.backward(dy.double())
    close(y, expected, 1e-5)
    close(x.grad, exact.grad, 1e-5)
    for p, q in zip(trained(ours), trained(plain), strict=True):
        close(p.grad, q.grad, 4e-5)


@pytest.mark.parametrize("image", ["random", "bright", "edge"])
@pytest.mark.parametrize("size, kernel, levels", [(56, 5, 5), (56, 3, 5), (28, 7, 4), (14, 5, 3), (7, 5, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_err_at_most_twice_as_much_as_the_plain_layer(dtype, size, kernel, levels, image):
    """Root mean square over the planes, by tiles of 16 x 16 pixels: a large error anywhere shows where it is."""
    ours, exact = layers(16, kernel, levels, dtype=dtype)
    plain = copy.deepcopy(exact).to(dtype)
    x = torch.randn(32, 16, size, size, device="cuda")
    if image == "bright":
        x = 1 + x / 20
    if image == "edge":  # between dark and a hundred thousand times as bright
        x = torch.where(torch.arange(size, device="cuda") <= size // 2, x / 1000, 100 + x)
    x = x.to(dtype)
    with torch.no_grad():
        expected = exact(x.double())

        def error(y):
            squares = (y.double() - expected).square().mean((0, 1), keepdim=True)
            return F.avg_pool2d(squares, min(16, size), ceil_mode=True).sqrt()

        ratio = error(ours(x)) / error(plain(x))
    assert ratio.max() < 2, ratio


def test_stride_and_second_derivative():
    ours, plain = layers(3, 5, 2, stride=2)
    x = torch.randn(9, 3, 15, 13, device="cuda", requires_grad=True)
    exact = x.detach().double().requires_grad_()
    results = []
    for layer, image in ((ours, x), (plain, exact)):
        (g,) = torch.autograd.grad(layer(image).square().sum(), image, create_graph=True)
        results.append(torch.autograd.grad(g.square().sum(), image)[0])
    close(results[0], results[1], 1e-5)


def test_autocast_keeps_float32_parameters():
    ours, plain = layers(4, 5, 3)
    x = torch.randn(3, 4, 28, 28, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        y = ours(x)
        y.float().sum().backward()
    close(y, plain(x.double()), 4e-3)
    assert ours.base_conv.weight.grad.dtype == torch.float32


def test_side_stream_and_graph_replay():
    ours, _ = layers(6, 5, 2)
    x = torch.randn(40, 6, 7, 7, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)

    def step():
        y = ours(x)
        results = (y, *torch.autograd.grad(y, [x, *trained(ours)], dy))
        return [t.detach() for t in results]  # keeps no graph, whose nodes remember their stream

    expected = step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for a, b, c in zip(expected, on_side, captured, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_compiles():
    ours, _ = layers(4, 3, 3)
    x = torch.randn(2, 4, 30, 30, device="cuda")
    compiled = torch.compile(copy.deepcopy(ours), fullgraph=True)
    torch.testing.assert_close(compiled(x), ours(x), rtol=0, atol=0)
    compiled(x).sum().backward()


def test_errors_do_not_stick():
    ours, _ = layers(4, 5, 2)
    with pytest.raises(ValueError, match="channels"):
        ours(torch.randn(1, 3, 8, 8, device="cuda"))
    with pytest.raises((ValueError, RuntimeError), match="device|backend"):
        ours(torch.randn(1, 4, 8, 8))
    assert ours(torch.randn(1, 4, 8, 8, device="cuda")).isfinite().all()
