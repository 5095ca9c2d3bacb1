"""Print the last lines of a log without secrets, `last_lines.py FILE FIRST COUNT`; FIRST is a line number.

Standard library only: a failed set-up has lines to show, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perfdash.redaction import redact


def main() -> None:
    file, first, count = sys.argv[1:]
    lines = Path(file).read_text(errors="replace").splitlines()[int(first) - 1 :]
    for line in [line for line in lines if line.strip()][-int(count) :]:
        print(f"    {redact(line)}")


if __name__ == "__main__":
    main()
