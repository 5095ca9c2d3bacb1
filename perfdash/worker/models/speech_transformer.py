"""Speech recognition by a Transformer, without the paper's convolutions.

Dong et al. 2018, "Speech-Transformer". 6 + 6 layers of width 512. A time step has 320 features: four frames
of 80 filters are stacked, and every third stack is kept. The vocabulary is the 4,233 characters of AISHELL.
As in the benchmark, attentions have biases, padding is set to zero after each part of a layer, and the target
embedding is also the output projection. The benchmark adds start and end characters to the transcripts in
Python; here they are inputs as they are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from perfdash.worker.models.transformer import PAD, Decoder, EncoderLayer, padded_tokens, sinusoids

FEATURES = 320


class ScaledEmbedding(nn.Module):
    """Embed tokens as scaled embeddings plus position encodings.

    (batch, length) -> (batch, length, width).
    """

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, longest: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        # With this deviation the logits of the tied projection start near one.
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.scale = math.sqrt(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])


class SpeechTransformer(nn.Module):
    """Compute the logits of a transcript from speech.

    features (batch, frames, 320), lengths (batch,), targets (batch, length) -> (batch, length, vocabulary).
    """

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(FEATURES, width), nn.LayerNorm(width))
        self.register_buffer("positions", sinusoids(1024, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.encoder = nn.ModuleList(EncoderLayer(width, bias=True) for _ in range(layers))
        embedding = ScaledEmbedding(vocabulary, width)
        self.decoder = Decoder(embedding, vocabulary, width, layers, bias=True)
        self.decoder.project.weight = embedding.tokens.weight

    def forward(self, features: Tensor, lengths: Tensor, targets: Tensor) -> Tensor:
        frames = features.shape[1]
        present = torch.arange(frames, device=features.device) < lengths[:, None]
        mask = present[:, None, None, :]
        x = self.dropout(self.embed(features) + self.positions[:frames])
        for layer in self.encoder:
            x = layer(x, mask, present[:, :, None])
        return self.decoder(targets, x, mask, (targets != PAD)[:, :, None])


def build(
    batch_size: int, vocabulary: int = 4233, width: int = 512, layers: int = 6, frames: int = 190
) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """Build the model with random utterances and transcripts.

    Utterances have up to `frames` steps and are zero after their end; transcripts have up to 20 characters.
    """
    lengths = torch.randint(frames // 2, frames + 1, (batch_size,))
    lengths[0] = frames
    features = torch.randn(batch_size, frames, FEATURES)
    features = features * (torch.arange(frames) < lengths[:, None])[:, :, None]
    return SpeechTransformer(vocabulary, width, layers), (
        features,
        lengths,
        padded_tokens(batch_size, 20, vocabulary),
    )
