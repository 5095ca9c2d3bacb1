"""Speech from text (Shen et al. 2018, "Natural TTS synthesis by conditioning WaveNet on mel spectrogram
predictions", Tacotron 2), with the true frames as the decoder's inputs.

The prenet's dropout is active in evaluation too, as in the paper: the model draws random numbers.
Texts are not packed: where one ends, the encoder reads zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfdash.worker.models.transformer import PAD, padded_tokens

SYMBOLS = 148  # letters, punctuation and phonemes
MELS = 80
TEXT = 512  # width of the encoded text
HIDDEN = 1024
PRENET = 256
ATTENTION = 128


def convolution(size: int, width: int) -> nn.Sequential:
    """(batch, size, time) -> (batch, width, time), normalised over the batch."""
    return nn.Sequential(nn.Conv1d(size, width, 5, padding=2), nn.BatchNorm1d(width))


class Encoder(nn.Module):
    """Characters (batch, length) -> (batch, length, 512): three convolutions and a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, TEXT)
        self.convolutions = nn.ModuleList(convolution(TEXT, TEXT) for _ in range(3))
        self.lstm = nn.LSTM(TEXT, TEXT // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.5)

    def forward(self, text: Tensor) -> Tensor:
        present = (text != PAD).unsqueeze(1)
        x = self.embedding(text).transpose(1, 2) * present
        for layer in self.convolutions:
            x = self.dropout(torch.relu(layer(x))) * present
        return self.lstm(x.transpose(1, 2))[0]


class Prenet(nn.Module):
    """Frames (..., 80) -> (..., 256), with dropout at all times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, PRENET, bias=False) for size in (MELS, PRENET))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(torch.relu(layer(x)), 0.5, training=True)
        return x


class LocationAttention(nn.Module):
    """Additive attention that also sees where it looked before (Chorowski et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, ATTENTION, bias=False)
        self.memory = nn.Linear(TEXT, ATTENTION, bias=False)
        self.location = nn.Conv1d(2, 32, 31, padding=15, bias=False)
        self.location_out = nn.Linear(32, ATTENTION, bias=False)
        self.energy = nn.Linear(ATTENTION, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """query (batch, 1024), keys (batch, length, 128), seen (batch, 2, length): the last weights and
        their sum so far, mask (batch, length) -> weights (batch, length)."""
        location = self.location_out(self.location(seen).transpose(1, 2))
        energies = self.energy(torch.tanh(self.query(query).unsqueeze(1) + keys + location)).squeeze(2)
        return energies.masked_fill(~mask, torch.finfo(energies.dtype).min).softmax(dim=1)


class SpectrogramDecoder(nn.Module):
    """Encoded text and the true frames -> frames, stop logits and attention weights."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = Prenet()
        self.attention = LocationAttention()
        self.attention_cell = nn.LSTMCell(PRENET + TEXT, HIDDEN)
        self.decoder_cell = nn.LSTMCell(HIDDEN + TEXT, HIDDEN)
        self.frame = nn.Linear(HIDDEN + TEXT, MELS)
        self.stop = nn.Linear(HIDDEN + TEXT, 1)

    def forward(self, memory: Tensor, mask: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """memory (batch, length, 512), mask (batch, length), mels (batch, 80, frames) -> (batch, 80, frames),
        (batch, frames), (batch, frames, length)."""
        batch, length, _ = memory.shape
        # Each frame is predicted from the one before it, the first from silence.
        before = F.pad(mels, (1, 0))[:, :, :-1].permute(2, 0, 1)
        keys = self.attention.memory(memory)
        zeros = memory.new_zeros(batch, HIDDEN)
        attending, deciding = (zeros, zeros), (zeros, zeros)
        context = memory.new_zeros(batch, TEXT)
        weights = total = memory.new_zeros(batch, length)
        outputs, alignments = [], []
        for frame in self.prenet(before).unbind():
            attending = self.attention_cell(torch.cat([frame, context], dim=1), attending)
            weights = self.attention(attending[0], keys, torch.stack([weights, total], dim=1), mask)
            total = total + weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            deciding = self.decoder_cell(torch.cat([attending[0], context], dim=1), deciding)
            outputs.append(torch.cat([deciding[0], context], dim=1))
            alignments.append(weights)
        decided = torch.stack(outputs, dim=1)
        return (
            self.frame(decided).transpose(1, 2),
            self.stop(decided).squeeze(2),
            torch.stack(alignments, dim=1),
        )


class Postnet(nn.Module):
    """A correction of the frames by five convolutions, (batch, 80, frames) both ways."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [MELS, *[512] * 4, MELS]
        self.convolutions = nn.ModuleList(map(convolution, sizes, sizes[1:]))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convolutions[:-1]:
            x = self.dropout(torch.tanh(layer(x)))
        return self.dropout(self.convolutions[-1](x))


class Tacotron2(nn.Module):
    """text (batch, length), mels (batch, 80, frames) -> frames, corrected frames, stop logits, alignment."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.decoder = SpectrogramDecoder()
        self.postnet = Postnet()

    def forward(self, text: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        frames, stop, alignment = self.decoder(self.encoder(text), text != PAD, mels)
        return frames, frames + self.postnet(frames), stop, alignment


def build(
    batch_size: int, characters: int = 80, frames: int = 100
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Texts of up to `characters` and 80 mels by `frames`: the loop over frames is unrolled by a compiler,
    so there are fewer than the 500 or more of a sentence."""
    text = padded_tokens(batch_size, characters, SYMBOLS)
    return Tacotron2(), (text, torch.randn(batch_size, MELS, frames))
