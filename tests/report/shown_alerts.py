"""Alerts of every kind with their evidence, never measured."""

from dataclasses import replace

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.history.alert_store import Alert
from perfdash.history.queries import RunLine
from tests.history.made import case


def run(day, commit):
    return RunLine(
        id=day, name=f"2026-11-{day:02}T01-00-00Z_farm", started=f"2026-11-{day:02}T01:00:00Z", state="done",
        command=("perfdash", "run", "--suite", "mine.toml"), origin="perfdash", source="runs", host="farm",
        testbed_id=1, host_class="Xeon x 100", setting={},
        environment_id=1, expected=10, results=10, judged=None,
        environment={"worker": {"torch": "2.15.0", "torch_git_version": commit * 40, "python": "3.11"}},
    )  # fmt: skip


GOOD, BAD = run(10, "a"), run(11, "b")
SLOWER = Alert(
    "metric", 1, 1, "backend_ms", "confirmed", 1, 10, 11, 11, "2026-11-11T06:00:00Z", "2026-11-12T06:00:00Z",
    before=20.0, after=23.0, change=0.1398, p=2e-7, id=3,
    details={
        "changed": ["torch: 2.15.0 aaaaaaaaaa | 2.15.0 bbbbbbbbbb"],
        "remeasured": {"pairs": 4, "ratio": 1.148, "low": 1.12, "high": 1.18},
    },
)  # fmt: skip
HOST = Alert(
    "host", 1, None, "compilation_cpu_s", "new", 1, 10, 11, 11, "t", "t", change=0.22, p=1e-9, id=4,
    details={"changed": ["microcode: 0x1 | 0x2"]},
)  # fmt: skip
STATUS = Alert(
    "status", 1, 2, "status", "open", 1, 10, 11, 11, "t", "t", id=5,
    details={"before": "pass", "after": "nothing captured"},
)  # fmt: skip
SHOWN = [
    AlertEvidence(SLOWER, case("resnet50"), GOOD, BAD, BAD, speedup=(1.31, 1.14)),
    AlertEvidence(HOST, None, GOOD, BAD, BAD),
    AlertEvidence(STATUS, case("vit", dtype="amp", amp_dtype="bfloat16"), None, BAD, BAD),
    AlertEvidence(
        replace(SLOWER, kind="drift", id=6, details={}), case("dcgan", batch_size=8), GOOD, BAD, BAD
    ),
    AlertEvidence(
        replace(STATUS, kind="vanished", metric=None, id=7, details={}), case("gone"), GOOD, BAD, BAD
    ),
    AlertEvidence(
        replace(STATUS, kind="count", metric="graph_breaks", before=0.0, after=3.0, id=8, details={}),
        case("breaks"), GOOD, BAD, BAD,
    ),
]  # fmt: skip
