"""Golden files of the reports; PERFDASH_UPDATE_GOLDEN=1 writes them anew, to be read in the diff."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name, text):
    path = GOLDEN / name
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
