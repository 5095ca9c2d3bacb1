"""Plant changes in small models, let `perfdash explain` say what changed, and publish what it said.

python benchmarks/planted_changes.py FOLDER --plants benchmarks/first_plants.py --old-torch PYTHON [NAME ...]
python benchmarks/planted_changes.py FOLDER --plants benchmarks/first_plants.py --publish results/FILE.md

The file of plants has a dict CHANGES of Change by name. The first command measures each change before and
after, and explains it, in FOLDER/NAME, with all that perfdash prints in transcript.txt; a plant that was
begun and not finished is begun anew, a finished one is left as it is. The second one writes the list and the
transcripts, without paths and host names; verdicts are added by hand.
"""

import argparse
import dataclasses
import hashlib
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

OLD_TORCH = "OLD_TORCH"  # in the options of a plant: the interpreter that --old-torch names
TRANSCRIPT, DONE = "transcript.txt", "done"


@dataclasses.dataclass(frozen=True)
class Change:
    """A planted change: sources of the model and options of `perfdash run`, before and after.

    A source is the text of net.py, with a function make(batch_size). `explain`: options of a second call of
    `perfdash explain`; with --reproducer DIR the script that it writes is run, too. `kind`: time, memory,
    accuracy, eager or code; `expected`: what a right answer names.
    """

    before: str
    after: str
    batch: int
    options_before: tuple[str, ...] = ()
    options_after: tuple[str, ...] = ()
    explain: tuple[str, ...] = ()
    kind: str = ""
    expected: str = ""


def perfdash(folder: Path, *words: str) -> str:
    """Run perfdash in the folder; its output and exit code go into the transcript."""
    return call(folder, f"perfdash {' '.join(words)}", [sys.executable, "-m", "perfdash", *words])


def call(folder: Path, shown: str, command: list[str]) -> str:
    """Run a command in the folder and add its output and exit code to the transcript."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with open(folder / TRANSCRIPT, "a") as file:
        file.write(f"$ {shown}\n{done.stdout}[exit code {done.returncode}]\n\n")
    return done.stdout


def plant(folder: Path, change: Change, old_torch: str | None, cores: list[str]) -> None:
    """Measure and explain one change in its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source, options in ((change.before, change.options_before), (change.after, change.options_after)):
        (folder / "net.py").write_text(source)
        words = [old_torch if word == OLD_TORCH else word for word in options]
        if None in words:
            raise SystemExit(f"{folder.name} needs --old-torch")
        run = ["run", "--model", "net.py:make", "--batch-size", str(change.batch), "--processes", "1"]
        perfdash(folder, *run, "--out", "runs", "--no-history", *map(str, words), *cores)
    perfdash(folder, "explain", "last", "*", "--out", "runs")
    if change.explain:
        perfdash(folder, "explain", "last", "*", "--out", "runs", *change.explain, *cores)
    for script in sorted(folder.glob("*/reproduce.py")):
        call(folder, f"python {script.relative_to(folder)}", [sys.executable, "-I", str(script)])
    (folder / DONE).touch()


def published(changes: dict[str, Change], plants: Path, folder: Path) -> str:
    """The list and the transcripts of `explain` as Markdown."""
    digest = hashlib.sha256(plants.read_bytes()).hexdigest()
    lines = [
        f"# Planted changes of {plants.name}, and what `perfdash explain` said",
        "",
        f"List: `{plants.name}`, SHA-256 `{digest}`.",
        "",
        "| # | name | kind | options before | options after | a right answer names | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, (name, change) in enumerate(changes.items(), 1):
        options = [" ".join(words) or "-" for words in (change.options_before, change.options_after)]
        cells = [str(number), name, change.kind, *options, change.expected, ""]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    for name in changes:
        file = folder / name / TRANSCRIPT
        text = file.read_text() if (folder / name / DONE).exists() else "Not measured.\n"
        calls = [
            part for part in text.split("\n$ ") if not part.removeprefix("$ ").startswith("perfdash run")
        ]
        shown = "\n$ ".join(calls) if calls else text
        lines += ["", f"## {name}", "", "```", without_host(shown, folder).strip(), "```"]
    return "\n".join(lines) + "\n"


def without_host(text: str, folder: Path) -> str:
    """A transcript without this machine's paths and name."""
    name = socket.gethostname().split(".")[0]
    for path, short in ((folder.absolute(), "FOLDER"), (sys.prefix, "VENV"), (Path.home(), "~")):
        text = text.replace(str(path), short)
    return text.replace(f"Z_{name}", "Z_host")


def main() -> None:
    """Measure and explain the changes that are named, or all; or publish them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--plants", type=Path, required=True, help="a Python file with the dict CHANGES")
    parser.add_argument("--old-torch", help="an interpreter with an older torch")
    parser.add_argument("--cores", help="which cores to measure on")
    parser.add_argument("--publish", type=Path, help="write the list and the transcripts to this file")
    options = parser.parse_intermixed_args()
    sys.modules["planted_changes"] = sys.modules["__main__"]  # of which the plants import Change
    changes: dict[str, Change] = runpy.run_path(str(options.plants))["CHANGES"]
    if unknown := set(options.names) - set(changes):
        parser.error(f"no plant {', '.join(sorted(unknown))}; there are: {', '.join(changes)}")
    if options.publish:
        options.publish.write_text(published(changes, options.plants, options.folder))
        return
    cores = ["--cores", options.cores] if options.cores else []
    for name in options.names or changes:
        if not (options.folder / name / DONE).exists():
            plant(options.folder / name, changes[name], options.old_torch, cores)
            print(f"{name}: {options.folder / name / TRANSCRIPT}", flush=True)


if __name__ == "__main__":
    main()
