"""Two interpreters that stand for two builds: the model of confirmed.py takes longer under one of them."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

MODELS = Path(__file__).with_name("confirmed.py")
# Far apart: three pairs must tell them apart on a machine that is busy with other tests too.
FAST_MS, SLOW_MS = 3.0, 9.0


def interpreter(folder: Path, milliseconds: float) -> str:
    """The interpreter of a build: an environment over this one, in which the model takes so long."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "speed.py").write_text(f"MILLISECONDS = {milliseconds}\n")
    ours = sysconfig.get_paths()["purelib"]
    (packages / "perfdash-base.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python")
