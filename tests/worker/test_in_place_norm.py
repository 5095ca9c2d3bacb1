"""In-place activated batch norm against torch's batch norm and activation; the activations; segments."""

import pytest

from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
F = lazy("torch.nn.functional")
norm_activation = lazy("perfdash.worker.norm_activation")


LAYOUTS = ("contiguous_format", "channels_last")


def pair(activation="leaky_relu", dtype="float32"):
    """A plain and an in-place norm of 5 channels with the same random state; some weights are negative."""
    torch.manual_seed(0)
    plain = norm_activation.NormActivation(5, activation)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([1.0, -0.5, 2.0, 0.3, -1.5]))
        plain.bias.normal_()
        plain.running_mean.normal_()
        plain.running_var.uniform_(0.5, 2)
    in_place = norm_activation.InPlaceNorm(5, activation)
    in_place.load_state_dict(plain.state_dict())
    kind = getattr(torch, dtype)
    return plain.to(kind), in_place.to(kind)


def step(norm, x, grad, *more):
    """Output and gradients by input, weight and bias; the norm gets a fresh copy of x."""
    x = x.clone().requires_grad_()
    out = norm(x * 1, *more)
    return [out, *torch.autograd.grad(out, (x, norm.weight, norm.bias), grad)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("activation", ["leaky_relu", "none"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_the_same_as_batch_norm_and_activation(dtype, tolerance, activation, training, layout):
    norms = pair(activation, dtype)
    dtype, layout = getattr(torch, dtype), getattr(torch, layout)
    x = (3 * torch.randn(4, 5, 6, 7, dtype=dtype) + 1).to(memory_format=layout)
    grad = torch.randn_like(x)
    plain, in_place = (step(norm.train(training), x, grad) for norm in norms)
    for expected, actual in zip(plain, in_place, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=10 * tolerance)
    for name, state in norms[0].state_dict().items():
        torch.testing.assert_close(norms[1].state_dict()[name], state)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("sums", [False, True], ids=["alone", "with a shortcut"])
def test_gradients_by_differences(training, sums):
    _, norm = pair(dtype="float64")
    norm.train(training)
    x, shortcut = (torch.randn(2, 5, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x, weight, bias, shortcut):
        state = {"weight": weight, "bias": bias}
        return torch.func.functional_call(norm, state, (x * 1, *([shortcut] if sums else [])))

    assert torch.autograd.gradcheck(call, (x, norm.weight, norm.bias, shortcut))


def test_with_a_shortcut_it_is_norm_sum_and_activation():
    plain, in_place = pair("none")
    in_place.slope = 0.01
    x, shortcut, grad = (torch.randn(4, 5, 6, 7) for _ in range(3))
    saved = shortcut.clone()
    actual = step(in_place, x, grad, shortcut)
    expected = step(lambda_norm(plain, lambda out: F.leaky_relu(out + shortcut, 0.01)), x, grad)
    for first, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-4)
    assert torch.equal(shortcut, saved)


def lambda_norm(norm, after):
    """The norm with something after it, its weight and bias still in reach of `step`."""

    class Wrapped(nn.Module):
        weight, bias = norm.weight, norm.bias

        def forward(self, x):
            return after(norm(x))

    return Wrapped()


def test_writes_over_its_input_only_where_that_is_allowed():
    norm = norm_activation.InPlaceNorm(5)
    x = 0.01 * torch.randn(2, 5, 3, 3)  # a variance that eps adds to
    y = x.clone()
    assert norm(y) is y
    assert not torch.equal(x, y)
    leaf = x.clone().requires_grad_()
    out = norm(leaf)
    out.sum().backward()
    assert torch.equal(leaf, x)
    torch.testing.assert_close(out, y)
    view = x.clone()[:, :]
    torch.testing.assert_close(norm(view), y)
    assert torch.equal(view, x)


def test_an_input_that_somebody_kept_is_refused_in_the_backward_pass():
    x = torch.randn(2, 5, 3, 3, requires_grad=True)
    saved = torch.sigmoid(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        norm_activation.InPlaceNorm(5)(saved).sum().backward()


def test_keeps_its_output_alone():
    x = torch.randn(2, 5, 3, 3, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        norm_activation.InPlaceNorm(5)(x + 0)
    assert sorted(saved) == [5, 5, 5, x.numel()]


def test_a_small_weight_is_raised_with_its_sign():
    raised = norm_activation.away_from_zero(torch.tensor([-1.0, -1e-9, 0.0, 1e-9, 1e-4]), 1e-5)
    torch.testing.assert_close(raised, torch.tensor([-1.0, -1e-5, 1e-5, 1e-5, 1e-4]), rtol=0, atol=0)


def test_a_weight_of_zero_counts_as_eps():
    norm = norm_activation.InPlaceNorm(5)
    nn.init.zeros_(norm.weight)
    out, *grads = step(norm, torch.randn(4, 5, 3, 3), torch.ones(4, 5, 3, 3))
    assert out.abs().max() < 10 * norm.eps
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    "make",
    [lambda: norm_activation.InPlaceNorm(5), lambda: norm_activation.NormActivation(5, "relu")],
    ids=["InPlaceNorm", "NormActivation"],
)
def test_one_value_per_channel_is_refused_in_training_alone(make):
    norm = make()
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        norm(torch.randn(1, 5, 1, 1))
    assert norm.eval()(torch.randn(1, 5, 1, 1)).shape == (1, 5, 1, 1)


def test_under_autocast():
    grads = []
    for name in ("plain", "in_place"):
        torch.manual_seed(0)
        norm = norm_activation.norm_named(name, 8, "leaky_relu")
        module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), norm, nn.Conv2d(8, 2, 3))
        with torch.autocast("cpu", torch.bfloat16):
            out = module(torch.randn(4, 3, 8, 8))
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        grads.append([parameter.grad for parameter in module.parameters()])
    for expected, actual in zip(*grads, strict=True):
        assert actual.dtype == torch.float32
        assert (actual - expected).norm() <= 0.02 * expected.norm()


# Dynamo looks at the gradient of a tensor that is handed over the break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_with_a_break_in_the_graph():
    grads = []
    for wrap in (lambda module: module, lambda module: torch.compile(module, backend="aot_eager")):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 4, 3), norm_activation.InPlaceNorm(4), nn.Conv2d(4, 2, 3))
        wrap(module)(torch.randn(2, 3, 8, 8)).square().sum().backward()
        grads.append([parameter.grad for parameter in module.parameters()])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(("activation", "other"), [("mish", "mish_naive"), ("swish", "swish_naive")])
def test_naive_activations_compute_the_same(activation, other):
    x = torch.randn(100, dtype=torch.float64, requires_grad=True)
    y, z = norm_activation.ACTIVATIONS[activation](x), norm_activation.ACTIVATIONS[other](x)
    torch.testing.assert_close(z, y)
    torch.testing.assert_close(torch.autograd.grad(z.sum(), x), torch.autograd.grad(y.sum(), x))


def test_saving_swish():
    x = torch.randn(100, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm_activation.ACTIVATIONS["swish_saving"](x), F.silu(x))
    assert torch.autograd.gradcheck(norm_activation.ACTIVATIONS["swish_saving"], (x,))


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "mish", "swish", "none"])
@pytest.mark.parametrize("cut", ["post", "pre"])
def test_checkpointed_segments_change_no_gradient(cut, activation):
    grads = []
    for checkpoint in (None, cut):
        torch.manual_seed(0)
        layers = []
        for channels in (3, 4, 4):
            layers += [nn.Conv2d(channels, 4, 3, padding=1), norm_activation.NormActivation(4, activation)]
        chain = norm_activation.Chain([*layers, nn.MaxPool2d(2)], checkpoint)
        chain(torch.randn(2, 3, 8, 8)).square().sum().backward()
        grads.append([parameter.grad for parameter in chain.parameters()])
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: norm_activation.norm_named("layer", 4, "relu"),
            "norm 'layer' is unknown; known are plain, in_place",
        ),
        (
            lambda: norm_activation.norm_named("plain", 4, "gelu"),
            "activation 'gelu' is unknown; known are relu",
        ),
        (
            lambda: norm_activation.InPlaceNorm(4, "relu"),
            "cannot invert activation 'relu'; it takes leaky_relu or none",
        ),
        (
            lambda: norm_activation.Chain([norm_activation.InPlaceNorm(4)], "pre"),
            "checkpoint takes norm = plain",
        ),
        (lambda: norm_activation.Chain([], "both"), "checkpoint 'both' is unknown; known are post and pre"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
