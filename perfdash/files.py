"""Writes the files that users and CI systems read: whole, and their text without secrets."""

from __future__ import annotations

import contextlib
from pathlib import Path

from perfdash.redaction import redact


def encoded(text: str) -> bytes:
    """Text as it may leave the program: UTF-8, without any secret of this process."""
    return redact(text).encode("utf-8", "replace")


def write(path: Path, content: str | bytes) -> None:
    """Writes a file that is there once it is whole; a pipe or a device is written to as it is.

    Text is encoded as above; bytes are written as they are: pictures, of which every word was redacted when
    it was drawn. Raises OSError; then the file is as it was before.
    """
    data = encoded(content) if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = path.resolve()  # a link stays one
    part = target.with_name(f".{target.name[:200]}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
