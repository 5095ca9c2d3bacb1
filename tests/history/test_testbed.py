"""Which runs are of one testbed, by how many cases they measured side by side, and on which GPUs."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect import curation
from perfdash.detect.nightly_judging import judge_new
from perfdash.detect.selected_series import AcceptedLevel
from perfdash.history import acts, alert_store, results, schema
from perfdash.history.ingest import replaced_since_judged, take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.records import RunInfo
from tests.detect.simulated import farm, judge_nights
from tests.history.made import case, row, run
from tests.stores import as_revision_0012


def slots(count: int, threads: int = 1, host: str = "farm") -> list[dict]:
    return [
        {"slot": number, "host": host, "cores": [number * threads + core for core in range(threads)]}
        for number in range(count)
    ]


def info(*sessions: dict) -> RunInfo:
    return RunInfo(
        id="r", started="2026-11-01T00:00:00Z", host="farm", command=["perfdash", "run"], configuration={},
        environment={"host_class": "Xeon x 16"}, cases=1, perfdash="0.1", sessions=list(sessions),
    )  # fmt: skip


def digest(*sessions: dict) -> str:
    return results.from_run(info(*sessions), [], "").run.testbed_digest


NARROW, WIDE = {"slots": slots(15)}, {"slots": slots(3, threads=4)}
ONE_SOCKET = {"slots": slots(1, threads=8), "bind_memory": True}
FOUR, REDUCED = {"slots": slots(4)}, {"slots": slots(4), "at_once": 1}


ALONE, TWO, FOUR_AT_ONCE, FIFTEEN = "11d5d612fbaa", "0f1ab52b0743", "0972d4a4bf98", "795a083ab9ca"


@pytest.mark.parametrize(
    ("sessions", "begins"),
    [
        ([], ALONE),
        ([{"slots": []}], ALONE),
        ([{"slots": slots(1)}], ALONE),
        ([{"slots": slots(1)}, ONE_SOCKET], ALONE),
        ([FOUR], FOUR_AT_ONCE),
        ([FOUR, FOUR, {"slots": []}], FOUR_AT_ONCE),
        ([{"slots": slots(4), "at_once": 2}], TWO),
        ([{"slots": slots(2, host="a") + slots(2, host="b")}], TWO),
        ([NARROW], FIFTEEN),
        ([NARROW, WIDE], FIFTEEN),
        ([NARROW, ONE_SOCKET], FIFTEEN),
        ([{"slots": slots(2, threads=8)}, ONE_SOCKET], TWO),
    ],
)
def test_ordinary_runs_keep_the_testbeds_that_histories_have(sessions, begins):
    """The digests that these runs had before the setting of a run could name its kinds of slots."""
    assert digest(*sessions).startswith(begins)
    assert digest(*reversed(sessions)).startswith(begins)


def test_a_run_of_several_kinds_of_slots_of_which_one_was_reduced_has_another_testbed():
    ordinary = digest(NARROW, WIDE)
    reduced_wide = info(NARROW, {**WIDE, "at_once": 1})
    reduced_narrow = info({**NARROW, "at_once": 7}, WIDE)
    assert results.testbed(reduced_wide)[1] == {
        "side_by_side": 15,
        "side_by_side_of": {"1 thread": [15], "4 threads": [1]},
    }
    assert results.testbed(reduced_narrow)[1] == {
        "side_by_side": 7,
        "side_by_side_of": {"1 thread": [7], "4 threads": [3]},
    }
    assert len({ordinary, *(digest(*each.sessions) for each in (reduced_wide, reduced_narrow))}) == 3


def test_a_run_whose_sessions_differ_has_a_testbed_of_its_own():
    """Resumed, or merged from shards, in any order: some cases had one neighbour, others three."""
    mixed = {"side_by_side": 4, "side_by_side_of": {"1 thread": [1, 4]}}
    other_host = {"slots": slots(4, host="other")}
    assert results.testbed(info(FOUR, REDUCED))[1] == results.testbed(info(REDUCED, FOUR))[1] == mixed
    assert (
        results.testbed(info(REDUCED, other_host))[1]
        == results.testbed(info(other_host, REDUCED))[1]
        == mixed
    )
    assert results.testbed(info(NARROW, ONE_SOCKET, {**ONE_SOCKET, "slots": slots(2, threads=8)}))[1] == {
        "side_by_side": 15,
        "side_by_side_of": {"1 thread": [15], "8 bound threads": [1, 2]},
    }


def of_device(device: str, gpus: list[str]) -> RunInfo:
    made = info()
    return replace(made, configuration={"device": device}, environment={**made.environment, "gpus": gpus})


def test_the_gpus_of_a_host_are_no_part_of_the_testbed_of_its_runs_on_the_cpu():
    eight, seven = ["H100"] * 8, ["H100"] * 7
    assert {str(results.testbed(of_device("cpu", gpus))) for gpus in (eight, seven, [])} == {
        str(results.testbed(info()))
    }
    settings = [results.testbed(of_device("cuda", gpus))[1] for gpus in (eight, seven)]
    assert settings == [{"gpus": eight}, {"gpus": seven}]


def test_the_variable_that_selects_gpus_is_no_part_of_the_testbed():
    """As for the shell's: GPUs of one kind are one class, and another of them may be free tonight."""
    env = {"CUDA_VISIBLE_DEVICES": "3"}
    assert results.setting_of_options({"env": env}) == ({}, "")
    assert results.setting_of_options({"env": {**env, "A": "1"}}) == ({"env": {"A": "1"}}, "")


def with_gpus(night, *gpus):
    return replace(night, run=replace(night.run, setting={"gpus": list(gpus)}))


def crashes(night, name):
    return "crash" if name == "model01" and night >= 6 else "pass"


@pytest.mark.parametrize("before", [True, False], ids=["a GPU came", "always had GPUs"])
def test_alerts_of_the_cpu_go_on_where_an_earlier_perfdash_recorded_the_gpus(address, before):
    nights = farm(10, 4, statuses=crashes)
    earlier = [night if before and day < 2 else with_gpus(night, "H100") for day, night in enumerate(nights)]
    with open_store(address) as store:
        judge_nights(store, earlier[:8], 6)
        with store.read() as connection:
            assert len({line.testbed_id for line in list_runs(connection)}) == 1 + before
        as_revision_0012(store)
    with open_store(address) as store:
        take_in(store, nights[8:])
        judge_new(store)
        with store.read() as connection:
            assert {line.testbed_id: line.setting for line in list_runs(connection)} == {1: {}}
            (alert,) = alert_store.load(connection)
            assert connection.execute(sa.select(schema.testbeds.c.id)).scalars().all() == [1]
    assert (alert.state, alert.testbed_id) == (alert_store.OPEN, 1)


@pytest.mark.parametrize(
    "other",
    [{}, {"env": {"A": "1"}}, {"tf32": True}, {"compile_mode": "max-autotune", "env": {"A": "1"}}],
    ids=["alone", "beside another variable", "beside another option", "beside both"],
)
def test_alerts_go_on_where_an_earlier_perfdash_recorded_the_variable_that_selects_gpus(address, other):
    nights = farm(10, 4, statuses=crashes)
    for day, night in enumerate(nights):
        env = {"CUDA_VISIBLE_DEVICES": str(day // 4), **other.get("env", {})} if day < 8 else None
        setting = {**other, "env": env} if env else other
        nights[day] = replace(night, run=replace(night.run, setting=setting))
    with open_store(address) as store:
        judge_nights(store, nights[:8], 7)
        as_revision_0012(store)
    with open_store(address) as store:
        take_in(store, nights[8:])
        judge_new(store)
        with store.read() as connection:
            (bed,) = {line.testbed_id for line in list_runs(connection)}
            assert connection.execute(sa.select(schema.testbeds.c.setting)).scalars().all() == [other]
            (alert,) = alert_store.load(connection, testbed_id=bed)
    assert alert.state == alert_store.OPEN


def test_runs_on_the_gpu_keep_their_testbed(address):
    """With their alerts and acts, where runs on the CPU had the same one."""
    at = {
        device: run(f"2026-11-0{day}", [row(of=case(device=device))], setting={"gpus": ["H100"]})
        for day, device in ((1, "cpu"), (2, "cuda"))
    }
    with open_store(address) as store:
        take_in(store, list(at.values()))
        judge_new(store)
        with store.write() as connection:
            on = {line.started: line for line in list_runs(connection)}
            lines = {device: on[night.run.started] for device, night in at.items()}
            for device, line in lines.items():
                (case_id,) = connection.execute(
                    sa.select(schema.cases.c.id).where(schema.cases.c.device == device)
                ).scalars()
                for of_case in (case_id, None):
                    alert = {"kind": "status" if of_case else "host", "testbed_id": line.testbed_id}
                    alert |= {"case_id": of_case, "bad_run_id": line.id, "state": alert_store.OPEN}
                    alert |= {"direction": 1, "opened": line.started, "changed": line.started, "details": {}}
                    connection.execute(sa.insert(schema.alerts).values(alert))
                mark = {"judged_as": [[line.testbed_id, line.started]]}
                connection.execute(
                    sa.update(schema.runs).where(schema.runs.c.id == line.id).values(imported=mark)
                )
            alerts = {alert.bad_run_id: alert for alert in alert_store.load(connection)}
        for line in lines.values():
            curation.acknowledge(store, alerts[line.id].id or 0, "known")
            curation.rename(store, line.name, f"night-{line.id}")
        as_revision_0012(store)
    with open_store(address) as store, store.read() as connection:
        bed = {line.id: line.testbed_id for line in list_runs(connection)}
        setting = {line.testbed_id: dict(line.setting) for line in list_runs(connection)}
        for device, line in lines.items():
            own = bed[line.id]
            assert setting[own] == ({} if device == "cpu" else {"gpus": ["H100"]})
            alerted = [alert.bad_run_id for alert in alert_store.load(connection, testbed_id=own)]
            assert alerted == [line.id, line.id]
            acted = [act.act for act in acts.load(connection, testbed_id=own)]
            assert sorted(acted) == [acts.ACKNOWLEDGE, acts.RENAME]
            assert replaced_since_judged(connection)[line.id] == [(own, line.started)]
        assert len(set(bed.values())) == 2


def mixed():
    """Two runs of one testbed, as an earlier perfdash stored them: on the CPU, and on the GPU."""
    return {
        device: run(f"2026-11-0{day}", [row(of=case(device=device))], setting={"gpus": ["H100"]})
        for day, device in ((1, "cpu"), (2, "cuda"))
    }


def test_a_level_that_a_person_accepted_holds_on_both_testbeds_of_a_host_with_gpus(address):
    """Patterns select cases of both devices: those of the GPU must not get a false alert back."""
    at = mixed()
    of_gpu = case(device="cuda")
    with open_store(address) as store:
        take_in(store, list(at.values()))
        with store.read() as connection:
            lines = {line.started: line for line in list_runs(connection)}
        on_cpu = lines[at["cpu"].run.started]
        curation.accept_level(store, on_cpu.name, "known", curation.LevelSelection(model="resnet18"))
        details = {"started": on_cpu.started, "metric": "speedup", "case": results.case_digest(of_gpu)}
        with store.write() as connection:  # of a run that was pruned
            acts.record(connection, acts.Act(acts.BASELINE, "gone", "y", on_cpu.testbed_id, details=details))
        as_revision_0012(store)
    with open_store(address) as store, store.read() as connection:
        bed = {line.started: line.testbed_id for line in list_runs(connection)}
        accepted = {
            device: [
                AcceptedLevel.of(act.details)
                for act in acts.load(connection, act=acts.BASELINE, testbed_id=bed[night.run.started])
            ]
            for device, night in at.items()
        }
    assert len(set(bed.values())) == 2
    assert [level.case for level in accepted["cpu"]] == [None]
    assert sorted(str(level.case) for level in accepted["cuda"]) == sorted(["None", details["case"]])
    assert all(level.rule.model == "resnet18" for level in accepted["cpu"])


def test_a_run_that_left_its_testbed_has_its_earlier_nights_judged_again(address):
    """Its mark names the testbed whose alerts are to be undone, which is another one after the migration."""
    nights = farm(10, 4, statuses=crashes)
    with open_store(address) as store:
        judge_nights(store, [*nights[:1], *(with_gpus(night, "H100") for night in nights[1:8])], 6)
        settled = replace(nights[6], run=replace(nights[6].run, setting={"side_by_side": 2}))
        take_in(store, [replace(settled, run=replace(settled.run, ended="2026-01-07T06:00:00Z"))])
        with store.read() as connection:
            ((_, marks),) = replaced_since_judged(connection).items()
            beds = {line.id: line.testbed_id for line in list_runs(connection)}
        assert {bed for bed, _ in marks} == {beds[2]}
        as_revision_0012(store)
    with open_store(address) as store:
        with store.read() as connection:
            ((_, marks),) = replaced_since_judged(connection).items()
            beds = {line.id: line.testbed_id for line in list_runs(connection)}
        assert {bed for bed, _ in marks} == {beds[2]} == {beds[1]}
        judge_new(store)
        with store.read() as connection:
            (alert,) = alert_store.load(connection)
            (first,) = list_runs(connection, ids=[alert.bad_run_id])
    assert first.started == nights[7].run.started
