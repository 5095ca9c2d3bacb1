"""A history of real models on this machine, with six planted changes that the judge does not know.

    python benchmarks/real_history.py measure FOLDER --core 0 [--cases 40 --seconds 3 --rounds 60 --hours 12]
    python benchmarks/real_history.py freeze FOLDER
    python benchmarks/real_history.py reveal FOLDER [--out results/real-history.md]

`measure` prepares every case once (load, compile, check), keeps it in a process, and measures it in a fork of
that process, round after round. A round is stored and judged by perfdash like a night; round k has the date
of day k. It can be ended at any time and goes on with the next round when the command is repeated; then the
cases are prepared again, from their kept compiler caches.

Six changes are planted: a slower operator, more memory, a graph break. Models and rounds are drawn from a
random seed. What was drawn is in FOLDER/planted.json, and its SHA-256 in FOLDER/planted.sha256. The record of
a measurement does not say whether its case is changed, and `measure` prints nothing of it. `freeze` writes
the alerts and ends the history; `reveal` refuses to show the changes before, or if their SHA-256 differs, and
writes the page: found, missed, false, whatever it shows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import random
import secrets
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from perfdash.detect.environment_changes import environment_changes
from perfdash.detect.nightly_judging import judge_new
from perfdash.files import dumps, now, write
from perfdash.history import alert_store
from perfdash.history.alert_store import CONFIRMED, NEW, OPEN, REOPENED, STATES, SUSPECTED
from perfdash.history.ingest import take_in
from perfdash.history.queries import cases_by_id, list_runs
from perfdash.history.results import Imported, RunRow, from_result, one_method
from perfdash.history.store import open_store
from perfdash.records import Result, Sampling, result_from_json, to_json
from perfdash.runner import host
from perfdash.runner.cores import Locks, core_names
from perfdash.runner.messages import Answer, ProcessOutcome, options_of
from perfdash.runner.plan import make_plan
from perfdash.runner.result_record import assemble
from perfdash.settings import resolve
from perfdash.suites.case_selection import Planned

# Short ones first: the number of --cases is taken from the front.
MODELS = {
    "torchbench": (
        "lennard_jones", "soft_actor_critic", "dlrm", "drq", "dcgan", "functorch_dp_cifar10", "alexnet",
        "resnet18", "squeezenet1_1", "LearningToPaint", "shufflenet_v2_x1_0", "mnasnet1_0", "mobilenet_v2",
        "mobilenet_v3_large", "tts_angular",
    ),
    "timm": (
        "lcnet_050", "regnety_002", "mobilenetv2_100", "mnasnet_100", "ghostnet_100", "tinynet_a",
        "spnasnet_100", "rexnet_100", "tf_efficientnet_b0", "mixnet_l", "mobilevit_s", "ese_vovnet19b_dw",
        "selecsls42b", "resmlp_12_224", "deit_base_distilled_patch16_224", "vit_base_patch16_224",
        "mixer_b16_224", "repvgg_a2",
    ),
    "huggingface": (
        "DistilBertForQuestionAnswering", "Speech2Text2ForCausalLM", "BlenderbotSmallForCausalLM",
        "ElectraForQuestionAnswering", "PLBartForCausalLM", "RobertaForQuestionAnswering",
        "TrOCRForCausalLM",
    ),
}  # fmt: skip
# What is planted: kind and size (of eager's latency, or of its peak memory).
PLANTED = (
    ("slower", 0.05),
    ("slower", 0.1),
    ("slower", 0.2),
    ("memory", 0.1),
    ("memory", 0.3),
    ("break", 0.0),
)
FIRST_DAY = date(2026, 1, 1)
QUIET = 24  # rounds before the first planted change
LAST = 6  # rounds at the end without a new one
_NEAR = 10  # rounds between a planted change and the date of its alert, at most
_CHAIN = 4  # products of the planted operator

Events = list[dict[str, Any]]


def draw(seed: int, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """The planted changes of a seed: each in a case and from a round of its own."""
    chance = random.Random(seed)
    cases = chance.sample(list(names), min(len(PLANTED), len(names)))
    latest = max(rounds - LAST, 2)
    earliest = min(QUIET, max(latest // 2, 1))
    return [
        {"case": case, "kind": kind, "size": size, "round": chance.randint(earliest, latest)}
        for case, (kind, size) in zip(cases, PLANTED, strict=False)
    ]


def seal(folder: Path, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """The planted changes of a folder, drawn at the first call; their SHA-256 lies beside them."""
    path = folder / "planted.json"
    if not path.exists():
        seed = secrets.randbits(64)
        text = dumps({"seed": seed, "salt": secrets.token_hex(16), "planted": draw(seed, names, rounds)})
        write(path, text)
        path.chmod(0o600)
        write(folder / "planted.sha256", hashlib.sha256(text.encode()).hexdigest() + "\n")
    planted: list[dict[str, Any]] = json.loads(path.read_text())["planted"]
    return planted


def with_change(module: Any, change: Mapping[str, Any], latency_s: float, peak_bytes: int) -> Any:
    """The module with a planted change; `latency_s` and `peak_bytes` are those of eager without it."""
    import torch
    from torch import nn

    class Slower(nn.Module):
        """One operator more: a chain of products that takes `size` of the model's latency."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.register_buffer("factor", torch.full((_side(change["size"] * latency_s),) * 2, 1e-4))

        def forward(self, *arguments: Any, **named: Any) -> Any:
            product = self.factor
            for _ in range(_CHAIN):
                product = torch.mm(product, self.factor)
            return _plus(self.inner(*arguments, **named), 1e-30 * product[0, 0])

    class Larger(nn.Module):
        """One buffer more, of `size` of eager's peak."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.register_buffer("kept", torch.zeros(max(1, int(change["size"] * peak_bytes) // 4)))

        def forward(self, *arguments: Any, **named: Any) -> Any:
            return self.inner(*arguments, **named)

    class Broken(nn.Module):
        """A graph break behind the model."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *arguments: Any, **named: Any) -> Any:
            result = self.inner(*arguments, **named)
            torch._dynamo.graph_break()
            return _plus(result, 0.0)

    return {"slower": Slower, "memory": Larger, "break": Broken}[change["kind"]]().eval()


def _plus(result: Any, number: Any) -> Any:
    """The result with a number added to its first tensor."""
    if isinstance(result, (tuple, list)):
        return type(result)([_plus(result[0], number), *result[1:]])
    return result + number if hasattr(result, "add") else result


def _side(seconds: float) -> int:
    """The size of square matrices of which a chain of products takes so long."""
    import torch

    best, away = 16, float("inf")
    for side in range(16, 1025, 16):
        matrix = torch.full((side, side), 1e-4)
        times = []
        for _ in range(5):
            start = time.thread_time_ns()
            for _ in range(_CHAIN):
                torch.mm(matrix, matrix)
            times.append((time.thread_time_ns() - start) / 1e9)
        taken = statistics.median(times)
        if abs(taken - seconds) < away:
            best, away = side, abs(taken - seconds)
        if taken > 2 * seconds:
            break
    return best


class Holder:
    """A process that has prepared a case, and forks a process for each measurement of it."""

    def __init__(
        self, planned: Planned, scratch: Path, seconds: float, change: Mapping[str, Any] | None
    ) -> None:
        self.planned = planned
        orders, self._orders = os.pipe()
        answers, self_answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(answers)
            _hold(planned, scratch, seconds, change, orders, self_answers)
        os.close(orders)
        os.close(self_answers)
        self._answers = os.fdopen(answers)
        self.prepared: Events = json.loads(self._answers.readline() or "[]")

    @property
    def is_ready(self) -> bool:
        return any(event["event"] == "accuracy" for event in self.prepared)

    def measure(self, number: int) -> Result:
        """The record of one measurement."""
        started, begin = now(), time.monotonic()
        os.write(self._orders, f"{number}\n".encode())
        events = [*self.prepared, *json.loads(self._answers.readline() or "[]")]
        wall = time.monotonic() - begin
        answer = Answer([ProcessOutcome(events, 0)], started, wall, 0.0, {})
        result = assemble(self.planned, answer, "steady")
        # Compiled once, beforehand: no number of this round.
        result.compilation_s = result.compilation_cpu_s = result.first_call_s = None
        result.compile_phases_s = {}
        return result

    def end(self) -> None:
        os.close(self._orders)
        self._answers.close()
        os.waitpid(self.pid, 0)


def _hold(
    planned: Planned,
    scratch: Path,
    seconds: float,
    change: Mapping[str, Any] | None,
    orders: int,
    answers: int,
) -> None:
    """The life of a holder: prepare, then a fork for each order. Never returns."""
    from perfdash.worker import linux, registry
    from perfdash.worker.case import CaseProcess

    code = 1
    try:
        linux.die_with_parent(os.getppid())
        # The other holders' pipes: while this process has them open too, those do not see their ends.
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in (orders, answers):
                with contextlib.suppress(OSError):
                    os.close(number)
        linux.shift_addresses()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = os.open(scratch / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = {
            name: value for name, value in vars(options_of(resolve({})[0])).items() if name in _OF_A_JOB
        }
        budget = Sampling(
            precision=0.001, min_s=0.0, budget_s=0.7 * seconds, slow_budget_s=0.7 * seconds, max_pairs=400
        )
        job = planned.job(
            **options,
            sampling=budget,
            scratch=str(scratch),
            machine_cache=str(scratch.parent.parent / "compiler"),
            no_code=True,
        )
        if change is not None:
            loader = registry.find("loaders", job.loader)
            loader.load = _changed(loader.load, change)
        events: Events = []
        case = CaseProcess(job, lambda event, **facts: events.append({"event": event, **facts}))
        case.begin()
        context = case.scenario.context(job)
        context.__enter__()
        for name in ("eager", "compile", "accuracy"):
            with case.phase(name):
                getattr(case, name)()
        os.write(answers, (json.dumps(events) + "\n").encode())
        with os.fdopen(orders) as lines:
            for line in lines:
                os.write(answers, (json.dumps(_in_fork(case, int(line))) + "\n").encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


_OF_A_JOB = {"weights", "seed", "allocator", "bind_memory"}


def _in_fork(case: Any, number: int) -> Events:
    """Latency and memory of a prepared case in a process of its own."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        from perfdash.worker import linux

        try:
            linux.shift_addresses()
            events: Events = []
            case.emit = lambda event, **facts: events.append({"event": event, **facts})
            case.job = replace(case.job, role="replica", process=number)
            for name in ("latency", "memory"):
                with case.phase(name):
                    getattr(case, name)()
            case.emit("done")
            with os.fdopen(write_end, "w") as pipe:
                json.dump(events, pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    events: Events = json.loads(text or "[]")
    return events


def _changed(load: Callable[[Any], Any], change: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A loader that plants a change in what it loads."""

    def changed(job: Any) -> Any:
        import torch

        module, inputs = load(job)
        module.eval()
        call = (lambda: module(**inputs)) if isinstance(inputs, dict) else (lambda: module(*inputs))
        times = []
        with torch.no_grad():
            for _ in range(9):
                start = time.thread_time_ns()
                call()
                times.append((time.thread_time_ns() - start) / 1e9)
        return with_change(module, change, statistics.median(times), change.get("peak_bytes", 0)), inputs

    return changed


def cases_of(count: int, only: Sequence[str] = ()) -> list[Planned]:
    """The first cases of the list, as `perfdash run --batch-size 1` plans them."""
    names = [(suite, model) for suite, models in MODELS.items() for model in models]
    chosen = [pair for pair in names if pair[1] in only] if only else names[:count]
    suites = list(dict.fromkeys(suite for suite, _ in chosen))
    models = [model for _, model in chosen]
    settings = resolve({"suite": tuple(suites), "models": tuple(models), "batch_size": (1,), "threads": 1})[0]
    plan = make_plan(settings, uncut=True)[0]
    return [planned for planned in plan.cases if planned.skip_reason is None]


def measure(arguments: argparse.Namespace) -> None:
    """Prepare the cases, then measure, store and judge round after round."""
    folder: Path = arguments.folder.absolute()
    if (folder / "frozen.json").exists():
        sys.exit(f"{folder} is frozen: its alerts are written; choose another folder")
    os.sched_setaffinity(0, {arguments.core})
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")
    (folder / "rounds").mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.hours * 3600
    locks = Locks.take(core_names([arguments.core]))
    planned = cases_of(arguments.cases, arguments.models)
    import torch

    torch.set_num_threads(1)
    plain, planted = _prepare(folder, planned, arguments)
    done = len(list((folder / "rounds").glob("*.json")))
    try:
        for number in range(done + 1, arguments.rounds + 1):
            if time.monotonic() > deadline:
                print(f"the {arguments.hours:g} hours are over", flush=True)
                break
            begin = time.monotonic()
            results = []
            order = sorted(plain)
            random.Random(number).shuffle(order)
            for model in order:
                change = planted.get(model)
                holder = change[1] if change and number >= change[0] else plain[model]
                results.append(to_json(holder.measure(number)))
            text = dumps({"at": now(), "environment": environment(), "results": results})
            write(folder / "rounds" / f"{number:04}.json", text)
            alerts = store_rounds(folder)
            print(
                f"round {number} of {arguments.rounds}: {len(results)} cases in "
                f"{time.monotonic() - begin:.0f} s, {alerts} alerts and suspects so far",
                flush=True,
            )
    finally:
        for holder in [*plain.values(), *(holder for _, holder in planted.values())]:
            holder.end()
        locks.close()


def _prepare(
    folder: Path, planned: Sequence[Planned], arguments: argparse.Namespace
) -> tuple[dict[str, Holder], dict[str, tuple[int, Holder]]]:
    """The holders of all cases, and of the changed ones with the round from which they are measured."""
    _share_compiler_files(folder, planned[0])
    plain: dict[str, Holder] = {}
    for number, one in enumerate(planned, start=1):
        holder = Holder(one, _scratch(folder, one.case.model), arguments.seconds, None)
        if holder.is_ready:
            plain[one.case.model] = holder
        else:
            holder.end()
        state = "prepared" if holder.is_ready else "cannot be prepared (its log says why)"
        print(f"[{number}/{len(planned)}] {one.case.model}: {state}", flush=True)
    planted: dict[str, tuple[int, Holder]] = {}
    for place, change in enumerate(seal(folder, sorted(plain), arguments.rounds)):
        base = plain.get(change["case"])
        if base is None:
            continue
        peak = base.measure(0).eager_peak_bytes or 0
        scratch = _scratch(folder, f"changed-{place}")
        holder = Holder(base.planned, scratch, arguments.seconds, {**change, "peak_bytes": peak})
        if not holder.is_ready:
            sys.exit(f"a changed case cannot be prepared: see {scratch / 'log'}")
        planted[change["case"]] = change["round"], holder
    print(f"{len(plain)} cases are prepared", flush=True)
    return plain, planted


def _scratch(folder: Path, name: str) -> Path:
    scratch = folder / "cases" / name
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch


def _share_compiler_files(folder: Path, planned: Planned) -> None:
    """Make the headers and tests of vector instructions that inductor needs once a machine."""
    shared = folder / "compiler"
    if shared.exists():
        return
    shared.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            from perfdash.worker import compiler_caches
            from perfdash.worker.case import run_case

            kept = compiler_caches.kept_folder()
            compiler_caches.take_kept(kept, str(shared))
            job = planned.job(role="isa", scratch=str(_scratch(folder, "isa")), machine_cache=str(shared))
            run_case(job, lambda event, **facts: None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def environment() -> dict[str, Any]:
    """The machine and the packages, as run.json has them."""
    import torch

    facts = host.facts()
    worker = {
        "torch": torch.__version__,
        "torch_git_version": torch.version.git_version,
        "packages": {
            name: metadata.version(name) for name in ("torch", "timm", "torchvision", "transformers", "numpy")
        },
    }
    return {**facts, "host_class": host.host_class(facts), "worker": worker}


def read_round(path: Path) -> tuple[RunRow, list[Result], str]:
    """A round as a run of the history, its results, and when it was measured."""
    plain = json.loads(path.read_text())
    results = [result_from_json(result) for result in plain["results"]]
    facts, number = plain["environment"], int(path.stem)
    day = FIRST_DAY + timedelta(days=number - 1)
    run = RunRow(
        name=f"round-{number:04}",
        started=f"{day}T01:00:00Z",
        ended=f"{day}T02:00:00Z",
        origin="perfdash",
        source=f"rounds/{path.name}",
        host=facts["host"],
        host_class=facts["host_class"],
        environment=facts,
        expected=len(results),
        uid=f"{path.parent.parent.name} {number}",
        method=one_method(results, path.name),
    )
    return run, results, plain["at"]


def store_rounds(folder: Path) -> int:
    """Store and judge the rounds that the history does not have; return the number of alerts and suspects."""
    with open_store(str(folder / "history.db")) as store:
        with store.read() as connection:
            known = {run.name for run in list_runs(connection)}
        for path in sorted((folder / "rounds").glob("*.json")):
            if f"round-{path.stem}" not in known:
                run, results, _ = read_round(path)
                take_in(store, [Imported(run, tuple(from_result(result) for result in results))])
                judge_new(store)
        with store.read() as connection:
            return len(alert_store.load(connection, states=STATES))


def freeze(arguments: argparse.Namespace) -> None:
    """Write the alerts with their histories; from then on nothing is measured."""
    folder: Path = arguments.folder
    store_rounds(folder)
    alerts = []
    with open_store(str(folder / "history.db")) as store, store.read() as connection:
        runs = {run.id: run for run in list_runs(connection)}
        stored = alert_store.load(connection, states=STATES)
        cases = cases_by_id(connection, [alert.case_id for alert in stored if alert.case_id is not None])
        for alert in stored:
            history = [
                [event.state, _round_of(event.run)] for event in alert_store.events(connection, alert.id or 0)
            ]
            bad = runs.get(alert.bad_run_id or 0)
            alerts.append(
                {
                    "model": cases[alert.case_id].model if alert.case_id is not None else None,
                    "kind": alert.kind, "metric": alert.metric, "direction": alert.direction,
                    "state": alert.state, "round": _round_of(bad.name) if bad else None,
                    "change": alert.change, "history": history,
                }
            )  # fmt: skip
    text = dumps({"at": now(), "rounds": len(runs), "alerts": alerts}, indent=1)
    write(folder / "frozen.json", text)
    print(f"{len(alerts)} alerts and suspects of {len(runs)} rounds are frozen in {folder / 'frozen.json'}")


def _round_of(name: str | None) -> int | None:
    return int(name.removeprefix("round-")) if name else None


_METRICS = {
    "slower": ("eager_ms", "backend_ms"),
    "memory": ("eager_peak_bytes", "backend_peak_bytes"),
    "break": ("graph_breaks",),
}
_RAISED = {NEW, CONFIRMED, OPEN, REOPENED}


def first_round(alert: Mapping[str, Any], states: Collection[str]) -> int | None:
    """The first round on which an alert had one of these states."""
    return next((number for state, number in alert["history"] if state in states), None)


def judged(
    planted: Sequence[Mapping[str, Any]], alerts: Sequence[Mapping[str, Any]]
) -> tuple[list[list[Mapping[str, Any]]], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The alerts of each planted change, those that follow from one in another metric, and the false ones.

    Only alerts that were raised are false; what was only suspected is not.
    """
    own: list[list[Mapping[str, Any]]] = [[] for _ in planted]
    following, false = [], []
    for alert in alerts:
        place = next(
            (
                number
                for number, change in enumerate(planted)
                if alert["model"] == change["case"] and _is_since(alert, change["round"])
            ),
            None,
        )
        if (
            place is not None
            and alert["direction"] == 1
            and alert["metric"] in _METRICS[planted[place]["kind"]]
        ):
            own[place].append(alert)
        elif first_round(alert, _RAISED) is not None:
            (following if place is not None else false).append(alert)
    return own, following, false


def _is_since(alert: Mapping[str, Any], planted: int) -> bool:
    """Whether an alert is of about the round of a planted change, and was not raised before it."""
    first = first_round(alert, {SUSPECTED, *_RAISED})
    dated = alert["round"]
    return first is not None and dated is not None and first >= planted and abs(dated - planted) <= _NEAR


def reveal(arguments: argparse.Namespace) -> None:
    """Compare the frozen alerts with what was planted, and write the page."""
    folder: Path = arguments.folder
    if not (folder / "frozen.json").exists():
        sys.exit(
            f"the alerts of {folder} are not frozen: `python benchmarks/real_history.py freeze {folder}`"
        )
    text = (folder / "planted.json").read_text()
    sealed = (folder / "planted.sha256").read_text().strip()
    if hashlib.sha256(text.encode()).hexdigest() != sealed:
        sys.exit(f"{folder / 'planted.json'} is not what was sealed before the first round")
    page = page_of(
        folder, json.loads(text)["planted"], json.loads((folder / "frozen.json").read_text()), sealed
    )
    print(page)
    if arguments.out:
        write(arguments.out, page)


def page_of(
    folder: Path, planted: Sequence[Mapping[str, Any]], frozen: Mapping[str, Any], sealed: str
) -> str:
    """The page of results."""
    rounds = [read_round(path) for path in sorted((folder / "rounds").glob("*.json"))]
    planted = sorted(
        (change for change in planted if change["round"] <= len(rounds)), key=lambda change: change["round"]
    )
    own, following, false = judged(planted, frozen["alerts"])
    results = [result for _, each, _ in rounds for result in each]
    series = len({result.case for result in results}) * 4
    by_cpu = sum(result.conditions.get("clock") == "cpu" for result in results) / max(len(results), 1)
    disturbed = sum(
        result.speedup is not None and result.speedup.verdict == "disturbed" for result in results
    ) / max(len(results), 1)
    months = series * len(rounds) / 30
    lines = [
        "# A real history with planted changes",
        "",
        f"`python benchmarks/real_history.py`, {rounds[0][2]} to {rounds[-1][2]} (UTC): {len(rounds)} rounds "
        f"of {len({result.case for result in results})} models, each prepared once and measured in a fork of "
        "its own every round, judged by perfdash's nightly alarm without re-measurement, a round as a night. "
        f"{by_cpu:.0%} of the measurements were taken by CPU time, since other programs used the core; "
        f"{disturbed:.0%} were disturbed and not judged.",
        "",
        f"Machine: {rounds[0][0].host_class}. {_hosts(rounds)}",
        "",
        f"The changes were sealed before the first round (SHA-256 `{sealed}`) and opened after the alerts "
        f"were frozen at {frozen['at']}. Rounds count from the first one with the change as 1.",
        "",
        "| model | planted | from round | suspected | alert | reported change | dated |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    found = 0
    for change, alerts in zip(planted, own, strict=True):
        suspected = min((n for a in alerts if (n := first_round(a, {SUSPECTED})) is not None), default=None)
        raised = min((n for a in alerts if (n := first_round(a, _RAISED)) is not None), default=None)
        found += raised is not None
        sizes = [a for a in alerts if a["change"] is not None]
        what = {"slower": "slower operator", "memory": "more memory", "break": "graph break"}[change["kind"]]
        size = f" ({change['size']:+.0%})" if change["size"] else ""
        lines.append(
            f"| {change['case']} | {what}{size} | {change['round']} | {_after(suspected, change)} | "
            f"{_after(raised, change)} | "
            + (", ".join(f"{a['metric']} {math.expm1(a['change']):+.1%}" for a in sizes) or "-")
            + f" | {', '.join(str(a['round']) for a in alerts) or '-'} |"
        )
    rate = 1000 * len(false) / months if months else 0.0
    lines += [
        "",
        f"Found: {found} of {len(planted)}; missed: {len(planted) - found}. The size of a slower operator "
        "is that of eager's latency, as a chain of products of about that time was added; the compiled side "
        "changes by more where it is faster.",
        "",
        f"False alerts: {len(false)} in {series} series over {len(rounds)} rounds ({rate:.1f} per 1,000 "
        "series-months of 30 rounds; the simulation promises 5)." + (" They are:" if false else ""),
        "",
        *(
            f"- {alert['model'] or 'the host'}, {alert['metric']}: "
            + (f"{math.expm1(alert['change']):+.1%}, " if alert["change"] is not None else "")
            + f"from round {alert['round']}, raised in round {first_round(alert, _RAISED)}, "
            + f"now {alert['state']}"
            for alert in false
        ),
        "",
        f"Alerts of a changed model in another metric, after the change: {len(following)}"
        + "".join(f"; {alert['model']}, {alert['metric']}" for alert in following)
        + ".",
        "",
        f"Suspected and never raised: {sum(first_round(a, _RAISED) is None for a in frozen['alerts'])}.",
        "",
    ]
    return "\n".join(lines)


def _after(number: int | None, change: Mapping[str, Any]) -> str:
    return "-" if number is None else str(number - change["round"] + 1)


def _hosts(rounds: Sequence[tuple[RunRow, list[Result], str]]) -> str:
    """What changed of the machine and its packages between rounds, in one sentence."""
    changes = []
    for (before, _, _), (after, _, _) in itertools.pairwise(rounds):
        lines = environment_changes(before, after)
        if before.host_class != after.host_class:
            lines.insert(0, f"{before.host_class} | {after.host_class}")
        if lines:
            changes.append(f"{after.name}: {', '.join(lines)}")
    return (
        "Between the rounds the machine changed: " + "; ".join(changes) if changes else "It did not change."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, work in (("measure", measure), ("freeze", freeze), ("reveal", reveal)):
        command = commands.add_parser(name)
        command.set_defaults(work=work)
        command.add_argument("folder", type=Path)
        if name == "measure":
            command.add_argument("--core", type=int, default=0)
            command.add_argument("--cases", type=int, default=40)
            command.add_argument("--models", type=lambda text: tuple(text.split(",")), default=())
            command.add_argument("--seconds", type=float, default=3.0, help="of a case in a round, at most")
            command.add_argument("--rounds", type=int, default=60)
            command.add_argument("--hours", type=float, default=12.0, help="no round begins later")
        if name == "reveal":
            command.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()
