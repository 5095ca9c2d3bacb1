"""A planned case, the events that a worker sends for it, and stand-ins for a fork parent and an executor."""

from dataclasses import replace

from perfdash.records import Case
from perfdash.runner.executors import Message
from perfdash.runner.messages import Answer, ProcessOutcome
from perfdash.runner.worker_limits import RunStopped
from perfdash.suites.case_selection import Planned

PLANNED = Planned(
    case=Case("s", "m"),
    loader="python",
    target="f.py:f",
    inputs={},
    tolerance=1e-3,
    factor=2,
    cosine=False,
    check_accuracy=True,
    env={},
    timeout_s=60,
    memory_limit_bytes=None,
    skip_reason="not here",
)
MB = 1 << 20
TIME = {"what": "time", "scope": "phase", "limit": 7.0, "unit": "s"}


MEMORY = {"constants_bytes": 0, "transient_bytes": 200 * MB, "high_water_bytes": 1}


def latency(eager=10.0, backend=5.0, clean=1.0, pairs=40, cpu_ratio=None, **more):
    eager_ns = [eager * 1e6 * (1 + 0.001 * (k % 7)) for k in range(pairs)]
    backend_ns = [backend * 1e6 * (1 + 0.001 * (k % 5)) for k in range(pairs)]
    return {
        "event": "latency",
        "eager_ns": eager_ns,
        "backend_ns": backend_ns,
        "eager_cpu_ns": [v if cpu_ratio is None else v * cpu_ratio for v in eager_ns],
        "backend_cpu_ns": backend_ns,
        "clean": [k < clean * pairs for k in range(pairs)],
        "stopped": "precision",
        "repeats": {"eager": 1, "backend": 1},
        "involuntary_switches": 3,
        "minor_faults_per_call": {"eager": 0.0, "backend": 0.0},
        "cpu_pressure": 0.0,
        "l2_flush": False,
        "probe_ms": [1.0, 1.0],
        "load": 0.1,
        "cores": [1],
        "torch_threads": 1,
        "steal": 0.0,
        "no_core": 0.0,
        "waiting": 0.0,
        **more,
    }


def events(*, upto="done", accuracy="pass", graphs=1, **sampling):
    capture = {"graphs": graphs, "graph_breaks": 0}
    compiled = {
        "compilation_s": 2.0,
        "compilation_cpu_s": 1.9,
        "first_call_s": 2.1,
        "compile_peak_bytes": 500 * MB,
        "compile_held_bytes": 40 * MB,
        "capture": capture,
    }
    script = [
        {"event": "phase", "name": "load"},
        {"event": "loaded", "weights_bytes": 8 * MB, "held_bytes": 100 * MB, "parameters": 7},
        {"event": "phase_end", "name": "load", "seconds": 0.5},
        {"event": "phase", "name": "eager"},
        {"event": "eager", "differ": None, "memory": dict(MEMORY)},
        {"event": "phase", "name": "compile"},
        {"event": "compiled", **compiled},
        {"event": "phase", "name": "accuracy"},
        {"event": "accuracy", "status": accuracy, "detail": "d"},
        {"event": "phase", "name": "latency"},
        latency(**sampling),
        {"event": "phase", "name": "memory"},
        {"event": "memory", "constants_bytes": 50 * MB, "transient_bytes": 50 * MB, "high_water_bytes": 1},
        {"event": "done"},
    ]
    names = [e["event"] if e["event"] != "phase" else f"phase {e['name']}" for e in script]
    return script[: names.index(upto) + 1]


def case(name, **change):
    return replace(PLANNED, case=Case("s", name), skip_reason=None, **change)


CASES = [case(f"m{number}") for number in range(9)]
COSTS = [9.0, 1.0, 4.0, 4.0, 2.0, 8.0, 3.0, 1.0, 5.0]


class Parent:
    """A fork parent without processes; `eager` milliseconds by the number of the case's process."""

    def __init__(self, launch, eager=(10.0,) * 6, stopped=False, hello=None):
        self.launch, self.eager, self.stopped, self.hello = launch, eager, stopped, hello or {}
        self.alive, self.forks, self.closed = True, 0, False

    def __enter__(self):
        return self

    def close(self):
        self.closed = True

    def run(self, job, log, on_event=None, stop=None):
        self.forks += 1
        if self.stopped:
            raise RunStopped
        return ProcessOutcome(events(eager=self.eager[job.process]), status=0)


HELLO = {
    "executable": "python",
    "torch": "2.15",
    "torch_cuda": None,
    "missing": {},
    "cuda_initialized": False,
    "packages": {"torch": "2.15"},
}
LATENCY = [event for event in events() if event["event"] in ("latency", "done")]


class Played:
    """An executor that answers at once; `script` has the outcomes of a model's attempts, in turn."""

    has_fixed_slots = True

    def __init__(self, slots=1, script=None, hello=HELLO, nulls=(), unlike=None):
        self.slots = slots
        self.script = {name: list(outcomes) for name, outcomes in (script or {}).items()}
        self.hello = hello
        self.nulls = list(nulls)
        self.unlike = unlike or {}
        self.orders = []
        self.answers = []

    def introduce(self, planned):
        return [
            {
                "environment": {
                    "host_class": "h x 2",
                    "cores": 2,
                    "worker": self.hello,
                    **self.unlike.get(slot, {}),
                },
                "probes": [{"cuda": [], "complaints": []}],
                "where": {"slot": slot, "host": f"host{slot}", "cores": [slot]},
                "notes": [f"note of slot {slot}"],
            }
            for slot in range(self.slots)
        ]

    def null(self, like, processes, slots=None):
        ratio = self.nulls.pop(0) if self.nulls and slots is None else 1.0
        latency = {"event": "latency", "eager_ns": [1e6 * ratio], "backend_ns": [1e6], "clean": [True]}
        return [[ProcessOutcome([latency], status=0)] * processes for _ in range(slots or self.slots)]

    def shrink(self, slots):
        self.slots = slots

    def start(self, slot, order, log):
        self.orders.append((slot, order))
        scripted = self.script.get(order.planned.case.model)
        main = scripted.pop(0) if scripted else ProcessOutcome(events(), status=0)
        replicas = [ProcessOutcome(LATENCY, status=0)] * (order.processes - 1) if main.find("done") else []
        log.write_text("printed")
        where = {"slot": slot, "host": "h", "cores": [slot]}
        self.answers.append(Message(slot, "answer", Answer([main, *replicas], "t", 1.0, 0.1, where)))

    def wait(self, timeout_s):
        return self.answers.pop(0) if self.answers else None
