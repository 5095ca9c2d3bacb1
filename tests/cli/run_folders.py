"""Run folders as `perfdash run` leaves them, of results that were never measured."""

import json
from pathlib import Path

from perfdash.records import to_json
from tests.report.results import info

RUN = "2026-11-21T00-00-00Z_host"


def write_run(folder: Path, results):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(to_json(info(len(results), "done"))))
    (folder / "results.jsonl").write_text("".join(json.dumps(to_json(result)) + "\n" for result in results))
    return folder
