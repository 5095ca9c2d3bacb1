"""BERT with both pre-training heads, built from elementary tensor operations.

Devlin et al. 2019; position encodings as in Vaswani et al. 2017. 12 layers of width 768 and 12 heads,
normalisation before each sublayer, untied heads. Normalisation and GELU are formulas of tensors, because
the benchmark measures how well a compiler fuses their operations. A vocabulary of 20,000 words gives the
published 115.8 M parameters: the layers have 85.05 M, and each word adds 768 in the embedding and 769 in
the masked-word head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from perfdash.worker.models.transformer import PAD, Attention, padded_tokens, padding_mask, sinusoids

SEGMENTS = 3  # padding, first sentence, second sentence


class Norm(nn.Module):
    """Layer normalisation (Ba et al. 2016) by the sample's standard deviation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / (x.std(dim=-1, keepdim=True) + 1e-6) * self.scale + self.shift


class GELU(nn.Module):
    """GELU, approximated by tanh (Hendrycks and Gimpel 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


class PreNormLayer(nn.Module):
    """Self-attention and feed-forward; each reads the normalised input and is added to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width, bias=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normal = self.norms[0](x)
        x = x + self.dropout(self.attention(normal, normal, mask))
        return x + self.dropout(self.feed_forward(self.norms[1](x)))


class BERT(nn.Module):
    """Predict whether the second sentence follows, and the masked words.

    tokens, segments (batch, length) -> log-probabilities (batch, 2) and (batch, length, vocabulary).
    """

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.segments = nn.Embedding(SEGMENTS, width, padding_idx=PAD)
        self.register_buffer("positions", sinusoids(512, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(PreNormLayer(width) for _ in range(layers))
        self.next_sentence = nn.Linear(width, 2)
        self.masked_word = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        mask = padding_mask(tokens)
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]] + self.segments(segments)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.next_sentence(x[:, 0]).log_softmax(dim=-1), self.masked_word(x).log_softmax(dim=-1)


def build(
    batch_size: int, vocabulary: int = 20_000, width: int = 768, layers: int = 12, length: int = 128
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Build the model with tokens and segments, both (batch, length). The second sentence begins half-way."""
    tokens = padded_tokens(batch_size, length, vocabulary)
    segments = (1 + (torch.arange(length) >= length // 2).long()) * (tokens != PAD)
    return BERT(vocabulary, width, layers), (tokens, segments)
