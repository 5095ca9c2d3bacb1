"""Statuses and figures from events, without a worker."""

import signal
from dataclasses import replace

import pytest

from perfdash.history import schema
from perfdash.history.pass_rates_and_means import is_counted
from perfdash.history.results import from_result
from perfdash.metrics import JUDGED_COUNTS, NUMBERS
from perfdash.records import Status
from perfdash.report.dashboard_tables import all_numbers
from perfdash.report.terminal_tables import details, status_text
from perfdash.runner.case_status import is_worth_a_retry
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.result_record import assemble, skipped
from perfdash.stats.speedup import kept_ratios, set_speedups
from tests.runner.planned import MB, PLANNED, TIME, events


def ended(phase, status, *, died=None, **flags):
    """A process that ended in a phase, by itself or by the signal of its child."""
    more = [{"event": "died", "phase": phase, "signal": died}] if died else []
    return ProcessOutcome([*events(upto=f"phase {phase}"), *more], status=status, **flags)


def run(*outcomes, beside=None):
    """The result of these processes, and their log ratios; `beside` is another result of the run."""
    result = assemble(PLANNED, Answer(outcomes, "t", 9.0, 0.0, {}), "steady", "m.log")
    if beside:
        set_speedups([beside, result])
    return result, kept_ratios(result)


def replicated():
    """A result of three processes that differ by about 1 %."""
    return run(*[ProcessOutcome(events(eager=eager), status=0) for eager in (10.0, 10.2, 9.9)])[0]


def test_everything_measured():
    result, ratios = run(ProcessOutcome(events(), status=0))
    assert result.status is Status.PASS
    assert result.speedup.value == pytest.approx(2.0, rel=0.01)
    assert result.speedup.verdict == "inconclusive", "one process and nothing pooled"
    assert result.eager_peak_bytes == 300 * MB
    assert result.backend_peak_bytes == 200 * MB
    assert result.compression_ratio == 1.5
    assert result.compilation_s == 2.0
    assert result.phases_s == {"load": 0.5}
    assert result.eager_ms.n == len(result.eager_ms.samples) == 40
    assert ratios.count == 1


def test_a_note_of_the_slot_is_in_the_record():
    answer = Answer([ProcessOutcome(events(), status=0)], "t", 9.0, 0.0, {}, notes=["no header"])
    assert assemble(PLANNED, answer, "steady", "m.log").notes == ["no header"]


def test_a_note_on_what_a_model_imported_is_kept_also_where_the_back_end_fails():
    script = events()
    place = next(index for index, event in enumerate(script) if event["event"] == "loaded")
    script[place]["notes"] = ["utils is imported from beside net.py"]
    for part in (script, script[: place + 1]):
        assert "utils is imported from beside net.py" in run(ProcessOutcome(part, status=0))[0].notes


def test_a_note_says_where_the_eager_side_is_compiled_in_part():
    script = events()
    eager = next(event for event in script if event["event"] == "eager")
    note = "the model calls torch.compile itself: parts of its eager side are compiled"
    for compiles in (False, True):
        eager["compiles_itself"] = compiles
        assert (note in run(ProcessOutcome(script, status=0))[0].notes) == compiles


def test_numbers_of_two_models_are_not_kept():
    """A model file that is saved between the two processes of its case."""

    def process(**files):
        script = events()
        next(event for event in script if event["event"] == "loaded")["own_files"] = files
        return ProcessOutcome(script, status=0)

    result, _ = run(process(net="old"), process(net="new"))
    assert (result.status, result.error.type, result.failed_phase) == ("infra_error", "EditedModel", "load")
    assert "net was edited during the run, or differs between hosts" in result.error.message
    assert (result.eager_ms, result.backend_ms, result.speedup) == (None, None, None)
    assert not is_worth_a_retry(result, neighbours=True)
    assert run(process(net="old"), process(net="old", more="x"))[0].status is Status.PASS
    theirs = replace(PLANNED, loader="torchbench", target="m", config={"checkout": "/benchmark"})
    answer = Answer([process(util="old"), process(util="new")], "t", 9.0, 0.0, {})
    assert "/benchmark/util was edited" in assemble(theirs, answer, "steady", "m.log").error.message


def test_pooled_and_own_spread():
    assert run(ProcessOutcome(events(), status=0), beside=replicated())[0].speedup.basis == "pooled"
    result = replicated()
    assert result.speedup.basis == "processes"
    assert result.conditions["processes"] == 3
    assert result.conditions["samples_per_process"] == [40, 40, 40]
    assert result.speedup.ci_low < 2.0 < result.speedup.ci_high


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("pass", Status.PASS),
        ("fail", Status.FAIL_ACCURACY),
        ("skipped", Status.PASS_DUE_TO_SKIP),
        ("eager_two_runs_differ", Status.EAGER_TWO_RUNS_DIFFER),
        ("no_finite_output", Status.NO_FINITE_OUTPUT),
    ],
)
def test_status_from_accuracy_keeps_the_numbers(word, status):
    result, _ = run(ProcessOutcome(events(accuracy=word), status=0))
    assert result.status is status
    assert result.speedup is not None


@pytest.mark.parametrize(
    ("outcome", "status", "phase"),
    [
        (ended("compile", signal.SIGSEGV), Status.CRASH, "compile"),
        (ended("eager", signal.SIGKILL), Status.CRASH, "eager"),
        (ended("eager", signal.SIGKILL, oom_killed="kernel"), Status.EAGER_OOM, "eager"),
        (ended("compile", signal.SIGKILL, oom_killed="limit"), Status.OOM, "compile"),
        (ended("memory", signal.SIGKILL, oom_killed="kernel"), Status.OOM, "memory"),
        (ended("latency", signal.SIGKILL, limit=TIME), Status.TIMEOUT, "latency"),
        (ended("accuracy", 0), Status.CRASH, "accuracy"),
        (ProcessOutcome([], status=0), Status.CRASH, "start"),
        (ended("eager", None), Status.INFRA_ERROR, "eager"),
        (
            ended("eager", 0, died=11),
            Status.CRASH,
            "eager",
        ),
    ],
)  # fmt: skip
def test_ends_without_a_word(outcome, status, phase):
    result, _ = run(outcome)
    assert (result.status, result.failed_phase) == (status, phase)
    assert result.error.message
    assert result.error.log == "m.log"


def test_what_was_measured_before_a_crash_is_kept():
    result, _ = run(ended("accuracy", signal.SIGSEGV))
    assert result.error.type == "SIGSEGV"
    assert result.weights_bytes == 8 * MB
    assert result.eager_peak_bytes == 300 * MB
    assert result.compilation_s == 2.0
    assert result.backend_peak_bytes is None
    assert result.speedup is None


@pytest.mark.parametrize("outcome", [
    ended("accuracy", signal.SIGSEGV), ended("latency", signal.SIGKILL, limit=TIME),
    ProcessOutcome([*events(upto="phase compile"), {"event": "failed", "status": "fail_to_run",
                                                    "phase": "compile", "type": "RuntimeError",
                                                    "message": "no kernel"}], status=0),
])  # fmt: skip
def test_eager_that_does_not_repeat_itself_stays_known_when_the_compiled_side_fails(outcome):
    before = run(outcome)[0]
    outcome = replace(outcome, events=[event for event in outcome.events if event["event"] != "accuracy"])
    assert not any("two runs of eager differ" in note for note in before.notes)
    outcome.find("eager")["differ"] = "out differs by 0.1 where values reach 1"
    result, _ = run(outcome)
    assert (result.status, result.failed_phase) == (before.status, before.failed_phase)
    assert result.accuracy["status"] == "eager_two_runs_differ"
    assert "out differs by 0.1" in result.notes[-1]


def test_eager_that_differs_is_reported_once_where_all_went_well():
    script = events(accuracy="eager_two_runs_differ")
    script[4]["differ"] = "out differs"
    result, _ = run(ProcessOutcome(script, status=0))
    assert result.status is Status.EAGER_TWO_RUNS_DIFFER
    assert not result.notes


MEMORY_LIMIT = {"what": "memory", "scope": "case", "limit": 16 << 30, "unit": "bytes"}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"status": signal.SIGKILL, "limit": MEMORY_LIMIT}, "needed more memory than its limit of 16.00 GiB"),
        (
            {"status": signal.SIGKILL, "limit": {**TIME, "limit": 3600.0}},
            "longer than its limit of 3600",
        ),
        ({"status": signal.SIGKILL, "oom_killed": "limit", "memory_limit_bytes": 16 << 30}, "of 16.00 GiB"),
        ({"status": signal.SIGKILL, "oom_killed": "kernel"}, "killed by the kernel: out of memory"),
    ],
)
def test_an_end_while_instances_run_at_once_costs_nothing_that_was_measured(end, why):
    begun = [*events()[:-1], {"event": "phase", "name": "instances"}]
    result, _ = run(ProcessOutcome(begun, **end))
    assert (result.status, result.failed_phase, result.error) == (Status.PASS, None, None)
    assert result.speedup.value == pytest.approx(2.0, rel=0.01)
    assert result.compression_ratio == 1.5
    assert why in result.instances["failed"]
    assert [note for note in result.notes if "instances at once were not measured" in note and why in note]
    assert not [note for note in result.notes if "processes failed" in note]
    wrong = [{**event, "status": "fail"} if event["event"] == "accuracy" else event for event in begun]
    assert run(ProcessOutcome(wrong, **end))[0].status is Status.FAIL_ACCURACY


def test_instances_that_ran_are_in_the_record():
    at_once = {"event": "instances", "count": 2, "speedup": 1.5}
    ran = [*events()[:-1], {"event": "phase", "name": "instances"}, at_once, {"event": "done"}]
    result, _ = run(ProcessOutcome(ran, status=0))
    assert (result.status, result.instances) == (Status.PASS, {"count": 2, "speedup": 1.5})
    assert not [note for note in result.notes if "instances" in note]


def in_sizes(**end):
    """A process of scenario `sizes` that ended while it measured what one size alone costs."""
    first = {"batch 2": {"seconds": 1.0, "graphs": 1}}
    script = [event for event in events() if event["event"] not in ("memory", "done")]
    begun = {"event": "sizes", "of": "batch", "sizes": [2], "first": first, "fixed": None, "failed": {}}
    left = ["static", "automatic"]
    return ProcessOutcome([*script[:-1], {"event": "phase", "name": "sizes"}, {**begun, "left": left}], **end)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"status": signal.SIGKILL, "limit": MEMORY_LIMIT}, "needed more memory than its limit of 16.00 GiB"),
        ({"status": signal.SIGKILL, "limit": {**TIME, "limit": 3600.0}}, "longer than its limit of 3600"),
        ({"status": signal.SIGKILL, "oom_killed": "kernel"}, "killed by the kernel: out of memory"),
        ({"status": signal.SIGSEGV}, "ended by SIGSEGV in phase sizes"),
    ],
)
def test_an_end_after_the_timing_of_sizes_costs_only_what_was_left(end, why):
    result, _ = run(in_sizes(**end), ProcessOutcome(events(), status=0))
    assert (result.status, result.failed_phase, result.error) == (Status.PASS, None, None)
    assert result.conditions["processes"] == 2
    assert result.sizes["by_size"]["batch 2"]["first_call_s"] == 1.0
    assert all(why in result.sizes["failed"][name] for name in ("static", "automatic"))
    assert len([note for note in result.notes if why in note]) == 2
    assert not [note for note in result.notes if "processes failed" in note]


@pytest.mark.parametrize(
    "end", [{"status": signal.SIGKILL}, {"status": None}, {"status": signal.SIGKILL, "frozen": True}]
)
def test_an_end_in_sizes_from_outside_is_worth_a_retry(end):
    result, _ = run(in_sizes(**end))
    assert result.failed_phase == "sizes"
    assert is_worth_a_retry(result, neighbours=False)


def test_an_abort_for_want_of_memory():
    """Thrown in a thread of OpenMP's, where nobody catches it."""
    tail = ["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"]
    result, _ = run(ended("compile", signal.SIGABRT, tail=tail))
    assert (result.status, result.error.type) == (Status.OOM, "BadAlloc")
    assert run(ended("eager", signal.SIGABRT, tail=tail))[0].status is Status.EAGER_OOM
    assert run(ended("compile", signal.SIGABRT))[0].status is Status.CRASH


@pytest.mark.parametrize(("device", "transient", "ratio"), [
    ("cpu", 30 * MB, None), ("cpu", 40 * MB, 1.0), ("cuda", 30 * MB, 1.0),
])  # fmt: skip
def test_peaks_that_are_too_small_have_no_ratio(device, transient, ratio):
    script = events()
    script[1] |= {"held_bytes": 2 * MB}
    for event in (script[4]["memory"], script[-2]):
        event.update(constants_bytes=0, transient_bytes=transient)
    planned = replace(PLANNED, case=replace(PLANNED.case, device=device))
    result = assemble(planned, Answer([ProcessOutcome(script, status=0)], "t", 9.0, 0.0, {}), "steady")
    assert result.eager_peak_bytes == transient + 2 * MB
    assert result.compression_ratio == ratio
    assert any("too small for a compression ratio" in note for note in result.notes) == (ratio is None)
    assert ("compression_ratio" in from_result(result).values) == (ratio is not None), "nor in the mean"


def test_memory_that_grows_is_reported():
    script = events()
    script[4]["memory"] |= {"grown_bytes": 8 * MB}
    script[-2] |= {"grown_bytes": 0}
    result, _ = run(ProcessOutcome(script, status=0))
    assert "memory grows with every call: eager by 8.0 MiB, the compiled side by 0.0 MiB" in result.notes[0]
    script[4]["memory"] |= {"grown_bytes": MB // 2}
    assert run(ProcessOutcome(script, status=0))[0].notes == []
    script[4]["memory"] |= {"grown_bytes": 8 * MB}
    lost = [
        *script[:-2],
        {"event": "failed", "status": "oom", "phase": "latency", "type": "E", "message": "m"},
    ]
    result, _ = run(ProcessOutcome(lost, status=0))
    assert [note for note in result.notes if "grows" in note] == [
        "memory grows with every call: eager by 8.0 MiB; the peaks are those after a few calls"
    ], "the other side was not measured"


def test_memory_that_could_not_be_measured_costs_nothing_else():
    script = events()
    script[-2] |= {"held_bytes": None, "constants_bytes": 0, "transient_bytes": None, "lost": "no room"}
    result, _ = run(ProcessOutcome(script, status=0))
    assert result.status is Status.PASS
    assert result.backend_ms is not None
    assert result.backend_peak_bytes is None
    assert result.eager_peak_bytes == 300 * MB
    assert result.notes == ["no memory was left to measure the back end's in: no room"]


def test_a_gpu_that_has_barely_room_is_reported():
    script = events()
    script[10] |= {"allocator_retries": 3}
    assert "reallocated its memory 3 times" in run(ProcessOutcome(script, status=0))[0].notes[0]


def test_the_clean_pairs_count_where_there_are_enough():
    result, _ = run(ProcessOutcome(events(clean=0.75), status=0))
    assert result.eager_ms.n == 30
    assert result.conditions["clean_fraction"] == 0.75
    assert not result.notes
    result, _ = run(ProcessOutcome(events(clean=0.1, pairs=400, cpu_ratio=0.8), status=0))
    assert (result.eager_ms.n, result.conditions["clean_pairs"]) == (40, [40])
    assert (result.conditions["clock"], result.conditions["pairs"]) == ("wall", "clean")
    assert not result.notes


def test_cpu_time_counts_where_too_few_pairs_are_clean():
    script = events(clean=0.05)
    timed = script[10]
    dirty = [not clean for clean in timed["clean"]]
    timed["backend_ns"] = [
        ns * (1.5 if is_dirty else 1) for ns, is_dirty in zip(timed["backend_ns"], dirty, strict=True)
    ]
    result, _ = run(ProcessOutcome(script, status=0), beside=replicated())
    assert (result.conditions["clock"], result.conditions["pairs"]) == ("cpu", "all")
    assert result.eager_ms.n == 40
    assert result.speedup.value == pytest.approx(2.0, rel=0.01)
    assert result.backend_ms.median == pytest.approx(5.0, rel=0.01)
    clocks = result.conditions["clocks"]
    assert clocks["wall"]["speedup"] == pytest.approx(2 / 1.5, rel=0.01)
    assert clocks["cpu"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert clocks["wall_clean"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert "cpu_ratio" not in result.conditions, "its interval is of CPU time itself"
    (note,) = result.notes
    assert note.startswith("other programs used this core during 95% of the pairs; CPU time was used")


def test_where_no_clock_serves_the_interval_takes_both_in():
    result, _ = run(ProcessOutcome(events(clean=0.25, cpu_ratio=0.8), status=0))
    assert (result.conditions["clock"], result.conditions["pairs"]) == ("wall", "all")
    assert result.eager_ms.n == 40
    assert result.speedup.ci_low == pytest.approx(1.6, rel=0.02), "the CPU-time ratio is taken in"
    assert len(result.notes) == 2
    assert "wall time is longer than CPU time" in result.notes[0]
    assert result.conditions["disturbed"] == "other programs used this core during 75% of the pairs"
    assert result.speedup.verdict == "disturbed"
    assert status_text(result) == "pass (disturbed)"
    row = from_result(result)
    assert not is_counted(row)
    assert "pass (disturbed)" in all_numbers([row])


@pytest.mark.parametrize(
    ("no_core", "steal", "by"), [(0.06, 0.0, 0.06), (0.004, 0.0, None), (0.0, 0.03, 0.03)]
)
def test_several_threads_that_had_no_core_widen_the_interval(no_core, steal, by):
    script = events(no_core=no_core, steal=steal)
    script[10] |= {name: [None] * 40 for name in ("eager_cpu_ns", "backend_cpu_ns")}
    result, _ = run(ProcessOutcome(script, status=0))
    assert result.conditions["clocks"]["cpu"] is None
    assert result.conditions.get("widened_by") == by
    assert ("disturbed" in result.conditions) == (no_core == 0.06)
    assert len(result.notes) == (by is not None)
    assert by is None or "waited for a core during" in result.notes[0]


def test_waiting_for_a_core_may_be_unknown():
    script = events(no_core=None)
    script[10] |= {name: [None] * 40 for name in ("eager_cpu_ns", "backend_cpu_ns")}
    result, _ = run(ProcessOutcome(script, status=0))
    assert result.conditions["no_core"] is None
    (note,) = result.notes
    assert "does not count how long threads wait for a core" in note
    known, _ = run(ProcessOutcome(events(no_core=None), status=0))
    assert not known.notes, "of one thread CPU time shows it"


def test_what_the_hypervisor_takes_is_no_program_where_waiting_is_unknown():
    script = events(no_core=None, steal=0.03)
    script[10] |= {name: [None] * 40 for name in ("eager_cpu_ns", "backend_cpu_ns")}
    unknown, taken = run(ProcessOutcome(script, status=0))[0].notes
    assert "does not count how long threads wait for a core" in unknown
    assert taken.startswith("the hypervisor took 3.0% of the worst core's time, and the interval is wider")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_back_end_alone_has_no_figures_of_eager(device):
    script = events(clean=0.0, no_core=0.02, alone=True)
    launch_ns = {"eager": 4e6, "backend": 5e5}
    script[10] |= {name: [None] * 40 for name in ("eager_cpu_ns", "backend_cpu_ns")}
    script[10] |= {"launch_ns": launch_ns, "accounts": {"backend": {"kernels": 3}}}
    planned = replace(PLANNED, case=replace(PLANNED.case, device=device))
    conditions = assemble(planned, Answer([ProcessOutcome(script, status=0)], "t", 9.0, 0.0, {}), "steady")
    notes, conditions = conditions.notes, conditions.conditions
    assert conditions["clocks"]["wall"] == {"backend_ms": pytest.approx(5.01)}
    assert list(conditions["minor_faults_per_call"]) == ["backend"]
    assert conditions["gpu_work"] == {"backend": {"kernels": 3, "launch_ms": 0.5}}
    assert not {"cpu_ratio", "widened_by", "process_ratios"} & set(conditions)
    assert not [note for note in notes if "interval" in note or "ratio" in note]
    assert [note for note in notes if "other programs ran on these cores" in note or "clean pairs" in note]


def test_parts_are_of_clean_samples_by_the_wall():
    script = events(clean=0.1, pairs=60)
    rows = [[1e6, 2e6] if clean else [9e6, 9e6] for clean in script[10]["clean"]]
    script[10] |= {"parts": ["prefill", "decode"], "eager_parts_ns": rows, "backend_parts_ns": rows}
    result, _ = run(ProcessOutcome(script, status=0))
    assert (result.parts_ms["backend"]["decode"]["median"], result.parts_ms["backend"]["decode"]["n"]) == (
        2.0,
        6,
    )


@pytest.mark.parametrize(("pairs", "clean", "known"), [(40, 0.05, False), (40, 1.0, True), (2, 1.0, True)])
def test_parts_without_enough_clean_pairs_are_not_known(pairs, clean, known):
    """Where CPU time stands in for the step, the wall times of its parts are those that were rejected."""
    script = events(clean=clean, pairs=pairs)
    rows = [[2e6, 3e6] if is_clean else [4e6, 6e6] for is_clean in script[10]["clean"]]
    script[10] |= {"parts": ["forward", "backward"], "eager_parts_ns": rows, "backend_parts_ns": rows}
    result, _ = run(ProcessOutcome(script, status=0))
    assert result.conditions["clock"] == ("wall" if known else "cpu")
    assert result.backend_ms.median == pytest.approx(5.0, rel=0.01)
    assert from_result(result).values.get("forward_ms") == (2.0 if known else None)
    assert bool(result.parts_ms) == known
    note = "the parts of the step are not known: a process has fewer than 3 clean pairs"
    assert (note in result.notes) == (not known)


@pytest.mark.parametrize(
    ("backend", "hint"),
    [("inductor", ""), ("aot-eager", ""), ("mine", "; a back end without dynamo declares CAPTURES = False")],
)
def test_nothing_captured_is_noted(backend, hint):
    planned = replace(PLANNED, case=replace(PLANNED.case, backend=backend))
    answer = Answer((ProcessOutcome(events(graphs=0), status=0),), "t", 9.0, 0.0, {})
    assert (
        f"nothing was captured: the compiled side is eager{hint}" in assemble(planned, answer, "steady").notes
    )


def test_the_back_end_eager_has_no_counts_of_what_was_captured():
    planned = replace(PLANNED, case=replace(PLANNED.case, backend="eager"))
    outcome = ProcessOutcome(events(graphs=0), status=0)
    result = assemble(planned, Answer((outcome,), "t", 9.0, 0.0, {}), "steady", "m.log")
    assert result.status is Status.PASS
    assert result.capture == {}
    assert is_counted(from_result(result))


def test_no_message_holds_a_secret():
    planned = replace(PLANNED, env={"HF_TOKEN": "hf-0123456789abcdef"})
    error = {"type": "ValueError", "message": "no hf-0123456789abcdef here"}
    failed = {"event": "failed", "status": "fail_to_run", "phase": "compile", **error}
    outcome = ProcessOutcome(
        [*events(upto="compiled"), failed], status=0, tail=["HF_TOKEN=hf-0123456789abcdef"]
    )
    result = assemble(planned, Answer([outcome], "t", 1.0, 0.0, {}), "steady")
    assert result.error.message == "no *** here"
    assert result.error.tail == ["HF_TOKEN=***"]


def test_secrets_are_known_by_the_rule_of_the_environment_and_taken_out_of_keys():
    planned = replace(
        PLANNED,
        env={
            "REGISTRY_AUTH": "me:correcthorse",
            "DSN": "host=h password=batterystaple",
            "AUTH_MODE": "steady",
        },
    )
    script = events(upto="compiled")
    script[-1]["capture"] |= {"break_reasons": {"call of me:correcthorse": 2, "steady": 1}}
    failed = {
        "event": "failed",
        "status": "fail_to_run",
        "phase": "accuracy",
        "type": "E",
        "message": "batterystaple",
    }
    result = assemble(
        planned, Answer([ProcessOutcome([*script, failed], status=0)], "t", 1.0, 0.0, {}), "steady"
    )
    assert result.capture["break_reasons"] == {"call of ***": 2, "steady": 1}
    assert "graphs" in result.capture
    assert result.error.message == "***"


@pytest.mark.parametrize(("metric", "status", "noted"), [
    ("relative_rmse", "pass", True), ("allclose", "pass", False), ("relative_rmse", "fail", False),
])  # fmt: skip
def test_a_pass_without_a_judge_is_noted(metric, status, noted):
    script = events()
    script[8] |= {"status": status, "metric": metric, "no_judge": "no memory for it: MemoryError"}
    result, _ = run(ProcessOutcome(script, status=0))
    assert any("without a float64 judge: no memory for it" in note for note in result.notes) == noted


def test_what_dynamo_did_while_it_was_timed_is_reported():
    script = events()
    script[10] |= {"recompiles": 2, "recompile_limit": None}
    result, _ = run(ProcessOutcome(script, status=0))
    assert (result.capture["recompiles"], result.capture["recompile_limit"]) == (2, None)
    assert "compiled 2 more graphs while the model was timed" in result.notes[0]
    script[10] |= {"recompile_limit": "recompile_limit reached"}
    result, _ = run(ProcessOutcome(script, status=0))
    assert "ran in eager (recompile_limit reached)" in result.notes[0]
    row = from_result(result)
    assert (is_counted(row), status_text(result)) == (False, "pass (recompile limit)")
    assert "pass (recompile limit)" in all_numbers([row])


def test_a_lost_replica_is_noted():
    result, _ = run(ProcessOutcome(events(), status=0), ended("compile", 9))
    assert result.conditions["processes"] == 1
    assert "1 of 2 processes failed" in result.notes[0]


def test_skipped():
    result = skipped(PLANNED, "t")
    assert (result.status, result.skip_reason) == (Status.SKIPPED, "not here")


def test_latencies_are_milliseconds():
    result, _ = run(ProcessOutcome(events(), status=0))
    assert result.eager_ms.median == pytest.approx(10.0, rel=0.01)
    assert result.backend_ms.median == pytest.approx(5.0, rel=0.01)
    assert result.eager_ms.samples[0] == pytest.approx(10.0, rel=0.01)


def test_the_second_process_compiles_warm():
    cold = events()
    compiled = next(event for event in cold if event["event"] == "compiled")
    compiled |= {"compilation_s": 9.0, "phases_s": {"dynamo": 1.00004, "rest": 7.99996}}
    result = run(*[ProcessOutcome(script, status=0) for script in (cold, events(), events())])[0]
    assert (result.compilation_s, result.warm_compilation_s) == (9.0, 2.0)
    assert result.compile_phases_s == {"dynamo": 1.0, "rest": 8.0}
    row = from_result(result)
    assert row.values["warm_compilation_s"] == 2.0
    assert row.details["compile_phases_s"] == {"dynamo": 1.0, "rest": 8.0}
    shown = details(result)
    assert "  compile_phases_s: dynamo 1.00, rest 8.00\n" in shown
    assert "  warm_compilation_s: 2.0\n" in shown


def test_one_process_tells_no_warm_latency():
    result = run(ProcessOutcome(events(), status=0))[0]
    assert (result.warm_compilation_s, result.compile_phases_s) == (None, None)
    assert "warm_compilation_s" not in from_result(result).values


KERNELS = [{"name": f"cpp_fused_add_{number}", "calls": 2} for number in range(10)]
STRUCTURE = {
    "kernels": KERNELS, "kernel_calls": 20, "library_calls": {"extern_kernels.mm": 3}, "guards": 1200,
    "graph_nodes": 16, "code_bytes": 19683, "fingerprint": "f00d", "frames_given_up": {},
}  # fmt: skip


def test_structure_is_recorded_stored_and_shown():
    script = events()
    compiled = next(event for event in script if event["event"] == "compiled")
    compiled["structure"] = STRUCTURE
    by_phase = {"compile": 1, "accuracy": 0, "timing": 2}
    script.insert(-1, {"event": "recompiled", "by_phase": by_phase, "given_up": {"Unsupported: x": 1}})
    result = run(ProcessOutcome(script, status=0))[0]
    assert (result.structure["recompiles"], result.structure["recompiles_by_phase"]) == (3, by_phase)
    row = from_result(result)
    assert row.values["recompiles"] == 3
    assert row.details["structure"] == {
        "guards": 1200, "graph_nodes": 16, "kernel_calls": 20, "code_bytes": 19683, "fingerprint": "f00d",
        "kernels": 10, "library_calls": 3, "frames_given_up": {"Unsupported: x": 1},
    }  # fmt: skip
    assert (
        "  structure: 10 kernels, 3 library calls, 1,200 guards, 16 graph nodes, 3 recompiles, "
        "19,683 bytes of code, fingerprint f00d\n    kernels: cpp_fused_add_0, "
    ) in details(result)
    assert "cpp_fused_add_7, 2 more\n    library calls: 3 extern_kernels.mm\n" in details(result)
    assert "frames given up: 1 Unsupported: x" in details(result)


def test_instructions_per_call_are_numbers_of_the_history():
    script = events()
    counted = {side: {"median": n, "low": n - 5, "high": n + 9, "n": 7} for side, n in
               (("eager", 1_000_400), ("backend", 900_100))}  # fmt: skip
    next(event for event in script if event["event"] == "latency")["instructions"] = counted
    result = run(ProcessOutcome(script, status=0))[0]
    values = from_result(result).values
    assert (values["eager_instructions"], values["backend_instructions"]) == (1_000_400, 900_100)
    without = from_result(run(ProcessOutcome(events(), status=0))[0]).values
    assert not {"eager_instructions", "backend_instructions"} & set(without)
    for name in ("eager_instructions", "backend_instructions"):
        assert name in NUMBERS
        assert name not in JUDGED_COUNTS
        assert name in schema.results.c


def test_a_case_that_fails_before_its_timing_has_no_number_of_recompiles():
    script = events(upto="phase accuracy")
    next(event for event in script if event["event"] == "compiled")["structure"] = STRUCTURE
    result = run(ProcessOutcome(script, status=0))[0]
    assert result.structure == STRUCTURE
    assert "recompiles" not in from_result(result).values
