"""Detection over a pyramid (Tan et al. 2020, "EfficientDet: scalable and efficient object detection"), D1:
timm's EfficientNet-B1, a weighted bidirectional pyramid four times, and heads for classes and boxes.

The benchmark's evaluation goes on to the best boxes and suppresses those that overlap, which depends on the
data; that is left out, and the maps of the five levels are what this gives.
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
ANCHORS = 9  # a place: three scales by three shapes
CLASSES = 90


class Separable(nn.Module):
    """(batch, size, H, W) -> (batch, width, H, W): 3 x 3 a channel, then 1 x 1."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(size, size, 3, padding=1, groups=size, bias=False)
        self.pointwise = nn.Conv2d(size, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


class Fusion(nn.Module):
    """Maps of one shape -> one map: their mean by learnt weights (the fast, normalised one), convolved."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(inputs))
        self.layers = nn.Sequential(nn.SiLU(), Separable(WIDTH, WIDTH), nn.BatchNorm2d(WIDTH))

    def forward(self, *maps: Tensor) -> Tensor:
        weights = F.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        return self.layers((torch.stack(maps, dim=-1) * weights).sum(dim=-1))


def up(x: Tensor) -> Tensor:
    """Twice the height and width."""
    return F.interpolate(x, scale_factor=2, mode="nearest")


def down(x: Tensor) -> Tensor:
    """Half the height and width, of even sizes; the window reaches over the right and lower edge."""
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)


class Cell(nn.Module):
    """Five maps, finest first -> five of the same shapes: down the pyramid, then up with a second look.

    What is looked at again is given apart, as the first cell has other projections for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.descend = nn.ModuleList(Fusion(2) for _ in range(LEVELS - 1))
        self.ascend = nn.ModuleList(Fusion(3) for _ in range(LEVELS - 2))
        self.top = Fusion(2)

    def forward(self, maps: list[Tensor], again: list[Tensor]) -> list[Tensor]:
        between = [maps[-1]]
        for fusion, level in zip(self.descend, maps[-2::-1]):
            between.append(fusion(level, up(between[-1])))
        out = [between.pop()]
        for fusion, level in zip(self.ascend, again[1:]):
            out.append(fusion(level, between.pop(), down(out[-1])))
        return [*out, self.top(again[-1], down(out[-1]))]


class Head(nn.Module):
    """Five maps -> five maps of `out` channels: one set of convolutions, normalised by level."""

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
    """(batch, size, H, W) -> (batch, 88, H, W)."""
    return nn.Sequential(nn.Conv2d(size, WIDTH, 1), nn.BatchNorm2d(WIDTH))


class EfficientDet(nn.Module):
    """Images (batch, 3, H, W), H and W in 128s -> class and box maps of strides 8, 16, 32, 64, 128.

    A class map is (batch, 9 * 90, H / s, W / s), a box map (batch, 9 * 4, H / s, W / s).
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
        above = [coarse, down(coarse)]
        maps = [project(x) for project, x in zip(self.project, features)] + above
        again = [maps[0], *(project(x) for project, x in zip(self.project_again, features[1:])), *above]
        for cell in self.cells:
            maps = again = cell(maps, again)
        return self.classes(maps), self.boxes(maps)


def build(batch_size: int, size: int = 640) -> tuple[nn.Module, tuple[Tensor]]:
    """Images whose colours are normalised."""
    import timm

    # The ported weights' variant (tf_) of the backbone: it pads as TensorFlow does, like the benchmark's.
    backbone = timm.create_model(
        "tf_efficientnet_b1", pretrained=False, features_only=True, out_indices=(2, 3, 4)
    )
    module = EfficientDet(backbone)
    images = torch.randn(batch_size, 3, size, size)
    set_norm_statistics(module, images[:1])
    return module, (images,)
