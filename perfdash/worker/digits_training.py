"""Seeded training of the small digits models, with the weights in a cache folder.

Training takes seconds. The folder is `trained` of the user's cache (user_cache.py). A file's name holds a
digest of everything that its weights depend on, so that it is never out of date. Without a writable folder
a model is trained each time.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from perfdash.worker import user_cache
from perfdash.worker.child import ChildFailed, in_child
from perfdash.worker.datasets import digits

_SEED = 1337
_EPOCHS = 15
_BATCH = 64
_RATE = 5e-3
_DECAY = 1e-4


def build(architecture: Callable[[], nn.Module], batch_size: int) -> tuple[nn.Module, tuple[Tensor]]:
    """Return the trained module and test images. The images (batch_size, 1, 8, 8) repeat beyond 359."""
    images = digits.sample(batch_size)  # first, because its error names scikit-learn if it is missing
    return trained(architecture), (images,)


def trained(architecture: Callable[[], nn.Module]) -> nn.Module:
    """Return the module in eval mode, with weights trained on the training digits.

    (n, 1, 8, 8) -> (n, 10). Training runs in a forked child, so that it changes neither the case's memory
    nor its random numbers. Raises ChildFailed, for example without scikit-learn, and ChildDied.
    """
    file = user_cache.folder("trained") / f"{architecture.__name__.lower()}-{_digest(architecture)}.pt"
    module = architecture()
    if not _is_loaded(module, file):
        content = base64.b64decode(_in_child_or_here(architecture)["weights"])
        module.load_state_dict(_weights(content))
        _keep(content, file)
    return module.eval()


def _is_loaded(module: nn.Module, file: Path) -> bool:
    try:
        module.load_state_dict(_weights(file.read_bytes()))
    except Exception:  # the file is missing or broken: it is written again
        return False
    return True


def _in_child_or_here(architecture: Callable[[], nn.Module]) -> dict[str, Any]:
    """Train in a forked child, or in this process if it has trained before.

    After a training autograd's threads cannot be forked. Such a process already holds the traces of a
    training, so this training may add its own.
    """
    try:
        return in_child("load", lambda: _train(architecture))
    except ChildFailed as error:
        if "Autograd-and-Fork" not in str(error):
            raise
    state = torch.get_rng_state()
    try:
        return _train(architecture)
    finally:
        torch.set_rng_state(state)


def _train(architecture: Callable[[], nn.Module]) -> dict[str, Any]:
    """Train with AdamW under a one-cycle schedule, on one thread. One thread fixes the order of every sum."""
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    module = architecture().train()
    images, labels = digits.training()
    optimizer = torch.optim.AdamW(module.parameters(), lr=_RATE, weight_decay=_DECAY)
    # An incomplete last batch is dropped: batch normalisation is unreliable on a few images.
    steps = len(labels) // _BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_EPOCHS * steps)
    with torch.enable_grad():
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(labels))[: steps * _BATCH].split(_BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(images[batch]), labels[batch]).backward()
                optimizer.step()
                schedule.step()
    content = io.BytesIO()
    torch.save(module.state_dict(), content)
    return {"weights": base64.b64encode(content.getvalue()).decode()}


def _weights(content: bytes) -> dict[str, Tensor]:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _keep(content: bytes, file: Path) -> None:
    """Write the file atomically, because other processes may read or write it."""
    part: Optional[str] = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=".part-")
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        os.replace(part, file)
    except OSError:  # the folder is read-only or full: the weights are not cached
        if part:
            Path(part).unlink(missing_ok=True)


def _digest(architecture: Callable[[], nn.Module]) -> str:
    """Hash the sources of architecture, training and data, and the version of torch."""
    whole = hashlib.sha256(torch.__version__.encode())
    for source in (inspect.getsourcefile(architecture), __file__, digits.__file__):
        whole.update(Path(str(source)).read_bytes())
    return whole.hexdigest()[:16]
