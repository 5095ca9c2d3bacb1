"""Training of the small digits models: once, in seconds, seeded; the weights stay in a cache folder.

The folder is `trained` of the user's cache (user_cache.py). A file's name has a digest of everything that its
weights depend on, so it is never out of date; without a writable folder a model is trained each time.
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
    """The trained module, and test images (batch_size, 1, 8, 8), repeated beyond 359."""
    images = digits.sample(batch_size)  # first: it says what is missing without scikit-learn
    return trained(architecture), (images,)


def trained(architecture: Callable[[], nn.Module]) -> nn.Module:
    """The module, (n, 1, 8, 8) -> (n, 10), in eval mode with weights trained on the training digits.

    Training happens in a forked child, so that neither its memory nor its random numbers are the case's.
    Raises ChildFailed, without scikit-learn for one, and ChildDied.
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
    except Exception:  # no file, or one that is broken in whatever way: it is made anew
        return False
    return True


def _in_child_or_here(architecture: Callable[[], nn.Module]) -> dict[str, Any]:
    """In a process that has trained before, autograd's threads cannot be forked; nor does a trace matter."""
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
    """AdamW under a one-cycle schedule; one thread, which settles the order of every sum."""
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    module = architecture().train()
    images, labels = digits.training()
    optimizer = torch.optim.AdamW(module.parameters(), lr=_RATE, weight_decay=_DECAY)
    # The last images of each order are left out: a batch of a few would upset batch normalisation.
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
    """Writes the file whole or not at all: another process may read or write it at the same time."""
    part: Optional[str] = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=".part-")
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        os.replace(part, file)
    except OSError:  # read-only or full: not kept
        if part:
            Path(part).unlink(missing_ok=True)


def _digest(architecture: Callable[[], nn.Module]) -> str:
    """Of the sources of the architecture, the training and the data, and the version of torch."""
    whole = hashlib.sha256(torch.__version__.encode())
    for source in (inspect.getsourcefile(architecture), __file__, digits.__file__):
        whole.update(Path(str(source)).read_bytes())
    return whole.hexdigest()[:16]
