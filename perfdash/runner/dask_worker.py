"""Runs one slot inside a Dask worker process; orders and answers are JSON text.

Only JSON text crosses the wire of our own making. The slot stays open between cases and is given up
when nothing has been asked of it for a while. A case that its worker did not survive is not begun
again here: the runner decides what becomes of it (`already_begun`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfdash import __version__
from perfdash.errors import MachineError, PerfdashError, UsageError
from perfdash.files import remove_abandoned_folders
from perfdash.runner import compatibility, orphans
from perfdash.runner.cores import available_cores, every_slot, physical_core
from perfdash.runner.gpus import visible_gpus
from perfdash.runner.messages import Answer, Options, options_from_text, order_from_text, to_text
from perfdash.runner.slot import InterpreterChanged, Slot
from perfdash.runner.worker_limits import RunStopped, Stop
from perfdash.suites.case_selection import planned_from_json

IDLE_S = 120.0  # without an order, then the cores are released
LOCK_S = 10.0  # until the processes of a killed worker have ended
LOOK_S = 1.0  # how often a worker looks whether its order was cancelled
_LOG_BYTES = 1 << 20
_turn = threading.Lock()


class _Open:
    """The slot of this process, while there is one."""

    slot: Slot | None = None
    options = ""
    environment: dict[str, Any] | None = None
    idle: threading.Timer | None = None
    withdrawn: Any = None  # this Dask worker, while it offers no slot because it has no free core
    wanted = ""  # the options for which it had no free core


def introduce(options: str, planned: str) -> str:
    """Slot.introduce: JSON of {ok, version}, {no_core}, {error} or {unlike}."""

    def work(slot: Slot, log: Path) -> Any:
        slot.renew(another_build=True)  # an earlier run may have left it, before an upgrade
        introduction = slot.introduce([planned_from_json(case) for case in json.loads(planned)])
        _Open.environment = introduction["environment"]
        return introduction

    return _serve(options, work)


def null(options: str, planned: str, count: int) -> str:
    """Slot.null: JSON of {ok} (an Answer), {no_core}, {error} or {unlike}."""

    def work(slot: Slot, log: Path) -> Any:
        outcomes = slot.null(planned_from_json(json.loads(planned)), count, log)
        return to_text(Answer(outcomes, "", 0.0, 0.0, slot.where(), _tail(log)))

    return _serve(options, work)


def measure(options: str, order: str, expected: str, begun: str) -> str:
    """Slot.measure: JSON of {ok} (an Answer), {no_core}, {error}, {unlike} or {lost}.

    `expected` is the fingerprint of the run's environment: a slot that is unlike measures nothing.
    `begun` names an event of the cluster that is set when the case is begun.
    """
    if already_begun(begun):
        return json.dumps({"lost": True})

    def work(slot: Slot, log: Path) -> Any:
        parsed = order_from_text(order)
        if _Open.environment is None:  # the worker joined after introduce()
            _Open.environment = slot.introduce([parsed.planned])["environment"]
        fingerprint = json.loads(json.dumps(compatibility.fingerprint(_Open.environment)))
        changes = compatibility.differences(json.loads(expected), fingerprint)
        if changes:
            raise _Unlike(changes)
        answer = slot.measure(parsed, log, lambda event: None)
        answer.log = _tail(log)
        return to_text(answer)

    return _serve(options, work)


def release() -> None:
    """Release the slot; a cancelled order ends first."""
    threading.Thread(target=_release, daemon=True).start()


def is_released() -> bool:
    """Whether this process holds no core."""
    return _Open.slot is None


async def offer_slot(dask_worker: Any) -> None:
    """Offers the slot again that was withdrawn for want of a core."""
    _Open.withdrawn = None
    await dask_worker.set_resources(slot=1)


def _withdraw(options: str) -> str:
    """Offer no slot any more, from the thread of a task; return this worker's address.

    Once a core is free for these options it is offered again, also where the runner has been killed.
    """
    from distributed import get_worker

    worker = get_worker()
    _set_slots(worker, 0)
    _Open.withdrawn, _Open.wanted = worker, options
    return str(worker.address)


def _set_slots(worker: Any, count: int) -> None:
    """Tell the scheduler how many slots a worker offers.

    Call it from any thread but that of the worker's loop."""
    from distributed.utils import sync

    sync(worker.loop, worker.set_resources, slot=count)


def _idle() -> None:
    """Release the core of an idle worker, or offer its slot again."""
    with _turn:
        _close()
        worker = _Open.withdrawn
        if worker is None:
            return
        with contextlib.suppress(Exception):  # the scheduler may be gone just now
            slot = _take_free(options_from_text(_Open.wanted))
            if slot:
                slot.__exit__()
                _set_slots(worker, 1)
                _Open.withdrawn = None
                return
        _look_again()


def _look_again() -> None:
    """Starts the time after which this worker is idle."""
    _Open.idle = threading.Timer(IDLE_S, _idle)
    _Open.idle.daemon = True
    _Open.idle.start()


def already_begun(event: str) -> bool:
    """Whether a worker had begun this order before and was lost; marks it as begun."""
    from distributed import Event

    begun = Event(event)
    if begun.is_set():
        return True
    begun.set()
    return False


class _NoFreeCore(MachineError):
    """Every core of this machine is measured on by somebody else."""


class _Unlike(Exception):
    """This slot's environment is not the run's; the differences are the argument."""


def _serve(options: str, work: Callable[[Slot, Path], Any]) -> str:
    """Do a piece of work in the slot. Errors for the user are returned as text."""
    with _turn:
        if _Open.idle:
            _Open.idle.cancel()
        stop = Stop()
        try:
            with _ended_when_cancelled(stop), tempfile.TemporaryDirectory(prefix="perfdash-log-") as folder:
                slot = _slot(options)
                slot.stop = stop
                return json.dumps({"ok": work(slot, Path(folder) / "log"), "version": __version__})
        except _Unlike as error:
            return json.dumps({"unlike": error.args[0]})
        except InterpreterChanged as error:
            _close()
            return json.dumps({"unlike": error.changes})
        except _NoFreeCore as error:
            # Offer no slot from now on: Dask would give every case to this worker, which is always free.
            return json.dumps({"no_core": str(error), "worker": _withdraw(options)})
        except RunStopped:
            _close()
            return json.dumps({"error": ["MachineError", "cancelled"]})
        except (PerfdashError, OSError) as error:
            kind = "UsageError" if isinstance(error, UsageError) else "MachineError"
            return json.dumps({"error": [kind, str(error)]})
        finally:
            stop.close()
            _look_again()


def _slot(options: str) -> Slot:
    """The open slot, or one on the first cores that nobody measures on."""
    if _Open.slot and _Open.options == options:
        return _Open.slot
    _close()
    _without_nannys_variables()
    orphans.end_strays()
    remove_abandoned_folders()
    parsed = options_from_text(options)
    deadline = time.monotonic() + LOCK_S
    while True:
        slot = _take_free(parsed)
        if slot:
            _Open.slot, _Open.options = slot, options
            _stay_away_from(slot.cores)
            return slot
        if time.monotonic() > deadline:
            resource = "core" if _gpus(parsed) == [None] else "core and GPU"
            raise _NoFreeCore(f"no {resource} is free for another slot on {socket.gethostname()}")
        time.sleep(0.2)


def _take_free(options: Options) -> Slot | None:
    """A slot on the first free cores and the first free GPU; None without."""
    for cores in every_slot(options.threads):
        for gpu in _gpus(options):
            slot = Slot(cores, options, gpu=gpu)
            if slot.try_enter():
                return slot
    return None


def _gpus(options: Options) -> Sequence[str | None]:
    if options.device != "cuda":
        return [None]
    return visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")) or [None]


def _without_nannys_variables() -> None:
    """Dask's nanny sets malloc's trim threshold and thread counts: the measured process has its own."""
    import dask

    for key, value in dask.config.get("distributed.nanny.pre-spawn-environ", default={}).items():
        if os.environ.get(key) == str(value):
            del os.environ[key]


def _release() -> None:
    with _turn:
        _close()


def _close() -> None:
    if _Open.slot:
        _Open.slot.__exit__()
    _Open.slot, _Open.environment = None, None


def _stay_away_from(cores: tuple[int, ...]) -> None:
    """Keeps the threads of this Dask worker off the measured cores where there are others."""
    available = available_cores()
    measured = {physical_core(core) for core in cores}
    free = {core for core in available if physical_core(core) not in measured}
    # The first core is the last that becomes a slot, so the threads of all workers share it.
    first = {core for core in free if physical_core(core) == physical_core(available[0])}
    free = first or free
    for thread in os.listdir("/proc/self/task") if free else ():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), free)


@contextlib.contextmanager
def _ended_when_cancelled(stop: Stop) -> Iterator[None]:
    """Sets `stop` when the runner has cancelled the task or is gone."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                stop.set()
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
