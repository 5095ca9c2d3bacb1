"""`perfdash bisect --good A --bad B` as typed: what is filled in, and what is said to be missing."""

import io
import shutil
from pathlib import Path

import pytest

from perfdash.cli import bisect_output
from tests.checkouts import write_checkout
from tests.cli.alert_histories import environment_said, history, told_commits
from tests.repositories import Repository
from tests.wheels import make_wheel

COMMAND = ("--", "grep", "-q", "0", "bad")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A folder inside a repository of ten commits; the 3rd is v1.0.9, the 8th v1.1.0."""
    monkeypatch.setenv("PERFDASH_BUILD_CACHE", str(tmp_path / "cache"))
    repository = Repository(tmp_path / "lib")
    commits = []
    for n in range(10):
        commits.append(repository.commit(f"change {n}", {"bad": str(int(n >= 5)), "sub/file": str(n)}))
        if n in (2, 7):
            repository.git("tag", {2: "v1.0.9", 7: "v1.1.0"}[n])
    return repository, commits


@pytest.fixture
def typed(called, library, monkeypatch, tmp_path):
    """typed(...) as `perfdash bisect ...` in a folder of the repository; the runs lie beside it."""
    monkeypatch.chdir(library[0].folder / "sub")
    monkeypatch.setenv("PERFDASH_OUT", str(tmp_path / "runs"))
    return lambda *words, **more: called("bisect", *words, **more)


@pytest.mark.slow
def test_the_repository_is_that_of_the_folder(typed, library):
    ran = typed("--good", "1.0.9", "--bad", "1.1.0", *COMMAND)
    assert ran.code == 0, ran.err
    assert f"found {library[1][5][:10]}" in ran.out
    assert "Recipe: command" in ran.err


def test_dates_are_days_of_the_repository(typed, library):
    library[0].git("commit", "--allow-empty", "-m", "late", stamp=1_790_000_000)  # 2026-09-21
    ran = typed("--good", "2024-01-01", "--bad", "2026-09-21", "--dry-run", *COMMAND)
    assert ran.code == 0, ran.err
    assert "2 revisions by recipe command" in ran.out
    assert "--good 2024-01-01: the last commit up to that day is" in ran.err
    ran = typed("--good", "2020-01-01", "--bad", "main", "--dry-run", *COMMAND)
    assert ran.code == 2
    assert "no commit yet on that day; its first is of 2023-11-" in ran.err


def test_a_version_that_is_no_tag_names_those_near(typed):
    ran = typed("--good", "1.0.8", "--bad", "1.1.0", *COMMAND)
    assert ran.code == 2
    assert "--good '1.0.8' is no commit" in ran.err
    assert "(did you mean v1.0.9" in ran.err


@pytest.mark.parametrize(("words", "faults", "example"), [
    (["--metric", "egaer"],
     ["--good is missing", "--bad is missing", "--metric 'egaer': no such metric (did you mean eager?)",
      "what is measured?"],
     "perfdash bisect --metric eager --good v1.1.0 --bad main --suite timm --model lcnet_050"),
    (["--good", "v1.0.9", "--bad", "main"], ["what is measured?"],
     "perfdash bisect --good v1.0.9 --bad main --suite timm --model lcnet_050"),
    (["--good", "v1.0.9", "--bad", "main", "--suite", "timm", "--model", "resnet18"],
     ["--model resnet18 is no model of timm", "it is a model of techniques and of torchbench"],
     "perfdash bisect --good v1.0.9 --bad main --suite techniques --model resnet18"),
    (["--good", "v1.0.9", "--bad", "main", "--suite=tim", "--model", "lcnet_05"],
     ["no suite named 'tim' (did you mean timm"],
     "perfdash bisect --good v1.0.9 --bad main --suite=timm --model lcnet_05"),
    (["--good", "v1.0.9", "--bad", "main", "--model", "lcnet_05"],
     ["no suite has such a model (did you mean lcnet_050"],
     "perfdash bisect --good v1.0.9 --bad main --model lcnet_050 --suite timm"),
    (["--good", "v1.0.9", "--bad", "main", "--model", "resnet18"],
     ["--suite is missing: resnet18 is a model of techniques"],
     "perfdash bisect --good v1.0.9 --bad main --model resnet18 --suite techniques"),
    (["--good", "v1.0.9", "--bad", "main", "--suite", "timm"], ["--model is missing: which model of timm?"],
     "perfdash bisect --good v1.0.9 --bad main --suite timm --model adv_inception_v3"),
    (["--recipe", "whels:torch", "--good", "2.13.0", "--bad", "2.14.0", *COMMAND],
     ["no recipe named 'whels' (did you mean wheels?)"],
     "perfdash bisect --recipe wheels:torch --good 2.13.0 --bad 2.14.0 -- grep -q 0 bad"),
    (["--recipe", "wheels:torch", *COMMAND],
     ["--good is missing", "--bad is missing", "--wheels is missing: say where the wheels are"],
     "perfdash bisect --recipe wheels:torch --good 2.13.0 --bad 2.14.0 --wheels FOLDER -- grep -q 0 bad"),
    (["--good", "2026-11-01", "--bad", "2026-11-05", "--device", "cuda", "--recipe", "nightly", *COMMAND],
     ["the recipe's own index has builds for the CPU only"],
     "perfdash bisect --good 2026-11-01 --bad 2026-11-05 --device cuda --recipe nightly --wheels FOLDER "
     "-- grep -q 0 bad"),
])  # fmt: skip
def test_one_message_names_all_that_is_missing(typed, words, faults, example):
    ran = typed(*words)
    assert ran.code == 2
    for fault in faults:
        assert fault in ran.err
    assert ran.err.splitlines()[-1] == f"  {example}"


def test_the_proposed_command_works(typed):
    example = typed("--good", "v1.0.9").err.splitlines()[-1].split()
    ran = typed(*example[2:], "--dry-run")
    assert ran.code == 0, ran.err
    assert "8 revisions by recipe git" in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "backward"], "--metric backward is measured in --scenario training, and this case is"),
        (
            ["--metric", "prefill", "--scenario", "training"],
            "--metric prefill is measured in --scenario generation, and this case is of scenario training",
        ),
        (
            ["--metric", "optimizer", "--scenario", "training", "--optimizer", "none"],
            "--metric optimizer: a step of this case has no optimizer",
        ),
    ],
    ids=["inference", "training", "no optimizer"],
)
def test_a_part_that_the_case_does_not_have_is_refused_before_anything_is_built(typed, words, message):
    suite = ["--suite", "timm", "--model", "lcnet_050"]
    ran = typed("--good", "v1.0.9", "--bad", "v1.1.0", "--dry-run", *suite, *words)
    assert ran.code == 2
    assert message in ran.err


def test_a_repository_is_asked_for_where_there_is_none(typed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ran = typed("--good", "v1.0.9", "--bad", "main", *COMMAND)
    assert ran.code == 2
    assert "there is no repository here: change to its folder, or give --repo PATH" in ran.err


def test_a_secret_is_not_in_the_proposed_command(typed):
    ran = typed("--good", "v1.0.9", "--env", "API_TOKEN=hunter2hunter2")
    assert ran.code == 2
    assert "hunter2" not in ran.err


@pytest.mark.slow
def test_what_perfdash_toml_says(typed, library):
    folder = library[0].folder / "sub"
    (folder / "perfdash.toml").write_text('[bisect]\ncommand = "grep -q 0 bad"\n')
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run")
    assert ran.code == 0, ran.err
    assert "exit code of the command of grep -q 0 bad" in ran.out
    (folder / "perfdash.toml").write_text('[bisect]\nsuite = "timm"\nmodel = "lcnet_050"\nmetric = "eager"\n')
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run")
    assert "eager latency of timm" in ran.out, ran.err
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run", *COMMAND)
    assert "exit code of the command" in ran.out, ran.err  # what is typed comes first
    assert (
        "exit code of the command of true"
        in typed("--good", "v1.0.9", "--bad", "main", "--dry-run", "--", "true").out
    )


def test_a_checkout_that_perfdash_toml_names(typed, library, tmp_path):
    write_checkout(tmp_path / "benchmark")
    settings = library[0].folder / "sub" / "perfdash.toml"
    torch = ("--good", "2.13.0", "--bad", "2.14.0", "--suite", "torchbench-checkout")
    ran = typed(*torch, "--model", "plain")
    assert (ran.code, "come from a checkout: give its folder, --torchbench PATH" in ran.err) == (2, True)
    assert "--suite torchbench " not in ran.err, "that is other code"
    settings.write_text(f'[torchbench]\npath = "{tmp_path}/benchmark"\n')
    ran = typed(*torch, "--model", "plian")
    assert (ran.code, "matches no model of torchbench-checkout (did you mean plain" in ran.err) == (2, True)
    settings.write_text(settings.read_text() + '[bisect]\nsuite = "torchbench-checkout"\nmodel = "plain"\n')
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run")
    assert ran.code == 0, ran.err
    assert "of torchbench-checkout" in ran.out


@pytest.mark.parametrize(("text", "why"), [
    ("[bisect]\nmodle = 'x'\n", "perfdash.toml: [bisect] has no key 'modle'"),
    ("[bisect]\nsuite = 'timm'\n", "[bisect]: 'suite' needs 'model'"),
    ("[bisect]\ncommand = 'true'\nmodel = 'a.py:b'\n", "give either 'command' or 'suite' and 'model'"),
    ("[bisect]\ncommand = 'an open \"'\n", "[bisect] command: No closing quotation"),
    ("[bisect]\nmetric = 1\n", "[bisect] metric: 1 is not a text in quotes"),
    ("bisect = 1\n", "[bisect] must be a table"),
])  # fmt: skip
def test_a_wrong_table_is_one_message(typed, library, text, why):
    (library[0].folder / "sub" / "perfdash.toml").write_text(text)
    ran = typed("--good", "v1.0.9", "--bad", "main")
    assert ran.code == 2
    assert why in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_nightly_takes_the_index_of_its_recipe_unless_another_is_named(typed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for day in (1, 2, 3):
        make_wheel(tmp_path / "wheels", "torch", f"2.15.0.dev2026110{day}")
    dates = ("--good", "2026-11-01", "--bad", "2026-11-03", "--dry-run", "--", "true")
    ran = typed(*dates, env={"PERFDASH_BISECT_WHEELS": str(tmp_path / "wheels")})
    assert "3 revisions by recipe nightly" in ran.out, ran.err
    asked = []
    monkeypatch.setattr(
        "perfdash.bisection.environments.pip.versions",
        lambda *_, links, **__: asked.append(str(links)) or [f"2.15.0.dev2026110{day}" for day in (1, 2, 3)],
    )
    ran = typed(*dates)
    assert ran.code == 0, ran.err
    assert asked[0].endswith("/whl/nightly/cpu")


@pytest.fixture
def alerts(library, tmp_path):
    """A history with one open alert, of timm lcnet_050 between the 3rd and the 6th commit."""
    _, commits = library
    (tmp_path / "runs").mkdir()
    db = history(
        tmp_path / "runs" / "history.db",
        [environment_said("a" * 40), environment_said("a" * 40)],
        case={"model": "lcnet_050", "batch_size": 2},
    )
    told_commits(db, {"lib": commits[2]}, {"lib": commits[5]})
    return db


def test_the_open_alert_whose_range_lies_there_is_bisected(typed, alerts, library):
    commits = library[1]
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run")
    assert ran.code == 0, ran.err
    assert "Measured: alert 1, compiled latency of timm/lcnet_050" in ran.err
    assert "measured: compiled latency of timm" in ran.out
    for good, bad in ((commits[5], "main"), (commits[0], commits[2])):  # beside its range
        ran = typed("--good", good, "--bad", bad, "--dry-run")
        assert ran.code == 2
        assert "No open alert of the history has its range there" in ran.err


def test_an_alert_by_itself_chooses_recipe_and_repository(typed, alerts, library):
    ran = typed("--alert", "1", "--dry-run")
    assert ran.code == 0, ran.err
    assert "4 revisions by recipe git" in ran.out


@pytest.mark.parametrize("words", [("--alert", "1"), ("--all-alerts",)])
@pytest.mark.slow
def test_an_alert_of_a_torch_of_the_repository_is_bisected_by_the_given_wheels(
    typed, library, tmp_path, words
):
    """With --wheels and without --repo the repository of this folder is not used."""
    repository, commits = library
    (tmp_path / "runs").mkdir()
    builds = [(commits[n], f"2.15.0.dev2026110{day}") for n, day in ((2, 1), (5, 3))]
    history(tmp_path / "runs" / "history.db", builds, case={"model": "lcnet_050"})
    for day in (1, 2, 3):
        make_wheel(tmp_path / "wheels", "torch", f"2.15.0.dev2026110{day}")
    wheels = ("--wheels", str(tmp_path / "wheels"))
    ran = typed(*words, *wheels, "--dry-run")
    assert "3 revisions by recipe nightly" in ran.out, ran.err
    ran = typed(*words, *wheels, "--repo", str(repository.folder), "--dry-run")
    assert "Recipe: pytorch-source" in ran.err


@pytest.mark.slow
def test_an_alert_between_two_nightlies_chooses_nightly(typed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    versions = [f"2.15.0.dev2026110{day}" for day in (1, 3)]
    history(
        tmp_path / "runs" / "history.db",
        [environment_said(c * 40, v) for c, v in zip("ab", versions, strict=True)],
        case={"model": "lcnet_050"},
    )
    for day in (1, 2, 3):
        make_wheel(tmp_path / "wheels", "torch", f"2.15.0.dev2026110{day}")
    env = {"PERFDASH_BISECT_WHEELS": str(tmp_path / "wheels")}
    ran = typed("--alert", "1", "--dry-run", env=env)
    assert "3 revisions by recipe nightly" in ran.out, ran.err
    ran = typed("--good", "2026-11-01", "--bad", "2026-11-03", "--dry-run", env=env)
    assert "Measured: alert 1" in ran.err
    assert ran.code == 0, ran.err


@pytest.fixture
def several(library, tmp_path):
    """A history of 30 nights with two causes in the range of the repository's commits."""
    from perfdash.detect.nightly_judging import judge_new
    from perfdash.history.ingest import take_in
    from perfdash.history.store import open_store
    from tests.detect.simulated import farm, slower

    commits = library[1]

    def change(night, name, values):
        values = slower("model03", 20, 1.15)(night, name, values)
        return slower("model05", 26, 1.2)(night, name, values)

    runs = farm(30, models=8, change=change)

    def at(night):
        return commits[0 if night < 20 else 4 if night < 26 else 8]

    told = []
    for night, one in enumerate(runs):
        worker = {**one.run.environment["worker"], "packages": {"lib": "1"}, "commits": {"lib": at(night)}}
        told.append(_with(one, worker))
    (tmp_path / "runs").mkdir()
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, told)
        judge_new(store)
    return tmp_path / "runs" / "history.db"


def _with(one, worker):
    from dataclasses import replace

    from perfdash.history.results import Imported

    return Imported(replace(one.run, environment={**one.run.environment, "worker": worker}), one.rows)


@pytest.mark.slow
def test_several_alerts_are_listed_with_the_commands(typed, several, monkeypatch):
    words = ("--good", "v1.0.9", "--bad", "main", "--dry-run")
    ran = typed(*words)
    assert ran.code == 2
    assert "Several open alerts have their range there; say which is bisected:" in ran.err
    commands = [line.split() for line in ran.err.splitlines() if line.startswith("    perfdash bisect")]
    assert len(commands) == 2
    assert commands[0][:-1] == ["perfdash", "bisect", *words, "--alert"]
    monkeypatch.setattr(bisect_output, "_is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("two\n3\n2\n"))
    ran = typed(*words)
    assert "  2  alert " in ran.err
    assert "Give a number from 1 to 2." in ran.err
    assert f"Measured: alert {commands[1][-1]}," in ran.err


def test_a_broken_history_is_no_reason_to_hide_the_rest(typed, alerts):
    shutil.copy(__file__, alerts)
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run", *COMMAND)
    assert ran.code == 0, ran.err  # what is measured was typed: nobody asks the history


def test_the_checkout_that_perfdash_runs_from_is_no_repository_to_bisect(typed, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    ran = typed("--good", "main", "--bad", "HEAD", *COMMAND)
    assert ran.code == 2
    assert "there is no repository here" in ran.err


@pytest.mark.slow
def test_an_alert_comes_before_a_command_of_perfdash_toml(typed, alerts, library):
    (library[0].folder / "sub" / "perfdash.toml").write_text("[bisect]\ncommand = 'true'\n")
    ran = typed("--good", "v1.0.9", "--bad", "main", "--dry-run")
    assert "8 revisions by recipe git" in ran.out, ran.err
    assert "Measured: alert 1" in ran.err
    ran = typed("--good", library[1][6], "--bad", "main", "--dry-run")
    assert "4 revisions by recipe command" in ran.out, ran.err


def test_wrong_ends_and_wrong_names_are_told_at_once(typed):
    ran = typed("--good", "v1.0.8", "--bad", "mian", "--suite", "timm", "--model", "lcnet_05")
    assert ran.code == 2
    assert "3 things are missing or wrong" in ran.err
    example = "perfdash bisect --good v1.0.9 --bad main --suite timm --model lcnet_050"
    assert ran.err.splitlines()[-1] == f"  {example}"


@pytest.mark.slow
def test_wheels_of_perfdash_toml_leave_tags_to_the_repository_and_typed_ones_do_not(typed, library, tmp_path):
    for version in ("1.0.9", "1.0.10", "1.1.0"):
        make_wheel(tmp_path / "wheels", "torch", version)
    (library[0].folder / "sub" / "perfdash.toml").write_text(f"[bisect]\nwheels = '{tmp_path}/wheels'\n")
    words = ("--good", "1.0.9", "--bad", "1.1.0", "--dry-run")
    assert "by recipe command" in typed(*words, *COMMAND).out
    ran = typed(*words, "--wheels", str(tmp_path / "wheels"), *COMMAND)
    assert "3 revisions by recipe wheels:torch" in ran.out, ran.err
    assert "3 revisions by recipe wheels:torch" in typed(*words, "--recipe", "wheels:torch", *COMMAND).out
