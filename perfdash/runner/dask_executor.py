"""Slots on many machines: each Dask worker process that offers `slot` is one (extra `cluster`).

Dask finds a free worker, and another when one is lost; what a lost worker means for its case, and
how often it is tried, is the session's business.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfdash import __version__
from perfdash.errors import MachineError, UsageError
from perfdash.files import now
from perfdash.records import to_json
from perfdash.runner import compatibility, dask_worker
from perfdash.runner.executors import NO_FREE_CORE, Message
from perfdash.runner.messages import Answer, Options, Order, ProcessOutcome, answer_from_text, to_text
from perfdash.suites.case_selection import Planned

CONNECT_S = 10.0
ALONE_S = 60.0  # without any worker, then the run gives up; nannies restart workers meanwhile
_LOOK_S = 2.0


class DaskExecutor:
    """Use as a context manager. Raises MachineError when the scheduler does not answer or is lost."""

    has_fixed_slots = False  # Dask chooses the worker

    def __init__(self, address: str, options: Options, logs: Path) -> None:
        self.on_activity: Callable[[str], None] = lambda text: None  # workers report only results
        self._address = address
        self._options = to_text(options)
        self._logs = logs
        self._run = uuid.uuid4().hex[:8]
        self._orders = 0
        self._limit: int | None = None
        self._expected = "{}"
        self._futures: dict[int, Any] = {}
        self._outbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._last_seen = time.monotonic()
        self._slots = 0
        self._coreless: dict[str, str] = {}  # workers without a free core, with their reason

    def __enter__(self) -> DaskExecutor:
        try:
            from distributed import Client
        except ImportError:
            raise MachineError(
                "--executor dask needs Dask: pip install distributed, here and for the workers"
            ) from None
        # One message of ours replaces what Dask logs about a lost connection.
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] in ("distributed", "tornado"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self._client = Client(self._address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise MachineError(
                f"--scheduler {self._address}: no Dask scheduler answers there "
                f"({type(error).__name__}); start one with: dask scheduler"
            ) from None
        if not self._workers():
            self._client.close()
            raise MachineError(
                f"--scheduler {self._address}: no worker offers a slot; start some with: "
                f"dask worker {self._address} --nthreads 1 --resources slot=1"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def slots(self) -> int:
        """The number of workers now, or fewer where the null was out of bounds."""
        return self._slots if self._limit is None else min(self._slots, self._limit)

    def introduce(self, planned: Sequence[Planned]) -> list[dict[str, Any]]:
        text = json.dumps([to_json(case) for case in planned])
        replies = self._everywhere(dask_worker.introduce, text)
        for reply in replies:
            if reply["version"] != __version__:
                raise MachineError(
                    f"a Dask worker has perfdash {reply['version']}, here is {__version__}: install the same"
                )
        introductions: list[dict[str, Any]] = [reply["ok"] for reply in replies]
        introductions[0]["notes"] = [
            *introductions[0].get("notes", ()),
            *(
                f"{reason}: the Dask worker {address} is left out of this run; stop one worker there, or "
                "what else measures on its cores"
                for address, reason in self._coreless.items()
            ),
        ]
        self._expected = json.dumps(compatibility.fingerprint(introductions[0]["environment"]))
        return introductions

    def null(self, like: Planned, processes: int, slots: int | None = None) -> list[list[ProcessOutcome]]:
        text = json.dumps(to_json(like))
        replies = self._everywhere(dask_worker.null, text, processes, count=slots)
        answers = [answer_from_text(reply["ok"]) for reply in replies]
        for answer in answers:
            self._write_log(self._logs / "null.log", answer.log)
        return [answer.outcomes for answer in answers]

    def shrink(self, slots: int) -> None:
        self._limit = slots

    def start(self, slot: int, order: Order, log: Path) -> None:
        self._orders += 1
        name = f"perfdash-{self._run}-{self._orders}"
        future = self._submit(
            dask_worker.measure,
            to_text(order),
            self._expected,
            name,
            key=f"{name}-{order.planned.case.name}",
        )
        self._futures[slot] = (future, log)
        future.add_done_callback(lambda done: self._outbox.put((slot, done)))

    def wait(self, timeout_s: float | None) -> Message | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - time.monotonic()))
            try:
                slot, future = self._outbox.get(timeout=left)
            except queue.Empty:
                self._look()
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                continue
            _, log = self._futures.pop(slot)
            return Message(slot, "answer", self._answer(future, log))

    def close(self) -> None:
        """Cancel the orders under way and release the workers' cores; a failed step does not stop it."""
        if self._client.status == "running":
            with contextlib.suppress(Exception):
                self._client.cancel([future for future, _ in self._futures.values()], force=True)
            with contextlib.suppress(Exception):
                self._client.run(dask_worker.release)
            for address in self._coreless:  # for other runs: a core may be free then
                with contextlib.suppress(Exception):
                    self._client.run(dask_worker.offer_slot, workers=[address])
            with contextlib.suppress(Exception):
                deadline = time.monotonic() + CONNECT_S
                while (
                    not all(self._client.run(dask_worker.is_released).values())
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.2)
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)

    def _submit(self, function: Callable[..., str], *arguments: Any, **where: Any) -> Any:
        """A future of the call on a worker. Raises MachineError where the scheduler is lost."""
        try:
            return self._client.submit(
                function, self._options, *arguments, resources={"slot": 1}, pure=False, **where
            )
        except Exception:
            if self._client.status == "running":
                raise
            raise self._lost() from None

    def _everywhere(
        self, function: Callable[..., str], *arguments: Any, count: int | None = None
    ) -> list[dict[str, Any]]:
        """The replies of the workers, all asked at the same time."""
        addresses = self._workers()[: count or self.slots]
        futures = [
            self._submit(
                function,
                *arguments,
                workers=[address],
                key=f"perfdash-{self._run}-{function.__name__}-{uuid.uuid4().hex[:8]}",
            )
            for address in addresses
        ]
        replies = []
        for address, future in zip(addresses, futures, strict=True):
            text = self._result(future, address)
            if text is None:  # the worker was lost meanwhile: one slot less
                continue
            reply = json.loads(text)
            if "no_core" in reply:
                self._coreless[address] = reply["no_core"]
                continue
            if "error" in reply:
                kind, message = reply["error"]
                raise UsageError(message) if kind == "UsageError" else MachineError(message)
            if "unlike" in reply:
                raise _unlike(reply["unlike"])
            replies.append(reply)
        self._workers()
        if not replies and self._coreless:
            raise MachineError(
                f"{next(iter(self._coreless.values()))}: end the run that measures there, then resume"
            )
        if not replies:
            raise MachineError(f"every Dask worker at {self._address} was lost before it could measure")
        return replies

    def _result(self, future: Any, address: str | None = None) -> str | None:
        """A future's text; None when the worker that alone may do it is lost.

        Raises MachineError where there will be none for another reason.
        """
        try:
            while True:
                try:
                    return str(future.result(timeout=_LOOK_S))
                except TimeoutError:
                    if future.status == "error":  # the worker's own
                        raise
                    self._look()
                    if address is not None and address not in self._workers():
                        return None
        except MachineError:
            raise
        except Exception as error:
            # The scheduler passes results on: where it ends meanwhile, the call has not failed.
            if future.status != "error":
                raise self._lost() from None
            raise MachineError(
                f"a Dask worker cannot run perfdash ({type(error).__name__}: {error}); install the same "
                "perfdash and Dask for the workers"
            ) from None

    def _answer(self, future: Any, log: Path) -> Answer:
        if future.cancelled():
            raise self._lost()
        error = future.exception() if future.status == "error" else None
        if type(error).__name__ == "KilledWorker":  # Dask allows no further retry
            return _failed("WorkerLost", "the Dask worker that measured it was lost")
        if error is not None:
            raise MachineError(f"a Dask worker cannot run perfdash ({type(error).__name__}: {error})")
        reply = json.loads(self._result(future) or "{}")
        if reply.get("version", __version__) != __version__:
            raise MachineError(
                f"a Dask worker has perfdash {reply['version']}, here is {__version__}: install the same"
            )
        if "unlike" in reply:
            raise _unlike(reply["unlike"])
        if "lost" in reply:
            return _failed("WorkerLost", "the Dask worker that measured it was lost")
        if "no_core" in reply:  # the worker joined after introduce()
            self._coreless[reply["worker"]] = reply["no_core"]
            return _failed(NO_FREE_CORE, reply["no_core"])
        if "error" in reply:
            return _failed("MachineError", reply["error"][1])
        answer = answer_from_text(reply["ok"])
        self._write_log(log, answer.log)
        return answer

    def _workers(self) -> list[str]:
        """Addresses of the workers that offer a slot; also counts them."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, TimeoutError, TypeError):
            raise self._lost() from None
        # Two slots in one process would share its cores: such a worker is left out.
        offering = sorted(
            address
            for address, facts in workers.items()
            if facts["resources"].get("slot") == 1 and address not in self._coreless
        )
        self._slots = len(offering)
        return offering

    def _look(self) -> None:
        """Raises MachineError when the scheduler, or every worker for a while, is gone."""
        if self._client.status != "running":
            raise self._lost()
        if self._workers():
            self._last_seen = time.monotonic()
        elif time.monotonic() - self._last_seen > ALONE_S:
            raise MachineError(f"no Dask worker is left at {self._address}: start some, then resume")

    def _lost(self) -> MachineError:
        return MachineError(
            f"the Dask scheduler at {self._address} is gone: start it and its workers, then resume"
        )

    @staticmethod
    def _write_log(path: Path, text: str | None) -> None:
        if text:
            with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(text)


def _unlike(changes: list[str]) -> MachineError:
    return MachineError(
        "a Dask worker is unlike those that the run was begun on, and numbers are never mixed "
        f"(run | worker):\n{compatibility.as_lines(changes)}"
    )


def _failed(kind: str, message: str) -> Answer:
    failed = {"event": "failed", "status": "infra_error", "phase": "start", "type": kind, "message": message}
    return Answer([ProcessOutcome([failed], status=0)], now(), 0.0, 0.0, {})
