"""Image folders in the layout of ImageNet: ROOT/val/CLASS/*.jpeg.

The class folders may also lie in ROOT/test or in ROOT itself. A label is the index of the class's folder
among the sorted names, as in torchvision's ImageFolder. Only one batch of images is in memory at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch import Tensor

from perfdash.records import Job
from perfdash.worker.quality import Labelled

_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SIZE = (3, 224, 224)
# As torchvision evaluates ImageNet: resize the shorter side to 256 for a crop of 224; statistics of RGB.
_RESIZE = 256 / 224
_MEAN, _STDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_data(job: Job) -> Labelled:
    """Open the image folder with the preprocessing of the model.

    Images are (n, 3, H, W) in the size of the model's inputs. A file that cannot be read is skipped. Raises
    ValueError for a folder without images and, while reading, if no image can be read.
    """
    if not job.data_path:
        raise ValueError("data of the kind images need a folder: --data DIR")
    folder = _class_parent(Path(job.data_path))
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).iterdir())
        if file.suffix.lower() in _SUFFIXES and file.name[0] != "."
    ]
    if not files:
        raise ValueError(
            f"{folder} has no images; they are looked for as {folder}/CLASS/NAME.jpeg, with a folder for "
            f"each class ({', '.join(_SUFFIXES)})"
        )
    data = Labelled(len(files), len(names), lambda size: iter(()))
    data.batches = lambda size: _batches(files, size, _preprocessing(job), data.notes)
    return data


def _batches(
    files: list[tuple[Path, int]], batch_size: int, preprocess: Callable[[Any], Tensor], notes: list[str]
) -> Iterator[tuple[tuple[Tensor], Tensor]]:
    images: list[Tensor] = []
    labels: list[int] = []
    unreadable: list[str] = []
    for file, label in files:
        try:
            image = preprocess(file)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise exceptions of any type for a broken file
            unreadable.append(f"{file} ({type(error).__name__}: {str(error)[:150]})")
            continue
        images.append(image)
        labels.append(label)
        if len(images) == batch_size:
            yield (torch.stack(images),), torch.tensor(labels)
            images, labels = [], []
    if len(unreadable) == len(files):
        raise ValueError(f"none of the {len(files)} images can be read; the first is {unreadable[0]}")
    if unreadable:
        count = f"{len(unreadable)} of {len(files)} images"
        notes[:] = [f"{count} cannot be read and are left out; the first is {unreadable[0]}"]
    if images:
        yield (torch.stack(images),), torch.tensor(labels)


def _class_parent(root: Path) -> Path:
    """Return the folder that contains the class folders."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: --data takes a folder of images for this model")
    return next((root / part for part in ("val", "test") if (root / part).is_dir()), root)


def _preprocessing(job: Job) -> Callable[[Path], Tensor]:
    """Return a function that reads a file as a tensor (3, H, W).

    It resizes, crops the centre and normalises.
    """
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader

    (channels, height, width), mean, stdev = _recipe(job)
    if channels != 3:
        raise ValueError(f"images have 3 channels (RGB), the model takes {channels}")
    steps = transforms.Compose(
        [
            transforms.Resize(round(max(height, width) * _RESIZE)),
            transforms.CenterCrop((height, width)),
            transforms.ToTensor(),
            transforms.Normalize(mean, stdev),
        ]
    )
    return lambda file: steps(pil_loader(str(file)))


def _recipe(job: Job) -> tuple[Any, Any, Any]:
    """Return size (C, H, W), mean and standard deviation of the model's images."""
    size, mean, stdev = _SIZE, _MEAN, _STDEV
    if job.loader == "timm":
        from timm.models import get_pretrained_cfg

        pretrained = get_pretrained_cfg(job.target)
        if pretrained is not None:
            size, mean, stdev = pretrained.input_size, pretrained.mean, pretrained.std
    return tuple(job.inputs.get("size", size)), mean, stdev
