"""The handwritten digits of scikit-learn, read from its data file without a download.

There are 1,797 images of 8 x 8 in ten classes. scikit-learn itself is not imported. One image in five of
each class is for tests, drawn with a fixed seed.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
from pathlib import Path
from typing import Iterator

import torch
from torch import Tensor

from perfdash.records import Job
from perfdash.worker.quality import Labelled

CLASSES = 10
SIDE = 8
_WHITE = 16  # the pixels are counts from 0 to 16
_SPLIT_SEED = 20240607
_TEST_SHARE = 0.2


def open_data(job: Job) -> Labelled:
    """Open the test images. They are (n, 1, 8, 8), float32 from 0 to 1."""
    images, labels = testing()

    def batches(batch_size: int) -> Iterator[tuple[tuple[Tensor], Tensor]]:
        for start in range(0, len(labels), batch_size):
            part = slice(start, start + batch_size)
            yield (images[part],), labels[part]

    return Labelled(len(labels), CLASSES, batches)


def calibration(job: Job, batches: int) -> Iterator[tuple[Tensor]]:
    """Yield `batches` batches of training images for static quantisation.

    A batch is (batch_size, 1, 8, 8).
    """
    images, _ = training()
    for number in range(batches):
        yield (_cyclic_slice(images, number * job.case.batch_size, job.case.batch_size),)


def sample(batch_size: int) -> Tensor:
    """Return the first test images, (batch_size, 1, 8, 8).

    They repeat if batch_size is larger than their number.
    """
    return _cyclic_slice(testing()[0], 0, batch_size)


def training() -> tuple[Tensor, Tensor]:
    """Return the images and labels of the training part.

    Images are (n, 1, 8, 8), float32 from 0 to 1; labels are (n,).
    """
    images, labels, is_test = _read()
    return images[~is_test], labels[~is_test]


def testing() -> tuple[Tensor, Tensor]:
    """Return the images and labels of the test part.

    Images are (n, 1, 8, 8), float32 from 0 to 1; labels are (n,).
    """
    images, labels, is_test = _read()
    return images[is_test], labels[is_test]


def _cyclic_slice(images: Tensor, start: int, count: int) -> Tensor:
    return images[(torch.arange(count) + start) % len(images)]


def _read() -> tuple[Tensor, Tensor, Tensor]:
    """Return all images, all labels, and the mask of the test images."""
    with gzip.open(_file(), "rt", newline="") as lines:
        rows = [[int(float(value)) for value in row] for row in csv.reader(lines)]
    table = torch.tensor(rows)
    images = table[:, :-1].float().div(_WHITE).reshape(-1, 1, SIDE, SIDE)
    labels = table[:, -1].clone()
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(CLASSES):
        of_class = (labels == label).nonzero().flatten()
        order = torch.randperm(len(of_class), generator=generator)
        is_test[of_class[order[: round(_TEST_SHARE * len(of_class))]]] = True
    return images, labels, is_test


def _file() -> Path:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "the handwritten digits are in scikit-learn, which is not installed: pip install scikit-learn"
        )
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise ImportError(f"this scikit-learn has no handwritten digits: {path} is missing; reinstall it")
    return path
