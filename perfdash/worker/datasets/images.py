"""An image folder in the layout of ImageNet: ROOT/val/CLASS/*.jpeg, or test, or the classes in ROOT.

A label is the place of the class's folder among the sorted names, as torchvision's ImageFolder has
it. One batch of images is in memory at a time.
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
# torchvision's evaluation of ImageNet: the shorter side to 256 for a crop of 224; statistics of RGB.
_RESIZE = 256 / 224
_MEAN, _STDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_data(job: Job) -> Labelled:
    """Images (n, 3, H, W) for the size of the model's inputs. A file that cannot be read is left out.

    Raises ValueError for a folder without images and, when they are read, if none can be.
    """
    if not job.data_path:
        raise ValueError("data of the kind images need a folder: --data DIR")
    folder = _class_parent(Path(job.data_path))
    names = sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
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
        except Exception as error:  # what decoders raise on a broken file is any exception there is
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
    """The folder that holds a folder for each class."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder: --data takes a folder of images for this model")
    return next((root / part for part in ("val", "test") if (root / part).is_dir()), root)


def _preprocessing(job: Job) -> Callable[[Path], Tensor]:
    """File -> (3, H, W): resized, cropped in the middle, normalised."""
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
    """Size (C, H, W), mean and standard deviation that the model's images have."""
    size, mean, stdev = _SIZE, _MEAN, _STDEV
    if job.loader == "timm":
        from timm.models import get_pretrained_cfg

        trained = get_pretrained_cfg(job.target)
        if trained is not None:
            size, mean, stdev = trained.input_size, trained.mean, trained.std
    return tuple(job.inputs.get("size", size)), mean, stdev
