"""Demucs: separation of music into four sources, in the waveform domain.

Defossez et al. 2019, "Music source separation in the waveform domain". Six strided convolutions downsample,
a bidirectional LSTM follows, and six transposed convolutions upsample with skip connections.

The benchmark passes the mix and its four sources. The model ignores that mix and separates the sum of the
sources. Before that it cuts off their last second; in training the benchmark cuts a second off at random, and
also flips signs and channels and mixes the sources of the batch. This augmentation is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SOURCES = 4
STEREO = 2
LEVELS = 6
KERNEL, STRIDE, CONTEXT = 8, 4, 3
SECOND = 44_100  # samples


def centred(x: Tensor, length: int) -> Tensor:
    """Return the middle `length` samples of the last dimension."""
    return x.narrow(-1, (x.shape[-1] - length) // 2, length)


def down(size: int, width: int) -> nn.Sequential:
    """Build a level of the encoder. (batch, size, time) -> (batch, width, time / 4)."""
    return nn.Sequential(
        nn.Conv1d(size, width, KERNEL, STRIDE), nn.ReLU(), nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=1)
    )


def up(width: int, size: int, last: bool) -> nn.Sequential:
    """Build a level of the decoder.

    (batch, width, time) -> (batch, size, 4 * time), shortened by the unpadded context convolution.
    """
    layers = [
        nn.Conv1d(width, 2 * width, CONTEXT),
        nn.GLU(dim=1),
        nn.ConvTranspose1d(width, size, KERNEL, STRIDE),
    ]
    return nn.Sequential(*layers) if last else nn.Sequential(*layers, nn.ReLU())


def rescale(module: nn.Module, reference: float = 0.1) -> None:
    """Move each convolution's standard deviation half-way, in logarithms, to a reference.

    This is the paper's initialisation.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (layer.weight.detach().std() / reference).sqrt()
            layer.weight.data /= scale
            layer.bias.data /= scale


class Demucs(nn.Module):
    """Separate a mix into its sources.

    streams (batch, 1 + 4, 2, time), the mix first -> estimated and true sources, both (batch, 4, 2, time').
    time' is shorter than time: the last `cut` samples are not separated, the convolutions are not padded, and
    the true sources are cropped to the estimate's length.
    """

    def __init__(self, channels: int, cut: int) -> None:
        super().__init__()
        self.cut = cut
        widths = [channels * 2**level for level in range(LEVELS)]
        widest = widths[-1]
        self.encoder = nn.ModuleList(map(down, [STEREO, *widths[:-1]], widths))
        self.lstm = nn.LSTM(widest, widest, num_layers=2, bidirectional=True)
        self.merge = nn.Linear(2 * widest, widest)
        sizes = [SOURCES * STEREO, *widths[:-1]]
        pairs = reversed(list(zip(widths, sizes)))
        self.decoder = nn.ModuleList(up(width, size, last=width == channels) for width, size in pairs)
        rescale(self)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        sources = streams[:, 1:, :, : streams.shape[-1] - self.cut]
        x = sources.sum(dim=1)
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
        x = self.merge(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for level in self.decoder:
            x = level(x + centred(skips.pop(), x.shape[-1]))
        return x.unflatten(1, (SOURCES, STEREO)), centred(sources, x.shape[-1])


def build(
    batch_size: int, channels: int = 64, samples: int = 426_888, cut: int = SECOND
) -> tuple[nn.Module, tuple[Tensor]]:
    """Build the model with 9.7 seconds of stereo at 44.1 kHz in five streams, of which 8.7 are separated."""
    return Demucs(channels, cut), (torch.rand(batch_size, 1 + SOURCES, STEREO, samples),)
