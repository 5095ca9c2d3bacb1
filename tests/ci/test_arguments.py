"""ci/nightly/common.sh: RUN_ARGUMENTS, words with quotes as in a shell, of which nothing is run; numbers."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ci.nights import CHECKOUT
from tests.effort import trials

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029")),
    min_size=1,
    max_size=4,
)


def bash(
    script: str, *words: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    source = f". {CHECKOUT}/ci/nightly/common.sh; cd - >/dev/null; {script}"
    return subprocess.run(
        ["bash", "-c", source, "bash", *words], cwd=cwd, env=env, capture_output=True, text=True
    )


@given(words=WORDS)
@settings(max_examples=trials(40))
@pytest.mark.slow
def test_quoted_words_come_back(words: list[str]) -> None:
    ran = bash('arguments_of "$(quoted "$@")"; printf \'%s\\0\' "${more[@]}"', *words)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\0")[:-1] == words


def test_nothing_in_it_is_run(tmp_path: Path) -> None:
    text = "--jobs auto $(touch ran) `touch ran`; touch ran \"a 'b'\""
    ran = bash('arguments_of "$1"; printf \'%s\\n\' "${more[@]}"', text, cwd=tmp_path)
    assert ran.stdout.split("\n")[:3] == ["--jobs", "auto", "$(touch"]
    assert ran.stdout.endswith("ran\na 'b'\n")
    assert not list(tmp_path.iterdir())


def test_a_quote_that_does_not_end_is_reported_without_what_was_typed() -> None:
    ran = bash('arguments_of "--env A_TOKEN=\'s3cret"')
    assert ran.returncode == 2
    assert "quotes do not match" in ran.stderr
    assert "s3cret" not in ran.stderr


def test_a_service_of_the_system_gets_its_home() -> None:
    """systemd gives it PATH and LANG; the environments of builds are kept below HOME."""
    ran = bash("printenv HOME", env={"PATH": os.environ["PATH"]})
    assert ran.stdout == pwd.getpwuid(os.getuid()).pw_dir + "\n", ran.stderr


@pytest.mark.parametrize(("command", "code"), [("false", 3), ("complain 2 wrong", 2)])
def test_a_full_disk_below_the_messages_does_not_change_the_exit_code(
    tmp_path: Path, command: str, code: int
) -> None:
    """Of a script with a gate 1 would be the gate's: the nightly would take the cell for measured."""
    script = tmp_path / "measure.sh"
    script.write_text(f". {CHECKOUT}/ci/nightly/common.sh\ngate=yes\n{command}\n")
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(["bash", script], stdout=full, stderr=full).returncode == code


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LC_ALL", "LANG"])
def test_numbers_have_a_point_in_every_language(tmp_path: Path, name: str) -> None:
    """mawk writes 1,5 on a German machine, which no option takes: --minutes of perfdash confirm."""
    env = {"PATH": os.environ["PATH"], "LOCPATH": str(tmp_path), name: "de_DE.UTF-8"}
    assert bash("awk 'BEGIN { print ENVIRON[\"LC_ALL\"] }'", env=env).stdout == "C\n"
    # Where this machine knows German, too, what follows from it.
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"])
    assert bash("awk -v left=2.5 'BEGIN { print left - 1 }'", env=env).stdout == "1.5\n"
