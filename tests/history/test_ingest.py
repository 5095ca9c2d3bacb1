from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from perfdash.detect import curation
from perfdash.errors import MachineError, UsageError
from perfdash.history import acts, maintenance, schema
from perfdash.history.ingest import KNOWN, OLDER, REPLACED, TAKEN_IN, ForeignShards, take_in
from perfdash.history.queries import list_runs, rows_of, trend
from perfdash.history.results import from_run
from perfdash.history.store import open_store
from perfdash.records import Measurement, Result, RunInfo, Speedup, Status
from tests.history.made import case, row, run
from tests.stores import in_sqlite


def count(store, table):
    with store.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()


def test_a_run_comes_out_as_it_went_in(store):
    whole = replace(
        row("resnet50", eager_ms=20.5, backend_ms=10.25, speedup=2.0, eager_peak_bytes=123456789012),
        verdict="faster",
        basis="processes",
        started="2026-11-01T01:02:03Z",
        samples={"eager_ms": (20.5, 20.25), "backend_ms": (10.25, 10.5)},
        others={"tokens_per_second": 12.5},
        details={"notes": ["<b>ä</b>"]},
    )
    night = run(rows=[whole, row(status="crash", wall_s=3.0)])
    assert take_in(store, [night]) == [TAKEN_IN]
    with store.read() as connection:
        (line,) = list_runs(connection)
        rows = rows_of(connection, line.id, whole=True)
    assert (line.name, line.host_class, line.results) == (night.run.name, "Xeon x 100", 2)
    assert (line.torch, line.torch_git_version) == ("2.15.0", "a" * 40)
    assert line.facts == {"governor": "performance"}
    assert {r.case.model: r for r in rows}["resnet50"] == whole
    assert {r.case.model: r for r in rows}["resnet18"].status == "crash"


def test_the_same_run_twice_is_one(store):
    night = run(rows=[row(), row("vgg16")])
    assert take_in(store, [night]) == [TAKEN_IN]
    moved = replace(night, run=replace(night.run, source="elsewhere"))
    assert take_in(store, [moved]) == [KNOWN]
    assert count(store, schema.runs) == 1
    assert count(store, schema.results) == 2


def test_a_run_that_went_on_replaces_what_was_there(store):
    night = run(rows=[row()], state="interrupted")
    take_in(store, [night])
    with store.read() as connection:
        before = list_runs(connection)[0].id
    assert take_in(store, [run(rows=[row(), row("vgg16")])]) == [REPLACED]
    with store.read() as connection:
        (line,) = list_runs(connection)
        assert line.id == before, "alerts point at it"
        assert [r.case.model for r in rows_of(connection, line.id)] == ["resnet18", "vgg16"]
        assert [summary["cases"] for summary in trend(connection, "timm")] == [2]
    assert count(store, schema.results) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_values_that_no_measurement_gives_are_refused_and_nothing_is_kept(store, value):
    with pytest.raises(UsageError, match="backend_ms"):
        take_in(store, [run(rows=[row()]), run("2026-11-02", [row("vgg16", backend_ms=value)])])
    assert count(store, schema.runs) == 0


def test_a_case_twice_is_refused(store):
    with pytest.raises(UsageError, match="twice"):
        take_in(store, [run(rows=[row(), row()])])


def test_what_differs_makes_another_testbed(store):
    variants = [
        run("2026-11-02", [row()], host_class="Xeon x 8"),
        run("2026-11-03", [row()], setting={"allocator": "default"}),
        run("2026-11-04", [row()], host="farm2"),
    ]
    take_in(store, [run(rows=[row()]), *variants])
    with store.read() as connection:
        beds = [line.testbed_id for line in list_runs(connection)]
    assert len(set(beds)) == 3
    assert beds[3] == beds[0], "another host of the same class"


def test_many_writers_at_once(address):
    open_store(address).close()
    errors = []

    def work(number):
        try:
            with open_store(address) as store:
                for night in (1, 2, 3):
                    models = [row(f"model{index}") for index in range(5 * number)]
                    take_in(store, [run(f"2026-11-{night:02}", models, host=f"farm{number}")])
                    take_in(store, [run("2026-10-01", [row("shared")])])
        except Exception as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with open_store(address) as store:
        assert count(store, schema.runs) == 6 * 3 + 1
        assert count(store, schema.cases) == 30 + 1
        assert count(store, schema.results) == 3 * 5 * (1 + 2 + 3 + 4 + 5 + 6) + 1


@pytest.mark.postgres
def test_a_connection_lost_in_mid_ingest_leaves_nothing(postgres_address, monkeypatch):
    from perfdash.history import ingest

    store = open_store(postgres_address)
    insert = ingest._insert_rows

    def killed(connection, *arguments):
        insert(connection, *arguments)
        (pid,) = connection.execute(sa.text("select pg_backend_pid()")).one()
        with store.engine.connect() as other:
            other.execute(sa.text(f"select pg_terminate_backend({pid})"))

    monkeypatch.setattr(ingest, "_insert_rows", killed)
    with pytest.raises(MachineError, match="history import"):
        take_in(store, [run(rows=[row()])])
    monkeypatch.undo()
    assert count(store, schema.runs) == 0
    assert take_in(store, [run(rows=[row()])]) == [TAKEN_IN]
    store.close()


def test_the_summary_of_a_run(store):
    rows = [
        row("a", eager_ms=2.0, backend_ms=1.0, speedup=2.0, compilation_s=10.0, compression_ratio=2.0),
        row("b", eager_ms=1.0, backend_ms=2.0, speedup=0.5, compilation_s=20.0, compression_ratio=0.5),
        row("c", speedup=9.0, calls_captured=0),
        row("d", "fail_accuracy", speedup=7.0),
        row("e", "skipped", wall_s=0.0),
        row("i", "infra_error"),
        row("f", "pass_due_to_skip", speedup=3.0),
        row("n", "no_finite_output", speedup=6.0),
        row(of=case("g", dtype="bfloat16"), speedup=4.0),
    ]
    take_in(store, [run(rows=rows)])
    with store.read() as connection:
        by_dtype = {summary["dtype"]: summary for summary in trend(connection, "timm")}
    full = by_dtype["float32"]
    assert (full["cases"], full["attempted"], full["passed"], full["measured"]) == (8, 4, 3, 2)
    assert full["speedup"] == pytest.approx(1.0)
    assert full["speedup_clipped"] == pytest.approx(math.sqrt(2))
    assert full["compilation_s"] == pytest.approx(15.0)
    assert full["compression_ratio"] == pytest.approx(1.0)
    assert full["compression_ratio_arithmetic"] == pytest.approx(1.25)
    assert full["statuses"] == {
        "pass": 3, "fail_accuracy": 1, "skipped": 1, "pass_due_to_skip": 1, "no_finite_output": 1,
        "infra_error": 1,
    }  # fmt: skip
    assert by_dtype["bfloat16"]["speedup"] == pytest.approx(4.0)


def test_a_run_without_results_is_kept(store):
    assert take_in(store, [run(rows=[], state="failed")]) == [TAKEN_IN]
    assert count(store, schema.runs) == 1


def test_a_perfdash_run_as_rows():
    info = RunInfo(
        id="r", started="2026-11-01T00:00:00Z", host="farm", command=["perfdash"],
        configuration={"allocator": "default", "compile_mode": None, "suite": ["timm"]},
        environment={"host_class": "Xeon x 8"}, cases=1, perfdash="0.1",
        sessions=[{"slots": [{"host": "farm"}, {"host": "farm"}]}, {"slots": []}],
    )  # fmt: skip
    result = Result(
        case(), "2026-11-01T00:00:01Z", 40.0, Status.PASS,
        eager_ms=Measurement(20.0, 19.0, 21.0, 20.0, 1.0, 1000, [float(n) for n in range(1, 1001)]),
        speedup=Speedup(2.0, 1.9, 2.1, "inconclusive", "within"),
        capture={"graphs": 1, "fallbacks": {"aten.sort": 2, "aten.topk": 1}},
        conditions={"within_variance": 0.0004, "process_ratios": [2.0, 2.0, 2.0, 2.0], "clean_fraction": 1.0},
    )  # fmt: skip
    imported = from_run(info, [result], "runs/r")
    assert imported.run.setting == {"allocator": "default", "side_by_side": 2}
    (only,) = imported.rows
    assert only.values["eager_ms"] == 20.0
    assert "speedup_low" not in only.values, "nothing is known of the spread between processes"
    assert only.values["speedup_sd"] == pytest.approx(0.01)
    assert only.values["fallbacks"] == 3
    assert "backend_ms" not in only.values
    assert len(only.samples["eager_ms"]) == 200
    assert only.samples["eager_ms"][-1] == 996.0


def test_a_run_is_of_the_machines_that_measured_its_results():
    """Not of the one that started it on a cluster, or of whose shard was merged first."""

    def host(*hosts):
        info = RunInfo("r", "2026-11-01T00:00:00Z", "login1", ["perfdash"], {}, {}, 1, "0.1")
        results = [
            Result(
                case(), "2026-11-01T00:00:01Z", 40.0, Status.PASS, conditions={"host": name} if name else {}
            )
            for name in hosts
        ]
        return from_run(info, results, "runs/r").run.host

    assert host("n2", "n1", None, "n2") == "n1+n2"
    assert host(None) == host() == "login1"


def merged(night, *shards, **other):
    """A night that was merged from the runs of these shards, the nth with models 2n and 2n + 1."""
    rows = [row(f"m{2 * int(shard[0]) + number}") for shard in shards for number in range(2)]
    made = run(night, rows, imported={"merged_from": list(shards)}, **other)
    return replace(made, run=replace(made.run, uid=" ".join(shards)))


def test_shards_that_are_merged_again_with_another_run_are_one_night(store):
    """Shard 3 died and was measured again by hand: shards 1 and 2 are in both."""
    incomplete = merged("2026-11-20", "1", "2", state="incomplete")
    whole = merged("2026-11-20", "1", "2", "3b", ended="2026-11-21T05:00:00Z")
    later = merged("2026-11-21", "1c", "2c")
    assert take_in(store, [incomplete, later, whole]) == [TAKEN_IN, TAKEN_IN, REPLACED]
    assert take_in(store, [whole, later]) == [KNOWN, KNOWN]
    assert take_in(store, [incomplete]) == [OLDER]
    with store.read() as connection:
        runs = list_runs(connection)
    assert [(line.started[:10], line.results) for line in runs] == [("2026-11-20", 6), ("2026-11-21", 4)]
    assert count(store, schema.results) == 10


NIGHT = ("1", "2", "3", "4")


@in_sqlite
@pytest.mark.parametrize(("first", "second", "hours", "is_one_run"), [
    (NIGHT[:3], NIGHT, 72, True),  # the last shard came late
    (NIGHT, ("1", "2", "3b", "4"), 72, True),
    (NIGHT, ("1b", "2b", "3", "4"), 3, True),
    (NIGHT[:2], ("1", "2b"), 3, True),
    (NIGHT[:2], ("1b", "2"), 24, False),  # or the next night with a shard of this one
    (NIGHT, ("1b", "2b", "3b", "4"), 24, False),
    (NIGHT, ("1b", "2b", "3b", "4"), 3, False),
])  # fmt: skip
@pytest.mark.parametrize("order", [1, -1], ids=["in time", "the later first"])
def test_which_merges_with_common_shards_are_one_run(store, first, second, hours, is_one_run, order):
    ended = f"2026-11-2{hours // 24}T{5 + hours % 24:02}:00:00Z"
    of_first = merged("2026-11-20", *first, name="first")
    of_second = merged("2026-11-20", *second, name="second", ended=ended)
    stored, imported = [of_first, of_second][::order]
    warnings: list[str] = []
    assert take_in(store, [stored], warnings.append) == [TAKEN_IN]
    common = set(first) & set(second)
    if not is_one_run:
        with pytest.raises(ForeignShards) as refused:
            take_in(store, [imported], warnings.append)
        for name in (*common, stored.run.name, imported.run.name, f"history remove {stored.run.name} --yes"):
            assert name in str(refused.value)
    elif order == 1:
        assert take_in(store, [imported], warnings.append) == [REPLACED]
        assert warnings.pop() == (
            f"second replaces first in the history (started 2026-11-20T01:00:00Z, {2 * len(first)} results): "
            f"{len(common)} of its {len(first)} shards are in both"
        )
    else:
        assert take_in(store, [imported], warnings.append) == [OLDER]
    assert warnings == []
    kept = of_second if is_one_run else stored
    assert names_and_results(store) == [(kept.run.name, len(kept.rows))]


@pytest.mark.parametrize("day", ["1970-01-01", "2026-11-09", "2026-11-25"])
def test_a_shard_whose_clock_was_wrong_is_no_night_beside_its_merged_run(store, day):
    shard = run(day, [row("m2"), row("m3")])
    whole = merged("2026-11-20", "1", "2", name="whole")
    shards = {**whole.run.imported, "merged_keys": ["a key", shard.key]}
    whole = replace(whole, run=replace(whole.run, imported=shards))
    assert take_in(store, [shard]) == [TAKEN_IN]
    assert take_in(store, [whole]) == [REPLACED]
    assert take_in(store, [shard]) == [OLDER]
    assert names_and_results(store) == [("whole", 4)]


@in_sqlite
def test_two_nights_stay_where_a_run_was_merged_from_shards_of_both(store):
    nights = [merged(f"2026-11-2{day}", *(f"{n}{day}" for n in NIGHT), name=f"night{day}") for day in (0, 1)]
    both = merged("2026-11-20", "11", "21", "31", "40", ended="2026-11-21T05:00:00Z", name="mixed")
    take_in(store, nights)
    with pytest.raises(ForeignShards, match="mixed has 1 of the 4 shards of night0"):
        take_in(store, [both])
    assert names_and_results(store) == [("night0", 8), ("night1", 8)]


def test_a_run_whose_shards_are_merged_again_is_known_by_its_first_name(store):
    """Issues name the run on which an alert was born."""

    def take(name, *shards):
        take_in(store, [merged("2026-11-20", *shards, name=name)])
        with store.read() as connection:
            return acts.first_names(connection)

    assert take("whole1", "1") == {}
    assert take("whole2", "1", "2") == {"whole2": "whole1"}
    assert take("whole3", "1", "2", "3") == {"whole3": "whole1"}
    curation.rename(store, "whole3", "night", None)
    assert take("whole4", "1", "2", "3", "4") == {"night": "whole1"}
    take_in(store, [merged("2026-11-21", "1b", name="other1")])
    curation.rename(store, "other1", "next", None)
    assert take("other2", "1b", "2b") == {"night": "whole1", "next": "other1"}


def test_the_same_shards_merged_again_are_known_by_the_new_name(store):
    """`report RUN` and `nightly end --run RUN` name the folder of the second merge."""

    def take(name):
        again = merged("2026-11-20", "1", "2", name=name, source=f"runs/{name}")
        outcomes = take_in(store, [again])
        with store.read() as connection:
            (line,) = list_runs(connection)
            return outcomes, line.name, line.source, acts.first_names(connection)

    assert take("whole1") == ([TAKEN_IN], "whole1", "runs/whole1", {})
    assert take("whole2") == ([KNOWN], "whole2", "runs/whole2", {"whole2": "whole1"})
    assert take("whole1") == ([KNOWN], "whole1", "runs/whole1", {})
    curation.rename(store, "whole1", "night", None)
    assert take("whole3") == ([KNOWN], "night", "runs/whole3", {"night": "whole1"})


def test_a_merged_run_replaces_a_shard_that_was_imported_by_itself(store):
    shard = run("2026-11-20", [row("m2")])
    whole = merged("2026-11-20", "1", "2", name="whole")
    whole = replace(whole, run=replace(whole.run, imported={"merged_from": [shard.run.name, "2"]}))
    assert take_in(store, [shard, whole]) == [TAKEN_IN, REPLACED]
    with store.read() as connection:
        assert [line.name for line in list_runs(connection)] == ["whole"]


def named_by_uids(whole, *shards):
    """A merged run that names its shards by the uids of their runs, too."""
    keys = [shard.key for shard in shards]
    names = [shard.run.name for shard in shards]
    imported = {"merged_from": names, "merged_keys": keys}
    return replace(whole, run=replace(whole.run, imported=imported, uid=" ".join(keys)))


def shards(*models, **other):
    """A shard of each model, all of one night."""
    hosts = {model: f"farm{model}" for model in models}
    return [
        run("2026-11-20", [row(model)], name=f"at-1_{host}", host=host, **other)
        for model, host in hosts.items()
    ]


def test_two_lines_measured_in_the_same_seconds_are_two_nights(store):
    """Their shards have the same names: the second of the start, and the host."""
    lines = []
    for line in ("main", "feature"):
        parts = shards("a", "b", setting={"line": line})
        parts = [replace(part, run=replace(part.run, uid=f"{part.run.uid} {line}")) for part in parts]
        rows = [row for part in parts for row in part.rows]
        whole = run("2026-11-20", rows, name=line, setting={"line": line}, host="farma+farmb")
        lines.append(named_by_uids(whole, *parts))
    assert take_in(store, lines) == [TAKEN_IN, TAKEN_IN]
    assert take_in(store, lines) == [KNOWN, KNOWN]


@pytest.mark.parametrize("first", ["shards", "whole"])
def test_a_merged_run_and_its_shards_are_one_night(store, first):
    parts = shards("a", "b", "c")
    rows = [row for part in parts for row in part.rows]
    whole = named_by_uids(run("2026-11-20", rows, name="whole", ended="2026-11-20T06:00:00Z"), *parts)
    if first == "shards":
        assert take_in(store, [*parts, whole]) == [*[TAKEN_IN] * 3, REPLACED]
    else:
        assert take_in(store, [whole, *parts]) == [TAKEN_IN, *[OLDER] * 3]
    with store.read() as connection:
        assert [(line.name, line.results) for line in list_runs(connection)] == [("whole", 3)]
    assert count(store, schema.results) == 3


def stored_with_its_shards(store):
    """A merged run, and two of its three shards beside it, as an earlier perfdash stored them."""
    parts = shards("a", "b", "c")
    rows = [row for part in parts for row in part.rows]
    whole = named_by_uids(run("2026-11-20", rows, name="whole", ended="2026-11-20T06:00:00Z"), *parts)
    take_in(store, [whole])
    of_whole = sa.update(schema.runs).where(schema.runs.c.key == whole.key)
    with store.write() as connection:  # as if it had other shards
        connection.execute(of_whole.values(imported={}))
    take_in(store, parts[1:])
    with store.write() as connection:
        connection.execute(of_whole.values(imported=whole.run.imported))
    return whole, parts


def names_and_results(store):
    with store.read() as connection:
        return sorted((line.name, line.results) for line in list_runs(connection))


@in_sqlite
@pytest.mark.parametrize("results", [1, 5], ids=["as many results", "more results than the whole"])
def test_a_shard_that_is_resumed_leaves_its_merged_run(store, results):
    _, parts = stored_with_its_shards(store)
    before = names_and_results(store)
    assert [name for name, _ in before] == ["at-1_farmb", "at-1_farmc", "whole"]
    rows = [row("b"), *(row(f"b{number}") for number in range(1, results))]
    resumed = replace(parts[1], run=replace(parts[1].run, ended="2026-11-20T09:00:00Z"), rows=tuple(rows))
    assert take_in(store, [resumed]) == [OLDER]
    assert names_and_results(store) == before


@in_sqlite
def test_a_merged_run_that_is_imported_again_takes_the_place_of_its_shards(store):
    whole, parts = stored_with_its_shards(store)
    assert take_in(store, parts[1:]) == [KNOWN, KNOWN]
    assert take_in(store, [whole]) == [REPLACED]
    assert names_and_results(store) == [("whole", 3)]
    assert take_in(store, [whole]) == [KNOWN]


def test_a_night_with_a_shard_that_was_excluded_is_excluded(store):
    parts = shards("a", "b")
    take_in(store, parts)
    curation.exclude(store, parts[1].run.name, "the fan was broken")
    rows = [row for part in parts for row in part.rows]
    take_in(store, [named_by_uids(run("2026-11-20", rows, name="whole"), *parts)])
    with store.read() as connection:
        (line,) = list_runs(connection)
    assert (line.name, line.excluded) == ("whole", "the fan was broken")


@in_sqlite
def test_a_run_of_another_history_with_shards_of_a_stored_run_is_left_out(store, tmp_path):
    take_in(store, [merged("2026-11-20", *NIGHT, name="night")])
    warnings: list[str] = []
    with open_store(str(tmp_path / "other.db")) as other:
        take_in(
            other, [merged("2026-11-20", "1b", "2b", "3b", "4", name="mixed"), run("2026-11-22", [row()])]
        )
        counts = maintenance.merge(store, other, warnings.append)
    assert (counts[TAKEN_IN], counts[OLDER]) == (1, 1)
    (warning,) = warnings
    assert warning.startswith("mixed is left out: mixed has 1 of the 4 shards of night")
