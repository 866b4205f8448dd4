"""Wavelets other than Haar, against an evaluation with PyWavelets' own transforms and NumPy loops."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
import wtconv
from wtconv import general, reference

pywt = pytest.importorskip("pywt")

# Symmetric and asymmetric, orthogonal and biorthogonal, filters of 2 to 12 taps, half lengths odd and even.
WAVELETS = ["db1", "db2", "db3", "sym4", "coif2", "bior1.3", "bior2.2", "rbio3.1"]


def correlate_same(x, weight):
    """Cross-correlation of (C, ...) with (C, ...) by loops over taps; (k - 1) // 2 zeros before."""
    dims = x.ndim - 1
    k = weight.shape[1]
    before = (k - 1) // 2
    padded = np.pad(x, [(0, 0)] + [(before, k - 1 - before)] * dims)
    out = np.zeros_like(x)
    for tap in np.ndindex(*[k] * dims):
        window = tuple(slice(t, t + n) for t, n in zip(tap, x.shape[1:]))
        out += weight[(slice(None), *tap)].reshape(-1, *[1] * dims) * padded[(slice(None), *window)]
    return out


def transform_axis(x, wavelet, axis):
    """(low, high) along an axis: PyWavelets' transform in mode 'zero', read at the layer's phase.

    The layer reads dec(j) x(2i + n/2 - j), PyWavelets dec(j) x(2i + 1 - j): the same sums, n/4 - 1/2 places on. Where
    that is no whole number one zero in front of the signal makes it one.
    """
    half, length = wavelet.dec_len // 2, x.shape[axis]
    pad = [(0, 0)] * x.ndim
    pad[axis] = (1 - half % 2, 0)
    start = half // 2
    bands = pywt.dwt(np.pad(x, pad), wavelet, mode="zero", axis=axis)
    # Where PyWavelets' longer output ends, the layer's sums are over zeros alone.
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, start + length // 2)
    return [band[tuple(index)] for band in bands]


def inverse_axis(low, high, wavelet, axis):
    """Sum over i of rec(t - 2i + n/2 - 1) band(i), for t in 0 .. 2 len - 1: full synthesis with its ends cut."""
    half = wavelet.dec_len // 2

    def full(band, taps):
        up = np.zeros([2 * n if a == axis else n for a, n in enumerate(band.shape)])
        index = [slice(None)] * band.ndim
        index[axis] = slice(0, None, 2)
        up[tuple(index)] = band
        return np.apply_along_axis(lambda line: np.convolve(line, taps)[half - 1 : half - 1 + line.size], axis, up)

    return full(low, wavelet.rec_lo) + full(high, wavelet.rec_hi)


def expected(x, state, levels, wt_type):
    """The layer of one image (C, ...) in double precision."""
    wavelet = pywt.Wavelet(wt_type)
    dims, channels = x.ndim - 1, x.shape[0]
    state = {name: value.double().numpy() for name, value in state.items()}
    per_channel = (slice(None), *[None] * dims)

    def level(low, number):
        shape = low.shape[1:]
        low = np.pad(low, [(0, 0)] + [(0, n % 2) for n in shape])
        bands = [low]
        for axis in range(
            dims, 0, -1
        ):  # columns first: the low or high along the height comes last, and varies fastest
            bands = [part for band in bands for part in transform_axis(band, wavelet, axis)]
        raw = bands[0]
        weight = state[f"wavelet_convs.{number}.weight"]
        weight = weight.reshape(channels, 2**dims, *weight.shape[2:])
        scale = state[f"wavelet_scale.{number}.weight"].reshape(channels, 2**dims)
        bands = [correlate_same(b, weight[:, s]) * scale[:, s][per_channel] for s, b in enumerate(bands)]
        if number + 1 < levels:
            bands[0] = bands[0] + level(raw, number + 1)
        for axis in range(1, dims + 1):
            bands = [inverse_axis(bands[i], bands[i + 1], wavelet, axis) for i in range(0, len(bands), 2)]
        return bands[0][(slice(None), *[slice(0, n) for n in shape])]

    y = correlate_same(x, state["base_conv.weight"][:, 0])
    if "base_conv.bias" in state:
        y = y + state["base_conv.bias"][per_channel]
    y = y * state["base_scale.weight"].reshape(-1)[per_channel]
    return y + level(x, 0) if levels else y


def randomised(layer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (1, 1), (2, 13), (21, 6)])
@pytest.mark.parametrize("wt_type", WAVELETS)
@pytest.mark.parametrize("kernel, levels", [(3, 1), (4, 2), (5, 3)])
def test_2d_equals_pywavelets(wt_type, shape, kernel, levels):
    layer = randomised(wtconv.WTConv2d(3, 3, kernel, wt_levels=levels, wt_type=wt_type)).double()
    x = torch.randn(1, 3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Filters are kept in fp32.
    np.testing.assert_allclose(
        layer(x)[0].detach().numpy(), expected(x[0].numpy(), layer.state_dict(), levels, wt_type), rtol=1e-5, atol=2e-5
    )


@pytest.mark.parametrize("length", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("wt_type", WAVELETS)
@pytest.mark.parametrize("kernel, levels, stride", [(3, 1, 1), (4, 2, 2), (5, 4, 3)])
def test_1d_equals_pywavelets(wt_type, length, kernel, levels, stride):
    stride = min(stride, length)
    layer = randomised(wtconv.WTConv1d(3, 3, kernel, stride, wt_levels=levels, wt_type=wt_type)).double()
    x = torch.randn(1, 3, length, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = expected(x[0].numpy(), layer.state_dict(), levels, wt_type)
    kept = length // stride * stride
    y = y[:, :kept].reshape(3, -1, stride).mean(axis=2)
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), y, rtol=1e-5, atol=2e-5)


def test_1d_trains_and_reports_errors():
    layer = randomised(wtconv.WTConv1d(4, 4, 3, wt_levels=2)).double()
    x = torch.randn(2, 4, 9, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *[p for p in layer.parameters() if p.requires_grad]))
    with pytest.raises(ValueError, match=r"\(B, 4, L\).*\(2, 3, 9\)"):
        layer(torch.randn(2, 3, 9, dtype=torch.float64))
    with pytest.raises(ValueError, match="out_channels must equal in_channels=4, got 8"):
        wtconv.WTConv1d(4, 8)
    with pytest.raises(ValueError, match=r"kernel_size must be an integer in 1\.\.2147483647, got 0"):
        wtconv.WTConv1d(4, 4, 0)
    again = pickle_copy(layer)
    torch.testing.assert_close(again(x), layer(x), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16


def pickle_copy(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_is_haar():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for wt_type in ("haar", "db1", "bior1.1", "rbio1.1"):
            assert general.is_haar(*(f.to(dtype) for f in reference.wavelet_filters(wt_type, 5)))
        for wt_type in WAVELETS[1:]:
            assert not general.is_haar(*(f.to(dtype) for f in reference.wavelet_filters(wt_type, 5)))
        # One channel's filter, one band's sign, one of the two banks: enough not to be Haar's.
        for bank in range(2):
            filters = [f.to(dtype).clone() for f in reference.wavelet_filters("db1", 5)]
            filters[bank][4 * 3 + 1] *= -1
            assert not general.is_haar(*filters)


def foreign_state(layer, per_channel):
    """The layer's state with 2 x 2 filters that are not Haar's: bands permuted, or in one channel only."""
    state = copy.deepcopy(layer.state_dict())
    channels = [2] if per_channel else range(layer.in_channels)
    for name in ("wt_filter", "iwt_filter"):
        for c in channels:
            state[name][4 * c : 4 * c + 4] = state[name][[4 * c, 4 * c + 2, 4 * c + 1, 4 * c + 3]]
    return state


@pytest.mark.parametrize("per_channel", [False, True])
def test_foreign_filters_in_a_checkpoint_are_honoured(per_channel):
    layer, plain = wtconv.WTConv2d(4, 4, 3, wt_levels=2), reference.WTConv2d(4, 4, 3, wt_levels=2)
    state = foreign_state(randomised(layer), per_channel)
    x = torch.randn(2, 4, 9, 7)
    as_haar = layer(x)
    layer.load_state_dict(state)
    plain.load_state_dict(state)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layer(x), as_haar, atol=1e-3)
    for changed in (copy.deepcopy(layer), pickle_copy(layer)):
        torch.testing.assert_close(changed(x), layer(x), rtol=0, atol=0)
    layer.load_state_dict(reference.WTConv2d(4, 4, 3, wt_levels=2).state_dict())
    assert layer.has_haar_filters()


def test_filters_changed_in_place_are_honoured():
    """As DDP's broadcast and averages of weights change them: without load_state_dict."""
    layer, plain = wtconv.WTConv2d(4, 4, 3, wt_levels=2), reference.WTConv2d(4, 4, 3, wt_levels=2)
    state = foreign_state(randomised(layer), True)
    plain.load_state_dict(state)
    x = torch.randn(2, 4, 9, 7)
    layer(x)
    with torch.no_grad():
        layer.wt_filter.copy_(state["wt_filter"])
        layer.iwt_filter.copy_(state["iwt_filter"])
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-5)


def test_trained_filters_get_gradients():
    layer, plain = wtconv.WTConv2d(4, 4, 3, wt_levels=2), reference.WTConv2d(4, 4, 3, wt_levels=2)
    plain.load_state_dict(randomised(layer).state_dict())
    x = torch.randn(2, 4, 9, 7)
    for module in (layer, plain):
        module.requires_grad_(True)
        module(x).square().sum().backward()
    assert layer.wt_filter.grad.abs().max() > 0
    torch.testing.assert_close(layer.wt_filter.grad, plain.wt_filter.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(layer.iwt_filter.grad, plain.iwt_filter.grad, rtol=1e-4, atol=1e-3)


def test_checkpoint_of_another_filter_length_is_refused():
    layer = wtconv.WTConv2d(4, 4, 3, wt_levels=1)
    with pytest.raises(RuntimeError, match="wt_filter"):
        layer.load_state_dict(reference.WTConv2d(4, 4, 3, wt_levels=1, wt_type="db2").state_dict())


def test_early_checkpoints_with_a_stride_filter_load():
    plain = reference.WTConv2d(4, 4, 3, 2, wt_levels=1)
    state = plain.state_dict() | {"stride_filter": torch.ones(4, 1, 1, 1)}
    wtconv.WTConv2d(4, 4, 3, 2, wt_levels=1).load_state_dict(state)
    state["stride_filter"][1] = 2
    with pytest.raises(RuntimeError, match="stride_filter"):
        wtconv.WTConv2d(4, 4, 3, 2, wt_levels=1).load_state_dict(state)


def test_the_slow_path_says_so_once(monkeypatch):
    monkeypatch.setattr(general, "_notice_given", False)
    layer = wtconv.WTConv2d(4, 4, 3, wt_levels=1, wt_type="db2")
    x = torch.randn(1, 4, 6, 6)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        layer(x)
        layer(x)
        wtconv.WTConv2d(4, 4, 3, wt_levels=1)(x)
    assert [w.category for w in seen].count(general.SlowPathNotice) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stride", [1, 2])
def test_general_path_under_autocast(dtype, stride):
    layer = randomised(wtconv.WTConv2d(4, 4, 3, stride, wt_levels=2, wt_type="db2"))
    for x in (torch.randn(2, 4, 9, 7), torch.randn(2, 4, 9, 7, dtype=dtype)):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            y = layer(x)
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), layer(x.float()), rtol=2e-2, atol=2e-2)
        y.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in layer.parameters() if p.requires_grad)


def test_general_path_compiles():
    layer = randomised(wtconv.WTConv2d(4, 4, 3, wt_levels=2, wt_type="db2"))
    x = torch.randn(2, 4, 9, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


def test_filters_changed_before_compiling_are_seen():
    layer = randomised(wtconv.WTConv2d(4, 4, 3, wt_levels=2))
    x = torch.randn(2, 4, 9, 8)
    haar = layer(x)
    with torch.no_grad():
        layer.wt_filter.mul_(2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    y = compiled(x)
    assert not torch.allclose(y, haar)
    torch.testing.assert_close(y, layer(x), rtol=1e-5, atol=1e-5)
    # Loading other filters makes the graph again.
    layer.load_state_dict(wtconv.WTConv2d(4, 4, 3, wt_levels=2).state_dict())
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


def test_a_new_filter_in_the_place_of_an_old_one_is_seen():
    """Whatever id and version it has: those of a freed tensor come back."""
    layer = wtconv.WTConv2d(2, 2, 3, wt_levels=1)
    other = reference.wavelet_filters("db2", 2)[0][..., :2, :2].clone()
    for _ in range(20):
        assert layer.has_haar_filters()
        haar = layer.wt_filter.detach().clone()
        del layer.wt_filter
        layer.wt_filter = torch.nn.Parameter(other, requires_grad=False)
        assert not layer.has_haar_filters()
        layer.wt_filter = torch.nn.Parameter(haar, requires_grad=False)


def assert_equals_plain(layer, x):
    """Against the composition with the filters that the layer has now."""
    convs, scales = [c.weight for c in layer.wavelet_convs], [s.weight for s in layer.wavelet_scale]
    base = layer.base_conv.weight, layer.base_conv.bias, layer.base_scale.weight
    expected = reference.wtconv2d(x, *base, convs, scales, 1, layer.wt_filter, layer.iwt_filter)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_filters_loaded_through_data_before_the_first_call_are_honoured():
    layer = wtconv.WTConv2d(4, 4, 3, wt_levels=2)
    layer.wt_filter.data.copy_(torch.randn(16, 1, 2, 2))
    assert_equals_plain(layer, torch.randn(2, 4, 9, 7))


def test_parametrized_filters_are_honoured():
    class Double(torch.nn.Module):
        def forward(self, w):
            return 2 * w

    layer = wtconv.WTConv2d(4, 4, 3, wt_levels=2)
    torch.nn.utils.parametrize.register_parametrization(layer, "wt_filter", Double())
    assert_equals_plain(layer, torch.randn(2, 4, 9, 7))


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def test_swapped_parameters(swapping):
    """torch.__future__.set_swap_module_params_on_conversion swaps tensors, which must have no weak references."""
    layer, x = wtconv.WTConv2d(4, 4, 3, wt_levels=2), torch.randn(2, 4, 9, 7)
    layer(x)
    assert_equals_plain(layer.double(), x.double())
    layer.load_state_dict(foreign_state(layer, True))
    assert not layer.has_haar_filters()
    assert_equals_plain(layer, x.double())


@pytest.mark.parametrize("foreign", [(), (1,), (0, 1, 2)])
def test_ensembles(foreign):
    """stack_module_state stacks the filters, too. One layer with others takes all of them to the general path."""
    layers = [randomised(wtconv.WTConv2d(4, 4, 3, wt_levels=2), seed) for seed in range(3)]
    for i in foreign:
        layers[i].load_state_dict(foreign_state(layers[i], True))
    x, base = torch.randn(2, 4, 9, 7), copy.deepcopy(layers[0]).to("meta")
    parameters, buffers = torch.func.stack_module_state(layers)
    called = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), x))
    expected = torch.stack([layer(x) for layer in layers])
    torch.testing.assert_close(called(parameters, buffers), expected, rtol=1e-5, atol=1e-4)
    nested = torch.vmap(called)(*({n: torch.stack([p, p]) for n, p in d.items()} for d in (parameters, buffers)))
    torch.testing.assert_close(nested[1], expected, rtol=1e-5, atol=1e-4)


def test_refusals_are_those_of_the_operators():
    """The general path takes no input that the operators refuse: no integers, no imaginary parts that get lost."""
    haar, other = wtconv.WTConv2d(4, 4, 3, wt_levels=2), wtconv.WTConv2d(4, 4, 3, wt_levels=2, wt_type="db2")
    x = torch.randn(2, 4, 9, 7)
    for wrong in (x.int(), x.to(torch.complex64), x.double(), x[:, :3], x[0], x[None], x[:, :, :0], x.to("meta")):
        messages = []
        for layer in (haar, other):
            with pytest.raises(ValueError, match="^wtconv: ") as caught:
                layer(wrong)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    for wrong in (torch.ones(16, 1, 3, 3), torch.ones(12, 1, 2, 2), torch.ones(16), torch.ones(16, 1, 2, 4)):
        other.wt_filter = torch.nn.Parameter(wrong, requires_grad=False)
        with pytest.raises(ValueError, match=r"wt_filter must have shape \(16, 1, n, n\) with an even n, got"):
            other(x)
    for wrong in (torch.ones(1, 4, 8, dtype=torch.int64), torch.ones(1, 4, 8, dtype=torch.complex64), x[:, :, 0, :0]):
        with pytest.raises(ValueError, match="float32|L > 0"):
            wtconv.WTConv1d(4, 4, 3)(wrong)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("wt_type", ["db1", "db2"])
def test_tracing_may_be_the_first_call(wt_type, monkeypatch):
    """Neither the look at the filters nor what is refused belongs to the graph."""
    monkeypatch.setattr(general, "_notice_given", True)
    layer = wtconv.WTConv2d(4, 4, 3, wt_levels=2, wt_type=wt_type)
    traced = torch.jit.trace(layer, torch.randn(2, 4, 9, 8))
    assert "allclose" not in str(traced.graph)
    x = torch.randn(1, 4, 12, 7)
    torch.testing.assert_close(traced(x), layer(x), rtol=1e-5, atol=1e-5)


def test_general_path_on_the_meta_device():
    with torch.device("meta"):
        assert wtconv.WTConv2d(4, 4, 3, wt_type="db2")(torch.randn(2, 4, 9, 7)).shape == (2, 4, 9, 7)
        assert wtconv.WTConv1d(4, 4, 3)(torch.randn(2, 4, 9)).shape == (2, 4, 9)
