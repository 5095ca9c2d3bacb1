from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perfdash import methods
from perfdash.errors import UsageError
from perfdash.files import dumps
from perfdash.history.results import from_run
from perfdash.records import RunInfo, Status, to_json
from perfdash.run_options import CHANGED_BY_RESUME
from perfdash.runner import merge_shards
from perfdash.runner.compatibility import of_hosts
from perfdash.runner.merge_shards import merge, other_times, read_shard
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.plan import cut
from perfdash.runner.result_record import assemble
from perfdash.runner.run_journal import RunJournal, read_info, read_plan, read_results
from perfdash.runner.run_recording import exclusion, record, refusal
from perfdash.settings import RunSettings
from tests.runner.planned import CASES, COSTS, events

ENVIRONMENT = {
    "host_class": "Xeon x 100",
    "cores": 100,
    "worker": {"torch": "2.15", "packages": {"timm": "1.0"}},
}


@pytest.fixture
def shard(tmp_path):
    """A run folder of one shard, measured."""

    def make(number, count=2, *, environment=ENVIRONMENT, costs=COSTS, cases=CASES, leave_out=0, **settings):
        plan = cut(cases, costs, (number, count))
        journal = RunJournal.create(tmp_path / "shards")
        journal.write_plan(plan.to_json())
        for index in plan.mine[leave_out:]:
            processes = 3 if index == plan.mine[-1] else 1
            outcomes = [ProcessOutcome(events(eager=10 + k / 10), status=0) for k in range(processes)]
            journal.append(assemble(plan.cases[index], Answer(outcomes, "t", 1.0, 0.0, {}), "steady"))
        (journal.logs / "null.log").write_text("null")
        (journal.logs / f"{plan.cases[plan.mine[0]].case.name}.log").write_text(f"shard {number}")
        info = RunInfo(
            journal.folder.name,
            f"2026-01-0{number}",
            f"host{number}",
            ["perfdash"],
            {"threads": 1, "shard": f"{number}/{count}", "cores": None, "jobs": 1, **settings},
            environment,
            len(plan.mine),
            "0",
            ended=f"2026-01-1{number}",
            state="done",
            noise={"null": {"start": [1.0], "end": [1.01], "worst": 0.01 * number}},
            plan={"fingerprint": plan.fingerprint, "total": len(cases), "shard": f"{number}/{count}"},
            sessions=[{"started": "t", "slots": []}],
        )
        journal.write_info(info)
        journal.close()
        return journal.folder

    return make


def test_one_run_of_all_shards(shard, tmp_path):
    folders = [shard(1), shard(2)]
    folder, info, results, missing = merge([read_shard(folder) for folder in folders], tmp_path / "runs")
    assert not missing
    assert [result.case.model for result in results] == [case.case.model for case in CASES], (
        "in the plan's order"
    )
    assert {result.speedup.basis for result in results} == {"processes", "pooled"}, "the spread is of all"
    again = read_results(folder)
    assert [r.case for r in again] == [r.case for r in results]
    assert read_info(folder) == info
    assert (info.state, info.cases, info.host) == ("done", 9, "host1+host2")
    assert (info.started, info.ended) == ("2026-01-01", "2026-01-12")
    assert info.noise["null"]["worst"] == 0.02
    assert info.noise["between_processes"]["cases"] == 2
    assert info.merged_from == [folder.name for folder in folders]
    assert len(list((folder / "logs").glob("null.*.log"))) == 2
    assert len(list((folder / "logs").glob("s_*.log"))) == 2
    assert (folder / "csv").is_dir()
    plan = read_plan(folder)
    assert (plan["shard"], plan["mine"]) == (None, list(range(9)))


@pytest.mark.parametrize(("starts", "hosts", "night", "off"), [
    ([(14, 1, 4), (14, 2, 4), (14, 3, 30)], "ABC", (0, 2), []),
    ([(14, 1, 4), (9, 2, 4), (14, 3, 4)], "ABC", (0, 2), [1]),  # a clock that is behind
    ([(14, 1, 4), (9, 2, 122), (14, 3, 4)], "ABC", (0, 2), [1]),  # and is set right meanwhile
    ([(14, 1, 4), (27, 2, 4), (14, 3, 4)], "ABC", (0, 2), [1]),  # a clock that is ahead of the merge
    ([(14, 1, 4), (17, 2, 4), (14, 3, 4)], "ABC", (0, 1), [1]),  # or a shard that was measured again
    ([(14, 1, 4), (14, 2, 4), (15, 0, 4)], "ABC", (0, 2), []),  # the queue was long
    ([(14, 1, 30), (15, 7, 30), (16, 13, 30)], "AAA", (0, 2), []),  # one host, one after another
    ([(14, 1, 30), (15, 5, 4), (15, 7, 30)], "ABA", (0, 2), []),
    ([(14, 1, 4), (27, 2, 4)], "AB", (0, 0), [1]),  # either clock may be wrong
])  # fmt: skip
def test_a_host_with_another_time_does_not_move_the_night(
    shard, tmp_path, monkeypatch, starts, hosts, night, off
):
    """`starts`: day, hour and duration in hours; `night`: the shards with its start and its end."""
    monkeypatch.setattr(merge_shards, "now", lambda: "2026-01-20T12:00:00Z")
    shards = []
    for number, ((day, hour, hours), host) in enumerate(zip(starts, hosts, strict=True), start=1):
        began = datetime(2026, 1, day, hour, tzinfo=UTC)
        started, ended = (f"{began + timedelta(hours=past):%Y-%m-%dT%H:%M:%SZ}" for past in (0, hours))
        one = read_shard(shard(number, len(starts)))
        times = {"started": started, "ended": ended, "host": host, "id": f"shard{number}"}
        shards.append(replace(one, info=replace(one.info, **times)))
    _, info, *_ = merge(shards, tmp_path / "runs")
    assert (info.started, info.ended) == (shards[night[0]].info.started, shards[night[1]].info.ended)
    lines = other_times(shards)
    assert len(lines) == len(off)
    for line, place in zip(lines, off, strict=True):
        assert line.startswith(f"{hosts[place]}: shard{place + 1} started {shards[place].info.started}")


def test_a_shard_that_is_measured_again_days_later_replaces_the_slowest_one(shard, tmp_path):
    """The shards that date the merged run may all end before the shard that is replaced."""
    settings, warnings = RunSettings(db=str(tmp_path / "history.db")), []

    def record_merge(*times):
        merged = []
        for folder, (number, day, ended) in zip(folders, times, strict=True):
            one = read_shard(folder)
            started, ended = f"2026-01-{day}T01:00:00Z", f"2026-01-{day}T{ended:02}:00:00Z"
            info = replace(one.info, started=started, ended=ended, plan={**one.info.plan, "uid": number})
            merged.append(replace(one, info=info))
        run, info, results, _ = merge(merged, tmp_path / "runs")
        return record(settings, info, results, run, warnings.append)

    folders = [shard(number, 3) for number in (1, 2, 3)]
    first = [("1", 14, 4), ("2", 14, 4), ("3", 14, 9)]
    assert record_merge(*first) == 0
    assert record_merge(*first[:2], ("3b", 16, 4)) == 0
    assert "2 of its 3 shards are in both" in warnings.pop()
    assert record_merge(*first) == 3, "the history keeps the newer one"


def test_the_merged_run_names_its_shards_by_their_keys(shard, tmp_path):
    folders = [shard(1), shard(2)]
    _, info, results, _ = merge([read_shard(folder) for folder in folders], tmp_path / "runs")
    keys = [from_run(read_info(folder), [], str(folder)).key for folder in folders]
    whole = from_run(info, results, "whole")
    assert whole.run.merged_keys == tuple(keys)
    assert whole.key not in keys


def test_what_is_missing_is_reported(shard, tmp_path):
    _, info, results, missing = merge(
        [read_shard(shard(1, 3)), read_shard(shard(3, 3, leave_out=1))], tmp_path / "runs"
    )
    assert info.state == "incomplete"
    assert len(missing) + len(results) == 9
    assert len(missing) == len(cut(CASES, COSTS, (2, 3)).mine) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"environment": {**ENVIRONMENT, "host_class": "EPYC x 100"}}, "host_class: Xeon x 100 | EPYC x 100"),
        ({"environment": {**ENVIRONMENT, "worker": {"torch": "2.16"}}}, "torch: 2.15 | 2.16"),
        ({"threads": 2}, "threads: 1 | 2"),
        ({"jobs": 8}, "jobs: 1 | 8"),
        ({"costs": [*COSTS[:-1], 6.0]}, "the durations that the shards were cut by"),
        ({"cases": [replace(CASES[0], tolerance=0.5), *CASES[1:]]}, "tolerance: 0.001 | 0.5"),
    ],
)
def test_mixed_runs_are_refused_with_what_differs(shard, tmp_path, change, words):
    with pytest.raises(UsageError) as refused:
        merge([read_shard(shard(1)), read_shard(shard(2, **change))], tmp_path / "runs")
    assert words in str(refused.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", sorted(CHANGED_BY_RESUME - {"env"}))
def test_shards_may_differ_in_what_a_resume_may_change(shard, tmp_path, option):
    """For example --wait 7200, or the path of a configuration file."""
    shards = [read_shard(shard(1, **{option: "one"})), read_shard(shard(2, **{option: "other"}))]
    assert not merge(shards, tmp_path / "runs")[3]


def test_shards_of_different_variables_are_refused(shard, tmp_path):
    """A resume may name a secret variable again, but shards of other variables have other numbers."""
    with pytest.raises(UsageError, match="env:"):
        merge([read_shard(shard(1, env={})), read_shard(shard(2, env={"A": "1"}))], tmp_path / "runs")


def test_shards_of_different_methods_are_refused(shard, tmp_path, monkeypatch):
    first = shard(1)
    monkeypatch.setitem(methods.CURRENT, "memory", methods.CURRENT["memory"] + 1)
    with pytest.raises(UsageError, match=r"different methods \(memory \d+ -> \d+\)"):
        merge([read_shard(first), read_shard(shard(2))], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_shard_in_which_all_was_skipped_has_no_environment(shard, tmp_path):
    folder, info, _, missing = merge(
        [read_shard(shard(1, environment={})), read_shard(shard(2))], tmp_path / "runs"
    )
    assert not missing
    assert info.environment == ENVIRONMENT
    assert read_info(folder).environment == ENVIRONMENT


def test_facts_that_differ_between_hosts_are_recorded_by_host(shard, tmp_path):
    """Facts that need not agree: the merged run gives none of them as that of its first shard."""

    def on(number, **facts):
        return read_shard(shard(number, 3, environment={**ENVIRONMENT, "host": f"node{number}", **facts}))

    shards = [
        on(1, kernel="6.1", system="Debian", load=0.1, vector_isa=None),
        on(2, kernel="6.8", system="Debian", load=0.2, vector_isa="avx512"),
        on(3, kernel="6.1", system="Debian", load=0.3, vector_isa="avx512", microcode="0x2"),
    ]
    environment = merge(shards, tmp_path / "runs")[1].environment
    assert environment["by_host"] == {
        "node1": {"kernel": "6.1", "microcode": None},
        "node2": {"kernel": "6.8", "microcode": None},
        "node3": {"kernel": "6.1", "microcode": "0x2"},
    }
    assert environment.keys() == {*ENVIRONMENT, "host", "system", "load", "vector_isa", "by_host"}
    assert (environment["system"], environment["vector_isa"]) == ("Debian", "avx512")
    # A shard that several hosts measured keeps its own: node2, node3.
    merged = merge(shards[1:], tmp_path / "runs")[1]
    again = of_hosts([(info.host, info.environment) for info in (shards[0].info, merged)])
    assert again["by_host"] == environment["by_host"]
    # Of one host the first counts, and nothing differs.
    assert of_hosts([("a", {"kernel": "2"}), ("a", {"kernel": "1"})]) == {"kernel": "2"}


@pytest.mark.parametrize(("noise", "why"), [
    ({"null": {"start": [1.0], "end": [1.1]}, "refused": "it is off by 10%"}, "it is off by 10%"),
    ({"null": {"start": [1.0]}}, "it ended before"),
])  # fmt: skip
def test_what_strict_keeps_out_in_one_shard_it_keeps_out_in_all(shard, tmp_path, noise, why):
    folders = [shard(1, strict=True), shard(2, strict=True)]
    info = read_info(folders[1])
    assert refusal(info) is None
    (folders[1] / "run.json").write_text(dumps(to_json(replace(info, noise=noise))))
    merged = merge([read_shard(folder) for folder in folders], tmp_path / "runs")[1]
    assert why in refusal(merged)


@pytest.mark.parametrize(("settings", "own", "why"), [
    ([{}, {}], False, None),
    ([{"no_history": False}, {"no_history": True}], False, "it was measured with --no-history"),
    ([{}, {}], True, "it was measured with --no-history"),
])  # fmt: skip
def test_what_one_shard_keeps_out_of_the_history_stays_out(shard, tmp_path, settings, own, why):
    shards = [read_shard(shard(number, **more)) for number, more in enumerate(settings, start=1)]
    folder, info, results, _ = merge(shards, tmp_path / "runs", no_history=own, db="/merged.db")
    assert info.configuration["db"] == "/merged.db"
    assert exclusion(info) == why
    warnings: list[str] = []
    record(RunSettings(db=str(tmp_path / "history.db")), info, results, folder, warnings.append)
    assert warnings == ([] if why is None else [f"The run is saved, but not put into the history: {why}"])
    assert (tmp_path / "history.db").exists() == (why is None)


def test_a_merged_run_without_all_shards_stays_out_of_the_history(shard, tmp_path, command, monkeypatch):
    """Also where all runs are imported, which restores a history."""
    monkeypatch.chdir(tmp_path)
    two = [read_shard(shard(number, 3)) for number in (1, 2)]
    folder, info, *_ = merge(two, tmp_path / "runs")
    assert exclusion(info) == "shards are missing"
    whole, info, *_ = merge([*two, read_shard(shard(3, 3))], tmp_path / "runs")
    assert exclusion(info) is None
    done = command("history", "import", "runs")
    assert done.code == 0, done.err
    assert f"{folder.name}: left out: shards are missing" in done.err
    assert done.out.startswith(f"{whole.name}: imported")
    # A folder that is named itself is imported; the history keeps the whole run.
    assert "left out: what is there is newer" in command("history", "import", str(folder)).out


def test_model_files_need_not_be_where_it_is_merged(shard, tmp_path):
    file = tmp_path / "models.py"
    file.write_text("# models")
    cases = [replace(case, loader="python", target=f"{file}:f") for case in CASES]
    shards = [shard(1, cases=cases), shard(2, cases=cases)]
    file.unlink()
    assert not merge([read_shard(folder) for folder in shards], tmp_path / "runs")[3]


def test_a_case_in_two_runs_is_refused(shard, tmp_path):
    with pytest.raises(UsageError, match="a case is measured in one shard only"):
        merge([read_shard(shard(1)), read_shard(shard(1))], tmp_path / "runs")
    with pytest.raises(UsageError, match="two runs or more"):
        merge([read_shard(shard(1))], tmp_path / "runs")


def test_a_run_under_way_is_refused(shard):
    folder = shard(1)
    journal = RunJournal.reopen(folder)
    with pytest.raises(UsageError, match="still being measured"):
        read_shard(folder)
    journal.close()
    assert {result.status for result in read_results(folder)} == {Status.PASS}
