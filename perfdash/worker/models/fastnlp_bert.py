"""BERT base that finds the span of an answer in a passage.

Devlin et al. 2019, with the uncased vocabulary: 12 layers of width 768 and 12 heads, normalisation after
the residual sum, no pooler.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfdash.worker.models.transformer import PAD, Attention, padded_tokens, padding_mask

EPS = 1e-12  # of every normalisation in BERT


class SegmentEmbedding(nn.Module):
    """Embed tokens with their positions and segments.

    tokens, segments (batch, length) -> (batch, length, width).
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(self.norm(self.tokens(tokens) + positions + self.segments(segments)))


class PostNormLayer(nn.Module):
    """Self-attention and feed-forward; each is added to its input and normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width, bias=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=EPS) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x, x, mask)))
        return self.norms[1](x + self.dropout(self.feed_forward(x)))


class SpanFinder(nn.Module):
    """Predict the start and the end of the answer.

    tokens, segments (batch, length) -> logits of start and end, both (batch, length).
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = SegmentEmbedding(vocabulary, width)
        self.layers = nn.ModuleList(PostNormLayer(width) for _ in range(layers))
        self.span = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        mask = padding_mask(tokens)
        x = self.embedding(tokens, segments)
        for layer in self.layers:
            x = layer(x, mask)
        start, end = self.span(x).unbind(dim=2)
        return start, end


def build(
    batch_size: int, vocabulary: int = 30_522, width: int = 768, layers: int = 12, length: int = 470
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Build the model with padded tokens and their segments.

    A question fills the first 20 tokens; a passage follows.
    """
    tokens = padded_tokens(batch_size, length, vocabulary)
    segments = (torch.arange(length) >= 20).long().repeat(batch_size, 1)
    return SpanFinder(vocabulary, width, layers), (tokens, segments)
