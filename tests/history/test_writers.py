"""Eight writers at once: nothing is lost, nothing is doubled, and none waits for another for ever."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from perfdash.detect.nightly_judging import judge_new
from perfdash.history import schema
from perfdash.history.ingest import KNOWN, TAKEN_IN, take_in
from perfdash.history.store import open_store
from tests.history.made import row, run

WRITERS, NIGHTS, MODELS = 8, 6, 12

pytestmark = pytest.mark.slow


def night(number: int, writer: int | None):
    """A night of one writer's machine, or of the machine whose runs all writers store; the last is slower."""
    name = "shared" if writer is None else f"machine{writer}"
    slower = 2.0 if number >= NIGHTS - 2 else 1.0
    rows = [
        row(
            f"model{model}",
            "fail_accuracy" if model == 1 and number == NIGHTS - 1 else "pass",
            backend_ms=10.0 * (slower if model == 0 else 1.0),
            eager_ms=20.0,
        )
        for model in range(MODELS)
    ]
    return run(f"2026-01-{number + 1:02}", rows, host=name, host_class=f"Xeon of {name}")


def test_eight_writers_lose_and_double_nothing(address):
    open_store(address).close()
    outcomes: list[str] = []
    errors: list[BaseException] = []
    together = threading.Barrier(WRITERS)

    def work(writer: int) -> None:
        try:
            with open_store(address) as store:
                together.wait()
                for number in range(NIGHTS):
                    take_in(store, [night(number, writer)])
                    outcomes.extend(take_in(store, [night(number, None)]))
                    judge_new(store)
        except BaseException as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert outcomes.count(TAKEN_IN) == NIGHTS, "each common run is stored once"
    assert outcomes.count(KNOWN) == NIGHTS * (WRITERS - 1)
    machines = WRITERS + 1
    with open_store(address) as store, store.read() as connection:

        def count(table, *where):
            query = sa.select(sa.func.count()).select_from(table).where(*where)
            return connection.execute(query).scalar_one()

        assert count(schema.runs) == machines * NIGHTS
        assert count(schema.runs, schema.runs.c.judged.is_(None)) == 0
        assert count(schema.results) == machines * NIGHTS * MODELS
        assert count(schema.cases) == MODELS
        assert count(schema.hosts) == count(schema.testbeds) == machines
        # The failing model is one alert on each machine, however many writers judged its night.
        alerts = schema.alerts
        assert count(alerts, alerts.c.kind == "status") == machines
        doubled = (
            sa.select(alerts.c.testbed_id)
            .group_by(alerts.c.testbed_id, alerts.c.case_id, alerts.c.metric)
            .having(sa.func.count() > 1)
        )
        assert connection.execute(doubled).all() == []
        events = schema.alert_events
        twice = (
            sa.select(events.c.alert_id)
            .group_by(events.c.alert_id, events.c.state, events.c.run_id)
            .having(sa.func.count() > 1)
        )
        assert connection.execute(twice).all() == []
