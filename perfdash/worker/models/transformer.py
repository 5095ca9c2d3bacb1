"""The base Transformer for translation.

Vaswani et al. 2017, "Attention is all you need". 6 + 6 layers of width 512, 8 heads of 64, inner width
2048; normalisation after the residual sum. As in the benchmark, and unlike the paper, embeddings are
normalised instead of scaled, and the output projection has weights of its own. The vocabularies have the size
of Multi30k's, German and English.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PAD = 0
HEAD = 64


def sinusoids(length: int, width: int) -> Tensor:
    """Return position encodings, (length, width). Even columns are sines, odd columns are cosines."""
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=2).flatten(1)


def padded_tokens(batch_size: int, length: int, vocabulary: int) -> Tensor:
    """Draw random token ids, (batch, length).

    The first row is full; up to half of every other row is padding.
    """
    tokens = torch.randint(PAD + 1, vocabulary, (batch_size, length))
    lengths = torch.randint(length // 2, length + 1, (batch_size, 1))
    lengths[0] = length
    return tokens * (torch.arange(length) < lengths)


def padding_mask(tokens: Tensor) -> Tensor:
    """Return the attention mask, (batch, 1, 1, length). It is True for tokens and False for padding."""
    return (tokens != PAD)[:, None, None, :]


class Attention(nn.Module):
    """Multi-head scaled dot-product attention with a mask."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Attend from x to memory where the mask is True.

        x (batch, queries, width), memory (batch, keys, width), mask broadcast to (batch, heads, queries,
        keys) -> (batch, queries, width).
        """
        query, key, value = (
            linear(source).unflatten(2, (-1, HEAD)).transpose(1, 2)
            for linear, source in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = torch.matmul(query / math.sqrt(HEAD), key.transpose(2, 3))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return self.out(torch.matmul(weights, value).transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers with ReLU between; the inner width is four times as large."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def without_padding(x: Tensor, present: Tensor | None) -> Tensor:
    """Set padding to zero where `present`, (batch, length, 1), is False; None leaves x as it is."""
    return x if present is None else x * present


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward; each is added to its input and normalised."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, bias)
        self.feed_forward = FeedForward(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor, present: Tensor | None = None) -> Tensor:
        x = without_padding(self.norms[0](x + self.dropout(self.attention(x, x, mask))), present)
        return without_padding(self.norms[1](x + self.dropout(self.feed_forward(x))), present)


class DecoderLayer(nn.Module):
    """An encoder layer with cross-attention to the encoder's output before the feed-forward."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, bias)
        self.cross_attention = Attention(width, bias)
        self.feed_forward = FeedForward(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor, present: Tensor | None = None
    ) -> Tensor:
        x = without_padding(self.norms[0](x + self.dropout(self.attention(x, x, mask))), present)
        seen = self.cross_attention(x, memory, memory_mask)
        x = without_padding(self.norms[1](x + self.dropout(seen)), present)
        return without_padding(self.norms[2](x + self.dropout(self.feed_forward(x))), present)


class Embedding(nn.Module):
    """Embed tokens as normalised sums of embeddings and position encodings.

    (batch, length) -> (batch, length, width).
    """

    positions: Tensor

    def __init__(self, vocabulary: int, width: int, longest: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", sinusoids(longest, width), persistent=False)
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]]))


class Decoder(nn.Module):
    """Predict the logits of the next token at every position.

    `embedding` maps tokens (batch, length) to (batch, length, width). `bias`: of the attentions.
    """

    def __init__(
        self, embedding: nn.Module, vocabulary: int, width: int, layers: int, bias: bool = False
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(DecoderLayer(width, bias) for _ in range(layers))
        self.project = nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, tokens: Tensor, memory: Tensor, memory_mask: Tensor, present: Tensor | None = None
    ) -> Tensor:
        """Decode target tokens with the encoder's output.

        tokens (batch, length), memory (batch, keys, width) -> (batch, length, vocabulary). `present`: see
        without_padding.
        """
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = padding_mask(tokens) & earlier
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask, present)
        return self.project(x)


class Transformer(nn.Module):
    """Translate source tokens to target tokens.

    (source, target) tokens -> logits (batch, target length, vocabulary).
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(width) for _ in range(layers))
        self.decoder = Decoder(Embedding(vocabulary, width), vocabulary, width, layers)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = padding_mask(source)
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.decoder(target, x, mask)


def build(
    batch_size: int, vocabulary: int = 9521, width: int = 512, layers: int = 6, length: int = 30
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Build the model with source and target tokens, both (batch, length). Shorter sentences are padded."""
    inputs = (padded_tokens(batch_size, length, vocabulary), padded_tokens(batch_size, length, vocabulary))
    return Transformer(vocabulary, width, layers), inputs
