"""perfdash explain --profile on real runs: two interpreters stand for two builds, one of them slower."""

from __future__ import annotations

import json

import pytest

from tests.cli.two_builds import MODELS, interpreter
from tests.conftest import perfdash

RUN = [
    "run",
    "--model",
    f"{MODELS}:busy",
    "--backend",
    "aot_eager",
    "--processes",
    "1",
    "--no-history",
    "--out",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs under two builds: (home, words that name the later one and the earlier one)."""
    home = tmp_path_factory.mktemp("profiled")
    for name, milliseconds in (("fast", 1.0), ("slow", 9.0)):
        python = interpreter(home / name, milliseconds)
        done = perfdash(*RUN, f"of-{name}", "--python", python, cwd=home, quickly=True)
        assert done.code == 0, done.err
    old, new = (str(next((home / f"of-{name}").glob("*/run.json")).parent) for name in ("fast", "slow"))
    return home, [new, "*busy", "--against", old]


@pytest.mark.slow
def test_the_operator_that_got_slower_is_named_with_its_share(runs):
    home, words = runs
    words = [*words, "--profile", "--pairs", "3", "--json", "--tlparse", "traces", "--reproducer", "script"]
    done = perfdash("explain", *words, cwd=home, quickly=True)
    assert done.code == 2  # of the script; the profile is printed all the same
    assert "is an operator of perfdash_confirmed, not of torch" in done.err
    profile = json.loads(done.out)["profile"]
    (row,) = [row for row in profile["eager"]["rows"] if row["named"]]
    assert row["new"] == ["perfdash_confirmed.work.default (1x8)"]
    # About 8 ms and all of the change; how much more or less is the machine's, but not ten times.
    assert 2 < row["change_ms"][0] < 80
    assert 0.5 < profile["eager"]["share"] < 2
    assert any("no generated wrapper" in note for note in profile["notes"])
    assert "perfdash_confirmed.work.default" in (home / profile["folder"] / "report.txt").read_text()
    for side in ("old", "new"):
        assert any(path.stat().st_size for path in (home / "traces" / side).iterdir())
        assert (home / profile["folder"] / f"1-{side}" / "eager.trace.json").stat().st_size


@pytest.mark.slow
def test_what_cannot_be_profiled_is_refused_before_anything_is_measured(runs):
    home, words = runs
    new, model, *_ = words
    same = perfdash("explain", new, model, "--against", new, "--profile", cwd=home)
    assert (same.code, "one build to profile" in same.err) == (2, True)
    assert "--old-python" in same.err
    without = perfdash("explain", *words, "--pairs", "4", cwd=home)
    assert (without.code, "belong to --profile" in without.err) == (2, True)
    missing = perfdash("explain", *words, "--profile", "--old-python", "/nowhere/python", cwd=home)
    assert missing.code == 3
    assert "/nowhere/python cannot be started" in missing.err
