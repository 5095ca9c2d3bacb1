"""Transformer base for translation (Vaswani et al. 2017, "Attention is all you need").

6 + 6 layers of width 512, 8 heads of 64, inner width 2048; normalisation after the residual sum. The
target embedding is also the output projection. Vocabularies are the size of Multi30k's, German and English.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PAD = 0
HEAD = 64


def sinusoids(length: int, width: int) -> Tensor:
    """Position encodings, (length, width): sines in the even columns, cosines in the odd."""
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=2).flatten(1)


def padded_tokens(batch_size: int, length: int, vocabulary: int) -> Tensor:
    """Random ids, (batch, length); the first row is full, the others end in up to half of padding."""
    tokens = torch.randint(PAD + 1, vocabulary, (batch_size, length))
    lengths = torch.randint(length // 2, length + 1, (batch_size, 1))
    lengths[0] = length
    return tokens * (torch.arange(length) < lengths)


def padding_mask(tokens: Tensor) -> Tensor:
    """(batch, 1, 1, length): True where attention may look."""
    return (tokens != PAD)[:, None, None, :]


class Attention(nn.Module):
    """Scaled dot-product attention of several heads, with a mask that says where it may look."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """x (batch, queries, width), memory (batch, keys, width), mask broadcast to (batch, heads, queries,
        keys) -> (batch, queries, width)."""
        query, key, value = (
            linear(source).unflatten(2, (-1, HEAD)).transpose(1, 2)
            for linear, source in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = torch.matmul(query / math.sqrt(HEAD), key.transpose(2, 3))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return self.out(torch.matmul(weights, value).transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers with ReLU between, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.feed_forward = FeedForward(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x, x, mask)))
        return self.norms[1](x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """As the encoder's layer, with attention to the encoder's output between the two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.cross_attention = Attention(width)
        self.feed_forward = FeedForward(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x, x, mask)))
        x = self.norms[1](x + self.dropout(self.cross_attention(x, memory, memory_mask)))
        return self.norms[2](x + self.dropout(self.feed_forward(x)))


class Embedding(nn.Module):
    """Tokens (batch, length) -> (batch, length, width): scaled embeddings plus positions."""

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, longest: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        # So that logits of a tied projection begin near one.
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.scale = math.sqrt(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])


class Decoder(nn.Module):
    """Target tokens and the encoder's output -> logits of the next token at every position."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.project = nn.Linear(width, vocabulary, bias=False)
        self.project.weight = self.embedding.tokens.weight

    def forward(self, tokens: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """tokens (batch, length), memory (batch, keys, width) -> (batch, length, vocabulary)."""
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = padding_mask(tokens) & earlier
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)
        return self.project(x)


class Transformer(nn.Module):
    """(source, target) tokens -> logits (batch, target length, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(width) for _ in range(layers))
        self.decoder = Decoder(vocabulary, width, layers)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = padding_mask(source)
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.decoder(target, x, mask)


def build(
    batch_size: int, vocabulary: int = 9521, width: int = 512, layers: int = 6, length: int = 30
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Source and target tokens, both (batch, length), padded where a sentence is shorter."""
    inputs = (padded_tokens(batch_size, length, vocabulary), padded_tokens(batch_size, length, vocabulary))
    return Transformer(vocabulary, width, layers), inputs
