"""Run a reproducer where nothing but torch is to be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it where nothing but torch is found: isolated, in its own folder, without our packages' path."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PERFDASH"))
    }
    command = [sys.executable, "-I", str(script), *arguments]
    return subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=500
    )
