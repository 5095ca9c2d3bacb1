"""perfdash.bisect: what it takes, refuses and returns, on a repository made here."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from dataclasses import replace

import pytest

import perfdash
from perfdash import api
from perfdash.bisection.journal import read
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import Culprit, MetricChange, _shown, result_of
from perfdash.cli import bisect as command_line
from tests.bisection.scripted import revision
from tests.repositories import Repository

# The number that a commit is worth is in its file.
ASK = "import pathlib\nprint(float(pathlib.Path('level').read_text().split()[0]))\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository of 12 commits, of which the 7th costs 50 %; the folder that bisections are begun in."""
    repository = Repository(tmp_path / "repo")
    commits = [
        repository.commit(f"change {n} <b>", {"level": f"{15 if n >= 6 else 10} {n}\n"}) for n in range(12)
    ]
    (tmp_path / "ask.py").write_text(ASK)
    monkeypatch.setenv("PERFDASH_BUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return commits


def by_a_command(folder):
    command = [sys.executable, str(folder / "ask.py")]
    return {"repo": "repo", "metric": "stdout", "command": command, "wait": "5m"}


def test_it_has_the_options_of_the_command():
    parameters = inspect.signature(command_line.bisect).parameters
    assert set(api._bisect_flags({})) == set(parameters) - {"context", "resume"}
    defaults = {name: parameters[name].default for name in parameters if name not in ("context", "resume")}
    assert api._bisect_flags({}) == defaults


def test_options_are_written_as_the_command_that_repeats_it():
    given = {
        "good": "v1",
        "bad": "v2",
        "env": {"A": "1"},
        "settings": {"versions.count": 3},
        "confirm": False,
    }
    flags = api._bisect_flags({**given, "all_commits": True, "repo": "r"})
    assert api._as_command("bisect", flags, ["python", "ask.py"]) == [
        "bisect", "--good", "v1", "--bad", "v2", "--env", "A=1", "--repo", "r", "--set", "versions.count=3",
        "--all-commits", "--no-confirm", "--", "python", "ask.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modell": "x"}, r"no option 'modell' \(did you mean model"),
        ({"status": "last"}, "no option 'status'"),
        ({"confidence": 95}, "--confidence 95: give a number from 0.6 to 0.9999"),
        ({"model": lambda size: None, "command": None}, "write the function into a file"),
        ({"good": None}, "--good is missing"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_built(place, tmp_path, options, message):
    given = {"good": place[0], "bad": place[-1], "repo": "repo", "metric": "stdout", "command": ["true"]}
    with pytest.raises(perfdash.UsageError, match=message):
        perfdash.bisect(**{**given, **options})
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_culprit_is_found_and_signals_are_kept(place, tmp_path, capsys):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    asked = by_a_command(tmp_path)
    found = perfdash.bisect(place[0], place[-1], confirm=False, max_builds=2, progress=False, **asked)
    assert (found.word, found.culprits) == ("not finished", ())
    found = perfdash.bisect(resume=found.name, wait="5m", progress=False)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert found.word == "found"
    assert [one.id for one in found.culprits[0].revisions] == [place[6]]
    assert repr(found).splitlines()[2].strip().startswith(f"{place[6][:10]} change 6 <b>, +5")
    assert "change 6 &lt;b&gt;" in found._repr_html_()
    assert found.line[:2] == ("perfdash", "bisect")
    assert "--good" in found.line
    assert not {word for word in sys.argv if word} & set(found.line)
    (folder,) = (tmp_path / "runs" / "bisections").iterdir()
    assert result_of(Bisection(read(folder))) == found
    assert (folder / "report.md").is_file()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_it_runs_in_a_thread_that_takes_no_signals(place, tmp_path):
    words = []

    def run():
        words.append(perfdash.bisect(place[4], place[8], confirm=False, **by_a_command(tmp_path)).word)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert words == ["found"]


def test_culprits_are_shown_in_a_line_each():
    one = Culprit(
        "git", 0, (revision(1), revision(2)), revision(0), 0.981, MetricChange(10, 12, 1.2, 1.19, 1.21),
        "confirmed", MetricChange(), 4,
    )  # fmt: skip
    assert (
        _shown(one, "ratio") == "one of 2 up to 2, +20.00% (+19.00% to +21.00%), probability 98.1%, confirmed"
    )
    count = replace(one, revisions=(revision(2),), change=MetricChange(1, 3, 2.0, None, None), confirmed="")
    assert _shown(count, "count") == "2 change 2, 1 before, 3 since, probability 98.1%"
