"""Models of images, at small sizes; their true sizes without memory."""

import copy
import importlib

import pytest

from tests.lazy import lazy

torch = lazy("torch")
F = lazy("torch.nn.functional")
background_matting = lazy("perfdash.worker.models.background_matting")
drq = lazy("perfdash.worker.models.drq")
efficientdet = lazy("perfdash.worker.models.efficientdet")
learning_to_paint = lazy("perfdash.worker.models.learning_to_paint")
super_slomo = lazy("perfdash.worker.models.super_slomo")
yolov3 = lazy("perfdash.worker.models.yolov3")
pytree = lazy("perfdash.worker.pytree")


PARAMETERS = {
    "background_matting": 17_908_868,
    "cifar_densenet": 239_146,
    "cifar_resnet": 272_378,
    "cyclegan": 11_378_179,
    "dcgan": 2_765_568,
    "drq": 3_094_392,
    "efficientdet": 6_625_898,
    "learning_to_paint": 11_209_857,
    "stargan": 8_430_528,
    "super_slomo": 47_245_737,
    "unet": 17_263_042,
    "yolov3": 62_998_749,
}
SIDES = (80, 40, 20, 10, 5)
FULL = {
    "background_matting": [(2, 1, 512, 512), (2, 3, 512, 512)],
    "cifar_densenet": [(2, 10)],
    "cifar_resnet": [(2, 10)],
    "cyclegan": [(2, 3, 256, 256)],
    "dcgan": [(2,)],
    "drq": [(2, 1), (2, 1)],
    "efficientdet": [(2, anchors, side, side) for anchors in (810, 36) for side in SIDES],
    "learning_to_paint": [(2, 65)],
    "stargan": [(2, 3, 128, 128)],
    "super_slomo": [(2, 3, 352, 352), ()],
    "unet": [(2, 2, 640, 959)],
    "yolov3": [(2, 12_096, 85), (2, 3, 12, 16, 85), (2, 3, 24, 32, 85), (2, 3, 48, 64, 85)],
}
SMALL = {
    "background_matting": {"size": 16},
    "cifar_densenet": {},
    "cifar_resnet": {},
    "cyclegan": {"size": 16},
    "dcgan": {},
    "drq": {},
    "efficientdet": {"size": 256},
    "learning_to_paint": {},
    "stargan": {"size": 16},
    "super_slomo": {"size": 64},
    "unet": {"height": 32, "width": 47},
    "yolov3": {"height": 96, "width": 128},
}
# What takes more than a second, at this size too.
LARGE = {"efficientdet", "super_slomo", "yolov3"}
# Normalised by statistics of a batch, a hundred random layers magnify a rounding error a hundredfold.
SENSITIVE = {"efficientdet", "yolov3"}


def build(name, batch_size=2, **settings):
    torch.manual_seed(0)
    module, inputs = importlib.import_module(f"perfdash.worker.models.{name}").build(batch_size, **settings)
    return module.eval(), inputs


def run(module, inputs):
    with torch.no_grad():
        return module(*inputs)


def tensors(value):
    return list(pytree.tensors_in(value))


@pytest.fixture(scope="module")
def small():
    """name -> the module, its inputs and what it gives; built once, and not to be changed."""
    made = {}

    def get(name):
        if name not in made:
            module, inputs = build(name, **SMALL[name])
            made[name] = module, inputs, tensors(run(module, inputs))
        return made[name]

    return get


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_full_shapes(name):
    with torch.device("meta"):
        module, inputs = build(name)
        outputs = tensors(run(module, inputs))
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS[name]
    assert [tuple(output.shape) for output in outputs] == FULL[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in SMALL]
)
def test_a_seed_settles_the_output_and_inputs_matter(name, small):
    module, inputs, first = small(name)
    again = tensors(run(*build(name, **SMALL[name])))
    other = tensors(run(module, pytree.map_tensors(inputs, lambda tensor: tensor.flip(0))))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)
        if a.ndim:  # the loss is of the whole batch
            torch.testing.assert_close(c.flip(0), a, rtol=1e-3, atol=1e-3)
            assert (a[0] - a[1]).abs().max() > 1e-3 * a.abs().max()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("unet", "bottom"),
        ("unet", "down.3"),
        ("super_slomo", "flow.down.5"),
        ("super_slomo", "refine.down.5"),
        ("super_slomo", "features"),
    ],
)
def test_the_output_depends_on_deep_layers(name, path, small):
    module, inputs, before = small(name)
    module = copy.deepcopy(module)
    module.get_submodule(path).register_forward_hook(lambda layer, given, output: torch.zeros_like(output))
    after = tensors(run(module, inputs))
    changes = [float((b - a).abs().max() / a.abs().max()) for a, b in zip(before, after, strict=True)]
    assert max(changes) > 1e-3  # ten times the tolerance of float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", SMALL)
def test_other_precisions(name, dtype, small):
    dtype = getattr(torch, dtype)

    def cast(tensor):
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    module, inputs, reference = small(name)
    module = copy.deepcopy(module)
    pytree.cast_module(module, cast)
    outputs = tensors(run(module, pytree.map_tensors(inputs, cast)))
    assert all(output.dtype == dtype for output in outputs)
    error = 1e-3 if dtype == torch.float64 else 1 if name in SENSITIVE else 0.1
    for output, expected in zip(outputs, reference, strict=True):
        assert (output - expected).abs().max() < error * max(1, expected.abs().max())


def whole(function):
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("name", ["dcgan", "drq"])
def test_one_graph(name, small):
    module, inputs, expected = small(name)
    for a, b in zip(tensors(run(whole(module), inputs)), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_formulae_are_one_graph(dtype):
    dtype = getattr(torch, dtype)
    warp = super_slomo.warp, torch.rand(1, 3, 8, 8, dtype=dtype), torch.randn(1, 2, 8, 8, dtype=dtype)
    anchors = torch.tensor(yolov3.ANCHORS[0], dtype=dtype)
    boxes = yolov3.decoded, torch.randn(1, 3, 2, 4, yolov3.BOX, dtype=dtype), anchors, 32
    for function, *arguments in (warp, boxes):
        torch.testing.assert_close(whole(function)(*arguments), function(*arguments))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("dcgan", 0, 1), ("learning_to_paint", 0, 1), ("stargan", -1, 1), ("cyclegan", -1, 1)],
)
def test_ranges(name, low, high, small):
    _, _, (output,) = small(name)
    assert low < output.min() < output.max() < high


def test_a_painter_sees_time_and_place():
    state = learning_to_paint.build(1)[1][0]
    assert (state[:, 6] == 0.5).all()
    assert (state[0, 7, 0].unique(), state[0, 8, -1, -1]) == (0, 1)


def test_the_actor_of_pixels_keeps_its_bounds(small):
    module, (pixels,), _ = small("drq")
    assert torch.equal(pixels, pixels.byte().float())
    mean, deviation = run(module, (pixels * 1e6,))
    assert (mean.abs() <= 1).all()
    low, high = torch.tensor(drq.LOG_STD).exp()
    assert ((low <= deviation) & (deviation <= high)).all()


def test_a_changed_face_follows_its_attributes(small):
    module, (images, attributes), (faces,) = small("stargan")
    assert not torch.allclose(run(module, (images, 1 - attributes)), faces)


def test_warping_is_along_the_flow():
    image = torch.rand(2, 3, 5, 7)
    flow = torch.zeros(2, 2, 5, 7)
    torch.testing.assert_close(super_slomo.warp(image, flow), image)
    flow[:, 0], flow[:, 1] = 2, -1  # to the right and up
    expected = F.pad(image[:, :, :-1, 2:], [0, 2, 1, 0])
    torch.testing.assert_close(super_slomo.warp(image, flow), expected)


def test_warping_in_half_precision_stays_inside():
    image = torch.rand(1, 3, 352, 352, dtype=torch.bfloat16)
    warped = super_slomo.warp(image, torch.zeros(1, 2, 352, 352, dtype=torch.bfloat16))
    torch.testing.assert_close(warped, image, rtol=1e-2, atol=1e-3)


def test_without_motion_the_middle_is_a_mixture(small):
    module = copy.deepcopy(small("super_slomo")[0])
    with torch.no_grad():
        for parameter in [*module.flow.parameters(), *module.refine.parameters()]:
            parameter.zero_()
    first, last = torch.rand(2, 2, 3, 32, 32)
    index = torch.tensor([0, 5])
    time = torch.tensor([1 / 8, 6 / 8])[:, None, None, None]
    expected = (1 - time) * first + time * last
    middle, loss = run(module, (first, last, expected, index))
    torch.testing.assert_close(middle, expected)
    ends = [F.l1_loss(a, b) for a, b in ((first, expected), (last, expected), (first, last), (last, first))]
    torch.testing.assert_close(loss, super_slomo.WARPING * sum(ends))


def test_perception_is_vgg_up_to_its_tenth_convolution():
    with torch.device("meta"):
        features = super_slomo.vgg_features()
        assert features(torch.empty(1, 3, 32, 32)).shape == (1, 512, 4, 4)
    assert isinstance(features[-1], torch.nn.Conv2d)
    assert sum(parameter.numel() for parameter in features.parameters()) == 7_635_264
    assert not any(parameter.requires_grad for parameter in features.parameters())


@pytest.mark.parametrize("index", range(4))
def test_matting_looks_at_all_that_it_gets(index, small):
    module, inputs, (opacity, colours) = small("background_matting")
    assert (opacity.abs() < 1).all()
    changed = [tensor.roll(1, dims=3) if at == index else tensor for at, tensor in enumerate(inputs)]
    for before, after in zip((opacity, colours), run(module, changed), strict=True):
        assert not torch.allclose(before, after, rtol=1e-3, atol=0)
    assert background_matting.PRIORS == (3, 1, 4)


def test_boxes_are_around_their_cells():
    anchors = torch.tensor(yolov3.ANCHORS[0])
    boxes = yolov3.decoded(torch.zeros(1, 3, 2, 4, yolov3.BOX), anchors, 32).reshape(3, 2, 4, -1)
    torch.testing.assert_close(boxes[1, 1, 2, :4], torch.tensor([2.5 * 32, 1.5 * 32, 156, 198]))
    assert (boxes[..., 4:] == 0.5).all()


def test_boxes_are_those_of_the_maps(small):
    _, _, (boxes, *maps) = small("yolov3")
    confidence = torch.cat([raw[..., 4].flatten(1) for raw in maps], dim=1).sigmoid()
    torch.testing.assert_close(boxes[..., 4], confidence)


def test_no_boxes_are_decoded_in_training():
    with torch.device("meta"):
        module, inputs = build("yolov3")
        maps = run(module.train(), inputs)
    assert [tuple(raw.shape) for raw in maps] == FULL["yolov3"][1:]


def test_statistics_are_those_of_a_batch():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(2)
    images = torch.randn(1, 2, 8, 8) * 3 + 5
    yolov3.set_norm_statistics(norm, images)
    assert norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean, images.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(norm.running_var, images.var(dim=(0, 2, 3)))


def test_fusion_is_a_mean_by_weights_above_zero():
    fusion = efficientdet.Fusion(3).eval()
    fusion.layers = torch.nn.Identity()
    with torch.no_grad():
        fusion.weights.copy_(torch.tensor([1.0, 3.0, -5.0]))
    maps = torch.rand(3, 1, efficientdet.WIDTH, 2, 2)
    torch.testing.assert_close(run(fusion, maps), 0.25 * maps[0] + 0.75 * maps[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", [2, 4, 10])
def test_the_pyramid_pools_as_tensorflow_pads(side):
    x = torch.randn(1, 1, side, side)
    padded = F.pad(x, [0, 1, 0, 1], value=float("-inf"))
    assert torch.equal(efficientdet.down(x), F.max_pool2d(padded, 3, stride=2))
