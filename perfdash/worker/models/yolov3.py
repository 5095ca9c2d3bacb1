"""YOLOv3: object detection in a single pass.

Redmon and Farhadi 2018, "YOLOv3: an incremental improvement": Darknet-53, spatial pyramid pooling (He et
al. 2015) before the coarsest of three scales, and boxes from three anchors per cell. Evaluation returns the
boxes of all scales and the maps from which they are decoded, training the maps alone. The benchmark's model
does not suppress overlapping boxes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfdash.worker.weights import set_norm_statistics

STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # width, residual blocks
WINDOWS = (5, 9, 13)
BOX = 4 + 1 + 80  # position and size, objectness, classes of COCO
STRIDES = (32, 16, 8)
ANCHORS = (  # width and height in pixels, by stride
    ((116.0, 90.0), (156.0, 198.0), (373.0, 326.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)),
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
)


def convolution(size: int, width: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Build a convolution with batch normalisation and leaky ReLU.

    (batch, size, H, W) -> (batch, width, H / stride, W / stride).
    """
    conv = nn.Conv2d(size, width, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.LeakyReLU(0.1))


def bottleneck(size: int, width: int) -> nn.Sequential:
    """Build convolutions of 1 x 1, 3 x 3 and 1 x 1. Their widths are `width`, twice `width` and `width`."""
    return nn.Sequential(
        convolution(size, width, 1), convolution(width, 2 * width, 3), convolution(2 * width, width, 1)
    )


class DarknetResidual(nn.Module):
    """Add two convolutions to the input. (batch, width, H, W) -> the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(convolution(width, width // 2, 1), convolution(width // 2, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class PyramidPooling(nn.Module):
    """Concatenate the input and its maxima over three windows.

    (batch, width, H, W) -> (batch, 4 * width, H, W).
    """

    def forward(self, x: Tensor) -> Tensor:
        maxima = [F.max_pool2d(x, window, stride=1, padding=window // 2) for window in WINDOWS]
        return torch.cat([x, *maxima], dim=1)


class YOLOv3(nn.Module):
    """Detect objects: boxes, and the maps from which they are decoded.

    Images (batch, 3, H, W), H and W multiples of 32 -> boxes (batch, N, 85) and three maps. A box is its
    centre and size in pixels and 81 probabilities. A map is (batch, 3, H / s, W / s, 85) for the strides s
    = 32, 16, 8; N is the number of boxes of all maps. In training only the maps are returned.
    """

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        size = STAGES[0][0] // 2
        self.stem = convolution(3, size, 3)
        self.stages = nn.ModuleList()
        for width, depth in STAGES:
            down = convolution(size, width, 3, stride=2)
            self.stages.append(nn.Sequential(down, *(DarknetResidual(width) for _ in range(depth))))
            size = width
        self.necks, self.heads, self.narrow = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for skip in (1024, 512, 256):
            width = skip // 2
            if skip == size:
                pooled = nn.Sequential(PyramidPooling(), convolution(4 * width, width, 1))
                first = nn.Sequential(bottleneck(skip, width), pooled)
            else:
                self.narrow.append(convolution(2 * width, width, 1))
                first = bottleneck(skip + width, width)
            second = nn.Sequential(convolution(width, skip, 3), convolution(skip, width, 1))
            self.necks.append(nn.Sequential(first, second))
            self.heads.append(
                nn.Sequential(convolution(width, skip, 3), nn.Conv2d(skip, len(ANCHORS[0]) * BOX, 1))
            )
        self.register_buffer("anchors", torch.tensor(ANCHORS), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]] | list[Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        x = self.necks[0](features.pop())
        maps = [self.heads[0](x)]
        for neck, head, narrow in zip(self.necks[1:], self.heads[1:], self.narrow):
            larger = F.interpolate(narrow(x), scale_factor=2, mode="nearest")
            x = neck(torch.cat([larger, features.pop()], dim=1))
            maps.append(head(x))
        maps = [raw.unflatten(1, (-1, BOX)).permute(0, 1, 3, 4, 2) for raw in maps]
        if self.training:
            return maps
        boxes = [decoded(*level) for level in zip(maps, self.anchors, STRIDES)]
        return torch.cat(boxes, dim=1), maps


def decoded(raw: Tensor, anchors: Tensor, stride: int) -> Tensor:
    """Decode a map to boxes.

    raw (batch, 3, rows, columns, 85), anchors (3, 2) -> (batch, 3 * rows * columns, 85).
    """
    rows, columns = (torch.arange(count, dtype=raw.dtype, device=raw.device) for count in raw.shape[2:4])
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    centre = (raw[..., :2].sigmoid() + torch.stack([x, y], dim=2)) * stride
    size = raw[..., 2:4].exp() * anchors[:, None, None]
    return torch.cat([centre, size, raw[..., 4:].sigmoid()], dim=4).flatten(1, 3)


def build(batch_size: int, height: int = 384, width: int = 512) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the network with random images in (0, 1)."""
    module = YOLOv3()
    images = torch.rand(batch_size, 3, height, width)
    set_norm_statistics(module, images[:1])
    return module, (images,)
