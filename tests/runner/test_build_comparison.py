"""On which slots two builds are compared; nothing is measured here."""

from __future__ import annotations

import math
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps
from perfdash.records import Case, Failure, Result, RunInfo, Status, to_json
from perfdash.report.run_lookup import RunLookup
from perfdash.run_options import run_options
from perfdash.runner import build_comparison, cores, slot
from perfdash.runner.alternating_builds import FILE, Budget, BuildPair, PairedSlots, read_pairs
from perfdash.runner.build_comparison import BuildComparison
from perfdash.runner.cores import Locks, core_names
from perfdash.runner.plan import cut
from perfdash.runner.run_journal import RunJournal, append_line, read_info, read_results
from perfdash.settings import RunSettings
from perfdash.worker import own_files
from tests.report.results import good
from tests.runner.planned import Parent, case

BOUND = '{"bind_memory":true}'


class Slots:
    """Paired slots that measure nothing, and note with which threads a case was to be measured."""

    made: ClassVar[list[Slots]] = []
    measured: ClassVar[list[tuple[int, bool, Case, int]]] = []
    edited: ClassVar[set[int]] = set()  # pairs that execute another version of the model
    failed: ClassVar[dict[int, Failure]] = {}  # pairs of whose new side the machine made a failure

    def __init__(self, cores, old, new, folder, gpus, compile_cores, executed, first_hellos):
        assert (old.of_build, new.of_build) == (True, True), "a model may hide no package of either build"
        self.cores, self.gpus, self.compile_cores = cores, gpus, compile_cores
        self.executed = executed
        self.threads, self.binds = {len(own) for own in cores}, (old.bind_memory, new.bind_memory)
        # Cores that there are not: another test may measure on real ones.
        self.lock_names = core_names(3_000_000 + 10 * os.getpid() + core for own in cores for core in own)
        self.begun = 0
        Slots.made.append(self)

    def begin(self, locks):
        self.begun += 1

    def close(self):
        assert self.begun == 1

    def introduce(self, planned):
        assert planned, "some case is asked for its back end"
        return {"old": {"worker": {"torch": "1"}}, "new": {"worker": {"torch": "2"}}}

    def measure(self, planned, enough, seen, begun, budget):
        (threads,), (old, new) = self.threads, self.binds
        assert old == new
        for slots in Slots.made:
            assert all(Locks.try_take([name]) is None for name in slots.lock_names), "a waiting run takes it"
        for one in planned:
            pairs = list(begun.get(one.case, ()))
            while not enough(one, pairs) and not (budget and budget.spent):
                number = len(pairs) + 1
                Slots.measured.append((threads, new, one.case, number))
                result = good(one.case.model, 1.2, "faster", threads=one.case.threads)
                result = replace(result, case=one.case)
                if number in Slots.edited:
                    error = Failure("EditedModel", "m.py was edited")
                    result = replace(result, status=Status.INFRA_ERROR, error=error)
                after = result
                if error := Slots.failed.get(number):
                    status = Status.CRASH if error.type == "SIGKILL" else Status.INFRA_ERROR
                    after = replace(result, status=status, error=error)
                pairs.append(BuildPair(result, after, number))
            seen(one, pairs)


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    """One case of one thread, one of two bound threads."""
    monkeypatch.setattr(build_comparison, "PairedSlots", Slots)
    monkeypatch.setattr(Slots, "measured", [])
    monkeypatch.setattr(Slots, "made", [])
    monkeypatch.setattr(build_comparison, "away_from", lambda slots: nullcontext())
    monkeypatch.setattr(cores, "available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(cores, "numa_nodes", lambda here: [list(here)])
    monkeypatch.setattr(cores, "sibling_groups", lambda here: [[core] for core in here])
    monkeypatch.setattr(cores, "physical_core", lambda core: core)
    monkeypatch.setattr(cores.topology, "one_socket", lambda here: ())  # this machine has its own
    own, socket = (Case("timm", "m", threads=threads, settings=s) for threads, s in ((1, ""), (2, BOUND)))
    plan = cut([replace(case("m"), case=each) for each in (own, socket)], [1.0, 1.0], None)
    journals = {"new": RunJournal.create(tmp_path)}
    (journals["new"].folder / "base" / "logs").mkdir(parents=True)
    journals["old"] = RunJournal(journals["new"].folder / "base")
    infos = {side: RunInfo(side, "", "h", [], {}, {}, 2, "0.2") for side in journals}
    settings = RunSettings(suite=["timm"], out=tmp_path)
    return BuildComparison(settings, sys.executable, 4, plan, {}, journals, infos, {}), own, socket


def test_cases_of_configuration_socket_are_measured_on_slots_of_their_own(comparison):
    compared, own, socket = comparison
    build_comparison.measure(compared, None, lambda text: None)
    assert {entry[:3] for entry in Slots.measured} == {(1, False, own), (2, True, socket)}
    assert [entry[3] for entry in Slots.measured] == sorted(entry[3] for entry in Slots.measured), (
        "the pairs of both in turns: where time runs out, none is without any"
    )
    assert compared.infos["new"].state in ("done", "incomplete")
    assert set(compared.pairs) == {own, socket}
    assert len(Slots.made) == 2, "slots are made once, not for each round"
    assert all(slots.executed is compared.executed for slots in Slots.made), "of one version of each file"


def test_a_build_that_changes_before_slots_of_another_kind_measure_ends_the_comparison(
    comparison, monkeypatch
):
    """The first kind of slots alone is introduced; torch is upgraded before the second one's first pair."""
    compared, *_ = comparison
    eager = [replace(each, case=replace(each.case, backend="eager")) for each in compared.plan.cases]
    compared.plan = cut(eager, [1.0, 1.0], None)
    commits = {"old": ["a", "a"], "new": ["b", "c"]}
    monkeypatch.setattr(build_comparison, "PairedSlots", PairedSlots)
    build = {"worker": {"torch": "1"}}
    monkeypatch.setattr(PairedSlots, "introduce", lambda slots, planned: {"old": build, "new": build})
    monkeypatch.setattr(
        slot,
        "ForkParent",
        lambda launch, *_: Parent(launch, hello={"torch_git_version": commits[launch.python].pop(0)}),
    )
    # Cores that there are not, as those of Slots.
    here = [5_000_000 + 10 * os.getpid() + core for core in range(4)]
    monkeypatch.setattr(cores, "available_cores", lambda: here)
    monkeypatch.setattr(build_comparison, "beside", lambda options, python: replace(options, python="old"))
    compared.settings = compared.settings.model_copy(update={"python": "new"})
    (compared.folder / "logs").mkdir(exist_ok=True)
    with pytest.raises(MachineError, match=r"new changed .*\n  torch_git_version: b \| c\n"):
        build_comparison.measure(compared, None, lambda text: None)
    assert {case: len(pairs) for case, pairs in read_pairs(compared.folder).items()} == {eager[0].case: 1}


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_stop_the_saving(comparison, monkeypatch, first):
    """A comparison whose state was never written is `running`, and its tables lack what was measured."""
    compared, own, _ = comparison
    measure, rewrite = Slots.measure, RunJournal.rewrite
    ended = []

    def interrupted(slots, *arguments):
        measure(slots, *arguments)
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(signal.SIGINT)  # as a time limit passes it on
            ended.append("the pair under way")

    def rewrite_at_the_third(journal, results):
        signal.raise_signal(first)
        rewrite(journal, results)

    monkeypatch.setattr(Slots, "measure", interrupted)
    monkeypatch.setattr(RunJournal, "rewrite", rewrite_at_the_third)
    before = {number: signal.signal(number, lambda *_: None) for number in {first, signal.SIGINT}}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        build_comparison.measure(compared, None, lambda text: None)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    except KeyboardInterrupt:
        pytest.fail("the second signal stopped it")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (ended, compared.interrupted) == (["the pair under way"], True)
    for folder in (compared.folder, compared.folder / "base"):
        assert read_info(folder).state == "interrupted"
        assert [result.case for result in read_results(folder)] == [own]


def test_the_cores_are_held_from_the_first_round_to_the_last(comparison):
    compared, own, _ = comparison
    compared.plan = cut(compared.plan.cases[:1], [1.0], None)
    build_comparison.measure(compared, None, lambda text: None)
    assert len(compared.pairs[own]) >= 3
    assert [slots.begun for slots in Slots.made] == [1]
    free = Locks.try_take(Slots.made[0].lock_names)
    assert free is not None
    free.close()


@pytest.fixture
def refused_without_folder(tmp_path, monkeypatch):
    """new_comparison(), of whose plan the cases are given; nothing of this machine is asked."""
    monkeypatch.setattr(build_comparison, "check_machine", lambda *_: None)

    def compare(*cases, **settings):
        asked = []
        plan = cut(cases, [1.0] * len(cases), None)
        monkeypatch.setattr(build_comparison, "make_plan", lambda given: asked.append(given) or (plan, {}))
        ran = RunSettings(suite=["timm"], out=tmp_path / "runs", **settings)
        made = build_comparison.new_comparison(ran, sys.executable, None)
        assert made.settings == asked[0]
        return made

    return compare


def test_a_comparison_is_of_this_machine_whatever_the_settings_of_runs_are(refused_without_folder):
    made = refused_without_folder(case("m"), executor="dask", scheduler="tcp://h:1", shard="1/4")
    settings = made.settings
    assert (settings.executor, settings.scheduler, settings.shard) == ("local", None, None)
    assert {info.configuration["executor"] for info in made.infos.values()} == {"local"}
    for journal in made.journals.values():
        journal.close()


def test_a_comparison_without_any_case_says_why_and_leaves_no_folder(refused_without_folder, tmp_path):
    cases = [replace(case(name), skip_reason=f"{name} does not run here") for name in ("a", "b")]
    with pytest.raises(UsageError, match=r"all 2 cases are skipped: a does not run here; b does not"):
        refused_without_folder(*cases)
    assert not (tmp_path / "runs").exists()


def test_after_its_minutes_no_pair_begins(comparison, monkeypatch):
    compared, own, socket = comparison
    messages = []
    # Its minutes end while the second pair of the first case is measured.
    monkeypatch.setattr(Budget, "spent", property(lambda budget: len(Slots.measured) >= 3))
    build_comparison.measure(compared, 0.5, messages.append)
    assert [entry[2:] for entry in Slots.measured] == [(own, 1), (socket, 1), (own, 2)]
    assert {case: len(pairs) for case, pairs in compared.pairs.items()} == {own: 2, socket: 1}
    assert compared.infos["new"].state == "incomplete"
    assert compared.incomplete
    assert messages[-1] == "0.5 minutes are over: 2 cases are not decided"


@pytest.mark.parametrize(("edited", "status"), [({3, 4}, "pass"), ({1, 2}, "infra_error")])
def test_an_edited_model_keeps_its_last_good_pair_and_is_left_to_resume(
    comparison, monkeypatch, edited, status
):
    compared, *_ = comparison
    messages = []
    monkeypatch.setattr(Slots, "edited", edited)
    build_comparison.measure(compared, None, messages.append)
    for journal in compared.journals.values():
        assert [result.status for result in read_results(journal.folder)] == [status, status]
    assert compared.infos["new"].state == "incomplete"
    assert messages[-1] == "m: not decided, its file was edited. Put the file back and use --resume"


@pytest.mark.parametrize("kind", ["MachineError", "SIGKILL"])
def test_a_pair_that_failed_because_of_the_machine_is_measured_again_after_a_pause(
    comparison, monkeypatch, kind
):
    """It counted as a failure of the model, and two of them ended its case for good."""
    compared, own, _ = comparison
    pauses = []
    monkeypatch.setattr(build_comparison.time, "sleep", pauses.append)
    monkeypatch.setattr(Slots, "failed", {2: Failure(kind, "no space left on device")})
    build_comparison.measure(compared, None, lambda text: None)
    assert pauses == [30.0]
    assert not compared.incomplete
    assert [pair.spoilt for pair in compared.pairs[own]] == [False, True, False, False]


def test_the_record_of_a_side_is_of_a_pair_that_ended_as_all_pairs_decide(comparison):
    """Or the comment would list a model as failing that failed by chance, in the last of five pairs."""
    compared, own, _ = comparison
    fine = replace(good("m", 1.2, "faster", threads=1), case=own)
    wrong = replace(fine, status=Status.FAIL_ACCURACY)
    ends = [(fine, fine), (fine, fine), (wrong, fine), (fine, wrong)]
    compared.pairs = {own: [BuildPair(old, new, number) for number, (old, new) in enumerate(ends, 1)]}
    for side in ("old", "new"):
        assert [result.status for result in build_comparison._results(compared, side)] == ["fail_accuracy"]
    del compared.pairs[own][2]
    (result,) = build_comparison._results(compared, "new")
    assert result is fine


def test_the_changes_of_a_folder_are_those_of_its_pairs_and_of_no_other_two_runs(comparison):
    compared, own, _ = comparison
    compared.infos["new"].plan["compared_with"] = {"python": "old", "pairs": 8}
    build_comparison.measure(compared, None, lambda text: None)
    for measured, pairs in compared.pairs.items():
        for pair in pairs:
            slower = replace(pair.new, eager_ms=pair.new.backend_ms, backend_ms=pair.new.eager_ms)
            for side, result in (("old", pair.old), ("new", slower)):
                line = {"pair": pair.number, "side": side, "result": to_json(result)}
                append_line(compared.folder / FILE, dumps(line))
        assert len(pairs) >= 3, measured
    changes = build_comparison.changes_between(compared.folder / "base", compared.folder)
    assert changes["paired"][own]["backend_ms"].pairs == len(compared.pairs[own])
    assert changes["paired"][own]["backend_ms"].change == pytest.approx(math.log(1.2))
    assert changes["statuses"][own] == ("pass", "pass", True, "")
    assert build_comparison.changes_between(compared.folder, compared.folder) == {}
    lookup = RunLookup(compared.folder.parent, "none.db", lambda text: None)
    of_builds = lookup.comparison(str(compared.folder / "base"), str(compared.folder))
    assert of_builds.in_pairs
    assert [side.runs[0].run.name for side in (of_builds.old, of_builds.new)] == ["old", "new"]


def test_a_machine_that_stays_broken_leaves_its_cases_to_resume(comparison, monkeypatch):
    compared, own, socket = comparison
    messages, pauses = [], []
    monkeypatch.setattr(build_comparison.time, "sleep", pauses.append)
    monkeypatch.setattr(
        Slots, "failed", {number: Failure("MachineError", "no space left") for number in (1, 2, 3, 4)}
    )
    build_comparison.measure(compared, None, messages.append)
    assert {case: len(pairs) for case, pairs in compared.pairs.items()} == {own: 3, socket: 3}
    assert len(pauses) == 2, "one a round, not one a case"
    assert compared.infos["new"].state == "incomplete"
    assert messages[-1] == "m: not decided, as the machine failed. --resume measures it again"
    assert messages.count("2 cases failed because of the machine: measured again in 30 s") == 2


def test_a_failure_of_the_machine_in_an_early_pair_is_not_called_an_edit(comparison, monkeypatch):
    compared, *_ = comparison
    compared.most_pairs = 3
    messages = []
    monkeypatch.setattr(build_comparison.time, "sleep", lambda pause: None)
    monkeypatch.setattr(Slots, "failed", {1: Failure("SIGKILL", "killed")})
    build_comparison.measure(compared, None, messages.append)
    assert compared.incomplete
    assert messages[-1] == "m: not decided, as the machine failed. --resume measures it again"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MachineError])
def test_a_resumed_comparison_that_ends_before_its_first_pair_keeps_its_folder(
    comparison, monkeypatch, error
):
    """All earlier pairs failed because of the machine, so none was read again, and the folder was removed."""
    compared, *_ = comparison
    monkeypatch.setattr(build_comparison.time, "sleep", lambda pause: None)
    monkeypatch.setattr(
        Slots, "failed", {number: Failure("MachineError", "no space left") for number in (1, 2, 3, 4)}
    )
    build_comparison.measure(compared, None, lambda text: None)
    before = {side: list(read_results(journal.folder)) for side, journal in compared.journals.items()}
    again = replace(
        compared,
        pairs={},
        journals={side: RunJournal.reopen(journal.folder) for side, journal in compared.journals.items()},
    )

    def fail(*_):
        raise error("the disk is still full")

    monkeypatch.setattr(Slots, "measure", fail)
    with nullcontext() if error is KeyboardInterrupt else pytest.raises(error):
        build_comparison.measure(again, None, lambda text: None)
    for side, info in again.infos.items():
        assert list(read_results(again.journals[side].folder)) == before[side]
        state = "interrupted" if error is KeyboardInterrupt else "failed"
        assert read_info(again.journals[side].folder).state == info.state == state


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """Reopen a comparison of net.py, of which one pair was measured with modules of these digests."""
    monkeypatch.setattr(build_comparison, "check_machine", lambda *_: None)
    (tmp_path / "net.py").write_text("import layers\n\n\ndef make(batch_size): ...\n")
    (tmp_path / "layers.py").write_text("size = 3\n")

    def resume(model_files):
        settings = RunSettings(model=[f"{tmp_path}/net.py:make"], out=tmp_path / "runs", no_history=True)
        made = build_comparison.new_comparison(settings, sys.executable, None)
        (planned,) = made.cases
        result = Result(planned.case, "t", 1.0, Status.PASS, structure={"model_files": model_files})
        for side, journal in made.journals.items():
            journal.write_info(made.infos[side])
            journal.close()
            append_line(made.folder / FILE, dumps({"pair": 1, "side": side, "result": to_json(result)}))
        return build_comparison.resumed_comparison(str(made.folder), dict.fromkeys(run_options()), None)

    return resume


def test_a_module_that_was_edited_since_the_kept_pairs_is_refused(resumed, tmp_path):
    layers = tmp_path / "layers.py"
    digest = own_files.digest_now(layers)
    compared = resumed({"layers.py": digest})
    for journal in compared.journals.values():
        journal.close()
    assert compared.executed == {str(layers): digest}
    with pytest.raises(UsageError, match=rf"its results were measured before {layers} was edited"):
        resumed({"layers.py": "other"})


@pytest.mark.parametrize("sides", [("old", "new"), ("new",)])
def test_a_comparison_that_is_resumed_in_another_shell_stays_as_it_was(comparison, sides):
    """It became a failed one, and without a whole pair its folder was removed."""
    compared, *_ = comparison
    session = {"started": "t", "state": "interrupted", "ended": "u"}
    for side, info in compared.infos.items():
        info.state, info.ended, info.sessions = "interrupted", "u", [session.copy()]
        info.environment = {"worker": {"torch": "1" if side == "old" else "2"}}
        if side in sides:
            info.environment["variables"] = {"OMP_A": "1"}
    before = {side: to_json(info) for side, info in compared.infos.items()}
    with pytest.raises(MachineError, match=r"variable OMP_A: 1 \| none"):
        build_comparison.measure(compared, None, lambda text: None)
    assert {side: to_json(info) for side, info in compared.infos.items()} == before
    assert compared.folder.is_dir()


def test_each_slot_of_a_comparison_on_gpus_has_one_of_its_own(comparison, monkeypatch):
    compared, _, _ = comparison
    monkeypatch.setattr(cores, "visible_gpus", lambda named: ["GPU-a", "GPU-b"])
    on_gpus = compared.settings.model_copy(update={"device": "cuda", "jobs": 2})
    compared.settings = on_gpus
    slots, _ = build_comparison._kinds(compared)[0]
    assert slots.gpus == ["GPU-a", "GPU-b"]
    assert [len(own) for own in slots.compile_cores] == [2, 2]
