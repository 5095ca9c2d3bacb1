"""Networks of norms and activations: parameters, one step, and what a step keeps in memory."""

import importlib

import pytest

from tests.lazy import lazy

torch = lazy("torch")
F = lazy("torch.nn.functional")
norm_activation = lazy("perfdash.worker.norm_activation")
activated_efficientnet = lazy("perfdash.worker.models.activated_efficientnet")
activated_resnet = lazy("perfdash.worker.models.activated_resnet")
activated_vgg = lazy("perfdash.worker.models.activated_vgg")


SE = {"groups": 32, "width": 4, "se": True}
PARAMETERS = [
    ("activated_resnet", {"depth": 34}, 21_797_672),
    ("activated_resnet", {}, 25_557_032),
    ("activated_resnet", SE, 27_559_896),
    ("activated_vgg", {}, 138_361_768),
    ("activated_efficientnet", {"variant": "b0"}, 5_288_548),
    ("activated_efficientnet", {"variant": "b1"}, 7_794_184),
    ("activated_efficientnet", {"variant": "b2"}, 9_109_994),
    ("activated_efficientnet", {"variant": "b3"}, 12_233_232),
    ("efficientnet_same_padding", {"variant": "b0"}, 5_288_548),
    ("efficientnet_same_padding", {"variant": "b1"}, 7_794_184),
]
SMALL = [
    *(("activated_vgg", {"norm": norm}) for norm in ("plain", "in_place")),
    *(("activated_vgg", {"checkpoint": cut, "activation": "relu"}) for cut in ("post", "pre")),
    *(("activated_resnet", {"norm": norm}) for norm in ("plain", "in_place", "in_place_sum")),
    *(("activated_resnet", {"norm": norm, **SE}) for norm in ("plain", "in_place")),
    *(("activated_resnet", {"depth": 34, "activation": name}) for name in ("mish", "mish_naive", "relu")),
    ("activated_resnet", {"checkpoint": "post"}),
    ("activated_resnet", {"checkpoint": "pre"}),
    *(("activated_efficientnet", {"activation": name}) for name in ("swish", "swish_saving", "relu")),
]


def build(network, batch_size, **settings):
    return importlib.import_module(f"perfdash.worker.models.{network}").build(batch_size, **settings)


@pytest.fixture
def narrow_head(monkeypatch):
    """Two layers of VGG without a norm, which have most of its parameters, are narrow."""
    monkeypatch.setattr(activated_vgg, "HIDDEN", 64)


def step(network, batch_size=4, dtype="float32", seed=0, **settings):
    """The loss and the gradients of one step by name."""
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    module, (images,) = build(network, batch_size, size=64, classes=10, **settings)
    assert module.training
    loss = F.cross_entropy(module.to(kind)(images.to(kind)), torch.arange(batch_size))
    loss.backward()
    return loss.item(), {name: value.grad for name, value in module.named_parameters()}


def kept_bytes(network, batch_size=2, size=64, **settings):
    """What autograd keeps of one forward pass: storages, each once, without parameters and buffers."""
    torch.manual_seed(0)
    module, (images,) = build(network, batch_size, size=size, **settings)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # holds it, lest its address be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = module(images).square().mean()
    total = sum(storage.nbytes() for storage in saved.values())
    assert loss.isfinite()
    return total


@pytest.mark.parametrize(("network", "settings", "parameters"), PARAMETERS, ids=str)
def test_the_published_number_of_parameters(network, settings, parameters):
    with torch.device("meta"):
        module, _ = build(network, 1, **settings)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


@pytest.mark.parametrize(("network", "settings"), SMALL, ids=str)
def test_a_step_has_a_finite_loss_and_gradients_everywhere(network, settings, narrow_head):
    loss, grads = step(network, **settings)
    assert 0 < loss < 20
    for name, grad in grads.items():
        assert grad.isfinite().all(), name
        assert grad.abs().max() > 0, name


def test_linear_layers_of_vgg_begin_with_small_weights(narrow_head):
    """With a narrow head the loss stays small even where these are ten times as large."""
    torch.manual_seed(0)
    module, _ = activated_vgg.build(1, size=32, classes=10)
    layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    assert len(layers) == 3
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
        assert not layer.bias.any()


def test_the_head_of_vgg_is_that_of_the_paper():
    """With dropout, which no gradient shows, and ReLUs that keep nothing more than their output."""
    with torch.device("meta"):
        module, _ = activated_vgg.build(1)
    assert [str(layer) for layer in module[2:]] == [
        "Linear(in_features=25088, out_features=4096, bias=True)",
        "ReLU(inplace=True)",
        "Dropout(p=0.5, inplace=False)",
        "Linear(in_features=4096, out_features=4096, bias=True)",
        "ReLU(inplace=True)",
        "Dropout(p=0.5, inplace=False)",
        "Linear(in_features=4096, out_features=1000, bias=True)",
    ]


def test_efficientnet_has_neither_dropout_nor_stochastic_depth():
    module, (images,) = activated_efficientnet.build(2, size=32, classes=10)
    with torch.no_grad():
        assert torch.equal(module(images), module(images))


def test_autocast_computes_in_bfloat16_and_returns_the_dtype_of_the_input():
    module, (images,) = activated_resnet.build(2, depth=34, autocast=True, size=32, classes=10)
    dtypes = []
    module[-1].register_forward_hook(lambda layer, inputs, output: dtypes.append(output.dtype))
    with torch.no_grad():
        assert module(images).dtype == torch.float32
    assert dtypes == [torch.bfloat16]


def distances(grads, judge):
    """Relative distances from gradients in float64, in ascending order."""
    return sorted(((grads[name] - judge[name]).norm() / judge[name].norm()).item() for name in judge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "norms", "settings"),
    [
        ("activated_resnet", ("in_place", "in_place_sum"), {}),
        ("activated_resnet", ("in_place",), SE),
        ("activated_vgg", ("in_place",), {}),
    ],
    ids=str,
)
def test_gradients_of_a_whole_step_are_unchanged(network, norms, settings, narrow_head):
    """In float64 to rounding. In float32 as close to float64 as plain is: what the sign of a small value
    decides in a leaky ReLU moves the gradients of either by per cents, so the worst of two seeds counts."""
    plain: list[float] = []
    in_place: dict[str, list[float]] = {norm: [] for norm in norms}
    for seed in range(2):
        _, judge = step(network, 8, "float64", seed, **settings)
        plain.append(distances(step(network, 8, seed=seed, **settings)[1], judge)[-1])
        for norm in norms:
            if seed == 0:  # to rounding, whatever the numbers are
                _, exact = step(network, 8, "float64", seed, norm=norm, **settings)
                assert distances(exact, judge)[-1] < 1e-9, norm
            in_place[norm].append(distances(step(network, 8, seed=seed, norm=norm, **settings)[1], judge)[-1])
    for norm, worst in in_place.items():
        assert max(worst) < 2 * max(plain), norm
        assert max(worst) < 0.1, norm


def test_both_norms_have_the_same_state():
    modules = [activated_resnet.build(1, norm=norm)[0] for norm in ("plain", "in_place", "in_place_sum")]
    plain, *variants = ({name: value.shape for name, value in m.state_dict().items()} for m in modules)
    assert all(other == plain for other in variants)


@pytest.mark.parametrize(
    ("network", "settings", "low", "high"),
    [
        # Plain overwrites in leaky_relu too, so that an activation counts twice: conv output, result.
        ("activated_resnet", {"norm": "in_place"}, 0.18, 0.20),
        ("activated_resnet", {"norm": "in_place_sum"}, 0.42, 0.46),
        ("activated_resnet", {"norm": "in_place", **SE}, 0.36, 0.39),
        ("activated_vgg", {"norm": "in_place"}, 0.40, 0.44),
        ("activated_vgg", {"checkpoint": "post"}, 0.68, 0.73),
        ("activated_vgg", {"checkpoint": "pre"}, 0.54, 0.59),
    ],
    ids=str,
)
def test_the_share_of_activation_memory_that_is_saved(network, settings, low, high, narrow_head):
    plain = {name: value for name, value in settings.items() if name not in ("norm", "checkpoint")}
    assert low < 1 - kept_bytes(network, **settings) / kept_bytes(network, **plain) < high


def test_in_place_saves_more_than_a_fifth_against_torch_modules_as_they_come(monkeypatch):
    """nn.LeakyReLU() by default does not overwrite its input, which is then kept as well."""
    in_place = kept_bytes("activated_resnet", norm="in_place")
    monkeypatch.setitem(
        norm_activation.ACTIVATIONS, "leaky_relu", lambda x: F.leaky_relu(x, norm_activation.SLOPE)
    )
    assert 0.40 < 1 - in_place / kept_bytes("activated_resnet") < 0.46


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: activated_resnet.build(1, depth=18), "depth 18 is unknown; known are 34 and 50"),
        (lambda: activated_resnet.build(1, norm="in_place_sum", **SE), "does not go with se"),
        (lambda: activated_resnet.build(1, norm="in_place", checkpoint="post"), "norm = plain"),
        (lambda: activated_vgg.build(1, norm="batch"), "norm 'batch' is unknown"),
        (lambda: activated_efficientnet.build(1, variant="b9"), "variant 'b9' is unknown"),
        (lambda: activated_efficientnet.build(1, activation="gelu"), "activation 'gelu' is unknown"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_what_is_computed_again_leaves_the_statistics_alone(narrow_head):
    statistics = []
    for checkpoint in (None, "post", "pre"):
        torch.manual_seed(0)
        module, (images,) = activated_vgg.build(
            2, activation="relu", checkpoint=checkpoint, size=32, classes=4
        )
        torch.manual_seed(1)
        module.train()(images).sum().backward()
        statistics.append(dict(module.named_buffers()))
    plain, *variants = statistics
    for other in variants:
        for name, buffer in plain.items():
            torch.testing.assert_close(other[name], buffer, msg=name)
