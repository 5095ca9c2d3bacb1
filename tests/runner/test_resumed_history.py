"""Which history a resumed run goes into."""

from __future__ import annotations

import pytest

from perfdash.errors import UsageError
from perfdash.runner import run as runs
from perfdash.runner.plan import cut
from perfdash.runner.run_journal import RunJournal
from perfdash.settings import resolve
from tests.runner.planned import case

SECRET = "postgresql://me:s3cret-word@host/perf"
PLAIN = "postgresql://me@host/perf"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERFDASH_DB", raising=False)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """begun(db=..., variable=...): a run folder; from then on neither is given."""

    def begin(db=None, variable="", **flags):
        settings = resolve({"db": db, "out": tmp_path / "runs", **flags}, {"PERFDASH_DB": variable})[0]
        plan = cut([case("a")], [1.0], None)
        journal = RunJournal.create(settings.out)
        journal.write_info(runs.new_info(journal.folder.name, settings, plan, {}, ["perfdash"]))
        journal.close()
        assert "s3cret" not in (journal.folder / "run.json").read_text()
        return journal.folder

    return begin


def resumed(folder, **flags):
    return runs.run_to_resume(str(folder), {"out": None, "db": None, **flags})[2].history


@pytest.mark.parametrize("given", ["db", "variable"])
@pytest.mark.parametrize(("address", "again"), [
    ("team.db", "{home}/team.db"),
    ("sqlite:///team.db", "sqlite:///{home}/team.db"),
    (PLAIN, PLAIN),
    ("runs/history.db", "{home}/runs/history.db"),
])  # fmt: skip
def test_the_history_of_a_run_is_remembered(begun, tmp_path, monkeypatch, given, address, again):
    folder = begun(**{given: address})
    monkeypatch.chdir("/")
    assert resumed(folder) == again.format(home=tmp_path)
    assert resumed(folder, db="/other.db") == "/other.db"


def test_the_default_history_is_beside_the_run_wherever_that_is_now(begun, tmp_path):
    folder = begun(db="runs/history.db")
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert resumed(tmp_path / "moved" / folder.name) == str(tmp_path / "moved" / "history.db")


@pytest.mark.parametrize("origin", ["PERFDASH_DB", "perfdash.toml"])
def test_a_run_of_the_default_history_stays_there(begun, tmp_path, monkeypatch, origin):
    """A history that the team has set since is no other history for this run."""
    folder = begun()
    if origin == "PERFDASH_DB":
        monkeypatch.setenv(origin, "/team.db")
    else:
        (tmp_path / origin).write_text('[run]\ndb = "/team.db"\n')
    assert resumed(folder) == str(tmp_path / "runs/history.db")
    assert resumed(folder, db="/other.db") == "/other.db"
    # A run of an older perfdash has no mark of the default.
    run_json = folder / "run.json"
    run_json.write_text(run_json.read_text().replace('"history.db"', "null"))
    assert resumed(folder) == "/team.db"


def test_an_address_with_a_password_is_given_again(begun, monkeypatch):
    folder = begun(variable=SECRET)
    with pytest.raises(UsageError, match=r"its history was given with a password.* Set PERFDASH_DB again"):
        resumed(folder)
    assert resumed(folder, db=PLAIN) == PLAIN
    monkeypatch.setenv("PERFDASH_DB", SECRET)
    assert resumed(folder) == SECRET


def test_a_run_in_no_history_needs_no_address(begun):
    assert begun(variable=SECRET, no_history=True)
    folder = begun(variable=SECRET)
    assert runs.run_to_resume(str(folder), {"out": None, "db": None, "no_history": True})
