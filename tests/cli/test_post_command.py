"""perfdash post as typed, against a GitHub on loopback."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from perfdash.cli import main
from perfdash.errors import MachineError
from perfdash.history import nightlies
from perfdash.history.ingest import take_in
from perfdash.history.nightlies import Nightly
from perfdash.history.store import open_store
from perfdash.publish import github
from tests.cli.run_folders import RUN, write_run
from tests.detect.simulated import farm, slower
from tests.publish.server import TOKEN, GitHub
from tests.report.results import a_night


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(github, "_BETWEEN_WRITES_S", 0.0)  # the pause is tests/publish/test_github.py's
    made = GitHub()
    yield made
    made.close()


@pytest.fixture
def perfdash(hub, tmp_path, monkeypatch, capsys):
    """perfdash(...) in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    for name in ("PERFDASH_DB", "PERFDASH_OUT"):
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["perfdash", *words])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        assert TOKEN not in printed.out + printed.err
        return left.value.code, printed.out, printed.err

    return run


@pytest.fixture
def post(perfdash, hub):
    return lambda *words: perfdash(
        "post", *words, "--repo", "team/perf", "--issue", "3", "--base-url", hub.url
    )


@pytest.fixture
def folder(tmp_path):
    """A run folder, without a history."""
    return write_run(tmp_path / "runs" / RUN, a_night())


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_a_proxy_that_repeats_the_token(perfdash, hub, folder, debug):
    hub.fault("GET", 403, message="x" * 290 + f"Authorization: token {TOKEN}")
    words = ["post", "--repo", "team/perf", "--issue", "3", "--base-url", hub.url]
    code, out, err = perfdash(*debug, *words)
    assert code == 3
    assert TOKEN[:8] not in out + err
    assert ("Traceback" in err) == bool(debug)


def test_a_night_is_posted_and_posted_again(post, hub, folder):
    code, out, err = post()
    assert code == 0, err
    assert out == f"Posted: {hub.comments[0]['html_url']} (1 new)\n"
    (body,) = hub.of()
    assert body.startswith(f"<!-- perfdash:1 comment run={RUN} part=1 -->\n# ")
    assert "/crashed bs 1`: crash" in body
    code, out, _ = post(str(folder), "--site-url", "https://perf.example/dash")
    assert (code, out) == (0, f"Posted: {hub.comments[0]['html_url']} (1 edited)\n")
    assert "https://perf.example/dash/" in hub.of()[0]
    assert len(hub.of()) == 1
    assert not list(folder.glob("comment*"))


def test_a_dry_run_needs_no_token_and_no_network(post, hub, folder, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN")
    code, out, _ = post("--dry-run")
    assert code == 0
    assert "/crashed bs 1`: crash" in out
    assert hub.requests == []


def test_what_failed_is_kept_and_the_printed_command_posts_it(post, perfdash, hub, folder, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "")
    code, _, err = post("--site-url", "https://perf.example/a b")
    assert code == 3
    assert "set the environment variable GITHUB_TOKEN" in err
    comment = (folder / "comment.md").read_text()
    assert f"The text is kept in {folder / 'comment.md'}." in err
    command = shlex.split(err.splitlines()[-1])
    assert command[0] == "perfdash"
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.chdir("/")
    code, _, err = perfdash(*command[1:])
    assert code == 0, err
    assert hub.of() == [comment]


def test_many_parts_are_kept_apart(post, hub, tmp_path):
    (result,) = a_night()[:1]
    case = result.case
    many = [replace(result, case=replace(case, model=f"m{n}" + "x" * 150)) for n in range(300)]
    folder = write_run(tmp_path / "runs" / RUN, many)
    hub.fault("GET /repos", 404, message="Not Found", times=9)
    (folder / "comment-9of9.md").write_text("of an earlier try")
    code, _, err = post("--tables")
    assert code == 3
    assert "does not exist, or the token does not see it" in err
    assert err.rstrip().endswith("--tables")
    count = len(list(folder.glob("comment*")))
    assert count > 1
    names = [f"comment-{n}of{count}.md" for n in range(1, count + 1)]
    assert sorted(path.name for path in folder.glob("comment*")) == sorted(names)
    hub.faults.clear()
    code, out, _ = post("--tables")
    assert code == 0
    assert f"({count} new)" in out
    assert hub.of() == [(folder / name).read_text() for name in names]


def test_a_history_out_of_reach_does_not_hold_up_the_comment(post, hub, folder, monkeypatch):
    for user in ("perfdash.report.run_lookup", "perfdash.publish.tracked_regressions"):
        monkeypatch.setattr(f"{user}.open_store", unreachable)
    code, out, err = post("--new-issue-on", "regression")
    assert code == 3
    assert out.startswith("Posted: ")
    assert len(hub.of()) == 1
    assert "nothing was done about the issues of regressions: the history" in err
    assert "--new-issue-on regression" in err.splitlines()[-1]
    code, out, err = post("--new-issue-on", "regression", "--dry-run")
    assert code == 3
    assert "/crashed bs 1`: crash" in out


def unreachable(*_, **__):
    raise MachineError("the history postgresql://host/x cannot be opened: no answer")


def test_a_text_that_cannot_be_kept(post, hub, folder):
    (folder / "comment.md").mkdir()
    hub.fault("GET /repos", 410, message="This issue was deleted")
    code, _, err = post()
    assert code == 3
    assert "deleted, or issues are switched off" in err
    assert f"could not be kept in {folder}" in err
    assert "Post it later with:\n  perfdash post " in err


def test_a_post_that_fails_halfway_has_the_comments_that_it_wrote(post, hub, tmp_path):
    (result,) = a_night()[:1]
    case = result.case
    many = [replace(result, case=replace(case, model=f"m{n}" + "x" * 150)) for n in range(300)]
    write_run(tmp_path / "runs" / RUN, many)
    hub.before = lambda line: line.startswith("POST") and hub.fault("POST", 403, message="is locked")
    code, out, err = post("--tables", "--json")
    assert (code, len(hub.of())) == (3, 1), err
    written = hub.comments[0]["html_url"]
    done = {"urls": [written], "created": 1, "edited": 0, "removed": 0}
    assert (json.loads(out)["comments"], json.loads(out)["issues"]) == (done, None)
    hub.faults.clear()
    hub.fault("PATCH|POST", 403, message="is locked")
    code, out, err = post("--tables", "--json", "--site-url", "https://perf.example")
    assert (code, out) == (3, ""), "nothing was written"


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.slow
def test_a_locked_comment_issue_does_not_hold_up_the_issues_of_regressions(post, hub, tmp_path, words):
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, farm(31, models=24, change=slower("model03", 27, 1.15)))
    hub.locked.add(3)
    code, out, err = post("--new-issue-on", "regression", *words)
    assert (code, len(hub.of())) == (3, 0)
    assert "writing a comment of issue 3 in team/perf: " in err
    assert hub.issues[-1]["title"].startswith("Regression: timm/model03")
    assert hub.issues[-1]["html_url"] in out
    assert not words or json.loads(out)["comments"]["created"] == 0


@pytest.mark.parametrize(("status", "words"), [(404, []), (410, ["--json"])])
@pytest.mark.slow
def test_a_deleted_comment_issue_does_not_hold_up_the_issues_of_regressions(
    post, hub, tmp_path, status, words
):
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, farm(31, models=24, change=slower("model03", 27, 1.15)))
    hub.fault("GET .*/issues/3$", status, message="Not Found")
    code, out, err = post("--new-issue-on", "regression", *words)
    assert (code, len(hub.of())) == (3, 0)
    assert "issue 3 of team/perf: " in err
    assert err.rstrip().splitlines()[-1].startswith("  perfdash post ")
    assert hub.issues[-1]["title"].startswith("Regression: timm/model03")
    assert hub.issues[-1]["html_url"] in out
    assert not words or json.loads(out)["issue"] == ""


def test_a_wrong_token_is_told_once(post, hub, tmp_path, monkeypatch):
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, farm(3, models=2))
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_wrong")
    code, out, err = post("--new-issue-on", "regression")
    assert (code, out) == (3, "")
    assert err.count("The token in GITHUB_TOKEN is wrong") == 1


@pytest.mark.slow
def test_issues_that_fail_leave_those_that_were_opened_in_the_output(post, hub, tmp_path):
    first, second = slower("model03", 27, 1.15), slower("model05", 23, 1.2)
    nights = farm(31, models=24, change=lambda *at: first(*at[:2], second(*at)))
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)
    for words in (["--json"], []):
        hub.fault("POST .*issues$", 422, message="spam")
        code, out, err = post("--new-issue-on", "regression", *words)
        opened = hub.issues.pop()["html_url"]
        assert (code, "spam" in err) == (3, True)
        if words:
            assert json.loads(out)["issues"]["opened"] == [opened]
        else:
            assert f"Opened: {opened}\n" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repo", "https://github.com/a/b", "--issue", "3"], "is not OWNER/NAME"),
        (["--repo", "a/..", "--issue", "3"], "is not OWNER/NAME"),
        (["--repo", "a", "--issue", "3"], "is not OWNER/NAME"),
        (["--repo", "a/b", "--issue", "0"], "issue"),
        (["--repo", "a/b"], "issue"),
        (["--repo", "a/b", "--issue", "3", "--new-issue-on", "failure"], "only regression"),
        (["--repo", "a/b", "--issue", "3", "--base-url", "http://ghe.example/api/v3"], "use https"),
        (["--repo", "a/b", "--issue", "3", "--site-url", "perf.example"], "with https://"),
        (["no-such-run", "--repo", "a/b", "--issue", "3"], "no run 'no-such-run'"),
        (["--repo", "a/b", "--issue", "3", "--new-issue-on", "regression"], "history"),
    ],
)
def test_wrong_use_is_reported_before_anything_is_sent(perfdash, hub, folder, words, message):
    code, _, err = perfdash("post", *words)
    assert code == 2, err
    assert message in err
    assert hub.requests == []
    assert not list(folder.glob("comment*"))


@pytest.mark.slow
def test_a_regression_has_an_issue_for_as_long_as_it_stands(post, hub, tmp_path):
    # 15 % slower from the 28th night to the 33rd.
    nights = farm(40, models=24, change=slower("model03", 27, 1.15, until=33))
    address = str(tmp_path / "runs" / "history.db")
    with open_store(address) as store:
        take_in(store, nights[:31])
    shown = post("--new-issue-on", "regression", "--dry-run")[1]
    assert "--- issue, unless it is there: Regression: timm/model03 bs 1: compiled latency +1" in shown
    code, out, err = post("--new-issue-on", "regression")
    assert code == 0, err
    issue = hub.issues[-1]
    assert f"Opened: {issue['html_url']}" in out
    assert [label["name"] for label in issue["labels"]] == ["perfdash-regression"]
    assert "perfdash run --suite timm --models model03" in issue["body"]
    assert "95 % interval" in issue["body"]
    assert "https://github.com/pytorch/pytorch/compare/" in issue["body"]
    assert "Opened" not in post("--new-issue-on", "regression")[1]
    # As of a history that was made anew since, in which the step was born on another run.
    made = issue["body"]
    issue["body"] = re.sub(r"born=\S+ opened=\S+", "born=another opened=t0", made)
    assert "Opened" not in post("--new-issue-on", "regression")[1]
    assert (issue["body"], issue["state"]) == (made, "open")
    with open_store(address) as store:
        take_in(store, nights[31:])
    code, out, _ = post("--new-issue-on", "regression")
    assert code == 0
    assert f"Closed: {issue['html_url']}" in out
    assert issue["state"] == "closed"
    assert len(hub.issues) == 2
    (note,) = hub.of(issue["number"])
    assert "Fixed: back where it was in the run" in note


@pytest.mark.slow
def test_what_people_do_to_runs_and_alerts_reaches_the_issue(post, perfdash, hub, tmp_path):
    nights = farm(31, models=24, change=slower("model03", 27, 1.15))
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)
    assert post("--new-issue-on", "regression")[0] == 0
    issue, number = hub.issues[-1], len(hub.issues)
    for night in nights[27:]:
        assert perfdash("history", "rename", night.run.name, f"renamed_{night.run.started[:10]}")[0] == 0
    made = issue["body"]
    assert "Opened" not in post("--new-issue-on", "regression")[1]
    assert (issue["body"], issue["state"], len(hub.issues)) == (made, "open", number)
    (alert,) = json.loads(perfdash("regressions", "--json")[1])
    assert perfdash("regressions", "--invalid", str(alert["id"]), "--because", "the <clock>")[0] == 0
    assert f"Closed: {issue['html_url']}" in post("--new-issue-on", "regression")[1]
    (note,) = hub.of(issue["number"])
    assert "\nClosed as no real change by " in note
    assert "<clock>" not in note


def test_a_run_that_was_renamed_keeps_its_comments_and_its_nightly(post, perfdash, hub, folder):
    assert perfdash("history", "import", str(folder))[0] == 0
    with open_store(str(folder.parent / "history.db")) as store, store.write() as connection:
        for day, runs in (("18", ()), ("21", (RUN,))):
            begun, ended = f"2026-11-{day}T00:00:00Z", f"2026-11-{day}T05:00:00Z"
            nightly = Nightly("nightly", day, begun, 86400, 3600, state="ok", ended=ended, runs=runs)
            nightlies.copy_nightly(connection, nightly)
    assert post(str(folder))[0] == 0
    (posted,) = hub.of()
    assert "Before this nightly: 2 missing after 2026-11-18" in posted
    assert perfdash("history", "rename", RUN, "before-upgrade")[0] == 0
    assert "nothing to change" in post(str(folder))[1]
    shutil.rmtree(folder)  # a colleague has the history alone
    assert "(1 edited)" in post("before-upgrade")[1]
    (posted,) = hub.of()
    assert "before-upgrade" in posted


def test_a_history_that_does_not_know_this_kind_of_run(post, hub, folder):
    with open_store(str(folder.parent / "history.db")) as store:
        take_in(store, farm(3, models=4))
    code, _, err = post(str(folder), "--new-issue-on", "regression")
    assert code == 2, err
    assert "has no run of the kind of" in err
    assert hub.requests == []


def test_a_merge_without_all_shards_does_not_edit_the_comment_of_the_whole_run(post, perfdash, hub, tmp_path):
    for name, shards in (("part", ["a", "b"]), ("whole", ["a", "b", "c"])):
        file = write_run(tmp_path / "runs" / name, a_night()) / "run.json"
        merged = {"id": name, "merged_from": shards, "merged_uids": shards}
        file.write_text(json.dumps(json.loads(file.read_text()) | merged))
        assert post(name)[0] == 0  # neither is in the history
    assert perfdash("history", "import", "runs/whole")[0] == 0
    assert post("whole")[0] == 0
    before = hub.of()
    code, _, err = post("part")
    assert code == 2
    assert "part has 2 of the 3 shards of whole" in err
    assert "Post the whole run: perfdash post whole" in err
    assert hub.of() == before


def test_a_merge_of_two_nights_does_not_edit_the_comment_of_one_of_them(post, perfdash, hub, tmp_path):
    """The history does not store it: half of its shards were measured a day later."""
    for name, shards, day in (("night", ["a", "b"], 1), ("mixed", ["a", "c"], 2)):
        file = write_run(tmp_path / "runs" / name, a_night()) / "run.json"
        written = json.loads(file.read_text())
        merged = {"id": name, "merged_from": shards, "merged_uids": shards}
        ended = (datetime.fromisoformat(written["started"]) + timedelta(days=day)).isoformat()
        file.write_text(json.dumps(written | merged | {"ended": ended}))
    assert perfdash("history", "import", "runs/night")[0] == 0
    assert post("night")[0] == 0
    before = hub.of()
    code, _, err = post("mixed")
    assert code == 2
    assert "mixed has 1 of the 2 shards of night" in err
    assert hub.of() == before


def test_another_tools_run_is_known_by_its_time_too(post, hub, tmp_path):
    (night,) = farm(1, models=2)
    night = replace(night, run=replace(night.run, name="inference", origin="dynamo-csv"))
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, [night])
    assert post()[0] == 0
    started = night.run.started.replace(":", "%3A").replace("+", "%2B")
    assert hub.of()[0].startswith(f"<!-- perfdash:1 comment run=inference started={started} part=1 -->\n")


def test_a_run_of_the_history_is_kept_beside_it(post, hub, tmp_path, monkeypatch):
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, farm(3, models=4))
    monkeypatch.setenv("GITHUB_TOKEN", "not\na token")
    code, _, err = post()
    assert code == 3
    assert "not\na token" not in err
    (path,) = (tmp_path / "runs").glob("comment-*.md")
    assert str(path) in err
