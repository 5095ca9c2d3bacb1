"""Runs that were never measured, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfdash.history.results import Imported, Row, RunRow
from perfdash.methods import CURRENT
from perfdash.records import Case

PACKAGES = {"timm": "1.0.31"}


def case(model: str = "resnet18", **other) -> Case:
    return Case("timm", model, **other)


def row(model: str = "resnet18", status: str = "pass", *, of: Case | None = None, **values: float) -> Row:
    numbers = values or {"eager_ms": 20.0, "backend_ms": 10.0, "speedup": 2.0, "compilation_s": 30.0}
    return Row(of or case(model), status, numbers)


def run(
    night: str = "2026-11-01",
    rows: Sequence[Row] = (),
    *,
    torch: str = "2.15.0",
    git: str = "a" * 40,
    **other,
) -> Imported:
    """A night's run; `other` replaces fields of its RunRow."""
    info = RunRow(
        name=f"{night}T01-00-00Z_farm",
        started=f"{night}T01:00:00Z",
        ended=f"{night}T05:00:00Z",
        origin="perfdash",
        source=f"runs/{night}T01-00-00Z_farm",
        host="farm",
        host_class="Xeon x 100",
        environment={
            "governor": "performance",
            "worker": {"torch": torch, "torch_git_version": git, "packages": PACKAGES},
        },
        command=("perfdash", "run"),
        expected=len(rows),
        perfdash="0.1",
        method=dict(CURRENT),
    )
    changed = replace(info, **other)
    return Imported(replace(changed, uid=f"{changed.started} {changed.host}"), tuple(rows))


def with_worker(run: RunRow, **facts) -> RunRow:
    """The run, of an environment with these facts: torch_git_version, packages, commits, ..."""
    return replace(run, environment={**run.environment, "worker": {**run.worker, **facts}})


def nights(values: Mapping[str, Sequence[float]], metric: str = "backend_ms") -> list[Imported]:
    """One run a night from 2026-01-01 on; values[model] are those of a metric, None where it vanished."""
    from datetime import date, timedelta

    count = max(map(len, values.values()))
    return [
        run(
            str(date(2026, 1, 1) + timedelta(days=night)),
            [row(model, **{metric: series[night]}) for model, series in values.items() if series[night]],
            git=f"{night:040x}",
        )
        for night in range(count)
    ]
