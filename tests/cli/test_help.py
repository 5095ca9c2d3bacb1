"""Every default that a help text names by hand is shown."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from perfdash.cli import app

BY_HAND = re.compile(r"\[default: [^\]]*\]")


def commands(command, path=()):
    """(words, command) of every command, groups included."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))


def test_there_are_some():
    texts = [getattr(param, "help", "") or "" for command in EVERY.values() for param in command.params]
    assert sum(bool(BY_HAND.search(text)) for text in texts) > 40


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_defaults_are_no_markup(words):
    shown = " ".join(CliRunner().invoke(app, [*words, "--help"], terminal_width=200).output.split())
    for param in EVERY[words].params:
        for default in BY_HAND.findall(getattr(param, "help", None) or ""):
            assert " ".join(default.split()) in shown, param.opts
