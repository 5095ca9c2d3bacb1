"""A slot makes the headers that inductor's cases share before the first of them, whenever that comes."""

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.records import Case
from perfdash.runner import slot as slots
from perfdash.runner.cores import Locks, core_names
from perfdash.runner.messages import Options, Order, ProcessOutcome
from perfdash.runner.slot import Slot
from tests.runner.planned import PLANNED, Parent


@pytest.fixture
def slot(monkeypatch):
    """A slot without a worker; `asked` are the roles of its probes, `lent` what its jobs were lent."""
    slot = Slot((0,), Options(python="python", threads=1))
    slot.asked, slot.probed, slot.lent = [], [], []

    def probe(like, case, role="probe", **limits):
        slot.asked.append(role)
        slot.probed.append(case)
        return {"vector_isa": "avx512", "whole": True}

    def process(planned, job, log, on_event=None, parent=0, timed=False):
        slot.lent.append(job.machine_cache)
        return ProcessOutcome([], status=0)

    monkeypatch.setattr(slot, "_probe", probe)
    monkeypatch.setattr(slot, "_process", process)
    yield slot
    slot.__exit__()


def planned(backend="inductor", device="cpu", **change):
    return replace(PLANNED, case=Case("s", "m", device=device, backend=backend), skip_reason=None, **change)


def test_headers_come_with_the_first_case_that_needs_them(slot, tmp_path):
    for case in (planned("eager"), planned("aot-eager"), planned("eager", device="cuda")):
        slot.measure(Order(case), tmp_path / "log", print)
    slot.measure(Order(planned(), role="check"), tmp_path / "log", print)
    assert slot.asked == []
    for _ in range(2):
        slot.measure(Order(planned()), tmp_path / "log", print)
    assert slot.asked == ["isa"]
    assert slot.lent[:4] == [None] * 4
    assert slot.lent[4] is not None
    assert slot.lent[4] == slot.lent[5]


def test_other_instructions_have_headers_of_their_own(slot, tmp_path):
    slot.measure(Order(planned()), tmp_path / "log", print)
    slot.measure(Order(planned(env={"ATEN_CPU_CAPABILITY": "avx2"})), tmp_path / "log", print)
    assert slot.asked == ["isa", "isa"]


PLAIN, WRAPPER, AHEAD = planned(), planned(inductor_config={"cpp_wrapper": True}), planned("aot-inductor")


@pytest.mark.parametrize("cases", [[PLAIN, WRAPPER, AHEAD], [AHEAD, WRAPPER, PLAIN], [WRAPPER, PLAIN, AHEAD]])
def test_every_kind_of_case_finds_its_headers_whichever_comes_first(slot, monkeypatch, tmp_path, cases):
    introduce(slot, monkeypatch, [*cases, planned("eager"), *cases, planned("inductor-freezing")])
    others = [case for case in cases if case != PLAIN]
    assert headers_of(slot) == [PLAIN, *others], "the machine's instructions are asked for by plain inductor"
    for case in cases:
        slot.measure(Order(case), tmp_path / "log", print)
    assert slot.asked.count("isa") == 3


@pytest.mark.parametrize("case", [planned(), planned("inductor-freezing"), planned(device="cuda")])
def test_a_run_of_one_configuration_compiles_once_for_what_its_cases_share(slot, monkeypatch, tmp_path, case):
    cases = [case, replace(case, case=replace(case.case, model="n", dtype="bfloat16"))]
    introduce(slot, monkeypatch, cases)
    for each in cases:
        slot.measure(Order(each), tmp_path / "log", print)
    assert slot.asked.count("isa") == 1


def introduce(slot, monkeypatch, cases):
    """Introduce a slot to cases without complaints."""
    probe = slot._probe
    able = {"complaints": [], "cuda": []}
    monkeypatch.setattr(slot, "_probe", lambda *args, **options: probe(*args, **options) | able)
    monkeypatch.setattr(slot, "_parent_for", lambda planned: Mock(hello={}))
    return slot.introduce(cases)


def headers_of(slot):
    """The cases whose headers a slot has made."""
    return [case for role, case in zip(slot.asked, slot.probed, strict=True) if role == "isa"]


def own_backend(folder, declares="", **change):
    path = folder / "mine.py"
    path.write_text(f"{declares}\ndef prepare(module, inputs, job): ...\n")
    return planned("mine", backend_file=str(path), **change)


@pytest.mark.parametrize("beside", [[], [PLAIN]], ids=["alone", "beside inductor"])
def test_a_back_end_of_ones_own_shares_what_inductor_does_whether_or_not_that_is_measured(
    slot, monkeypatch, tmp_path, beside
):
    own = own_backend(tmp_path)
    introduce(slot, monkeypatch, [*beside, own])
    for case in [*beside, own, own]:
        slot.measure(Order(case), tmp_path / "log", print)
    assert [case.case.backend for case in headers_of(slot)] == ["inductor"]
    assert slot.lent[-1] is not None


def test_options_of_ones_own_back_end_have_headers_of_their_own(slot, tmp_path):
    own = own_backend(tmp_path, inductor_config={"cpp_wrapper": True})
    slot.measure(Order(own), tmp_path / "log", print)
    assert headers_of(slot) == [WRAPPER]


@pytest.mark.parametrize("declares", ["CAPTURES = False", None], ids=["converts elsewhere", "missing"])
def test_a_back_end_of_ones_own_that_compiles_nothing_waits_for_no_header(slot, tmp_path, declares):
    own = own_backend(tmp_path, declares or "")
    if declares is None:
        os.unlink(own.backend_file)
    slot.measure(Order(own), tmp_path / "log", print)
    assert slot.asked == []


def test_a_header_that_cannot_be_made_is_a_note_of_ones_own_back_end(slot, monkeypatch, tmp_path):
    monkeypatch.setattr(slot, "_probe", Mock(side_effect=MachineError("no compiler")))
    answer = slot.measure(Order(own_backend(tmp_path)), tmp_path / "log", print)
    assert answer.outcomes == [ProcessOutcome([], status=0)]
    assert answer.notes[0].endswith("compiling the case includes it, if its back end uses inductor")


@pytest.mark.parametrize("broken", [AHEAD, WRAPPER], ids=["aot-inductor", "cpp_wrapper"])
@pytest.mark.parametrize("cases", ["broken plain", "plain broken", "broken"])
def test_a_crash_while_headers_are_made_is_left_to_the_case(slot, monkeypatch, tmp_path, broken, cases):
    probe, crashed = slot._probe, []

    def crash(like, case, *args, **options):
        if case == broken:
            crashed.append(case)
            raise MachineError("the worker failed")
        return probe(like, case, *args, **options)

    monkeypatch.setattr(slot, "_probe", crash)
    cases = [{"broken": broken, "plain": PLAIN}[name] for name in cases.split()]
    assert slot._vector_isa(cases, ["avx512f"]) == "avx512"
    for _ in range(2):
        answer = slot.measure(Order(broken), tmp_path / "log", print)
        assert answer.outcomes == [ProcessOutcome([], status=0)], "the outcome of the case's own process"
        assert "could not be made" in answer.notes[0]
    assert slot.probed == [PLAIN]
    assert len(crashed) == 1, "a probe tries twice itself"


def test_a_kind_that_comes_first_after_the_beginning_may_crash_too(slot, monkeypatch, tmp_path):
    monkeypatch.setattr(slot, "_probe", Mock(side_effect=MachineError("the worker failed")))
    for _ in range(2):
        answer = slot.measure(Order(planned(inductor_config={"cpp.simdlen": 256})), tmp_path / "log", print)
        assert answer.outcomes == [ProcessOutcome([], status=0)]
    assert slot._probe.call_count == 1


@pytest.mark.parametrize("change", [{"env": {"TORCHINDUCTOR_X": "1"}}, {"inductor_config": {"cpp.cxx": "g"}}])
def test_the_machine_is_asked_without_the_options_of_a_configuration(slot, change):
    other = planned(**change)
    assert slot._vector_isa([other, PLAIN], ["avx512f"]) == "avx512"
    assert slot.probed == [PLAIN, other]
    assert slot._vector_isa([other], ["avx512f"]) == "avx512"
    assert slot.probed[2:] == [other], "the compiler that it names, and the variables of its fork parent"


def test_a_machine_whose_plain_inductor_does_not_answer_ends_the_run(slot, monkeypatch):
    monkeypatch.setattr(slot, "_probe", Mock(side_effect=MachineError("the worker failed")))
    with pytest.raises(MachineError):
        slot._vector_isa([AHEAD], ["avx512f"])


@pytest.mark.parametrize("answers", [[False, True], [False, False], [True]])
def test_incomplete_headers_of_a_kind_are_made_again_before_its_first_case(
    slot, monkeypatch, tmp_path, answers
):
    probe, whole = slot._probe, iter(answers)
    monkeypatch.setattr(
        slot, "_probe", lambda *args, **options: probe(*args, **options) | {"whole": next(whole)}
    )
    for _ in range(2):
        order = Order(planned(inductor_config={"cpp.simdlen": 256}))
        answer = slot.measure(order, tmp_path / "log", print)
        assert len(answer.notes) == (not answers[-1]), "its compilation latency contains the header"
    assert slot.asked == ["isa"] * len(answers)
    assert slot.measure(Order(planned("eager")), tmp_path / "log", print).notes == []


@pytest.mark.parametrize("answers", [[False, True], [False, False], [True]])
def test_a_driver_stub_that_failed_is_made_again(slot, monkeypatch, answers):
    probe, whole = slot._probe, iter(answers)
    monkeypatch.setattr(
        slot,
        "_probe",
        lambda *args, **options: probe(*args, **options) | {"vector_isa": None, "whole": next(whole)},
    )
    assert slot._vector_isa([planned(device="cuda")], []) is None
    assert slot.asked == ["isa"] * len(answers)


def test_headers_that_are_not_whole_are_made_again(slot, monkeypatch):
    probe, whole = slot._probe, iter([False, True, False, False])
    monkeypatch.setattr(
        slot, "_probe", lambda *args, **options: probe(*args, **options) | {"whole": next(whole)}
    )
    assert slot._vector_isa([PLAIN, WRAPPER], ["avx512f"]) == "avx512"
    assert slot.probed == [PLAIN, PLAIN, WRAPPER, WRAPPER]


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"ATEN_CPU_CAPABILITY": "avx2"}},
        {"inductor_config": {"cpp.simdlen": 256}},
        {"inductor_config": {"cpp.vec_isa_ok": True}},
    ],
)
def test_a_case_that_names_its_instructions_says_nothing_of_the_machine(slot, change):
    other, plain = planned(**change), planned()
    assert slot._vector_isa([other, plain], ["avx512f"]) == "avx512"
    assert slot.probed == [plain]
    assert slot._vector_isa([other], ["avx512f"]) is None
    assert slot.probed == [plain]


def test_what_cannot_fit_is_not_started(slot, tmp_path):
    answer = slot.measure(Order(planned("eager", parameters=10**13)), tmp_path / "log", print)
    assert slot.lent == []
    assert answer.outcomes[0].find("failed")["status"] == "eager_oom"


@pytest.fixture
def parents(monkeypatch):
    """A slot whose fork parents, `started`, have no worker; `eager` milliseconds by process."""
    # A core that there is not, and that no test beside it takes.
    with Slot((1_000_000 + os.getpid(),), Options(python="python", threads=1)) as slot:
        slot.started, slot.eager = [], (10.0,) * 6

        def start(launch, locks, stop, notebook=None):
            slot.started.append(Parent(launch, slot.eager))
            return slot.started[-1]

        monkeypatch.setattr(slots, "ForkParent", start)
        yield slot
    assert all(parent.closed for parent in slot.started)


def test_each_process_of_a_case_has_another_parent(parents, tmp_path):
    starts = []
    for _ in range(2):
        answer = parents.measure(Order(planned("eager"), 2), tmp_path / "log", starts.append)
        assert len(answer.outcomes) == 2
    assert [event["name"] for event in starts] == ["process 2 of 2, 2.00x so far"] * 2
    assert [parent.forks for parent in parents.started] == [2, 2], "parents are kept from case to case"


@pytest.mark.parametrize(
    ("eager", "further", "processes"),
    [((10.0, 10.1), True, 2), ((10.0, 11.0), True, 4), ((10.0, 11.0), False, 2)],
)
def test_where_processes_disagree_two_more_are_taken(parents, tmp_path, eager, further, processes):
    parents.eager = (*eager, 10.0, 10.0)
    answer = parents.measure(Order(planned("eager"), 2, further), tmp_path / "log", print)
    assert len(answer.outcomes) == processes
    assert len(parents.started) == processes


def test_parents_are_renewed(parents, tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "_FORKS", 3)
    for _ in range(4):
        parents.measure(Order(planned("eager"), 2), tmp_path / "log", print)
    assert [parent.forks for parent in parents.started] == [3, 3, 1, 1]
    assert [parent.closed for parent in parents.started] == [True, True, False, False]


def test_many_processes_do_not_keep_many_parents(parents, tmp_path):
    parents.measure(Order(planned("eager"), 6), tmp_path / "log", print)
    assert [parent.closed for parent in parents.started] == [False, False, False, True, True, True]


@pytest.fixture
def hellos(parents, monkeypatch):
    """What the slot's fork parents say of their interpreter, in turn; each parent forks once."""
    hellos = []

    def start(launch, locks, stop, notebook=None):
        hello = {"torch": "2.15", "torch_git_version": "abc", "packages": {}, **hellos.pop(0)}
        parents.started.append(Parent(launch, parents.eager, hello=hello))
        return parents.started[-1]

    monkeypatch.setattr(slots, "ForkParent", start)
    monkeypatch.setattr(slots, "_FORKS", 1)
    return hellos


def of_commits(*commits):
    return [{"torch_git_version": commit} for commit in commits]


def test_an_interpreter_that_changes_ends_the_run(parents, hellos, tmp_path):
    hellos += of_commits(*["abc"] * 3, *["def"] * 3)
    parents.measure(Order(planned("eager"), 2), tmp_path / "log", print)
    with pytest.raises(MachineError, match=r"python changed .*\n  torch_git_version: abc \| def\n"):
        parents.measure(Order(planned("eager"), 2), tmp_path / "log", print)
    assert parents.started[-1].closed
    for order in (Order(planned("eager")), Order(planned("eager", env={"X": "1"}))):
        with pytest.raises(MachineError, match=r"abc \| def"):
            parents.measure(order, tmp_path / "log", print)
    assert [parent.forks for parent in parents.started] == [1, 1, 1, 0, 0, 0]


TIMM, TRANSFORMERS = planned("eager", loader="timm"), planned("eager", loader="transformers")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"numpy": "2.1", "pip": "24.0", "perfdash": "1"}, {"numpy": "2.1", "pip": "25.0"}),
        ({"numpy": "2.1"}, {"numpy": "2.1", "rich": "14"}),
    ],
    ids=["pip", "one more"],
)
def test_pip_and_added_packages_are_no_change(parents, hellos, tmp_path, first, later):
    hellos += [{"packages": first}, {"packages": later, "commits": dict.fromkeys(later.keys() - first, "a")}]
    for _ in range(2):
        parents.measure(Order(TIMM), tmp_path / "log", print)
    assert hellos == []


@pytest.mark.parametrize(
    ("later", "change"), [({"numpy": "2.2"}, r"package numpy: 2\.1 \| 2\.2"), ({}, r"numpy: 2\.1 \| none")]
)
def test_a_package_that_was_replaced_or_removed_ends_the_run(parents, hellos, tmp_path, later, change):
    hellos += [{"packages": {"numpy": "2.1"}}, {"packages": later}]
    parents.measure(Order(TIMM), tmp_path / "log", print)
    with pytest.raises(MachineError, match=change):
        parents.measure(Order(TIMM), tmp_path / "log", print)


def test_packages_that_another_loader_brings_are_no_change(parents, hellos, tmp_path):
    with_setuptools = {"numpy": "2.1", "wheel": "0.45"}  # setuptools brings wheel, once it is imported
    hellos += [{"packages": packages} for packages in (with_setuptools, {"numpy": "2.1"}) * 2]
    for case in (TIMM, TRANSFORMERS) * 2:
        parents.measure(Order(case), tmp_path / "log", print)
    assert hellos == []


def test_an_interpreter_that_changed_before_the_first_case_of_a_loader_ends_the_run(
    parents, hellos, tmp_path
):
    hellos += [{"packages": {"numpy": version}} for version in ("2.1", "2.2", "2.2")]
    parents.measure(Order(TIMM), tmp_path / "log", print)
    for _ in range(2):
        with pytest.raises(MachineError, match=r"package numpy: 2\.1 \| 2\.2"):
            parents.measure(Order(TRANSFORMERS), tmp_path / "log", print)


def test_other_packages_that_a_variable_asks_for_are_no_change(parents, hellos, tmp_path):
    hellos += of_commits("abc", "def", "abc")
    for env in ({}, {"PYTHONPATH": "/other"}, {}):
        parents.measure(Order(planned("eager", env=env), 1), tmp_path / "log", print)
    assert hellos == []


def test_a_slot_may_measure_another_build_only_where_that_is_expected(parents, hellos, tmp_path):
    hellos += of_commits("abc", "def", "abc")
    for _ in range(2):
        answer = parents.measure(Order(planned("eager"), 1), tmp_path / "log", print)
        assert answer.outcomes[0].find("done")
        parents.renew(another_build=len(hellos) == 2)
    with pytest.raises(MachineError, match=r"def \| abc"):
        parents.measure(Order(planned("eager"), 1), tmp_path / "log", print)


def test_a_core_that_is_measured_on_is_not_free(monkeypatch):
    monkeypatch.setattr(slots, "every_slot", lambda threads: [(1_000_001,), (1_000_002,)])
    held = Locks.take(core_names([1_000_001]))
    assert slots.free_slots(1) == [(1_000_002,)]
    held.close()
    assert slots.free_slots(1) == [(1_000_001,), (1_000_002,)]


@pytest.mark.parametrize(("phase", "message"), [("load", ["mine.py:f"]), ("start", [])])
def test_a_back_end_that_is_missing_is_no_slip_in_the_model(parents, monkeypatch, phase, message):
    failed = {"event": "failed", "status": "missing_dependency", "phase": phase}
    monkeypatch.setattr(Parent, "run", lambda *_, **__: ProcessOutcome([failed], status=0))
    mine = replace(planned("eager"), case=Case("own", "mine.f", backend="eager"), target="mine.py:f")
    assert list(parents._unloadable(mine, [mine])) == message


def test_a_further_process_takes_as_long_as_loading_and_sampling_did():
    phases = {"load": 2.0, "eager": 50.0, "compile": 100.0, "accuracy": 9.0, "latency": 10.0, "memory": 5.0}
    events = [{"event": "phase_end", "name": name, "seconds": seconds} for name, seconds in phases.items()]
    assert slots._replica_seconds(ProcessOutcome(events)) == pytest.approx(25.0)
    assert slots._replica_seconds(ProcessOutcome([])) == 0.0


def test_a_gpu_shares_the_driver_stub_of_triton(slot, tmp_path):
    for _ in range(2):
        slot.measure(Order(planned(device="cuda")), tmp_path / "log", print)
    assert slot.asked == ["isa"]
    assert slot.lent[0] is not None


def test_cores_to_compile_on_are_locked_lent_and_recorded():
    slot = Slot((3,), Options(python="python", threads=1), gpu="GPU-1", compile_cores=(2, 3))
    assert {"core 2", "core 3", "gpu GPU-1"} <= {*slot.lock_names, *core_names((2, 3))}
    assert slot.where()["compile_cores"] == 2
    assert slot._job(PLANNED, "").compile_cores == (2, 3)
    alone = Slot((3,), Options(python="python", threads=1))
    assert "compile_cores" not in alone.where()


def test_other_programs_on_its_gpu_are_known_before_the_first_case(slot, monkeypatch):
    slot.gpu = "GPU-1"
    slot._monitor = Mock(uuid="GPU-1", others=lambda: 2)
    (note,) = introduce(slot, monkeypatch, [planned("eager", device="cuda")])["notes"]
    assert note.startswith("WARNING: 2 processes of other programs on GPU GPU-1")


def test_a_run_on_a_gpu_without_nvml_says_so(slot, monkeypatch):
    monkeypatch.setattr("perfdash.runner.slot.open_monitor", lambda uuid: None)
    assert introduce(slot, monkeypatch, [planned("eager")])["notes"] == []
    slot.gpu = "GPU-1"
    (note,) = introduce(slot, monkeypatch, [planned("eager", device="cuda")])["notes"]
    assert note.startswith("WARNING: NVML")
    assert "nvidia-ml-py" in note


class Monitor:
    """A monitor that counts what it is asked."""

    def __init__(self):
        self.events, self.waited = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def on_event(self, event):
        self.events.append(event["event"])

    def report(self):
        return {"xids": [79]}

    def wait_until_free(self):
        self.waited += 1
        return True


CUDA_ERROR = {
    "event": "failed", "status": "fail_to_run", "phase": "compile", "type": "AcceleratorError",
    "message": "CUDA error: an illegal memory access was encountered",
}  # fmt: skip
NO_KERNEL = {**CUDA_ERROR, "type": "RuntimeError", "message": "no kernel image"}


@pytest.mark.parametrize(
    ("outcome", "renewed"),
    [
        (ProcessOutcome([CUDA_ERROR], status=0), True),
        (ProcessOutcome([NO_KERNEL], status=0), False),
        (ProcessOutcome([], status=9), True),
        (ProcessOutcome([], status=None), True),
        (
            ProcessOutcome([], status=0, limit={"what": "time", "scope": "case", "limit": 1, "unit": "s"}),
            True,
        ),
    ],
)
def test_a_failed_cuda_context_does_not_reach_the_next_case(parents, tmp_path, monkeypatch, outcome, renewed):
    """The context ends with its process; what the driver and the fork parents keep of it is renewed."""
    parents.gpu, parents._monitor = "GPU-1", Monitor()
    parents.measure(Order(planned("eager", device="cuda")), tmp_path / "log", print)
    monkeypatch.setattr(Parent, "run", lambda *_: outcome)
    answer = parents.measure(Order(planned("eager", device="cuda")), tmp_path / "log", print)
    assert [parent.closed for parent in parents.started] == [renewed]
    assert parents._monitor.waited == renewed
    assert answer.gpu == {"xids": [79]}
    parents.measure(Order(planned("eager")), tmp_path / "log", print)
    assert parents._monitor.waited == renewed, "nothing of a CPU is to be waited for"


def shared(configuration, backend="inductor", model="m", **change):
    case = Case("s", model, backend=backend, configuration=configuration)
    return Order(replace(PLANNED, case=case, skip_reason=None, **change), share=True)


@pytest.fixture
def sharing(slot, monkeypatch):
    """The slot; `folders` are what its main processes may share, each of which writes a file."""
    slot.folders, slot.ends = [], {"event": "done"}

    def process(planned, job, log, on_event=None, parent=0, timed=False):
        slot.folders.append(job.shared)
        if job.shared:
            (Path(job.shared) / f"{len(slot.folders)}.memory").write_text("eager")
        return ProcessOutcome([slot.ends] if slot.ends else [], status=0)

    monkeypatch.setattr(slot, "_process", process)
    return slot


def test_cases_of_one_eager_side_share_a_folder_until_another_model_comes(sharing, tmp_path):
    for order in (shared("default"), shared("dynamic"), shared("x", env={"A": "1"}), shared("y", "export")):
        sharing.measure(order, tmp_path / "log", print)
    default, dynamic, other_environment, other_backend = sharing.folders
    assert default == dynamic == other_backend != other_environment
    assert len(os.listdir(default)) == 3
    sharing.measure(shared("default", model="n"), tmp_path / "log", print)
    assert not Path(default).exists()
    sharing.measure(Order(planned()), tmp_path / "log", print)
    assert sharing.folders[-1] == ""
    sharing.__exit__()
    assert not any(Path(folder).exists() for folder in sharing.folders if folder)


def test_of_a_process_that_died_nothing_is_shared(sharing, tmp_path):
    sharing.measure(shared("default"), tmp_path / "log", print)
    sharing.ends = None
    sharing.measure(shared("dynamic"), tmp_path / "log", print)
    assert os.listdir(sharing.folders[-1]) == ["1.memory"]
    sharing.ends = {"event": "failed", "status": "backend_error", "phase": "compile"}
    sharing.measure(shared("export"), tmp_path / "log", print)
    assert len(os.listdir(sharing.folders[-1])) == 2


@pytest.mark.parametrize(
    ("outcome", "error", "words"),
    [
        (
            ProcessOutcome(
                [{"event": "failed", "type": "UnusableBackend", "message": "back end /b/mine.py .."}]
            ),
            UsageError,
            "^--backend: back end /b/mine.py",
        ),
        (
            ProcessOutcome([{"event": "failed", "type": "RuntimeError", "message": "no room"}]),
            MachineError,
            "the worker under python failed: no room",
        ),
        (
            ProcessOutcome(limit={"what": "time", "scope": "case", "limit": 900.0, "unit": "s"}),
            MachineError,
            "failed: no answer in 900 s",
        ),
        (ProcessOutcome(), MachineError, "it ended without a word"),
    ],
)
def test_a_back_end_that_does_not_import_is_the_users_fault(monkeypatch, outcome, error, words):
    jobs = []
    parent = Mock(run=lambda job, log, stop: jobs.append(job) or outcome)
    with Slot((0,), Options(python="python", threads=1)) as slot:
        monkeypatch.setattr(slot, "_parent_for", lambda planned: parent)
        case = planned("mine", phase_timeouts={"start": 900.0})
        with pytest.raises(error, match=words):
            slot._probe(case, case)
    assert [job.timeout_s for job in jobs] == [900.0] * 2, "as long as a case may take to start"
