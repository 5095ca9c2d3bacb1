"""Scenarios of the nightly: what is asked for, and the cells that follow from it."""

from __future__ import annotations

from typing import Any

from perfdash.runner.night_cells import as_lines, cells_of
from tests.jenkins.pipelines import ROOT, STARTED

NIGHT = f"runs/nightly/build-1-{STARTED}"
XEON = {"perfdash-cpu": "xeon", "perfdash-cuda": "gpu", "perfdash-report": "desk"}
POST = {"POST": "yes", "REPO": "a/b", "ISSUE": "1"}
# What the parameters are where a scenario says nothing else, and what the Jenkinsfile adds.
DEFAULTS = {
    "SUITES": "timm,huggingface", "DEVICES": "cpu", "DTYPES": "float32", "SHARDS": "1", "CELL_MINUTES": "600",
    "CONFIRM_MINUTES": "45", "BISECT": "no", "BISECT_HOURS": "4",
}  # fmt: skip
SET_BY_THE_PIPELINE = {"NIGHT": NIGHT, "OUT": f"{NIGHT}/out", "JOB": "perfdash"}


def night(*answers: dict[str, Any], params: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A night of two cells on `xeon`, told by `desk`; scripts answer as is said, else they succeed."""
    wanted = {**DEFAULTS, **(params or {})}
    parameters = {**wanted, **SET_BY_THE_PIPELINE}
    measured = {cell["CELL"]: XEON[cell["LABEL"]] for cell in cells_of("measure", parameters, {})}
    cells = [
        {"script": f"ci/nightly/cells.sh {stage}", "out": as_lines(cells_of(stage, parameters, measured))}
        for stage in ("measure", "confirm", "bisect")
    ]
    return {
        "jenkinsfile": str(ROOT / "Jenkinsfile"),
        "params": {"ALARM_TO": "team@example.org", **wanted},
        "agents": XEON,
        "answers": [*answers, *cells],
        **more,
    }


def script(name: str, **answer: Any) -> dict[str, Any]:
    """How a script of ci/nightly answers: its exit code, unless something else is said."""
    return {"script": rf"ci/nightly/{name}\.sh( .*)?", **answer}
