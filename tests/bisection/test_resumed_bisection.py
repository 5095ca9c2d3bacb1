"""A bisection gone on with: after a limit, a pause, a mark inside a merge, a line lost from its journal."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from perfdash.bisection.engine import LimitReached
from perfdash.bisection.journal import FILE, read
from perfdash.bisection.posterior import LONG_PAUSE
from perfdash.bisection.replay import LONG_PAUSE_S, Bisection
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.result import result_of
from perfdash.bisection.setup import (
    history_of,
    marked,
    measured_gpu,
    refuse_other_gpu,
    refuse_other_host,
    resumed_request,
)
from perfdash.cli import bisect_output
from perfdash.errors import MachineError, UsageError
from perfdash.runner import gpus
from perfdash.settings import RunSettings, resolve
from tests.bisection.scripted import Script, begin, bisected, go_on, revision
from tests.runner.nvml import Library

VISIBLE = "CUDA_VISIBLE_DEVICES"


def test_fewer_builds_than_builders_are_made_before_it_stops(tmp_path):
    script = Script.step(60, at=20)
    begin(script, tmp_path, jobs=3)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=2)
    assert {label for label, _ in script.built} == {"0", "59"}
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    assert len({label for label, _ in script.built}) == 4


@pytest.mark.parametrize(("hour", "pause"), [(0, 0.0), (1, LONG_PAUSE)])
def test_after_a_long_pause_the_host_counts_as_another(tmp_path, hour, pause):
    assert LONG_PAUSE_S < 3600
    script = Script.step(60, at=20)
    begin(script, tmp_path)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    bisection = Bisection(
        [*read(tmp_path), {"event": "ended", "state": "stopped", "at": "2030-01-01T00:00:00Z"}]
    )
    before = bisection.stages[0].search.state.clock
    bisection.apply({"event": "session", "at": f"2030-01-01T0{hour}:00:01Z"})
    assert bisection.stages[0].search.state.clock == before + pause


def test_a_mark_before_it_is_resumed_does_not_hide_the_pause(tmp_path):
    script = Script.step(60, at=20)
    begin(script, tmp_path)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    marked(tmp_path, "30", "skip")
    bisection = Bisection(read(tmp_path)[:-1])
    before = bisection.stages[0].search.state.clock
    for event in (
        {"event": "ended", "state": "stopped", "at": "2030-01-01T18:00:00Z"},
        {**read(tmp_path)[-1], "at": "2030-01-02T09:00:00Z"},
        {"event": "session", "at": "2030-01-02T09:01:00Z"},
    ):
        bisection.apply(event)
    assert bisection.stages[0].search.state.clock == before + LONG_PAUSE


def test_the_line_that_repeats_it_is_that_of_the_last_session_that_has_one(tmp_path):
    begin(Script.step(60, at=20), tmp_path)
    bisection = Bisection(read(tmp_path))
    line = ("perfdash", "bisect", "--good", "0", "--pin-repo", "b=/b")
    for event in ({"event": "session", "line": list(line)}, {"event": "session"}):  # of an older perfdash
        bisection.apply(event)
    assert result_of(bisection).line == line


def test_a_file_beside_the_model_that_was_edited_ends_the_session(tmp_path):
    """Measurements of two versions of a model must not be mixed; with the file put back it goes on."""
    script = Script.step(40, at=20)
    files = {"net.py": "a", "blocks.py": "b"}
    script.structures = {key: {"model_files": files} for key in script.levels}
    begin(script, tmp_path)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    measured = sum(event["event"] == "measured" for event in read(tmp_path))
    script.structures = {key: {"model_files": {**files, "blocks.py": "edited"}} for key in script.levels}
    with pytest.raises(UsageError, match=r"^blocks.py of the model was edited since .* --resume"):
        go_on(script, tmp_path)
    assert sum(event["event"] == "measured" for event in read(tmp_path)) == measured
    # One that another build also imports is no edit.
    script.structures = {key: {"model_files": {**files, "more.py": "c"}} for key in script.levels}
    (culprit,) = result_of(go_on(script, tmp_path)).culprits
    assert [commit.label for commit in culprit.revisions] == ["20"]


def test_a_commit_that_is_an_end_inside_a_merge_is_marked_outside(tmp_path):
    script = Script.step(20, at=12)
    script.revisions[12] = revision(12, parents=2)
    script.sides["12"] = [script.revisions[5], revision(1, prefix="b"), revision(2, prefix="b")]
    script.levels.update({"b1": 1.0, "b2": 1.1})
    bisected(script, tmp_path)
    marked(tmp_path, "5", "good")
    event = read(tmp_path)[-1]
    assert (event["event"], event["stage"], event["place"]) == ("marked", 0, 5)


def test_a_journal_that_lost_the_line_of_a_stage_is_refused(tmp_path):
    bisected(Script.step(10, at=5), tmp_path)
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(UsageError, match="line 2 of the journal"):
        Bisection(read(tmp_path))


@pytest.mark.parametrize(("failures", "stops"), [(2, False), (4, True)])
def test_an_end_that_was_measured_and_fails_for_a_while_loses_nothing(tmp_path, failures, stops):
    says = {"0": [*[None] * 3, *["infra_error"] * failures, None]}
    script = Script.step(40, at=20, by=1.05, says=says)
    begin(script, tmp_path)
    if stops:
        with pytest.raises(MachineError, match="now fails again and again: infra_error"):
            go_on(script, tmp_path)
    (culprit,) = result_of(go_on(script, tmp_path)).culprits
    assert [commit.label for commit in culprit.revisions] == ["20"]
    assert not result_of(Bisection(read(tmp_path))).ranges[0].skipped


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"variables": {"OMP_A": "1", "TORCHINDUCTOR_FREEZING": "1"}}, r"TORCHINDUCTOR_FREEZING: none \| 1"),
        ({"variables": {}}, r"OMP_A: 1 \| none"),
        ({"governor": "powersave"}, r"governor: performance \| powersave"),
        ({"aten_cpu_capability": "avx2"}, r"aten_cpu_capability: default \| avx2"),
        ({"cores": 4}, "and this is Some CPU x 4"),
        ({"variables": {"OMP_A": "1", "HF_HOME": "/", "PYTHONPATH": "/", "OMP_NUM_THREADS": "2"}}, None),
        ({"load": 3.0, "memory_available_bytes": 1, "kernel": "7"}, None),
    ],
)
def test_it_is_resumed_with_the_settings_of_the_host_and_the_shell_that_it_began_with(now, why):
    facts = {
        "cpu": "Some CPU", "cores": 8, "governor": "performance", "aten_cpu_capability": "default",
        "kernel": "6", "load": 0.0, "memory_available_bytes": 0, "variables": {"OMP_A": "1"},
    }  # fmt: skip
    refused = pytest.raises(UsageError, match=why) if why else nullcontext()
    with refused:
        refuse_other_host(Script.step(10, at=5).begun(facts=facts), facts | now, builds=False)


@pytest.mark.parametrize(
    "own",
    [
        {"planned": {"env": {"OMP_A": "1", "ATEN_CPU_CAPABILITY": "avx2"}}},
        {"planned": None, "settings": {"env": {"OMP_A": "1", "ATEN_CPU_CAPABILITY": "avx2"}}},
    ],
    ids=["case", "command"],
)
def test_variables_that_the_bisection_sets_itself_may_be_others_in_the_shell(own):
    """Begun by the night in the crontab's shell, resumed in a plain one, or the other way round."""
    night = {"cpu": "Some CPU", "cores": 8, "aten_cpu_capability": "avx2"}
    night["variables"] = {"OMP_A": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    plain = {**night, "aten_cpu_capability": "default", "variables": {}}
    for then, now in ((night, plain), (plain, night)):
        begun = Script.step(10, at=5).begun(facts=then, **own)
        refuse_other_host(begun, now, builds=True)
        surplus = {**now, "variables": {**now["variables"], "OMP_B": "1"}}
        with pytest.raises(UsageError, match=r"OMP_B: none \| 1"):
            refuse_other_host(begun, surplus, builds=True)


@pytest.mark.parametrize("key", ["planned", "settings"])
def test_variables_of_compilers_stay_the_same_where_commits_are_built(key):
    """The bisection sets them for the measurement; a build has those of the shell."""
    variables = {"CXXFLAGS": "-O3", "OMP_A": "1"}
    plain = {"cpu": "Some CPU", "cores": 8, "variables": {}}
    night = {**plain, "variables": variables}
    for then, now, why in ((night, plain, r"-O3 \| none"), (plain, night, r"none \| -O3")):
        begun = Script.step(10, at=5).begun(facts=then, **{key: {"env": variables}})
        with pytest.raises(UsageError, match=f"\n  variable CXXFLAGS: {why}\nSet them"):
            refuse_other_host(begun, now, builds=True)
        refuse_other_host(begun, now, builds=False)


def test_a_journal_without_variables_is_resumed():
    begun = Script.step(10, at=5).begun(facts={"cpu": "Some CPU", "governor": "performance"})
    here = {"cpu": "Some CPU", "cores": 8, "governor": "performance", "variables": {"OMP_A": "1"}}
    refuse_other_host(begun, here, builds=True)
    del begun["facts"]
    refuse_other_host(begun, here, builds=True)


def test_it_is_resumed_on_a_gpu_of_the_same_kind(monkeypatch):
    library = Library(["GPU-1", "GPU-2"], Name="H100", EnforcedPowerLimit=700_000)
    monkeypatch.setattr(gpus, "open_nvml", lambda: gpus.Nvml(library))
    begun = Script.step(10, at=5).begun(gpu=measured_gpu(RunSettings(device="cuda", env={VISIBLE: "GPU-1"})))
    there = RunSettings(device="cuda", env={VISIBLE: "GPU-2"})
    refuse_other_gpu(begun, measured_gpu(there))
    library.answers["Name"] = "A100"
    with pytest.raises(UsageError, match=r"another GPU \(then \| now\)(.|\n)*gpu name: H100 \| A100\n"):
        refuse_other_gpu(begun, measured_gpu(there))
    refuse_other_gpu(Script.step(10, at=5).begun(), measured_gpu(there))  # of an older perfdash
    assert measured_gpu(RunSettings()) == {}


@pytest.mark.parametrize(
    ("kept", "flag", "variable", "history"),
    [
        ("/team.db", None, "", "/team.db"),
        ("/team.db", None, "/x.db", "/x.db"),  # the next night has a folder and a history of its own
        ("/team.db", "/y.db", "/x.db", "/y.db"),
        ("***", None, "/x.db", "/x.db"),
        ("history.db", None, "", None),  # beside the bisections, wherever that is now
        (None, None, "", None),  # of an older perfdash
    ],
)
def test_the_culprit_goes_into_the_history_that_has_the_alert(kept, flag, variable, history):
    begun = Script.step(10, at=5).begun(settings={"db": kept})
    here, origins = resolve({"db": flag}, {"PERFDASH_DB": variable})
    assert history_of(begun, here, origins, no_history=False) == history


def test_a_history_with_a_password_is_named_again_unless_none_is_wanted():
    begun = Script.step(10, at=5).begun(settings={"db": "***"})
    here, origins = resolve({}, {})
    with pytest.raises(UsageError, match=r"was given with a password.* Set PERFDASH_DB again"):
        history_of(begun, here, origins, no_history=False)
    assert history_of(begun, here, origins, no_history=True) is None


def test_who_looked_on_may_be_gone(monkeypatch):
    def broken(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(bisect_output.typer, "echo", broken)
    bisect_output.notify("measured")


def test_a_setting_of_the_recipe_may_be_repeated_and_not_changed():
    """`--all-alerts` repeats its own --set for each bisection that it resumes."""
    asked = BisectionRequest("0", "8", "git", settings={"submodules": False, "env": {"A": 1}}).to_json()
    begun = Script.step(10, at=5).begun(asked=asked)
    flags = dict.fromkeys(("wheels", "repo", "pin_repo"))
    same = ["submodules=false", 'env={"A": 1}']
    assert resumed_request(begun, {**flags, "settings": same}).settings == asked["settings"]
    for other in ("submodules=true", "jobs=null"):
        with pytest.raises(UsageError, match="cannot be changed with --resume"):
            resumed_request(begun, {**flags, "settings": [other]})
