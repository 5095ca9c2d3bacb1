"""Click prediction from dense features and categories (Naumov et al. 2019, DLRM).

A perceptron maps the dense features to a vector; 8 tables of a million rows map 8 bags of category ids to
vectors. A second perceptron reads the dense vector and the dot products of every pair of the nine vectors.
The tables take 2.05 GB. In training their gradients are sparse, as in the benchmark: of the rows that were
read alone. sgd takes such gradients, adam does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DENSE = 512
WIDTH = 64
TABLES = 8
BAG = 100  # ids per bag


def perceptron(*sizes: int) -> nn.Sequential:
    """Build linear layers with ReLU after each."""
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Predict the click probability.

    dense (batch, 512), offsets (8, batch), 8 x ids (batch * 100) -> (batch, 1).
    """

    pairs: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bottom = perceptron(DENSE, 512, WIDTH)
        # The paper's bound shrinks with the number of rows: rounding errors would hide the tables' effect.
        bound = BAG**-0.5
        # from_pretrained, because EmbeddingBag's own initialisation would draw 512 million unused numbers.
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                torch.empty(rows, WIDTH).uniform_(-bound, bound), freeze=False, mode="sum", sparse=True
            )
            for _ in range(TABLES)
        )
        vectors = TABLES + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)
        pairs = vectors * (vectors - 1) // 2
        self.top = nn.Sequential(
            perceptron(WIDTH + pairs, 1024, 1024, 1024), nn.Linear(1024, 1), nn.Sigmoid()
        )

    def forward(self, dense: Tensor, offsets: Tensor, ids: list[Tensor]) -> Tensor:
        dense = self.bottom(dense)
        bags = [table(i, o) for table, i, o in zip(self.tables, ids, offsets.unbind())]
        vectors = torch.stack([dense, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], dim=1))


def build(batch_size: int, rows: int = 1_000_000) -> tuple[nn.Module, tuple[Tensor, Tensor, list[Tensor]]]:
    """Build the model with `rows` rows per table. Every bag has 100 ids, so offsets are multiples of 100."""
    dense = torch.rand(batch_size, DENSE)
    offsets = (torch.arange(batch_size) * BAG).repeat(TABLES, 1)
    ids = [torch.randint(rows, (batch_size * BAG,)) for _ in range(TABLES)]
    return DLRM(rows), (dense, offsets, ids)
