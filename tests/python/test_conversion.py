"""convert, from_conv2d, WTConvSeparable: what is swapped computes the same, and nothing else changes."""

import copy

import pytest
import torch
import wtconv
from torch import nn
from wtconv import reference


def randomised(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def assert_close(actual, expected, tolerance=1e-5):
    """Within a tolerance of the largest value: sums of large terms cancel."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * expected.abs().max().item())


class LaterLayout(nn.Module):
    """A layer with the names of the public CUDA and Triton versions."""

    def __init__(self, channels, kernel, levels, stride=1, bias=True):
        super().__init__()
        self.in_channels, self.stride = channels, stride
        self.base_weight = nn.Parameter(torch.randn(channels, 1, kernel, kernel))
        self.base_scale = nn.Parameter(torch.randn(1, channels, 1, 1))
        self.register_parameter("base_bias", nn.Parameter(torch.randn(channels)) if bias else None)
        self.wt_weights = nn.ParameterList(torch.randn(4 * channels, 1, kernel, kernel) for _ in range(levels))
        self.wt_scales = nn.ParameterList(torch.randn(1, 4 * channels, 1, 1) for _ in range(levels))

    def forward(self, x):
        return reference.wtconv2d(
            x, self.base_weight, self.base_bias, self.base_scale, self.wt_weights, self.wt_scales, self.stride
        )


class SwappedBands(reference.WTConv2d):
    """The public layer's names, but LH and HL change places: a layer that only looks like it."""

    def forward(self, x):
        return super().forward(x.transpose(2, 3)).transpose(2, 3)


class Net(nn.Module):
    """Public layers at every depth of nesting, one of them in two places."""

    def __init__(self):
        super().__init__()
        shared = reference.WTConv2d(4, 4, 3, wt_levels=2)
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.ModuleDict({"a": nn.Sequential(reference.WTConv2d(4, 4, 5, wt_levels=3), shared), "b": shared})
        self.strided = nn.ModuleList([reference.WTConv2d(4, 4, 4, 2, bias=False, wt_levels=1)])

    def forward(self, x):
        x = self.body["b"](self.body["a"](self.stem(x)))
        return self.strided[0](x)


def test_public_layers_are_swapped_in_place():
    model = randomised(Net())
    x = torch.randn(2, 1, 13, 10)
    before, keys, parameters = model(x), list(model.state_dict()), list(model.parameters())
    report = wtconv.convert(model)
    assert report.model is model
    assert {name for name, _ in report.swapped} == {"body.a.0", "body.a.1", "strided.0"} and not report.left
    assert all(line in str(report) for line in ("3 swapped, 0 left", "body.a.0: WTConv2d -> WTConv2d(4, 4"))
    assert isinstance(model.body["b"], wtconv.WTConv2d) and model.body["b"] is model.body["a"][1]
    assert_close(model(x), before)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert not any(type(m) is reference.WTConv2d for m in model.modules())


def test_conversion_keeps_state_around_the_layer():
    model = nn.Sequential(reference.WTConv2d(4, 4, 3, wt_levels=1), reference.WTConv2d(4, 4, 3, wt_levels=1)).double()
    randomised(model)
    model[0].eval()
    model[1].base_conv.weight.requires_grad_(False)
    model[1].wavelet_convs[0].weight = model[0].wavelet_convs[0].weight  # tied
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    handles = [
        model[0].register_forward_hook(lambda module, *_: calls.append(("forward", module))),
        model[0].register_forward_pre_hook(lambda module, *_: calls.append(("pre", module))),
        model[0].register_full_backward_hook(lambda module, *_: calls.append(("backward", module))),
        model[1].register_load_state_dict_pre_hook(lambda module, *_: calls.append(("load", module))),
    ]
    twin = copy.deepcopy(model)
    wtconv.convert(model)
    layer = model[0]
    assert isinstance(layer, wtconv.WTConv2d) and not layer.training and not layer.base_conv.training
    assert model[1].training
    assert model[1].wavelet_convs[0].weight is model[0].wavelet_convs[0].weight
    assert model[1].base_conv.weight.dtype == torch.float64 and not model[1].base_conv.weight.requires_grad
    x = torch.randn(2, 4, 9, 9, dtype=torch.float64)
    calls.clear()
    model(x).sum().backward()
    assert calls == [("pre", layer), ("forward", layer), ("backward", layer)]
    model.load_state_dict(model.state_dict())
    assert calls[-1] == ("load", model[1])
    for handle in handles:
        handle.remove()
    calls.clear()
    # The optimizer that was made before still trains the layers.
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(x).sum().backward()
    optimizer.step(), twin_optimizer.step()
    calls.clear()
    assert_close(model(x), twin(x))


@pytest.mark.parametrize("kernel, levels, stride, bias", [(3, 2, 1, True), (5, 1, 2, False), (3, 0, 1, True)])
def test_later_layouts(kernel, levels, stride, bias):
    public = LaterLayout(4, kernel, levels, stride, bias)
    x = torch.randn(2, 4, 11, 8)
    expected = public(x)
    # Their checkpoints load, strictly.
    layer = wtconv.WTConv2d(4, 4, kernel, stride, bias, levels)
    nn.Sequential(layer).load_state_dict({f"0.{name}": value for name, value in public.state_dict().items()})
    assert_close(layer(x), expected)
    # And the layers are swapped.
    report = wtconv.convert(public)
    assert isinstance(report.model, wtconv.WTConv2d)
    assert_close(report.model(x), expected)


def test_1d_and_other_wavelets():
    class Sequence1d(nn.Module):  # the public WTConv1d's names
        def __init__(self):
            super().__init__()
            source = wtconv.WTConv1d(3, 3, 4, 2, wt_levels=2, wt_type="db2")
            self._modules, self._parameters, self.stride = source._modules, source._parameters, 2
            object.__setattr__(self, "source", source)

        def forward(self, x):
            return self.source(x)

    model = nn.Sequential(Sequence1d())
    x = torch.randn(2, 3, 15)
    expected = model(x)
    assert "slow path" in str(wtconv.convert(model))
    assert type(model[0]) is wtconv.WTConv1d
    torch.testing.assert_close(model(x), expected)

    model = nn.Sequential(randomised(reference.WTConv2d(3, 3, 3, wt_levels=2, wt_type="bior2.2")))
    x = torch.randn(2, 3, 15, 8)
    expected = model(x)
    assert "slow path" in str(wtconv.convert(model))
    assert_close(model(x), expected)


def test_what_is_left_and_why():
    class Extended(reference.WTConv2d):
        def __init__(self):
            super().__init__(4, 4, 3)
            self.gate = nn.Parameter(torch.ones(1))

    hooked = reference.WTConv2d(4, 4, 3)
    hooked.base_conv.register_forward_hook(lambda *_: None)
    normed = reference.WTConv2d(4, 4, 3)
    nn.utils.parametrizations.weight_norm(normed.base_conv)
    model = nn.ModuleDict(
        {
            "bands": randomised(SwappedBands(4, 4, 3)),
            "extended": Extended(),
            "hooked": hooked,
            "normed": normed,
            "ours": wtconv.WTConv2d(4, 4, 3),
            "script": torch.jit.trace(reference.WTConv2d(4, 4, 3), torch.randn(1, 4, 6, 6)),
            "fine": reference.WTConv2d(4, 4, 3),
        }
    )
    before = dict(model.items())
    report = wtconv.convert(model)
    assert [name for name, _ in report.swapped] == ["fine"]
    reasons = dict(report.left)
    assert "something else" in reasons["bands"] and "gate" in reasons["extended"]
    assert "hooks" in reasons["hooked"] and "parametrized" in reasons["normed"]
    assert "already" in reasons["ours"] and "TorchScript" in reasons["script"]
    assert all(model[name] is before[name] for name in reasons)
    assert "bands: left, it computes something else" in str(report)


def test_what_the_layers_cannot_do_is_left():
    """With a reason, not an exception in the middle of a model."""

    def depthwise(kernel):
        return nn.Conv2d(4, 4, kernel, padding=kernel // 2, groups=4)

    model = nn.ModuleDict(
        {
            "pruned weight": nn.utils.prune.random_unstructured(depthwise(3), "weight", 0.5),
            "pruned bias": nn.utils.prune.random_unstructured(depthwise(3), "bias", 0.5),
            "large": depthwise(17),
            "large public": reference.WTConv2d(4, 4, 17),
            "deep public": reference.WTConv2d(4, 4, 3, wt_levels=9),
            "fine": depthwise(15),
        }
    )
    report = wtconv.convert(model, depthwise=True)
    assert [name for name, _ in report.swapped] == ["fine"]
    reasons = dict(report.left)
    assert "plain parameter" in reasons["pruned weight"] and "plain parameter" in reasons["pruned bias"]
    assert "17 is larger than 15" in reasons["large"] and "17 is larger than 15" in reasons["large public"]
    assert "9 levels" in reasons["deep public"]
    with pytest.raises(TypeError, match="nn.Module, got None"):
        wtconv.convert(None)


def test_select_and_unchecked():
    model = nn.Sequential(*(reference.WTConv2d(4, 4, 3) for _ in range(3)))
    report = wtconv.convert(model, select=lambda name, layer: name != "1", check=False)
    assert [name for name, _ in report.swapped] == ["0", "2"]
    assert type(model[1]) is reference.WTConv2d


def test_conversion_does_not_move_the_random_state():
    model = nn.Sequential(reference.WTConv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    torch.manual_seed(0)
    expected = torch.randn(1)
    torch.manual_seed(0)
    wtconv.convert(model)
    assert torch.equal(torch.randn(1), expected)


@pytest.mark.parametrize(
    "kernel, padding, stride",
    [(k, k // 2, s) for k in (1, 3, 7) for s in (1, 2, 3)] + [(3, "same", 1), (4, "same", 1)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_from_conv2d_has_the_same_first_output(kernel, padding, stride, bias):
    conv = nn.Conv2d(6, 6, kernel, stride, padding, groups=6, bias=bias)
    layer = wtconv.from_conv2d(conv, wt_levels=3)
    for size in ((9, 12), (1, 5)):
        x = torch.randn(2, 6, *size)
        torch.testing.assert_close(layer(x), conv(x), rtol=1e-5, atol=1e-5)
    assert layer.base_conv.weight is conv.weight and layer.base_conv.bias is conv.bias
    assert layer.wt_levels == 3 and all(p.requires_grad for n, p in layer.named_parameters() if "filter" not in n)
    # The wavelet branch does train: its scales get gradients at once, its weights from the second step on.
    layer(torch.randn(2, 6, 9, 12)).square().sum().backward()
    assert all(scale.weight.grad.abs().max() > 0 for scale in layer.wavelet_scale)


@pytest.mark.parametrize(
    "arguments, why",
    [
        (dict(groups=1), "not depthwise"),
        (dict(out_channels=12), "not depthwise: .* 6, 12 and 6"),
        (dict(kernel_size=(3, 5), padding=(1, 2)), r"not square: \(3, 5\)"),
        (dict(stride=(1, 2)), r"stride differs .*\(1, 2\)"),
        (dict(dilation=2, padding=2), "dilation"),
        (dict(padding_mode="circular"), "circular"),
        (dict(padding=0), r"padding is \(0, 0\)"),
        (dict(kernel_size=4), "keeps the size"),
    ],
)
def test_from_conv2d_refuses(arguments, why):
    conv = nn.Conv2d(**(dict(in_channels=6, out_channels=6, kernel_size=3, padding=1, groups=6) | arguments))
    with pytest.raises(ValueError, match=why):
        wtconv.from_conv2d(conv)
    model = nn.Sequential(conv)
    report = wtconv.convert(model, depthwise=True)
    assert model[0] is conv and bool(report.left) == (conv.groups > 1)


def test_depthwise_convolutions_of_a_network():
    timm = pytest.importorskip("timm")
    model = timm.create_model("convnext_atto", num_classes=5).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = model(x)
        report = wtconv.convert(model, depthwise=True, wt_levels=lambda name, conv: 3 if "stages.0" in name else 1)
        assert len(report.swapped) == 12 and not report.left
        assert model.stages[0].blocks[0].conv_dw.wt_levels == 3 and model.stages[2].blocks[0].conv_dw.wt_levels == 1
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    frozen = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=6)).requires_grad_(False).half().eval()
    wtconv.convert(frozen, depthwise=True)
    assert not frozen[0].training and not any(p.requires_grad for p in frozen.parameters())
    assert {p.dtype for p in frozen.parameters()} == {torch.float16}


def test_meta_model_converts():
    with torch.device("meta"):
        model = nn.Sequential(reference.WTConv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    assert len(wtconv.convert(model, depthwise=True).swapped) == 2
    assert all(p.device.type == "meta" for p in model.parameters())


def test_separable():
    layer = wtconv.WTConvSeparable(4, 10, 5, stride=2, wt_levels=2)
    x = torch.randn(2, 4, 9, 12)
    y = layer(x)
    assert y.shape == (2, 10, 5, 6)
    torch.testing.assert_close(y, layer.pointwise(layer.depthwise(x)), rtol=0, atol=0)
    y.sum().backward()
    assert all(p.grad is not None for p in layer.parameters() if p.requires_grad)
    assert wtconv.WTConvSeparable(4, 10, bias=False, dtype=torch.float64).pointwise.weight.dtype == torch.float64


@pytest.fixture
def alone():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_layers_that_a_wrapper_holds_are_left(alone):
    """What is left goes on being used by the wrapper; what is swapped must be used from then on."""
    x = torch.randn(1, 4, 6, 5)

    def convolution():
        return nn.Conv2d(4, 4, 3, padding=1, groups=4)

    def compiled(layer):
        return torch.compile(layer, backend="eager")

    model = nn.Sequential(compiled(convolution()), compiled(reference.WTConv2d(4, 4)), convolution())
    model(x)
    report = wtconv.convert(model, depthwise=True)
    assert [name for name, _ in report.left] == ["0._orig_mod", "1._orig_mod"] and "then compile" in str(report)
    assert [name for name, _ in report.swapped] == ["2"]

    inside = compiled(nn.Sequential(reference.WTConv2d(4, 4)))
    inside(x)
    assert len(wtconv.convert(inside).swapped) == 1
    calls = []
    inside._orig_mod[0].register_forward_pre_hook(lambda *_: calls.append(1))
    inside(x)
    assert calls

    wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(convolution(), reference.WTConv2d(4, 4)))
    report = wtconv.convert(wrapped, depthwise=True)
    assert [name for name, _ in report.left] == ["module.0"] and "then wrap" in str(report)
    assert [name for name, _ in report.swapped] == ["module.1"]


def test_default_device_does_not_matter():
    model = nn.Sequential(randomised(reference.WTConv2d(4, 4, wt_levels=2)), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    with torch.device("meta"):
        assert len(wtconv.convert(model, depthwise=True).swapped) == 2
    assert {p.device.type for p in model.parameters()} == {"cpu"}
