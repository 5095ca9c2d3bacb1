"""--json of every command: one JSON value on standard output, messages on standard error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import typer

from perfdash.cli import app
from perfdash.detect.findings import Finding
from perfdash.errors import MachineError, UsageError
from perfdash.history import ingest
from perfdash.records import Case
from perfdash.runner.remeasurement import Decision
from tests.bisection.scripted import Script, begin, bisected
from tests.cli.run_folders import RUN, write_run
from tests.publish.chat import SECRET, Chat
from tests.publish.server import TOKEN, GitHub
from tests.publish.smtp import Post
from tests.report.results import a_night

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
# Why a command has no --json.
WITHOUT_JSON = {"bisect log": "its output is for `git bisect replay`"}
NIGHT = "2026-01-28T01-00-00Z_farm"


def commands(command, path=()):
    """(name, command) of all that can be called: commands, and groups that do something themselves."""
    below = getattr(command, "commands", {})
    if not below or (path and command.invoke_without_command):
        yield " ".join(path), command
    for name, inner in below.items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_or_a_reason(name):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert ("--json" in options) != (name in WITHOUT_JSON)


def test_groups_that_do_something_are_among_them():
    assert {"bisect", "bisect mark", "history import", "nightly end", "run"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_the_page_about_json(name):
    assert f"`{name}`" in PAGE.read_text()


def printed(ran, code=0):
    """The value that a command printed. Nothing else is on standard output, and no number is NaN."""
    assert ran.code == code, ran.err
    return json.loads(ran.out, parse_constant=pytest.fail)


def test_a_nightly(called):
    words = ("--every", "24h", "--expect", "timm cpu float32", "--night", "n1", "--json")
    begun = printed(called("nightly", "begin", *words))
    assert (begun["job"], begun["night"], begun["every_s"]) == ("nightly", "n1", 86400)
    assert (begun["state"], begun["ended"], begun["expected"]) == ("running", None, ["timm cpu float32"])
    (beat,) = printed(called("doctor", "--nightly", "--json"))
    assert (beat["level"], beat["job"]) == ("running", "nightly")
    ended = printed(called("nightly", "end", "--state", "ok", "--json"))
    assert (ended["state"], ended["why"]) == ("partial", "timm cpu float32 was not measured")
    assert printed(called("nightly", "list", "--json")) == [ended]
    (beat,) = printed(called("doctor", "--nightly", "--json"), code=1)
    assert beat["level"] == "partial"
    assert printed(called("nightly", "forget", "nightly", "--json")) == {"job": "nightly", "forgotten": 1}
    refused = called("nightly", "forget", "nightly", "--json")
    assert (refused.code, refused.out) == (2, "")


def test_an_import(called, tmp_path):
    write_run(tmp_path / "runs" / RUN, a_night())
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    ran = called("history", "import", "runs", "--json")
    plain = printed(ran, code=2)
    (run,) = plain["runs"]
    assert (run["name"], run["outcome"], run["origin"]) == (RUN, "imported", "perfdash")
    assert run["results"] == len(a_night())
    assert plain["left_out"] == []
    (message,) = plain["cannot_be_imported"]
    assert message in ran.err
    (run,) = printed(called("history", "import", f"runs/{RUN}", "--json"))["runs"]
    assert run["outcome"] == "known"


@pytest.mark.parametrize(
    ("error", "code", "names"),
    [(MachineError("the disk is full"), 3, ["a"]), (UsageError("b: eager_ms is inf"), 2, ["a", "c"])],
)
def test_an_import_that_fails_halfway(called, tmp_path, monkeypatch, error, code, names):
    for name in ("a", "b", "c"):
        folder = write_run(tmp_path / "runs" / name, a_night())
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(record | {"id": name}))

    def failing(store, runs, warn, take_in=ingest.take_in):
        if [imported.run.name for imported in runs] == ["b"]:
            raise error
        return take_in(store, runs)

    monkeypatch.setattr(ingest, "take_in", failing)
    ran = called("history", "import", "runs", "--json")
    plain = printed(ran, code=code)
    assert [run["name"] for run in plain["runs"]] == names
    assert plain["cannot_be_imported"] == ([] if code == 3 else ["b: eager_ms is inf"])
    assert str(error) in ran.err


def test_an_import_that_fails_before_it_stores_anything(called, tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "a", a_night())

    def failing(store, runs, warn):
        raise MachineError("the disk is full")

    monkeypatch.setattr(ingest, "take_in", failing)
    ran = called("history", "import", "runs", "--json")
    assert (ran.code, ran.out) == (3, "")


@pytest.mark.slow
def test_an_export_pruning_and_a_merge(command, farmed):
    exported = printed(command("history", "export", "all.csv", "--since", "2026-01-29", "--json"))
    assert exported == {"file": "all.csv", "format": "csv", "runs": 2, "results": 48}
    words = ("history", "prune", "--before", "2026-01-03", "--json")
    would = printed(command(*words))
    assert (would["done"], len(would["runs"]), would["results"]) == (False, 2, None)
    assert len(printed(command("history", "runs", "--json"))) == 30
    removed = printed(command(*words, "--yes"))
    assert removed == {**would, "done": True, "results": 48}
    merged = printed(command("history", "merge", "runs/history.db", "--db", "other.db", "--json"))
    alerts = {"alerts": 1, "alerts_not_copied": 0}
    assert merged == {"imported": 28, "replaced": 0, "known": 0, "left_out": 0, **alerts}


@pytest.mark.slow
def test_what_people_do_to_runs(command, farmed):
    excluded = printed(command("history", "exclude", NIGHT, "--because", "a stray <build>", "--json"))
    assert excluded == {"run": NIGHT, "excluded": "a stray <build>", "judged_again": 2}
    back = printed(command("history", "exclude", NIGHT, "--undo", "--json"))
    assert back == {"run": NIGHT, "excluded": None, "judged_again": 3}
    (alert,) = printed(command("regressions", "--json"))  # both judged the nights again
    assert alert["case"]["model"] == "model03"
    renamed = printed(command("history", "rename", NIGHT, "moved", "--json"))
    assert renamed == {"run": NIGHT, "name": "moved"}
    would = printed(command("history", "remove", "moved", "--json"))
    assert (would["done"], would["run"], would["results"], would["judged_again"]) == (False, "moved", 24, 0)
    removed = printed(command("history", "remove", "moved", "--yes", "--json"))
    assert removed == {**would, "done": True, "judged_again": 2}


def test_what_people_decide_about_alerts(command, farmed):
    (alert,) = printed(command("regressions", "--json"))
    number = alert["id"]
    words = ("--acknowledge", str(number), "--until", "2999-12-24", "--because", "see #1", "--json")
    assert printed(command("regressions", *words)) == {
        "alert": number, "state": "acknowledged", "until": "2999-12-24", "because": "see #1",
    }  # fmt: skip
    level = ("regressions", str(number), "--baseline-from", NIGHT, "--because", "meant", "--json")
    accepted = printed(command(*level))
    assert accepted == {
        "run": NIGHT, "cases": 1, "accepted_alerts": [number], "judged_again": 3, "because": "meant",
    }  # fmt: skip


def test_an_invalid_alert(command, farmed):
    (alert,) = printed(command("regressions", "--json"))
    ended = printed(command("regressions", "--invalid", str(alert["id"]), "--because", "x", "--json"))
    assert ended == {"alert": alert["id"], "state": "invalid", "because": "x"}


def test_a_report(command, farmed):
    plain = printed(command("report", "--json"))
    assert plain == printed(command("report", "--format", "json"))
    assert printed(command("report", "--json", "--to", "night.json")) == {"files": ["night.json"]}
    assert json.loads((farmed / "night.json").read_text()) == plain
    files = printed(command("report", "--json", "--format", "plot-csv", "--to", "plots"))["files"]
    assert sorted(files) == sorted(str(path.relative_to(farmed)) for path in (farmed / "plots").iterdir())
    refused = command("report", "--json", "--format", "html")
    assert (refused.code, refused.out) == (2, "")
    assert "leave out --format html" in refused.err


def test_a_comparison(command, farmed):
    words = ("compare", "2026-01-25", "2026-01-26", "--json")
    assert len(printed(command(*words))["cases"]) == 24
    refused = command(*words, "--format", "csv")
    assert (refused.code, refused.out) == (2, "")


def test_a_bisection_that_is_marked(called, tmp_path):
    folder = tmp_path / "runs" / "bisections" / "one"
    bisected(Script.step(40, at=20), folder)
    marked = printed(called("bisect", "mark", "10", "bad", "--json"))
    assert (Path(marked["bisection"]).name, marked["side"]) == ("one", "bad")
    assert marked["revision"]
    text = called("bisect", "mark", "11", "bad")
    assert " is marked bad. To continue: perfdash bisect --resume " in text.out


@pytest.mark.slow
def test_a_plan_of_a_bisection(called, tmp_path):
    for version in ("1.0", "1.1", "1.2"):
        (tmp_path / f"lib-{version}-py3-none-any.whl").touch()
    ran = called(
        "bisect", "--good", "1.0", "--bad", "1.2", "--recipe", "wheels:lib", "--wheels", str(tmp_path),
        "--dry-run", "--json", "--", "true",
    )  # fmt: skip
    plan = printed(ran)
    assert (plan["revisions"], plan["good"]["label"], plan["bad"]["label"]) == (3, "1.0", "1.2")
    assert (plan["metric"], plan["subject"], plan["jobs"]) == ("exit-code", "true", 1)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def hub(monkeypatch):
    made = GitHub()
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    yield made
    made.close()


@pytest.fixture
def post(called, hub, tmp_path):
    write_run(tmp_path / "runs" / RUN, a_night())
    words = ("--repo", "team/perf", "--issue", "3", "--json")
    return lambda *more: called("post", *words, "--base-url", hub.url, *more)


def test_a_post(post, hub):
    planned = printed(post("--dry-run"))
    assert (planned["dry_run"], planned["wanted_issues"], planned["waiting"]) == (True, [], 0)
    (text,) = planned["texts"]
    assert hub.requests == []
    done = printed(post())
    assert hub.of() == [text]
    url = hub.comments[0]["html_url"]
    assert done["comments"] == {"urls": [url], "created": 1, "edited": 0, "removed": 0}
    assert (done["dry_run"], done["issues"]) == (False, None)


def test_a_post_that_fails_has_no_json(post, hub):
    hub.fault("GET", 403, message=f"Authorization: token {TOKEN}")
    ran = post()
    assert (ran.code, ran.out) == (3, "")
    assert TOKEN not in ran.err


def test_a_post_of_a_bisection(post, hub, tmp_path):
    begin(Script.step(30, at=10), tmp_path / "runs" / "bisections" / "one")
    (text,) = printed(post("--bisection", "one", "--dry-run"))["texts"]
    assert "not finished" in text
    assert printed(post("--bisection", "one"))["comments"]["created"] == 1


def test_a_notification(called, tmp_path):
    write_run(tmp_path / "runs" / RUN, a_night())
    with Post() as mail, Chat() as chat:
        env = {"PERFDASH_SMTP": f"127.0.0.1:{mail.port}", "PERFDASH_WEBHOOK": chat.url}
        words = ("notify", "--mail-to", "a@example.org", "--webhook", "--json")
        plan = printed(called(*words, "--dry-run", env=env))
        assert plan["sent"] == []
        assert chat.got == []
        ran = called(*words, env=env)
        plain = printed(ran)
        assert plain == {
            "message": plan["message"],
            "sent": [{"way": "mail", "to": ["a@example.org"]}, {"way": "webhook"}],
        }
        assert plain["message"]["title"] == "perfdash: Not compared with other runs"
        mail.refused.add("a@example.org")
        ran = called(*words, env=env)
        assert printed(ran, code=3)["sent"] == [{"way": "webhook"}]
        assert "refuses every address" in ran.err
        assert SECRET not in ran.out + ran.err


def test_a_secret_within_json(called, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "s3cret-value-of-a-token")
    called("nightly", "begin", "--night", "n1")
    ended = called(
        "nightly", "end", "--state", "failed", "--why", "no wheel at s3cret-value-of-a-token", "--json"
    )
    assert printed(ended)["why"] == "no wheel at ***"


def a_decision(word, numbers, change):
    finding = Finding("metric", 1, "backend_ms", 1, 11, 12, change=change)
    return Decision(Case("timm", "resnet18"), finding, word, numbers, 8)


@pytest.mark.parametrize(
    ("word", "decision"),
    [("stands", "confirmed"), ("dismissed", "dismissed"), ("more", "undecided"), ("nothing", "undecided")],
)
def test_a_remeasured_change(word, decision):
    numbers = {"pairs": 8, "ratio": 1.24, "low": 1.2, "high": 1.28}
    plain = a_decision(word, numbers, math.log(1.25)).to_plain()
    assert (plain["decision"], plain["measured"], plain["pairs"]) == (decision, numbers, 8)
    assert plain["suspected_ratio"] == pytest.approx(1.25)
    assert (plain["case"]["model"], plain["metric"], plain["direction"]) == ("resnet18", "backend_ms", 1)


def test_a_remeasured_change_without_a_size():
    assert a_decision("nothing", None, change=None).to_plain()["suspected_ratio"] is None
