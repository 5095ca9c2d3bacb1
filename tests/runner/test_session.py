"""The loop of a run with workers that are played back: what it does when something is lost."""

import signal
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perfdash.errors import MachineError
from perfdash.history import results as rows
from perfdash.records import Case, Status
from perfdash.runner import run as runs
from perfdash.runner.executors import Message
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.run_journal import RunJournal, read_all, read_info, read_results
from perfdash.runner.schedule import TYPICAL_S
from perfdash.runner.session import is_to_be_repeated
from tests.runner.planned import HELLO, PLANNED, TIME, Played, case, events, latency
from tests.runner.sessions import FAILED, INFRA, configured, session

HOST = {"host_class": "h x 2", "cores": 2}


@pytest.fixture
def start(tmp_path):
    return partial(session, tmp_path)


def test_a_run(start):
    run = start([case("a"), case("b"), case("c"), PLANNED])
    run.run()
    results = read_results(run.journal.folder)
    assert sorted(r.case.model for r in results) == ["a", "b", "c", "m"]
    assert [r.status for r in results] == [r.status for r in run.results]
    assert [r.conditions.get("processes") for r in results if r.speedup] == [2, 2, 2]
    info = read_info(run.journal.folder)
    assert info.state == "done"
    assert len(info.noise["null"]["start"]) == 2
    assert info.noise["between_processes"]["cases"] == 3
    assert {r.speedup.basis for r in results if r.speedup} == {"processes"}


def test_a_replica_that_does_not_start_loses_no_row(start):
    run = start([case("a")])
    run.executor.start = lambda slot, order, log: run.executor.answers.append(
        Message(0, "answer", Answer([ProcessOutcome(events(), status=0), INFRA], "t", 1.0, 0.1, {}))
    )
    run.run()
    (result,) = run.results
    assert result.status is Status.PASS
    assert result.conditions["processes"] == 1
    assert any("1 of 2 processes failed" in note for note in result.notes)


def test_torch_and_torchvision_that_do_not_match_are_one_message(start):
    trouble = {"timm": "RuntimeError: operator torchvision::nms does not exist"}
    run = start([case("a")], Played(hello={**HELLO, "missing": trouble}))
    with pytest.raises(MachineError, match="install torch, torchvision and timm together"):
        run.run()
    assert read_info(run.journal.folder).state == "failed"
    with pytest.raises(MachineError, match="started CUDA"):
        start([case("a")], Played(hello={**HELLO, "cuda_initialized": True})).run()


def test_the_machines_fault_is_tried_again_and_reported(start):
    run = start([case("a"), case("b")], Played(script={"a": [INFRA, INFRA]}))
    run.run()
    assert [r.status for r in run.results] == [Status.PASS] * 2
    a = next(r for r in run.results if r.case.model == "a")
    assert [attempt["status"] for attempt in a.attempts] == ["infra_error"] * 2
    assert "No space left" in a.attempts[0]["error"]["message"]
    assert sorted(path.name for path in run.journal.logs.glob("s_a_*")) == [
        f"{a.case.name}.2.log",
        f"{a.case.name}.3.log",
        f"{a.case.name}.log",
    ]
    assert [order.planned.case.model for _, order in run.executor.orders].count("a") == 3


def test_after_so_many_tries_it_stays(start):
    run = start([case("a")], Played(script={"a": [INFRA] * 9}), retries=1)
    run.run()
    (result,) = run.results
    assert result.status is Status.INFRA_ERROR
    assert len(result.attempts) == 1
    assert result.error.message == "No space left on device"


def test_a_slot_without_a_core_costs_a_case_no_attempt(start):
    coreless = ProcessOutcome([{**FAILED, "status": "infra_error", "type": "NoFreeCore"}], status=0)
    run = start([case("a"), case("b")], Played(script={"a": [coreless] * 5}), retries=1)
    run.run()
    assert [(r.status, r.attempts) for r in run.results] == [(Status.PASS, [])] * 2
    assert [order.planned.case.model for _, order in run.executor.orders].count("a") == 6
    assert not run.journal.read_attempts()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_does_not_stop_the_saving(start, number):
    """Such as of an impatient user, or of a terminal that closes."""
    run = start([case("a"), case("b")])
    wait, settle = run.executor.wait, run._settle

    def interrupted(patience):
        if len(run.results) == 1:
            raise KeyboardInterrupt
        return wait(patience)

    def settle_at_the_second():
        signal.raise_signal(number)
        settle()

    run.executor.wait, run._settle = interrupted, settle_at_the_second
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.run()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    info = read_info(run.journal.folder)
    assert (info.state, "between_processes" in info.noise) == ("interrupted", True)


def test_ctrl_c_while_a_run_that_is_done_is_saved_interrupts_after_it(start):
    """What comes next, such as another run of the night, must not begin."""
    run = start([case("a"), case("b")])
    settle = run._settle

    def settle_at_the_signal():
        signal.raise_signal(signal.SIGINT)
        settle()

    run._settle = settle_at_the_signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.run()
    finally:
        signal.signal(signal.SIGINT, before)
    info = read_info(run.journal.folder)
    assert (info.state, "between_processes" in info.noise) == ("done", True)


def test_a_signal_that_is_ignored_stays_ignored_while_a_run_is_saved(start):
    """As SIGHUP with nohup."""
    run = start([case("a")])
    run._settle = lambda: signal.raise_signal(signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run.run()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_within_a_second_interrupt_once(monkeypatch, second):
    """As where a time limit passes on what the whole group got."""
    clock = [5.0]
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: clock[0]), raising=False)

    def interrupts(number):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            return True
        return False

    before = signal.getsignal(second)
    with runs.signals_like_ctrl_c():
        assert interrupts(signal.SIGINT)
        clock[0] += 0.9
        assert not interrupts(second)
        clock[0] += 0.2
        assert interrupts(second), "it does not end, and its user loses patience"
    assert signal.getsignal(second) is before


def test_the_ctrl_c_of_a_program_that_uses_the_api_stays_its_own():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("own"))
    try:
        with runs.signals_like_ctrl_c():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["own"]


class Killed(BaseException):
    """The end of perfdash itself, after which nothing of it is done."""


def killed_after(run, attempts):
    """The run, killed when it has tried so often; its folder."""
    tried = run._take

    def take(*arguments):
        tried(*arguments)
        if len(run.executor.orders) == attempts:
            raise Killed

    run._take = take
    run._finish = lambda state: None
    with pytest.raises(Killed):
        run.run()
    run.journal.close()
    return run.journal.folder


def test_attempts_and_their_budget_survive_the_end_of_perfdash(start):
    folder = killed_after(start([case("a"), case("b")], Played(script={"a": [INFRA] * 9})), 2)
    with (folder / "attempts.jsonl").open("ab") as file:
        file.write(b'{"torn')
    script = {"a": [INFRA] * 9}
    again = start([case("a"), case("b")], Played(script=script), journal=RunJournal.reopen(folder))
    again.run()
    a = next(r for r in again.results if r.case.model == "a")
    assert a.status is Status.INFRA_ERROR
    assert len(a.attempts) == 2, "one was made before"
    assert [order.planned.case.model for _, order in again.executor.orders].count("a") == 2
    assert len(again.journal.read_attempts()) == 2
    again.journal.close()

    # Asked for again (--retry), it has a new budget.
    done = read_results(folder)
    script = {"a": [replace(INFRA), replace(INFRA)]}
    retried = start(
        [case("a")], Played(script=script), done=done, journal=RunJournal.reopen(folder), retries=2
    )
    retried.run()
    a = next(r for r in retried.results if r.case.model == "a")
    assert (a.status, len(a.attempts)) == (Status.PASS, 2)


@pytest.mark.parametrize(
    ("outcome", "tries"),
    [
        (ProcessOutcome([{**FAILED, "status": "fail_to_run"}], status=0), 1),
        (ProcessOutcome(events(upto="phase compile"), status=11), 1),  # SIGSEGV
        (ProcessOutcome(events(upto="phase compile"), status=9), 3),  # SIGKILL comes from outside
        (ProcessOutcome(events(upto="phase compile"), status=9, oom_killed="limit"), 1),
        (ProcessOutcome(events(upto="phase compile"), status=9, limit=TIME), 1),
        (ProcessOutcome(events(upto="phase compile"), status=9, limit=TIME, frozen=True), 3),
        (ProcessOutcome(events(upto="phase compile"), status=None), 3),
    ],
)
def test_a_models_own_failure_is_never_tried_again(start, outcome, tries):
    run = start([case("a")], Played(script={"a": [outcome] * 9}))
    run.run()
    assert len(run.executor.orders) == tries
    assert run.results[0].error.message


def out_of_memory(phase="compile"):
    return ProcessOutcome(events(upto=f"phase {phase}"), status=9, oom_killed="kernel")


def test_memory_of_the_machine_may_be_another_programs_fault(start):
    """The workers offer themselves to the kernel, which kills them for whoever fills the memory."""
    run = start([case("a"), case("b")], Played(script={"a": [out_of_memory()]}))
    run.run()
    assert {r.status for r in run.results} == {Status.PASS}
    assert [order.planned.case.model for _, order in run.executor.orders] == ["a", "b", "a"]


@pytest.mark.parametrize(("phase", "status"), [("eager", Status.EAGER_OOM), ("compile", Status.OOM)])
def test_a_model_that_fills_the_memory_every_time_is_out_of_it_after_one_more_try(start, phase, status):
    run = start([case("a")], Played(script={"a": [out_of_memory(phase)] * 9}))
    run.run()
    (a,) = run.results
    assert (a.status, a.error.type, len(run.executor.orders)) == (status, "OutOfMemory", 2)
    assert [attempt["status"] for attempt in a.attempts] == [str(status)]
    assert any("measured again in 0 s (1 of 1)" in line for line in run.watcher)
    # What else the machine does has its own retries, and without retries there is none.
    run = start([case("a")], Played(script={"a": [INFRA, *[out_of_memory()] * 9]}))
    run.run()
    assert [attempt["status"] for attempt in run.results[0].attempts] == ["infra_error", "oom"]
    run = start([case("a")], Played(script={"a": [out_of_memory()] * 9}), retries=0)
    run.run()
    assert (run.results[0].status, run.results[0].attempts) == (Status.OOM, [])


def test_memory_of_the_machine_may_be_the_neighbours_fault(start):
    outcome = ProcessOutcome(events(upto="phase compile"), status=9, oom_killed="kernel")
    run = start([case("a"), case("b")], Played(slots=2, script={"a": [outcome]}))
    run.run()
    assert {r.status for r in run.results} == {Status.PASS}


def test_a_case_that_takes_its_worker_with_it_every_time_is_a_crash(start):
    lost = ProcessOutcome(events(upto="phase compile"), status=None)
    run = start([case("a"), case("b")], Played(script={"a": [lost] * 9, "b": [lost]}))
    run.run()
    assert {r.case.model: r.status for r in run.results} == {"a": Status.CRASH, "b": Status.PASS}


def test_a_case_that_lost_its_worker_but_failed_otherwise_before_is_not_to_blame(start):
    lost = ProcessOutcome(events(upto="phase compile"), status=None)
    run = start([case("a")], Played(script={"a": [INFRA, lost, lost]}))
    run.run()
    (a,) = run.results
    assert (a.status, a.error.type, len(a.attempts)) == (Status.INFRA_ERROR, "WorkerLost", 2)


def test_slots_that_come_and_go(start):
    """As in a cluster: none for a while, then two; a case waits, and none is left out."""
    run = start([case("a"), case("b"), case("c")], Played(slots=1, script={"a": [INFRA]}))
    waits = []

    def wait(timeout_s):
        waits.append(timeout_s)
        assert timeout_s is not None or run.executor.answers, "it would wait for ever"
        assert len(waits) < 100
        run.executor.slots = 0 if 2 < len(waits) < 6 else 2
        return run.executor.answers.pop(0) if run.executor.answers else None

    run.executor.wait = wait
    run.run()
    assert {r.status for r in run.results} == {Status.PASS}
    assert len(run.results) == 3


def test_a_timing_process_that_was_lost_is_not_a_pass(start):
    untimed = ProcessOutcome([e for e in events() if e["event"] != "latency"], status=0)
    run = start([case("a")], retries=1)
    run.executor.start = lambda slot, order, log: run.executor.answers.append(
        Message(0, "answer", Answer([untimed, ProcessOutcome([], status=9)], "t", 1.0, 0.1, {}))
    )
    run.run()
    (result,) = run.results
    assert (result.status, result.error.type, len(result.attempts)) == (Status.CRASH, "SIGKILL", 1)


def test_code_for_other_instructions_is_the_machines_fault(start):
    lesser = events()
    next(e for e in lesser if e["event"] == "compiled")["capture"]["vector_isa"] = "avx2"
    run = start(
        [case("a")],
        Played(script={"a": [ProcessOutcome(lesser, status=0)]}, unlike={0: {"vector_isa": "avx512"}}),
    )
    run.run()
    (result,) = run.results
    assert result.status is Status.PASS
    assert result.attempts[0]["error"]["type"] == "OtherCode"


def test_a_further_process_with_code_for_other_instructions_does_not_count(start):
    def process(isa):
        script = events()
        next(e for e in script if e["event"] == "compiled")["capture"]["vector_isa"] = isa
        return ProcessOutcome(script, status=0)

    run = start([case("a")], Played(unlike={0: {"vector_isa": "avx512"}}), processes=2)
    answers = [[process("avx512"), process("avx2")], [process("avx512"), process("avx512")]]
    run.executor.start = lambda slot, order, log: run.executor.answers.append(
        Message(0, "answer", Answer(answers.pop(0), "t", 1.0, 0.1, {}))
    )
    run.run()
    (result,) = run.results
    assert (result.status, result.conditions["processes"]) == (Status.PASS, 2)
    (attempt,) = result.attempts
    assert attempt["error"]["type"] == "OtherCode"
    assert attempt["error"]["message"].startswith("compiled for avx2, where inductor compiles for avx512")


@pytest.mark.parametrize("key", ["cpp.simdlen", "cpp.vec_isa_ok"])
def test_code_for_other_instructions_may_be_what_a_configuration_asks_for(start, key):
    lesser = events()
    next(e for e in lesser if e["event"] == "compiled")["capture"]["vector_isa"] = "avx2"
    run = start(
        [case("a"), case("b", inductor_config={key: 256})],
        Played(script={"b": [ProcessOutcome(lesser, status=0)]}, unlike={0: {"vector_isa": "avx512"}}),
    )
    run.run()
    assert [(result.status, result.attempts) for result in run.results] == [(Status.PASS, [])] * 2


def test_a_case_of_an_edited_model_is_not_among_those_before_the_edit(start):
    def process(digest):
        script = events()
        next(event for event in script if event["event"] == "loaded")["own_files"] = {"f.py": digest}
        return [ProcessOutcome(script, status=0)]

    scripts = {"a": process("old"), "b": process("old"), "c": process("new")}
    run = start([case("a"), case("b"), case("c")], Played(script=scripts), processes=1)
    run.run()
    assert [result.status for result in run.results] == [Status.PASS, Status.PASS, Status.INFRA_ERROR]
    assert (run.results[2].error.type, run.results[2].attempts) == ("EditedModel", [])


def test_a_case_of_a_model_that_was_edited_since_the_session_before_is_not_among_its_cases(start):
    edited = events()
    next(event for event in edited if event["event"] == "loaded")["own_files"] = {"f.py": "new"}
    script = {"a": [ProcessOutcome(edited, status=0)]}
    run = start([case("a")], Played(script=script), executed={"f.py": "old"}, processes=1)
    run.run()
    assert [result.error and result.error.type for result in run.results] == ["EditedModel"]


def test_a_full_disk_is_waited_for(start, monkeypatch):
    run = start([case("a")])
    append, refusals = run.journal.append, [1, 2]

    def full(result):
        if refusals:
            refusals.pop()
            raise MachineError("cannot be written")
        append(result)

    monkeypatch.setattr(run.journal, "append", full)
    run.run()
    assert len(read_results(run.journal.folder)) == 1
    refusals[:] = [1] * 9
    again = start([case("b")])
    monkeypatch.setattr(again.journal, "append", full)
    with pytest.raises(MachineError, match="cannot be written"):
        again.run()
    assert again.results == []


def test_resumed_it_measures_what_is_left_and_keeps_the_rest(start):
    first = start([case("a"), case("b"), case("c")])
    first.run()
    earlier = [r for r in first.results if r.case.model != "b"]
    second = start([case("b")], done=earlier, journal=first.journal)
    second.info.environment = first.info.environment
    second.run()
    assert [order.planned.case.model for _, order in second.executor.orders] == ["b"]
    assert sorted(r.case.model for r in second.results) == ["a", "b", "c"]
    assert second.info.noise["between_processes"]["cases"] == 3, "the spread is of both sessions"


@pytest.mark.parametrize(("nulls", "refused"), [((1.0, 1.0), False), ((1.0, 1.5), True)])
def test_the_null_at_the_end_of_a_run_without_cases_left_is_judged(start, nulls, refused):
    first = start([case("a")])
    first.run()
    again = start([], Played(nulls=nulls), done=first.results, journal=first.journal, strict=True)
    again.null_like = case("a")
    with pytest.raises(MachineError, match="--strict") if refused else nullcontext():
        again.run()
    assert again.executor.orders == []
    assert again.info.noise["null"]["end"]
    assert ("refused" in again.info.noise) == refused
    assert read_info(again.journal.folder).state == ("failed" if refused else "done")
    assert len(read_results(again.journal.folder)) == 1


def test_another_environment_is_refused(start):
    run = start([case("a")])
    run.info.environment = {**HOST, "worker": {**HELLO, "torch": "2.14"}}
    with pytest.raises(MachineError, match=r"torch: 2\.14 \| 2\.15"):
        run.run()
    assert not run.executor.orders


def test_facts_that_differ_between_hosts_are_recorded_by_host(start):
    """Of a Dask cluster, and of a run that another host resumes."""
    hosts = {number: {"host": f"host{number}", "kernel": f"6.{number}"} for number in range(2)}
    first = start([case("a")], Played(slots=2, unlike=hosts))
    first.run()
    by_host = {"host0": {"kernel": "6.0"}, "host1": {"kernel": "6.1"}}
    environment = read_info(first.journal.folder).environment
    assert (environment["by_host"], "kernel" in environment) == (by_host, False)
    elsewhere = Played(unlike={0: {"host": "host2", "kernel": "6.0"}})
    again = start([case("b")], elsewhere, done=first.results, journal=first.journal)
    again.info.environment = environment
    again.run()
    assert again.info.environment["by_host"] == {**by_host, "host2": {"kernel": "6.0"}}


def test_slots_that_are_not_alike_are_refused(start):
    run = start([case("a")], Played(slots=2, unlike={1: {"host_class": "other x 2"}}))
    with pytest.raises(MachineError, match=r"host0 and host1 are not alike(.|\n)*h x 2 \| other x 2"):
        run.run()


def test_two_slots_share_the_work(start):
    run = start([case(name) for name in "abcdef"], Played(slots=2), costs=[6, 1, 1, 1, 1, 1])
    run.run()
    assert {slot for slot, _ in run.executor.orders} == {0, 1}
    assert len(run.results) == 6
    assert run.watcher[:2] == ["note of slot 0", "note of slot 1"]
    assert run.info.noise["slots"][0]["slots"] == 2


def test_jobs_are_reduced_where_the_null_is_out_of_bounds(start):
    run = start([case(name) for name in "abc"], Played(slots=4, nulls=[1.05, 1.03, 1.001]))
    run.run()
    assert run.executor.slots == 1
    assert [entry["slots"] for entry in run.info.noise["slots"]] == [4, 2, 1]
    assert any("--jobs reduced to 2" in line for line in run.watcher)
    assert len(run.results) == 3


def disturbed():
    """A process on whose core others were at work, and whose CPU time says nothing."""
    script = events(clean=0.05)
    for event in script:
        if event["event"] == "latency":
            event["steal"] = 0.2
    return ProcessOutcome(script, status=0)


def test_a_disturbed_case_is_measured_again_at_the_end(start):
    run = start([case("a"), case("b"), case("c")], Played(script={"a": [disturbed()]}), processes=1)
    run.run()
    assert [order.planned.case.model for _, order in run.executor.orders] == ["a", "b", "c", "a"]
    assert any("a: disturbed" in line and "measured again at the end" in line for line in run.watcher)
    assert len(run.results) == 3
    assert "disturbed" not in {result.speedup.verdict for result in run.results}
    assert len(read_results(run.journal.folder)) == 3


def alone(backend, no_core):
    """A process with several threads that timed the back end without eager, which is out of memory."""
    sampled = latency(backend, backend, no_core=no_core, alone=True)
    sampled |= {name: [None] * 40 for name in ("eager_cpu_ns", "backend_cpu_ns")}
    lost = {**FAILED, "event": "eager_lost", "phase": "eager", "status": "eager_oom"}
    script = [lost if event["event"] == "eager" else event for event in events()]
    return ProcessOutcome([sampled if event["event"] == "latency" else event for event in script], status=0)


def test_a_back_end_alone_that_was_disturbed_is_measured_again(start):
    planned = case("a", until_oom=True)
    run = start([planned], Played(script={"a": [alone(9.0, 0.08), alone(5.0, 0.0)]}), processes=1)
    run.run()
    (result,) = run.results
    assert len(run.executor.orders) == 2
    assert result.status is Status.EAGER_OOM
    assert result.backend_ms.median == pytest.approx(5.0, rel=0.01)
    assert not result.notes


def test_a_speedup_is_not_lost_to_a_back_end_alone(start):
    run = start([case("a")], Played(script={"a": [disturbed(), alone(5.0, 0.0)]}), processes=1)
    run.run()
    (result,) = run.results
    assert (result.status, result.speedup.verdict) == (Status.PASS, "disturbed")
    assert any("measured again without a better result: eager_oom" in note for note in result.notes)


def test_what_is_still_disturbed_then_has_no_verdict(start):
    run = start([case("a"), case("b")], Played(script={"a": [disturbed(), disturbed()]}), processes=1)
    run.run()
    assert len(run.executor.orders) == 3
    verdicts = {result.case.model: result.speedup.verdict for result in run.results}
    assert verdicts["a"] == "disturbed"
    assert verdicts["b"] != "disturbed"


def test_a_disturbed_result_is_not_lost_to_a_failure(start):
    failed = ProcessOutcome([{**FAILED, "status": "oom"}], status=0)
    run = start([case("a"), case("b")], Played(script={"a": [disturbed(), failed]}), processes=1)
    run.run()
    assert len(run.executor.orders) == 3
    kept_result = next(result for result in read_results(run.journal.folder) if result.case.model == "a")
    assert (kept_result.status, kept_result.speedup.verdict) == (Status.PASS, "disturbed")
    assert any("measured again without a better result: oom" in note for note in kept_result.notes)


def test_strict_refuses_a_noisy_machine(start):
    run = start([case("a")], Played(nulls=[1.08]), strict=True)
    with pytest.raises(MachineError, match=r"--strict: at the start .* off by 8\.0%.*nothing was measured"):
        run.run()
    assert not run.executor.orders
    run = start([case("a")], Played(nulls=[1.001, 1.08]), strict=True)
    with pytest.raises(MachineError, match="at the end"):
        run.run()
    assert run.info.noise["refused"].startswith("at the end of the run a model against itself is off by 8.0%")
    assert read_info(run.journal.folder).noise["refused"] == run.info.noise["refused"]
    assert len(read_results(run.journal.folder)) == 1


def sizes_of(*pairs, **change):
    return [replace(case(model, **change), case=Case("s", model, batch_size=size)) for model, size in pairs]


def test_larger_batches_are_not_run_after_one_that_was_out_of_memory(start):
    oom = ProcessOutcome([{**FAILED, "status": "oom"}], status=0)
    fine = ProcessOutcome(events(), status=0)
    planned = sizes_of(("a", 1), ("a", 2), ("a", 4), ("a", 8), ("b", 8), until_oom=True)
    executor = Played(script={"a": [fine, oom]})
    session = start(planned, executor)
    session.run()
    orders = [order.planned.case for _, order in executor.orders]
    assert [case.batch_size for case in orders if case.model == "a"] == [1, 2]
    assert [case.batch_size for case in orders if case.model == "b"] == [8]
    results = {(result.case.model, result.case.batch_size): result for result in session.results}
    assert [str(results["a", size].status) for size in (1, 2, 4, 8)] == ["pass", "oom", "oom", "oom"]
    assert results["a", 4].error.message == "not run: batch size 2 was out of memory"
    assert len(read_results(session.journal.folder)) == 5, "each has its row"


def test_nor_after_one_that_took_too_long(start):
    late = ProcessOutcome([{**FAILED, "status": "timeout"}], status=0)
    session = start(sizes_of(("a", 1), ("a", 2), until_oom=True), Played(script={"a": [late]}))
    session.run()
    assert [str(result.status) for result in session.results] == ["timeout", "timeout"]
    assert session.results[1].error.message == "not run: batch size 1 was out of time"
    assert session.results[1].error.type == "SmallerWasOutOfTime"


def test_elsewhere_they_are(start):
    oom = ProcessOutcome([{**FAILED, "status": "oom"}], status=0)
    executor = Played(script={"a": [oom]})
    start(sizes_of(("a", 1), ("a", 2)), executor).run()
    assert len(executor.orders) == 2


class Patient(Played):
    """One that would wait for ever where nobody is busy, as a real executor does."""

    def wait(self, timeout_s):
        assert self.answers or timeout_s is not None, "it would wait for ever"
        return super().wait(timeout_s)


@pytest.mark.parametrize("slots", [1, 3])
def test_it_ends_where_what_is_left_is_not_run(start, slots):
    oom = ProcessOutcome([{**FAILED, "status": "oom"}], status=0)
    planned = sizes_of(("a", 1), ("a", 2), ("a", 4), ("a", 8), until_oom=True)
    executor = Patient(slots=slots, script={"a": [oom]})
    session = start(planned, executor)
    session.run()
    assert [order.planned.case.batch_size for _, order in executor.orders] == [1]
    assert len(session.results) == 4


def test_larger_batches_wait_for_smaller_ones_even_with_several_slots(start):
    planned = sizes_of(("a", 8), ("a", 2), ("a", 1), ("b", 1), until_oom=True)
    executor = Patient(slots=4)
    start(planned, executor).run()
    of_a = [order.planned.case.batch_size for _, order in executor.orders if order.planned.case.model == "a"]
    assert of_a == [1, 2, 8]


def test_the_null_at_the_end_of_an_earlier_session_does_not_judge_this_one(start, monkeypatch):
    run = start([case("a")])
    run.run()
    assert "end" in run.info.noise["null"]
    monkeypatch.setattr(run.executor, "wait", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert "end" not in run.info.noise["null"]


def test_a_refusal_at_the_start_of_a_resume_leaves_what_was_judged(start):
    first = start([case("a")], strict=True)
    first.run()
    resumed = start([case("b")], Played(nulls=[1.08]), first.results, journal=first.journal, strict=True)
    resumed.info.noise = first.info.noise
    with pytest.raises(MachineError, match="at the start"):
        resumed.run()
    assert "end" in resumed.info.noise["null"]
    assert "refused" not in resumed.info.noise


def test_a_disturbed_case_of_a_run_that_was_ended_is_measured_again_once(start):
    ended = start([case("a")], Played(script={"a": [disturbed(), disturbed()]}), processes=1)
    ended.run()
    (again,) = read_results(ended.journal.folder)
    assert not is_to_be_repeated(again)
    (first, _) = read_all(ended.journal.folder)
    assert is_to_be_repeated(first)
    failed = ProcessOutcome([{**FAILED, "status": "oom"}], status=0)
    resumed = start([case("a")], Played(script={"a": [failed]}), [first], journal=ended.journal, processes=1)
    resumed.run()
    assert len(resumed.executor.orders) == 1
    assert not is_to_be_repeated(read_all(ended.journal.folder)[-1]), "a kill would not lose it"
    (result,) = resumed.results
    assert (result.status, result.speedup.verdict) == (Status.PASS, "disturbed")
    assert not is_to_be_repeated(result)


def test_the_testbed_counts_cases_that_really_ran_side_by_side(start):
    run = start([case(name) for name in "abc"], Played(slots=4, nulls=[1.05, 1.001]))
    run.run()
    assert run.executor.slots == 2
    assert rows.testbed(run.info)[1].get("side_by_side") is None, "four hosts with one slot each"
    run.info.sessions[-1]["slots"] = [{"host": "h"}] * 4
    assert rows.testbed(run.info)[1]["side_by_side"] == 2


def test_time_left_is_known_once_a_duration_is(start):
    """A model of one's own has no cost until it has been measured."""
    left = []
    run = start([case("a"), case("b")], costs=[TYPICAL_S, TYPICAL_S])
    run.watcher.case_started = lambda number, total, case, left_s: left.append(left_s)
    run.run()
    assert left[0] == 0.0
    session = start([case("a"), case("b")], costs=[TYPICAL_S, 100.0])
    session.watcher.case_started = lambda number, total, case, left_s: left.append(left_s)
    session.run()
    assert left[2] > 100.0


def test_configurations_of_a_model_are_measured_by_one_slot_and_share_eager(start):
    planned = [*configured("a", "default", "dynamic"), *configured("b", "default", "dynamic"), case("c")]
    run = start(planned, Played(slots=2), costs=[5.0, 1.0, 4.0, 1.0, 9.0])
    run.run()
    assert {order.planned.case.model: order.share for _, order in run.executor.orders} == {
        "a": True,
        "b": True,
        "c": False,
    }
    models = [order.planned.case.model for _, order in run.executor.orders if order.planned.case.model != "c"]
    assert len({(slot, order.planned.case.model) for slot, order in run.executor.orders}) == 3, models


def test_without_sharing_every_case_measures_eager(start):
    run = start(configured("a", "default", "dynamic"), share=False)
    run.run()
    assert not any(order.share for _, order in run.executor.orders)
