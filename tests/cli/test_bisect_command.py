"""`perfdash bisect` as typed, on repositories made here; a command says what each commit is worth."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa

from perfdash.bisection.journal import read
from perfdash.history import schema
from perfdash.history.store import open_store
from tests.repositories import Repository, picture

# What a commit is worth is in its file; the noise is the same for the same measurement, however often it
# is begun: of the measurements that the journal has.
# It is started hundreds of times, so it imports only what starts fast.
ASK = """
import os, random, sys
level = open("level").read().split()[0]
if not level.replace(".", "").isdigit():
    sys.exit({"bad": 1, "skip": 125, "stop": 130}.get(level, 0))
commit, runs = os.environ["PERFDASH_REVISION"], os.environ["RUNS"]
journal = max(os.listdir(runs + "/bisections"))
count = sum(
    f'"commit":"{commit}"' in line and line.endswith("\\n")
    and ('"event":"measured"' in line or '"event":"confirm"' in line)
    for line in open(f"{runs}/bisections/{journal}/journal.jsonl")
)
with open(runs + "/asked", "a") as file:
    file.write(f"{commit} {count}\\n")
print("log: not a number")
print(float(level) * (1 + random.Random(f"{level} {commit} {count}").gauss(0, 0.01)))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A repository of 60 commits; from the 38th on the number is 8 % more."""
    folder = tmp_path_factory.mktemp("bisect")
    (folder / "ask.py").write_text(ASK)
    repository = Repository(folder / "repo")
    commits = [
        repository.commit(f"change {n} | <b>", {"level": f"{10.8 if n >= 37 else 10} {n}\n"})
        for n in range(60)
    ]
    return folder, repository, commits


def variables(runs, cache):
    return {"RUNS": str(runs), "PERFDASH_BUILD_CACHE": str(cache), "MPLCONFIGDIR": str(cache)}


def arguments(folder, *more, good="main~59", bad="main", command=None):
    ends = [word for name, end in (("--good", good), ("--bad", bad)) if end for word in (name, end)]
    own = ["--", *(command or ["python", "-IS", str(folder / "ask.py")])]
    return ["bisect", "--repo", str(folder / "repo"), *ends, "--metric", "stdout", *more, *own]


def told_events(recorded):
    """What was done, without when, how fast and from where."""
    fields = ("event", "stage", "place", "commit", "environment", "reading", "why", "culprit", "side")
    return [
        {key: event[key] for key in fields if key in event} for event in recorded
        if event["event"] not in ("session", "ended")
    ]  # fmt: skip


@pytest.mark.slow
def test_found_reported_filed_and_replayed(command, place, tmp_path):
    folder, repository, commits = place
    before = picture(repository.folder)
    env = variables(tmp_path / "runs", tmp_path / "cache")
    ran = command(*arguments(folder), env=env)
    assert ran.code == 0, ran.err
    assert f"found {commits[37][:10]}" in ran.out
    assert "Ann Author" in ran.out
    assert "change 37 \\| &lt;b&gt;" in ran.out
    assert f"--good {commits[0][:10]} --bad {commits[59][:10]}" in ran.out
    assert picture(repository.folder) == before
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    report = json.loads((made / "report.json").read_text())
    assert [revision["id"] for revision in report["culprits"][0]["revisions"]] == [commits[37]]
    assert (made / "report.md").read_text() == ran.out
    assert "<svg" in (made / "report.html").read_text()
    with open_store(str(tmp_path / "runs" / "history.db"), create=False) as store, store.read() as connection:
        (row,) = connection.execute(sa.select(schema.bisections))
    assert (row.name, row.state, row.culprit) == (made.name, "found", commits[37])

    log = command("bisect", "log")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", repository.folder, clone], check=True)
    (tmp_path / "log").write_text(log.out)
    replayed = subprocess.run(
        ["git", "bisect", "replay", tmp_path / "log"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert f"{commits[37]} is the first bad commit" in replayed.stdout

    again = command("bisect", "--resume", "last", "--json", env=env)
    assert json.loads(again.out)["culprits"] == report["culprits"]
    assert told_events(read(made)) == told_events(
        [event for event in read(made) if event["event"] != "session"]
    )
    status = command("bisect", "--status", made.name, "--json")
    assert json.loads(status.out)["word"] == "found"


@pytest.mark.slow
def test_killed_ten_times_it_comes_to_the_same_end_and_nothing_is_done_twice(
    command, command_server, place, tmp_path
):
    folder, _, _ = place
    perfdash = command_server.environment(tmp_path / "venv") / "bin" / "perfdash"
    whole = tmp_path / "whole"
    whole.mkdir()
    start = time.monotonic()
    ran = command(*arguments(folder, "--out", str(whole)), env=variables(whole, tmp_path / "one"))
    assert ran.code == 0, ran.err
    a_line_s = (time.monotonic() - start) / len(ran.err.splitlines())
    runs = tmp_path / "killed"
    runs.mkdir()
    env = {**os.environ, **variables(runs, tmp_path / "two")}
    moments, kills = random.Random(5), 0
    words = arguments(folder, "--out", str(runs))
    while True:
        process = subprocess.Popen(
            [perfdash, *words],
            cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        line = process.stderr.readline()
        while line and not line.startswith(str(runs)):  # its folder, once it has begun
            line = process.stderr.readline()
        if kills < 10:
            # Lines, not seconds: ten such sessions end before the bisection does, of some 50 lines.
            for _ in range(moments.randint(0, 3)):
                process.stderr.readline()
            time.sleep(moments.uniform(0, a_line_s))  # anywhere in what comes next
            process.kill()
        rest = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, line + rest
        kills += 1
        words = ["bisect", "--resume", "last", "--out", str(runs)]
    assert kills == 10
    (once,), (two,) = ((out / "bisections").iterdir() for out in (whole, runs))
    assert told_events(read(two)) == told_events(read(once))
    made = [event["commit"] for event in read(two) if event["event"] == "built"]
    assert len(made) == len(set(made))
    # At most what was under way at each kill was begun twice.
    measured = (runs / "asked").read_text().splitlines()
    assert len(measured) - len(set(measured)) <= kills


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on(command, place, tmp_path, number):
    folder, _, commits = place
    env = variables(tmp_path / "runs", tmp_path / "cache")
    process = subprocess.Popen(
        [sys.executable, "-m", "perfdash", *arguments(folder)],
        cwd=tmp_path, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("measured"):
            break
    os.killpg(process.pid, number)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # a shell and a time limit may both send one
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "not finished" in out
    assert "--resume" in err
    assert "Traceback" not in err
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    events = read(made)
    assert [event["event"] for event in events][-1] == "ended"
    ran = command("bisect", "--resume", "last", "--json", env=env)
    assert json.loads(ran.out)["culprits"][0]["revisions"][0]["id"] == commits[37]
    assert told_events(read(made))[: len(told_events(events))] == told_events(events)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """12 commits; bad from the 8th on, the 6th and the 7th cannot be told; one on a branch stops all."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "ask.py").write_text(ASK)
    repository = Repository(folder / "repo")
    words = ["good"] * 5 + ["skip", "skip"] + ["bad"] * 5
    commits = [repository.commit(f"change {n}", {"level": f"{word} {n}\n"}) for n, word in enumerate(words)]
    repository.git("checkout", "--quiet", "-b", "stops")
    repository.commit("stops", {"level": "stop\n"})
    return folder, commits


@pytest.mark.slow
def test_exit_codes_as_of_git_bisect_run(command, answers, tmp_path):
    folder, commits = answers
    env = variables(tmp_path / "runs", tmp_path / "cache")
    words = [word for word in arguments(folder, good="main~11") if word not in ("--metric", "stdout")]
    ran = command(*words, env=env)
    assert ran.code == 0, ran.err
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    report = json.loads((made / "report.json").read_text())
    assert [revision["id"] for revision in report["culprits"][0]["revisions"]] == commits[5:8]
    assert "good before, bad since" in ran.out
    assert "2 skipped" in ran.out
    ran = command(*(word if word != "main" else "stops" for word in words), env=env)
    assert ran.code == 3
    assert "exit code 130" in ran.err
    assert "--resume" in ran.err


@pytest.mark.slow
def test_an_end_that_says_nothing_is_one_message(command, answers, tmp_path):
    folder, _ = answers
    env = variables(tmp_path / "runs", tmp_path / "cache")
    ran = command(*arguments(folder, good="main~11", command=["echo", "fast"]), env=env)
    assert ran.code == 2
    assert "one number above 0, and is 'fast'" in ran.err


@pytest.mark.slow
def test_a_recipe_that_fails_at_an_end_is_one_message(command, answers, tmp_path):
    folder, _ = answers
    (tmp_path / "own.toml").write_text(
        'name = "own"\nkind = "commits"\n[build]\ncommand = "echo it broke; false"\n'
    )
    env = variables(tmp_path / "runs", tmp_path / "cache")
    ran = command(*arguments(folder, "--recipe", "own.toml", good="main~3"), env=env)
    assert ran.code == 2
    assert "an end of the range cannot be measured" in ran.err
    assert "its log is" in ran.err


@pytest.mark.slow
def test_a_merge_and_a_revert_of_a_command_that_says_yes_or_no(command, tmp_path):
    """Recipe command: the stages behind the first one need worktrees that the first one holds."""
    (tmp_path / "ask.py").write_text(ASK)
    repository = Repository(tmp_path / "repo")
    first = repository.commit("first", {"level": "good"})
    repository.commit("before", {"other": "before"})
    repository.git("checkout", "--quiet", "-b", "side")
    culprit = repository.commit("breaks", {"level": "bad"})
    repository.commit("more", {"side": "more"})
    repository.git("checkout", "--quiet", "main")
    repository.merge("side")
    repository.commit("late", {"other": "late"})
    env = variables(tmp_path / "runs", tmp_path / "cache")
    words = arguments(tmp_path, "--revert", good=first)
    ran = command(*(word for word in words if word not in ("--metric", "stdout")), env=env)
    assert ran.code == 0, ran.err
    assert f"found {culprit[:10]}" in ran.out
    assert "inside the merge of" in ran.out
    assert "reverted on top of the bad end: " in ran.out
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    assert json.loads((made / "report.json").read_text())["ranges"][0]["recipe"] == "command"


@pytest.mark.slow
def test_merges_and_failing_builds(command, tmp_path):
    """The culprit is on a merged branch; some commits do not build, some on the branch neither."""
    (tmp_path / "ask.py").write_text(ASK)
    repository = Repository(tmp_path / "repo")
    n = 0

    def commit(level, broken=False):
        nonlocal n
        n += 1
        return repository.commit(f"change {n}", {"level": f"{level}\n", f"n{n}": "", "broken": str(broken)})

    for _ in range(12):
        commit(10, broken=n in (5, 6))
    repository.git("checkout", "--quiet", "-b", "side")
    for k in range(9):
        n += 1
        repository.commit(f"side {k}", {"level": "11\n"} if k == 5 else {"side": str(k)})
        if k == 5:
            culprit = repository.head
    repository.git("checkout", "--quiet", "main")
    for k in range(6):
        repository.commit(f"main {k}", {"other": str(k)})
    repository.merge("side")
    for k in range(6):
        repository.commit(f"late {k}", {"other": f"late {k}"})
    (tmp_path / "own.toml").write_text(
        'name = "own"\nkind = "commits"\npythonpath = []\n[build]\n'
        'command = "grep -q False broken && cp -r . $PREFIX"\n'
    )
    env = variables(tmp_path / "runs", tmp_path / "cache")
    first = repository.git("rev-list", "--max-parents=0", "main")
    before = picture(repository.folder)
    ran = command(*arguments(tmp_path, "--recipe", "own.toml", "--revert", good=first), env=env)
    assert ran.code == 0, ran.err
    assert f"found {culprit[:10]}" in ran.out
    assert "inside the merge of" in ran.out
    assert "reverted on top of the bad end: **-" in ran.out
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    back = json.loads((made / "report.json").read_text())["culprits"][0]["reverted_change"]
    assert abs(back["ratio"] - 10 / 11) < 0.03
    assert picture(repository.folder) == before


@pytest.mark.parametrize(("more", "why"), [
    ({"good": "main", "bad": "main~9"}, "swapped"),
    ({"good": "main", "bad": "main"}, "the same commit"),
    ({"good": "nothing"}, "'nothing' is no commit"),
    ({"good": None}, "--good is missing"),
    ({"flags": ["--recipe", "none"]}, "no recipe named 'none'"),
    ({"flags": ["--metric", "eager"]}, "--metric eager: a command of yours is measured"),
    ({"flags": ["--metric", "speed"]}, "there are: exit-code, stdout"),
    ({"flags": ["--suite", "timm", "--model", "resnet18"]}, "a command of yours is given"),
    ({"flags": ["--set", "nonsense=1"]}, "unknown key 'nonsense'"),
    ({"flags": ["--set", "nonsense"]}, "is not KEY=VALUE"),
    ({"flags": ["--prior", "src=often"]}, "a number above 0"),
    ({"flags": ["--python", "/no/python"]}, "no such interpreter"),
    ({"flags": ["--cores", "4096"]}, "core 4096"),
    ({"flags": ["--alert", "7"]}, "there is no history"),
])  # fmt: skip
def test_bad_input_is_one_message_before_anything_long(command, place, tmp_path, more, why):
    folder, _, _ = place
    ends = {key: value for key, value in more.items() if key != "flags"}
    ran = command(*arguments(folder, *more.get("flags", ()), **ends), env=variables(tmp_path, tmp_path / "c"))
    assert ran.code == 2, ran.err
    assert why in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "runs" / "bisections").exists()


@pytest.mark.parametrize(("words", "why"), [
    (["--good", "a", "--bad", "b", "--repo", "."], "what is measured?"),
    (["--good", "a", "--bad", "b", "--"], "after `--`"),
    (["--resume", "last"], "no bisection 'last'"),
    (["--resume", "last", "--good", "a"], "--good cannot be changed with --resume"),
    (["--status", "other"], "no bisection 'other'"),
    (["log"], "no bisection 'last'"),
    (["mark", "abc", "good"], "no bisection 'last'"),
    (["--good", "a", "--bad", "b", "--repo", "none", "--", "true"], "there is no such folder"),
    (["--good", "1", "--bad", "2", "--recipe", "wheels:torch", "--", "true"], "say where the wheels are"),
])  # fmt: skip
def test_bad_words_are_one_message(command, words, why):
    ran = command("bisect", *words)
    assert ran.code == 2, ran.err
    assert why in ran.err


def test_a_script_beside_the_packages_of_the_checkout_is_refused(command, place, tmp_path):
    folder, repository, _ = place
    script = str(repository.folder / "bench.py")
    ran = command(*arguments(folder, command=["python", script]), env=variables(tmp_path, tmp_path / "c"))
    assert ran.code == 2, ran.err
    assert "lies in the checkout itself" in ran.err


def test_a_dry_run_builds_nothing(command, place, tmp_path):
    folder, _, _ = place
    ran = command(*arguments(folder, "--dry-run"), env=variables(tmp_path, tmp_path / "cache"))
    assert ran.code == 0, ran.err
    assert "60 revisions" in ran.out
    assert "nothing was built or measured" in ran.out
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "cache").glob("built/*"))


PINNED = """
name = "pinned"
kind = "commits"
pythonpath = []
[build]
command = 'git -C "$INNER" show "$(cat pin.txt):level" > "$PREFIX/level"'
[[pins]]
name = "inner"
repository = "https://example.org/inner"
file = "pin.txt"
"""


@pytest.mark.slow
def test_a_pin_is_gone_on_with_inside(command, tmp_path):
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "own.toml").write_text(PINNED)
    inner = Repository(tmp_path / "inner")
    pinned = [inner.commit(f"inner {n}", {"level": f"{11 if n >= 6 else 10} {n}\n"}) for n in range(10)]
    outer = Repository(tmp_path / "repo")
    commits = [
        outer.commit(f"outer {n}", {"pin.txt": f"{pinned[9 if n >= 8 else 0]}\n", "n": str(n)})
        for n in range(12)
    ]
    env = {**variables(tmp_path / "runs", tmp_path / "cache"), "INNER": str(inner.folder)}
    ran = command(*arguments(tmp_path, "--recipe", "own.toml", "--no-confirm", good=commits[0]), env=env)
    assert ran.code == 0, ran.err
    assert f"found {commits[8][:10]}" in ran.out
    assert "to confirm" not in ran.err
    assert "--pin-repo inner=PATH" in ran.out
    again = command("bisect", "--resume", "last", "--pin-repo", "inner=inner", env=env)
    assert again.code == 0, again.err
    assert f"found {pinned[6][:10]}" in again.out
    assert f"inside inner, pinned anew by {commits[8][:10]}" in again.out
    assert f"--no-confirm --pin-repo inner={inner.folder} -- python" in again.out
