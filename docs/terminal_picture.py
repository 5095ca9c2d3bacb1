"""Makes the README's picture of a run: the recording of a terminal as an SVG.

    stty cols 80 && script -qec 'perfdash run --model net.py:make' run.typescript
    python docs/terminal_picture.py run.typescript docs/images/run.svg 'perfdash run --model net.py:make'

The picture shows the screen as it was at the end; nothing is added but the prompt with the command.
Replace the name of your host in the recording first.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLUMNS = 80
# What a live display writes: cursor up, erase line, carriage return, line end, other sequences, text.
_TOKEN = re.compile(r"\x1b\[(\d*)A|\x1b\[2?K|\r|\n|\x1b\[[\d;?]*[A-Za-z]|[^\x1b\r\n]+|\x1b")


def screen(recording: str) -> list[str]:
    """The lines on the screen at the end of a recording."""
    lines, row, column = [""], 0, 0
    for token in _TOKEN.finditer(recording):
        text = token[0]
        if text == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif text == "\r":
            column = 0
        elif text.endswith("A") and text.startswith("\x1b["):
            row = max(0, row - int(token[1] or 1))
        elif text.endswith("K") and text.startswith("\x1b["):
            lines[row] = ""
        elif not text.startswith("\x1b"):
            before = lines[row].ljust(column)
            lines[row] = before[:column] + text + before[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


def picture(lines: list[str], command: str) -> str:
    """The lines below a prompt as SVG; the first sentence of the card is bold."""
    console = Console(record=True, width=_COLUMNS, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold green"), highlight=False)
    for line in lines:
        style = "bold" if re.search(r"\b(FASTER|SLOWER|NO DIFFERENCE|NOT CLEAR)\b", line) else ""
        console.print(Text(line, style=style), highlight=False, soft_wrap=True)
    return console.export_svg(title="perfdash", unique_id="perfdash")


def main() -> None:
    """Read the recording and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command")
    arguments = parser.parse_args()
    recording = arguments.recording.read_bytes().decode(errors="replace")  # with its carriage returns
    body = re.sub(r"^Script started.*\r?\n|\r?\nScript done.*\s*$", "", recording)
    lines = screen(body)
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    arguments.picture.write_text(picture(lines, arguments.command))


if __name__ == "__main__":
    main()
