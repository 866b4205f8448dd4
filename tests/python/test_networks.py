"""WTConvNeXt as users of timm meet it."""

import importlib

import pytest
import torch
import wtconv

timm = pytest.importorskip("timm")
optim = pytest.importorskip("timm.optim")
networks = importlib.import_module("wtconv.networks")  # not skipped: it is ours

# Small stand-ins share the code with the registered sizes.
SMALL = {"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)}


def create(**kwargs):
    return timm.create_model("wtconvnext_tiny", **(SMALL | kwargs))


@pytest.mark.parametrize(
    "name, depths, dims, millions",
    [
        ("wtconvnext_tiny", (3, 3, 9, 3), (96, 192, 384, 768), 30.4),  # the paper's table says 30 M, 54 M, 93 M
        ("wtconvnext_small", (3, 3, 27, 3), (96, 192, 384, 768), 54.0),
        ("wtconvnext_base", (3, 3, 27, 3), (128, 256, 512, 1024), 93.6),
    ],
)
def test_registered_sizes(name, depths, dims, millions):
    assert name in timm.list_models("wtconvnext*")
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=1000)
    assert tuple(len(stage.blocks) for stage in model.stages) == depths
    for stage, channels, levels in zip(model.stages, dims, (5, 4, 3, 2)):
        for block in stage.blocks:
            layer = block.conv_dw
            assert type(layer) is wtconv.WTConv2d
            assert (layer.in_channels, layer.kernel_size, layer.wt_levels) == (channels, (5, 5), levels)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert round(trained / 1e6, 1) == millions
    assert model.default_cfg["classifier"] == "head.fc" and model.default_cfg["input_size"] == (3, 224, 224)


def test_classifier_and_features():
    model = create(num_classes=7, in_chans=1).eval()
    x = torch.randn(2, 1, 64, 70)
    with torch.no_grad():
        assert model(x).shape == (2, 7)
        features = model.forward_features(x)
        assert features.shape == (2, 32, 2, 2)
        torch.testing.assert_close(model.forward_head(features), model(x))
        model.reset_classifier(3)
        assert model(x).shape == (2, 3) and model.num_classes == 3
        assert create(num_classes=0).eval()(torch.randn(1, 3, 64, 64)).shape == (1, 32)
        last, several = model.forward_intermediates(x)
        assert torch.equal(last, features) and [f.shape[1] for f in several] == [8, 16, 24, 32]


def test_features_only():
    model = create(features_only=True, out_indices=(1, 3)).eval()
    assert model.feature_info.channels() == [16, 32] and model.feature_info.reduction() == [8, 32]
    with torch.no_grad():
        assert [f.shape for f in model(torch.randn(1, 3, 64, 96))] == [(1, 16, 8, 12), (1, 32, 2, 3)]


def test_equals_the_plain_network():
    """Same weights, the plain layer in the place of ours: the same outputs and gradients, at odd sizes too."""
    ours, plain = create(num_classes=5), create(num_classes=5, wtconv_class=wtconv.reference.WTConv2d)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 100, 76)
    for model in (ours, plain):
        model(x).square().sum().backward()
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if a.requires_grad:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4 * b.grad.abs().max().item(), msg=name)


def test_checkpoints_with_the_public_names(tmp_path):
    """As the public training script writes them, and as its later layers name their parameters."""
    plain = create(num_classes=5, wtconv_class=wtconv.reference.WTConv2d).eval()
    names = set(plain.state_dict())
    for name in (
        "stem.0.weight",
        "stages.0.blocks.0.conv_dw.base_conv.bias",
        "stages.0.blocks.0.conv_dw.wavelet_convs.4.weight",
        "stages.0.blocks.0.conv_dw.wavelet_scale.4.weight",
        "stages.0.blocks.0.conv_dw.base_scale.weight",
        "stages.0.blocks.0.conv_dw.iwt_filter",
        "stages.1.downsample.1.weight",
        "stages.3.blocks.0.mlp.fc1.weight",
        "stages.3.blocks.0.gamma",
        "head.norm.weight",
        "head.fc.bias",
    ):
        assert name in names
    torch.save({"epoch": 3, "state_dict": plain.state_dict()}, tmp_path / "public.pth")
    model = create(num_classes=5, checkpoint_path=str(tmp_path / "public.pth")).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)

        later = {
            name.replace("base_conv.", "base_")
            .replace("base_scale.weight", "base_scale")
            .replace("wavelet_convs.", "wt_weights.")
            .replace("wavelet_scale.", "wt_scales."): value
            for name, value in plain.state_dict().items()
            if "wt_filter" not in name
        }
        later = {n.removesuffix(".weight") if ".wt_" in n else n: v for n, v in later.items()}
        again = create(num_classes=5).eval()
        again.load_state_dict(later)
        torch.testing.assert_close(again(x), plain(x), rtol=1e-4, atol=1e-5)


def test_options_of_timm():
    model = create(drop_path_rate=0.2, kernel_sizes=3, wt_levels=1, conv_mlp=True, ls_init_value=None, use_grn=True)
    rates = [b.drop_path.drop_prob for s in model.stages for b in s.blocks if hasattr(b.drop_path, "drop_prob")]
    assert max(rates) == pytest.approx(0.2)
    assert model.stages[0].blocks[0].conv_dw.kernel_size == (3, 3)
    model.set_grad_checkpointing()
    x = torch.randn(1, 3, 64, 64, requires_grad=True)
    model(x).sum().backward()
    assert x.grad.abs().max() > 0
    assert create(output_stride=16).eval()(torch.randn(1, 3, 64, 64)).shape == (1, 1000)
    assert create(dtype=torch.bfloat16).stages[0].blocks[0].conv_dw.base_conv.weight.dtype == torch.bfloat16


def test_optimizer_groups():
    model = create(num_classes=5)
    optimizer = optim.create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    name_of = {id(p): n for n, p in model.named_parameters()}
    decayed = {name_of[id(p)] for g in optimizer.param_groups if g["weight_decay"] > 0 for p in g["params"]}
    assert any("wavelet_convs" in n for n in decayed)
    assert not any("_scale" in n or "filter" in n for n in decayed)


def test_initial_distribution():
    torch.manual_seed(0)
    layer = create(dims=(96, 192, 384, 768)).stages[3].blocks[0].conv_dw
    for conv in (layer.base_conv, *layer.wavelet_convs):
        assert conv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.base_conv.bias.abs().max() == 0
    assert (layer.wavelet_scale[0].weight == 0.1).all() and (layer.base_scale.weight == 1).all()


@pytest.mark.parametrize("name", ["wt_levels", "kernel_sizes"])
@pytest.mark.parametrize("value", [(), (3,), (3, 3, 3), (3, 3, 3, 3, 3)])
def test_a_number_for_each_stage(name, value):
    """None of them is left out in silence: a stage without would keep ConvNeXt's own convolutions."""
    with pytest.raises(ValueError, match=f"{name} must be one number or four"):
        timm.create_model("wtconvnext_tiny", dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), **{name: value})
