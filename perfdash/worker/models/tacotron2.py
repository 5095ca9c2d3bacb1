"""Tacotron 2: mel spectrograms from text, decoded with the true frames as inputs.

Shen et al. 2018, "Natural TTS synthesis by conditioning WaveNet on mel spectrogram predictions". The
prenet's dropout is active in evaluation too, as in the paper, so the model draws random numbers. Texts are
not packed: the encoder reads zeros after the end of a text.
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
    """Build a convolution over time with batch normalisation. (batch, size, time) -> (batch, width, time)."""
    return nn.Sequential(nn.Conv1d(size, width, 5, padding=2), nn.BatchNorm1d(width))


class Encoder(nn.Module):
    """Encode characters by three convolutions and a bidirectional LSTM.

    (batch, length) -> (batch, length, 512).
    """

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
    """Two linear layers with dropout in training and evaluation. Frames (..., 80) -> (..., 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, PRENET, bias=False) for size in (MELS, PRENET))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(torch.relu(layer(x)), 0.5, training=True)
        return x


class LocationAttention(nn.Module):
    """Additive attention that also reads its earlier weights (Chorowski et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, ATTENTION, bias=False)
        self.memory = nn.Linear(TEXT, ATTENTION, bias=False)
        self.location = nn.Conv1d(2, 32, 31, padding=15, bias=False)
        self.location_out = nn.Linear(32, ATTENTION, bias=False)
        self.energy = nn.Linear(ATTENTION, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention weights, (batch, length).

        query (batch, 1024), keys (batch, length, 128), mask (batch, length). seen (batch, 2, length) holds
        the previous weights and the sum of all weights so far.
        """
        location = self.location_out(self.location(seen).transpose(1, 2))
        energies = self.energy(torch.tanh(self.query(query).unsqueeze(1) + keys + location)).squeeze(2)
        return energies.masked_fill(~mask, torch.finfo(energies.dtype).min).softmax(dim=1)


class SpectrogramDecoder(nn.Module):
    """Predict frames, stop logits and attention weights from text and true frames."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = Prenet()
        self.attention = LocationAttention()
        self.attention_cell = nn.LSTMCell(PRENET + TEXT, HIDDEN)
        self.decoder_cell = nn.LSTMCell(HIDDEN + TEXT, HIDDEN)
        self.frame = nn.Linear(HIDDEN + TEXT, MELS)
        self.stop = nn.Linear(HIDDEN + TEXT, 1)

    def forward(self, memory: Tensor, mask: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decode all frames.

        memory (batch, length, 512), mask (batch, length), mels (batch, 80, frames) -> frames (batch, 80,
        frames), stop logits (batch, frames), attention weights (batch, frames, length).
        """
        batch, length, _ = memory.shape
        # A frame is predicted from the previous frame, the first frame from silence.
        previous = F.pad(mels, (1, 0))[:, :, :-1].permute(2, 0, 1)
        keys = self.attention.memory(memory)
        zeros = memory.new_zeros(batch, HIDDEN)
        attention_state, decoder_state = (zeros, zeros), (zeros, zeros)
        context = memory.new_zeros(batch, TEXT)
        weights = total = memory.new_zeros(batch, length)
        outputs, alignments = [], []
        for frame in self.prenet(previous).unbind():
            attention_state = self._step(self.attention_cell, [frame, context], attention_state)
            weights = self.attention(attention_state[0], keys, torch.stack([weights, total], dim=1), mask)
            total = total + weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            decoder_state = self._step(self.decoder_cell, [attention_state[0], context], decoder_state)
            outputs.append(torch.cat([decoder_state[0], context], dim=1))
            alignments.append(weights)
        hidden = torch.stack(outputs, dim=1)
        return (
            self.frame(hidden).transpose(1, 2),
            self.stop(hidden).squeeze(2),
            torch.stack(alignments, dim=1),
        )

    def _step(
        self, cell: nn.LSTMCell, inputs: list[Tensor], state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Compute the next state of a cell; in training a tenth of its output is dropped."""
        output, memory = cell(torch.cat(inputs, dim=1), state)
        return F.dropout(output, 0.1, self.training), memory


class Postnet(nn.Module):
    """Compute a correction of the frames by five convolutions. (batch, 80, frames) -> the same shape."""

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
    """Predict mel spectrograms from text.

    text (batch, length), mels (batch, 80, frames) -> frames, corrected frames, stop logits, alignment.
    """

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
    """Build the model with texts of up to `characters` characters.

    mels are (batch, 80, frames). A compiler unrolls the loop over frames, so `frames` is smaller than the
    500 or more of a sentence.
    """
    text = padded_tokens(batch_size, characters, SYMBOLS)
    return Tacotron2(), (text, torch.randn(batch_size, MELS, frames))
