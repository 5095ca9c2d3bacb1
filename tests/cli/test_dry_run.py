"""`perfdash run --dry-run`: what would be measured, at what cost, cut how."""

from __future__ import annotations

import json
import resource
from dataclasses import replace

import pytest

from perfdash.records import to_json
from tests.cli.run_folders import RUN, write_run
from tests.report.results import a_night

SUITE = 'name = "made"\nloader = "timm"\n'


def suite(folder, models):
    """A suite file; `models`: {name: cost or None}."""
    parts = [
        f'[[models]]\nname = "{name}"\n' + (f"cost_s = {cost}\n" if cost else "")
        for name, cost in models.items()
    ]
    (folder / "made.toml").write_text(SUITE + "".join(parts))


def planned(run, *words):
    ran = run("run", "--suite", "made.toml", "--dry-run", "--json", *words)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_cases_costs_and_shards(called, tmp_path):
    suite(tmp_path, {"a": 3600, "b": 1800, "c": 1800, "d": None})
    plan = planned(called, "--shard", "2/2")
    assert [entry["expected_s"] for entry in plan["cases"]] == [3600, 1800, 1800, 2400]
    assert plan["cases"][3]["expected_by"] == "mean of the others"
    assert [entry["shard"] for entry in plan["shards"]] == ["1/2", "2/2"]
    assert [entry["mine"] for entry in plan["shards"]] == [False, True]
    assert sum(entry["hours"] for entry in plan["shards"]) == pytest.approx(9600 / 3600, abs=0.02)
    assert plan["hours"] == {"work": 2.6667, "until_the_last_shard_ends": 1.5}
    assert [p.name for p in tmp_path.iterdir()] == ["made.toml"]  # nothing was made


def test_it_cuts_as_the_run_does(called, tmp_path):
    from perfdash.runner.plan import make_plan
    from perfdash.settings import resolve

    suite(tmp_path, {f"m{n}": n * 7 % 50 + 1 for n in range(30)})
    plan = planned(called, "--shard", "2/3")
    flags = {"suite": [str(tmp_path / "made.toml")], "shard": "2/3"}
    mine = make_plan(resolve(flags, {}, tmp_path)[0])[0].mine
    assert [place for place, entry in enumerate(plan["cases"]) if entry["shard"] == 2] == list(mine)


def test_for_people(called, tmp_path):
    suite(tmp_path, {"a": 3600, "b": 1800, "c": 1800, "d": None})
    lines = called(
        "run", "--suite", "made.toml", "--dry-run", "--shard", "1/2", "--jobs", "2"
    ).out.splitlines()
    assert lines[0].startswith("made_a_cpu_float32")
    assert lines[0].endswith("3600 s  suite")
    assert any(line.startswith("shard 1/2") and line.endswith("<- this one") for line in lines)
    assert (
        "4 cases (0 skipped), about 2.7 h of work in all, 2 cases side by side; the last shard ends after"
        in lines[-3]
    )
    assert lines[-1] == "Nothing was measured"
    suite(tmp_path, {"a": 41})
    lines = called("run", "--suite", "made.toml", "--dry-run").out.splitlines()
    assert lines[-2] == "1 case (0 skipped), about 41 s of work in all; the run ends after about 41 s"


def test_costs_that_nobody_knows_are_counted(called, tmp_path):
    def last_lines(models):
        suite(tmp_path, models)
        return called("run", "--suite", "made.toml", "--dry-run").out.splitlines()[-2]

    assert last_lines({"a": 10, "b": None}) == (
        "1 have no known cost and count as the mean of the others until they are measured"
    )
    assert (
        last_lines({"a": None, "b": None}) == "2 have no known cost and count as 60 s until they are measured"
    )


def test_durations_of_an_earlier_run(called, tmp_path):
    results = [replace(result, case=replace(result.case, suite="made")) for result in a_night()]
    write_run(tmp_path / "runs" / RUN, results)
    recorded = results[0]
    (tmp_path / "made.toml").write_text(
        f'name = "{recorded.case.suite}"\nloader = "timm"\n'
        f'[[models]]\nname = "{recorded.case.model}"\ncost_s = 9999\n[[models]]\nname = "other"\n'
    )
    case = to_json(recorded)["case"]
    plan = planned(
        called, "--costs", "last", "--threads", str(case["threads"]), "--batch-size",
        str(case["batch_size"]), "--dtype", case["dtype"],
    )  # fmt: skip
    (first, other) = plan["cases"]
    assert (first["expected_s"], first["expected_by"]) == (round(recorded.wall_s, 1), "run")
    assert other["expected_by"] == "mean of the others"


def test_what_is_skipped_costs_nothing(called, tmp_path):
    skip = '[[models.skip]]\ndevices = ["cpu"]\ndtypes = ["float32"]\nreason = "too big"\n'
    (tmp_path / "made.toml").write_text(f'{SUITE}[[models]]\nname = "a"\ncost_s = 60\n{skip}')
    (case,) = planned(called)["cases"]
    assert (case["expected_s"], case["expected_by"], case["skip_reason"]) == (0, "skipped", "too big")


@pytest.mark.slow
def test_a_whole_night_is_planned_at_once(command, tmp_path):
    """160 models in 12 configurations; in CPU seconds, since other work may be going on."""
    suite(tmp_path, {f"m{n}": n * 37 % 500 + 10 for n in range(160)})
    words = ["--dtype", "float32,bfloat16,float16,amp", "--backend", "inductor,aot-eager,eager"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plan = planned(command, *words, "--shard", "1/8")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(plan["cases"]) == 1920
    hours = [entry["hours"] for entry in plan["shards"]]
    assert max(hours) - min(hours) < 0.2
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


@pytest.mark.parametrize(("words", "why"), [
    (["--suite", "timm", "--dry-run", "--shard", "5/4"], "from 1 to 4"),
    (["--suite", "nowhere", "--dry-run"], "nowhere"),
    (["--resume", "last", "--dry-run"], "new run"),
])  # fmt: skip
def test_wrong_use(called, words, why):
    ran = called("run", *words)
    assert ran.code == 2
    assert why in ran.err
