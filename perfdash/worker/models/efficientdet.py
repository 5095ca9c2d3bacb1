"""EfficientDet-D1: object detection over a weighted bidirectional feature pyramid.

Tan et al. 2020, "EfficientDet: scalable and efficient object detection". timm's EfficientNet-B1 is the
backbone; four pyramid cells and heads for classes and boxes follow.

In evaluation the benchmark's model also selects the best boxes and suppresses overlapping boxes. The cost
of these steps depends on the data, so this model omits them and returns the maps of the five levels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfdash.worker.weights import set_norm_statistics

BACKBONE = (40, 112, 320)  # channels at strides 8, 16, 32
WIDTH = 88
CELLS = 4
LEVELS = 5  # strides 8 to 128
HEAD_DEPTH = 3
ANCHORS = 9  # per position: three scales by three shapes
CLASSES = 90


class Separable(nn.Module):
    """A depthwise 3 x 3 convolution, then a pointwise 1 x 1 convolution.

    (batch, size, H, W) -> (batch, width, H, W).
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(size, size, 3, padding=1, groups=size, bias=False)
        self.pointwise = nn.Conv2d(size, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


class Fusion(nn.Module):
    """Average maps of equal shape with learnt weights, then convolve the mean.

    The weights are normalised by the paper's fast normalised fusion.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(inputs))
        self.layers = nn.Sequential(nn.SiLU(), Separable(WIDTH, WIDTH), nn.BatchNorm2d(WIDTH))

    def forward(self, *maps: Tensor) -> Tensor:
        weights = F.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        return self.layers((torch.stack(maps, dim=-1) * weights).sum(dim=-1))


def up(x: Tensor) -> Tensor:
    """Double height and width."""
    return F.interpolate(x, scale_factor=2, mode="nearest")


def down(x: Tensor) -> Tensor:
    """Halve an even height and width. The window reaches beyond the right and lower edge."""
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


class Cell(nn.Module):
    """Fuse five maps down the pyramid, then up.

    The maps are ordered from the finest to the coarsest and keep their shapes. `upward_maps` are the inputs
    of the way up, because the first cell has other projections for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.descend = nn.ModuleList(Fusion(2) for _ in range(LEVELS - 1))
        self.ascend = nn.ModuleList(Fusion(3) for _ in range(LEVELS - 2))
        self.top = Fusion(2)

    def forward(self, maps: list[Tensor], upward_maps: list[Tensor]) -> list[Tensor]:
        descending = [maps[-1]]
        for fusion, level in zip(self.descend, maps[-2::-1]):
            descending.append(fusion(level, up(descending[-1])))
        out = [descending.pop()]
        for fusion, level in zip(self.ascend, upward_maps[1:]):
            out.append(fusion(level, descending.pop(), down(out[-1])))
        return [*out, self.top(upward_maps[-1], down(out[-1]))]


class Head(nn.Module):
    """Predict maps of `out` channels from five maps.

    All levels share the convolutions; each level has its own normalisation.
    """

    def __init__(self, out: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(Separable(WIDTH, WIDTH) for _ in range(HEAD_DEPTH))
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in range(HEAD_DEPTH)) for _ in range(LEVELS)
        )
        self.predict = Separable(WIDTH, out)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        out = []
        for x, norms in zip(maps, self.norms):
            for convolution, norm in zip(self.convolutions, norms):
                x = F.silu(norm(convolution(x)))
            out.append(self.predict(x))
        return out


def projection(size: int) -> nn.Sequential:
    """Build a projection to the pyramid's width. (batch, size, H, W) -> (batch, 88, H, W)."""
    return nn.Sequential(nn.Conv2d(size, WIDTH, 1), nn.BatchNorm2d(WIDTH))


class EfficientDet(nn.Module):
    """Detect objects: class maps and box maps at five strides.

    Images are (batch, 3, H, W), H and W multiples of 128. At the strides s = 8, 16, 32, 64, 128 a class map
    is (batch, 9 * 90, H / s, W / s) and a box map is (batch, 9 * 4, H / s, W / s).
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.project = nn.ModuleList(projection(size) for size in BACKBONE)
        self.project_again = nn.ModuleList(projection(size) for size in BACKBONE[1:])
        self.project_coarse = projection(BACKBONE[-1])
        self.cells = nn.ModuleList(Cell() for _ in range(CELLS))
        self.classes, self.boxes = Head(ANCHORS * CLASSES), Head(ANCHORS * 4)

    def forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        features = self.backbone(images)
        coarse = down(self.project_coarse(features[-1]))
        coarse_maps = [coarse, down(coarse)]
        maps = [project(x) for project, x in zip(self.project, features)] + coarse_maps
        upward_maps = [
            maps[0],
            *(project(x) for project, x in zip(self.project_again, features[1:])),
            *coarse_maps,
        ]
        for cell in self.cells:
            maps = upward_maps = cell(maps, upward_maps)
        return self.classes(maps), self.boxes(maps)


def build(batch_size: int, size: int = 640) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network with images of normalised colours."""
    import timm

    # The tf_ variant pads as TensorFlow does, like the benchmark's backbone.
    backbone = timm.create_model(
        "tf_efficientnet_b1", pretrained=False, features_only=True, out_indices=(2, 3, 4)
    )
    module = EfficientDet(backbone)
    images = torch.randn(batch_size, 3, size, size)
    set_norm_statistics(module, images[:1])
    return module, (images,)
