"""WTConv2d: the published layer's names, values and numbers; what a user reads on it; what it refuses."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import wtconv
from oracle import assert_right, evaluate, exact_filters, grouped, layer_and_plain, operator, randomise
from torch import nn
from torch.nn.utils import prune
from wtconv import reference

SHAPES = [  # in_channels, kernel_size, stride, bias, wt_levels, H, W
    (3, 5, 1, True, 1, 8, 8),
    (4, 3, 2, False, 3, 21, 14),
    (2, 4, 3, True, 2, 7, 9),
    (5, 7, 1, True, 5, 33, 17),
    (1, 1, 2, False, 0, 1, 1),
    (6, 2, 1, True, 6, 1, 2),
]


@pytest.mark.parametrize("channels, kernel, stride, bias, levels, h, w", SHAPES)
def test_equals_the_plain_layer(channels, kernel, stride, bias, levels, h, w):
    layer, plain = layer_and_plain(channels, channels, kernel, stride, bias, levels)
    x = torch.randn(2, channels, h, w)
    xs = [x.clone().requires_grad_() for _ in range(2)]
    ys = [module(t) for module, t in zip((layer, plain), xs)]
    dy = torch.randn_like(ys[0])
    for y in ys:
        y.backward(dy)
    torch.testing.assert_close(ys[0], ys[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(xs[0].grad, xs[1].grad, rtol=1e-4, atol=1e-4)
    gradients = [{n: p.grad for n, p in m.named_parameters() if p.requires_grad} for m in (layer, plain)]
    assert list(gradients[0]) == list(gradients[1])
    for name, gradient in gradients[0].items():
        expected = gradients[1][name]
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5 * max(1, expected.abs().max().item()))


@pytest.mark.parametrize("channels, kernel, stride, bias, levels, h, w", SHAPES)
def test_state_dict_loads_both_ways(channels, kernel, stride, bias, levels, h, w):
    arguments = (channels, channels, kernel, stride, bias, levels)
    torch.manual_seed(5)
    layer = wtconv.WTConv2d(*arguments)
    after = torch.rand(())
    torch.manual_seed(5)
    plain = reference.WTConv2d(*arguments)
    assert after == torch.rand(()), "the same random numbers are drawn"
    ours, theirs = layer.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs.values())), "same seed, same initial values"
    expected = {"base_scale.weight": 1.0, **{f"wavelet_scale.{i}.weight": 0.1 for i in range(levels)}}
    assert all((ours[name] == value).all() for name, value in expected.items())
    assert [(n, p.requires_grad) for n, p in layer.named_parameters()] == [
        (n, p.requires_grad) for n, p in plain.named_parameters()
    ]
    layer.load_state_dict(theirs, strict=True)
    plain.load_state_dict(ours, strict=True)
    with pytest.raises(RuntimeError, match="wt_filter"):
        layer.load_state_dict({k: v for k, v in theirs.items() if k != "wt_filter"})


def test_old_checkpoints_hold_their_stride_as_a_filter():
    layer = wtconv.WTConv2d(3, 3, stride=2)
    layer.load_state_dict({**layer.state_dict(), "stride_filter": torch.ones(3, 1, 1, 1)}, strict=True)
    with pytest.raises(RuntimeError, match="stride_filter"):
        layer.load_state_dict({**layer.state_dict(), "stride_filter": torch.zeros(3, 1, 1, 1)}, strict=True)


@pytest.mark.parametrize("vertical", [False, True])
def test_stripes_excite_the_documented_band(vertical):
    """Rows that alternate are high along the height: LH. Columns that alternate: HL. Row 4c + band of the weight."""
    stripes = torch.ones(16)
    stripes[1::2] = -1
    x = (stripes[None, :] if vertical else stripes[:, None]).expand(16, 16)[None, None]
    for band, name in enumerate(("LL", "LH", "HL", "HH")):
        weight = torch.zeros(4, 1, 1, 1)
        weight[band] = 1
        y = wtconv.functional.wtconv2d(x, torch.zeros(1, 1, 1, 1), None, torch.ones(1), [weight], [torch.ones(4)])
        heard = name == ("HL" if vertical else "LH")
        assert torch.equal(y, x if heard else torch.zeros_like(x)), name


@pytest.mark.parametrize("stride", [2, 3])
def test_stride_keeps_every_sth_output(stride):
    layer, _ = layer_and_plain(3, 3, 3, 1, True, 2)
    strided, _ = layer_and_plain(3, 3, 3, stride, True, 2)
    for h, w in ((7, 9), (8, 8), (1, 5)):
        x = torch.randn(2, 3, h, w)
        assert torch.equal(strided(x), layer(x)[:, :, ::stride, ::stride])


def test_reads_like_a_convolution():
    layer = wtconv.WTConv2d(6, 6, 3, 2, wt_levels=2)
    conv = nn.Conv2d(6, 6, 3, padding="same", groups=6)
    for name in ("in_channels", "out_channels", "kernel_size", "dilation", "groups", "padding", "padding_mode"):
        assert getattr(layer, name) == getattr(conv, name), name
    assert layer.stride == (2, 2) and not layer.transposed and layer.output_padding == (0, 0)
    assert "6, 6, kernel_size=(3, 3), stride=(2, 2), wt_levels=2, wt_type='db1'" in repr(layer)
    named = wtconv.WTConv2d(6, 6, (3, 3), (2, 2), False, backend="reference")
    assert "bias=False" in repr(named) and "backend='reference'" in repr(named)


def test_backend_is_obeyed():
    layer, _ = layer_and_plain(3, 3, 3, 1, True, 2, backend="reference")
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(layer(x), wtconv.functional.wtconv2d(x, *_parameters(layer), 1, "reference"))
    layer.backend = "no such"
    with pytest.raises(RuntimeError, match="no backend named 'no such'.*reference"):
        layer(x)


def _parameters(layer):
    convs, scales = [c.weight for c in layer.wavelet_convs], [s.weight for s in layer.wavelet_scale]
    return layer.base_conv.weight, layer.base_conv.bias, layer.base_scale.weight, convs, scales


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((4, 8), ["depthwise", "in_channels=4", "got 8", "WTConvSeparable"]),
        ((0, 0), ["in_channels", "1..", "got 0"]),
        ((4, 4, 0), ["kernel_size", "1..15", "got 0"]),
        ((4, 4, 16), ["kernel_size", "1..15", "got 16"]),
        ((4, 4, (3, 5)), ["kernel_size", "(3, 5)"]),
        ((4, 4, 3, 0), ["stride", "got 0"]),
        ((4, 4, 3, 1, True, -1), ["wt_levels", "0..8", "got -1"]),
        ((4, 4, 3, 1, True, 9), ["wt_levels", "0..8", "got 9"]),
        ((4, 4, 3, 1, True, 1.5), ["wt_levels", "got 1.5"]),
        ((4, 4, 3, 1, True, 1, "db"), ["wt_type", "'db'"]),
        ((4, 4, 3, 1, True, 1, None), ["wt_type", "None"]),
        ((4, 4, 3, 1, True, 1, 2), ["wt_type", "got 2"]),
        ((4, 4, 3, 2**31), ["stride", f"got {2**31}"]),
        ((4, 4, "3"), ["kernel_size", "got '3'"]),
    ],
)
def test_refused_arguments(arguments, words):
    with pytest.raises(ValueError) as caught:
        wtconv.WTConv2d(*arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("layer", [wtconv.WTConv2d, wtconv.WTConv1d])
def test_numbers_of_numpy_are_numbers(layer):
    made = layer(np.int64(4), np.int32(4), np.int64(3), np.int64(2), wt_levels=np.uint8(1))
    assert repr(made) == repr(layer(4, 4, 3, 2, wt_levels=1))


def test_wrong_input_says_expected_and_got():
    layer = wtconv.WTConv2d(4, 4)
    with pytest.raises(ValueError, match=r"4 channels.*got 3.*\(2, 3, 8, 8\)"):
        layer(torch.randn(2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"base_weight must be f64 where x is f64, got f32"):
        layer(torch.randn(2, 4, 8, 8).double())


@pytest.mark.parametrize("x", [None, [1.0], np.ones((1, 4, 8, 8))], ids=["None", "list", "ndarray"])
@pytest.mark.parametrize(
    "layer", [lambda: wtconv.WTConv2d(4, 4), lambda: foreign(wtconv.WTConv2d(4, 4)), lambda: wtconv.WTConv1d(4, 4)]
)
def test_what_is_no_tensor_is_named(layer, x):
    with pytest.raises(TypeError, match=f"x must be a torch.Tensor, got {type(x).__name__}"):
        layer()(x)


def foreign(layer):
    with torch.no_grad():
        layer.wt_filter[0] *= 2
    return layer


@pytest.mark.parametrize("backend", [None, 3, torch.device("cpu")])
def test_backend_is_a_name(backend):
    with pytest.raises(TypeError, match="backend must be a name"):
        wtconv.WTConv2d(4, 4, backend=backend)


@pytest.mark.parametrize("make", [wtconv.WTConv2d, wtconv.WTConv1d, wtconv.reference.WTConv2d])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype(make, dtype):
    torch.set_default_dtype(dtype)
    try:
        layer = make(3, 3, 3, wt_levels=2)
        y = layer(torch.randn(1, 3, *(9, 6)[: layer.base_conv.weight.dim() - 2]))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {y.dtype, *(t.dtype for t in layer.state_dict().values())} == {dtype}


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: _saved(m),
}


def _saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("how", COPIES)
def test_copies(how):
    """Before and after a backward; the copy computes the same and shares nothing."""
    net = nn.Sequential(randomise(wtconv.WTConv2d(3, 3, wt_levels=2)), nn.GELU(), wtconv.WTConv2d(3, 3, stride=2))
    x = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        other = COPIES[how](net)
        assert torch.equal(other(x), net(x))
        assert not {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in other.parameters()}
        net(x).sum().backward()


def test_averaged_models():
    timm_utils = pytest.importorskip("timm.utils")
    net = wtconv.WTConv2d(3, 3, wt_levels=1)
    averages = [
        torch.optim.swa_utils.AveragedModel(net),
        torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)),
        timm_utils.ModelEmaV2(net, decay=0.9),
        timm_utils.ModelEmaV3(net, decay=0.9),
    ]
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        for average in averages:
            average.update(net) if "Ema" in type(average).__name__ else average.update_parameters(net)
    for average in averages:
        module = average.module
        assert module.has_haar_filters() and torch.isfinite(module(x)).all()
        assert not torch.equal(module.base_conv.weight, net.base_conv.weight)


@pytest.mark.parametrize("make", [lambda **o: wtconv.WTConv2d(3, 3, 3, **o), lambda **o: wtconv.WTConv1d(3, 3, 3, **o)])
def test_default_device(make):
    """Constants are made where they are needed, not where the default is."""
    with torch.device("meta"):
        assert {t.device.type for t in make().state_dict().values()} == {"meta"}
        layer = make(device="cpu")
        assert {t.device.type for t in layer.state_dict().values()} == {"cpu"}
        assert layer.has_haar_filters()
        plain = wtconv.reference.WTConv2d(3, 3, 3)
        assert {t.device.type for t in plain.state_dict().values()} == {"meta"}


def test_meta_device_then_filled():
    with torch.device("meta"):
        net = nn.Sequential(wtconv.WTConv2d(3, 3, wt_levels=2))
    assert net(torch.empty(2, 3, 9, 8, device="meta")).shape == (2, 3, 9, 8)
    source = nn.Sequential(randomise(wtconv.WTConv2d(3, 3, wt_levels=2)))
    x = torch.randn(2, 3, 9, 8)
    filled = copy.deepcopy(net).to_empty(device="cpu")
    filled.load_state_dict(source.state_dict())
    assigned = copy.deepcopy(net)
    assigned.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(filled(x), source(x)) and torch.equal(assigned(x), source(x))
    torch.manual_seed(1)
    fresh = wtconv.WTConv2d(3, 3, wt_levels=2)
    started = copy.deepcopy(net[0]).to_empty(device="cpu")
    torch.manual_seed(1)
    started.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(started.state_dict().values(), fresh.state_dict().values()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_moved_to_other_types(dtype):
    layer, _ = layer_and_plain(3, 3, 3, 1, True, 2, dtype=dtype)
    again = wtconv.WTConv2d(3, 3, 3, wt_levels=2, dtype=dtype)
    again.load_state_dict(layer.state_dict())
    x, dy = (torch.randn(2, 3, 9, 8).to(dtype) for _ in range(2))
    inputs = [x, *_flat(layer)]
    results = evaluate(inputs, dy, operator(1))
    assert_right(results, inputs, dy, 1)
    y = again(x)
    assert torch.equal(y, results[0]) and y.dtype == dtype
    y.backward(dy)
    assert torch.equal(again.base_conv.weight.grad, results[2]) and again.base_conv.weight.grad.dtype == dtype


def _flat(layer):
    weight, bias, scale, weights, scales = _parameters(layer)
    return [t.detach() for t in (weight, bias, scale, *weights, *scales)]


def test_channels_last_network():
    """.to(memory_format=channels_last) changes neither values nor the result's layout, gradients keep their strides."""
    layer, _ = layer_and_plain(6, 6, 5, 1, True, 3)
    x = torch.randn(2, 6, 15, 13)
    expected = layer(x)
    layer = layer.to(memory_format=torch.channels_last)
    y = layer(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last) and torch.equal(y, expected)
    y.sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad is None or p.grad.stride() == p.stride(), name


def test_empty_batch():
    layer, _ = layer_and_plain(3, 3, 3, 2, True, 2)
    x = torch.randn(0, 3, 9, 8, requires_grad=True)
    y = layer(x)
    assert y.shape == (0, 3, 5, 4)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert all((p.grad == 0).all() for p in layer.parameters() if p.requires_grad)


def test_same_error_as_plain_or_less():
    """Against float64, our worst error in each tile of 4x4 outputs is at most twice the plain composition's."""
    for dtype, bound in ((torch.float32, 2), (torch.float16, 2), (torch.bfloat16, 2)):
        layer, plain = layer_and_plain(4, 4, 5, 1, True, 3, dtype=dtype)
        x = torch.randn(4, 4, 32, 32).to(dtype)
        inputs = [x, *_flat(layer)]
        exact = reference.wtconv2d(*grouped([t.double() for t in inputs]), 1, *exact_filters(4))
        errors = [(y.double() - exact).abs() for y in (layer(x), plain(x))]
        ours, theirs = (nn.functional.max_pool2d(e, 8) for e in errors)
        assert (ours <= bound * theirs + torch.finfo(dtype).eps * 1e-3).all(), f"{dtype}: {(ours / theirs).max()}"


def test_scripted_weight_changes_are_seen():
    """Parametrised and pruned weights reach the kernel: the layer reads its parts' attributes at every call."""
    layer, plain = layer_and_plain(3, 3, 3, 1, True, 1)
    x = torch.randn(1, 3, 8, 8)
    for m in (layer, plain):
        nn.utils.parametrizations.weight_norm(m.base_conv)
        prune.l1_unstructured(m.wavelet_convs[0], "weight", amount=0.5)
        with torch.no_grad():
            m.base_conv.parametrizations.weight.original0.mul_(2)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-4)


def test_training_follows_the_plain_layer():
    """200 steps from the same seed on the same data: loss curves agree to 1e-3."""
    curves = []
    for make in (wtconv.WTConv2d, reference.WTConv2d):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            make(8, 8, 3, wt_levels=2),
            nn.GroupNorm(2, 8),
            nn.GELU(),
            make(8, 8, 5, stride=2, wt_levels=1),
            nn.Flatten(),
            nn.Linear(8 * 25, 4),
        )
        data = torch.Generator().manual_seed(0)
        images, labels = torch.randn(64, 1, 20, 20, generator=data), torch.randint(0, 4, (64,), generator=data)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
        losses = []
        for step in range(200):
            at = torch.arange(16) + 16 * (step % 4)
            loss = nn.functional.cross_entropy(net(images[at]), labels[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(torch.tensor(losses))
    assert curves[0][-1] < 0.5 * curves[0][0], "it learns"
    assert (curves[0] - curves[1]).abs().max() < 1e-3


def test_self_check_and_show(capsys):
    wtconv.self_check()
    wtconv.show()
    text = capsys.readouterr().out
    assert f"wtconv {wtconv.__version__}" in text and torch.__version__ in text
    for backend in wtconv.backends():
        assert f"backend {backend.name} ({backend.device})" in text


def test_self_check_under_another_default_device():
    with torch.device("meta"):
        wtconv.self_check(verbose=False)


def test_self_check_finds_a_wrong_kernel(monkeypatch):
    right = wtconv.functional.wtconv2d
    monkeypatch.setattr(wtconv.functional, "wtconv2d", lambda x, *a: right(x, *a) + (x.sum() == 1e9) + 0.5)
    with pytest.raises(RuntimeError, match="the right value is"):
        wtconv.self_check(verbose=False)


COMPUTED = {
    "pruned": lambda part: prune.random_unstructured(part, "weight", 0.5),
    "pruned twice": lambda part: [prune.random_unstructured(part, "weight", 0.3) for _ in range(2)],
    "weight_norm": lambda part: nn.utils.weight_norm(part),
    "spectral_norm": lambda part: nn.utils.spectral_norm(part).eval(),
    "parametrized": lambda part: nn.utils.parametrizations.weight_norm(part),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize(
    "make", [wtconv.WTConv2d, wtconv.WTConv1d, lambda *a, **k: wtconv.WTConv2d(*a, wt_type="db2", **k)]
)
def test_weights_computed_from_others_follow_them(name, make):
    """Where torch.nn.utils computes a weight in a hook before a part's forward, which the layer does not call."""
    layer = make(4, 4, 3, wt_levels=1)
    for part in (layer.base_conv, layer.wavelet_convs[0]):
        COMPUTED[name](part)
    x = torch.randn(2, 4, 9, 7) if len(layer.wt_filter.shape) == 4 else torch.randn(2, 4, 9)
    trained = [p for p in layer.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        assert all(p.grad is not None for p in trained)
        optimizer.step()
    with torch.no_grad():
        y = layer(x)
        for part in (layer.base_conv, layer.wavelet_convs[0]):  # as the public layer calls its parts
            part(x.new_zeros(1, part.in_channels, *x.shape[2:]))
        plain = copy.deepcopy(layer)
        for part in (plain.base_conv, plain.wavelet_convs[0]):
            weight = part.weight.clone()
            part.__dict__.pop("weight", None)
            part._forward_pre_hooks.clear()
            if name == "parametrized":
                nn.utils.parametrize.remove_parametrizations(part, "weight")
            part.weight = nn.Parameter(weight)
        torch.testing.assert_close(y, plain(x), rtol=1e-5, atol=1e-6)


class Adapted(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + x


def test_parts_that_compute_something_else_are_refused():
    """Never computed as if they were the layer's own."""
    x = torch.randn(1, 4, 8, 8)
    for change, word in (
        (lambda m: setattr(m, "base_conv", Adapted(4, 4, 3, groups=4, padding="same")), "Adapted"),
        (lambda m: m.wavelet_convs.__setitem__(1, Adapted(16, 16, 3, groups=16, padding="same")), "Adapted"),
        (lambda m: setattr(m.base_conv, "padding_mode", "circular"), "circular"),
        (lambda m: setattr(m.wavelet_convs[0], "dilation", (2, 2)), "dilation"),
        (lambda m: setattr(m, "base_scale", nn.PReLU(4)), "PReLU"),
    ):
        layer = wtconv.WTConv2d(4, 4, 3, wt_levels=2)
        layer(x)
        change(layer)
        with pytest.raises(TypeError, match=f"WTConv2d: its .*{word}"):
            layer(x)
