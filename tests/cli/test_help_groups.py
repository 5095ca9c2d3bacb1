"""Help in groups, `-h` everywhere, and completion of the shell."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from perfdash.cli import app
from perfdash.run_options import HEADINGS, run_options


def leaves(command, path=()):
    """(name, command) of every command that is no group."""
    if not getattr(command, "commands", None):
        yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


def help_of(*words):
    # A terminal of 80 columns gives the help 78.
    return CliRunner().invoke(app, [*words, "-h"], terminal_width=78).output


def test_commands_stand_in_groups():
    lines = help_of().splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", "Measure:", "Look:", "Every night:", "Pages:", "History:"]


@pytest.mark.parametrize("words", [(), ("history",), ("nightly",)], ids=str)
def test_no_line_about_a_command_is_cut(words):
    assert "..." not in help_of(*words).replace("[ARGS]...", "")


def test_every_option_of_a_run_has_a_heading():
    placed = [name for names in HEADINGS.values() for name in names]
    assert sorted(placed) == sorted(run_options())


def test_run_help_has_groups_and_three_examples():
    text = help_of("run")
    for heading in HEADINGS:
        assert f"\n{heading}:\n" in text
    examples = text[text.index("Examples:") :].splitlines()[1:]
    assert sum(line.strip().startswith("perfdash run") for line in examples) == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_dash_h_is_help(name):
    text = help_of(*name.split())
    assert text.startswith("Usage: ")
    assert "-h, --help" in text


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("perfdash ru", "run"),
        ("perfdash run --su", "--suite"),
        ("perfdash run --suite t", "timm"),
        ("perfdash run --dtype b", "bfloat16"),
        ("perfdash run --dtype float32,b", "float32,bfloat16"),
        ("perfdash run --backend induct", "inductor"),
        ("perfdash run --configuration dyn", "dynamic"),
        ("perfdash show ", "last"),
    ],
)
def test_completion(typed, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = typed.split(" ")
    variables = {
        "_PERFDASH_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(app, [], prog_name="perfdash", env=variables)
    assert wanted in done.output.split("\n")


def test_out_is_the_folder_of_runs_everywhere():
    texts = {
        getattr(parameter, "help", "")
        for command in COMMANDS.values()
        for parameter in command.params
        if "--out" in parameter.opts
    }
    assert all(text.startswith("Folder of the runs") for text in texts)
