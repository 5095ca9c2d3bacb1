"""Cut a nightly into cells: what agents do side by side, each cell a stage of Jenkins.

    ci/nightly/cells.sh measure      a cell for each suite, device, dtype and part of SHARDS
    ci/nightly/cells.sh confirm      a cell for each device that was measured, on the agent that measured it
    ci/nightly/cells.sh bisect       the same, only with BISECT=yes

Prints a line a cell: its variables, `NAME=VALUE`, separated by tabs, as Jenkins' `withEnv` takes them; with
`--json` a list of objects. All cells to measure get the build that ci/nightly/pin.sh has written into the
file `build` of the night; their names are also written into the file `planned`. Standard library only: there
are cells also where perfdash cannot be set up.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

STAGES = ("measure", "confirm", "bisect")
Cell = dict[str, str]
"""The variables of a cell.

CELL: its name. LABEL: the agents that may run it. MINUTES: Jenkins ends its script then; TOTAL_MINUTES: the
same with the wait for an agent; empty: no limit. FETCH, STASH: what is unstashed before and stashed after,
FILES, which are artifacts as well. SECRETS: what its script gets. All others are for the scripts.
"""


def cells_of(stage: str, parameters: Mapping[str, str], agents: Mapping[str, str]) -> list[Cell]:
    """The cells of a stage.

    parameters: those of docs/nightly.md, checked, and NIGHT, the folder of the night; agents: which agent
    measured, by the cell's name.
    """
    if stage == "measure":
        return _measured(parameters)
    # Both limits are for what hangs, and for an agent that does not come: the scripts end by themselves.
    if stage == "confirm":
        return _on_devices(stage, int(float(parameters["CONFIRM_MINUTES"])) + 10, parameters, agents)
    if parameters["BISECT"] == "yes":
        return _on_devices(stage, int(float(parameters["BISECT_HOURS"]) * 60) + 30, parameters, agents)
    return []


def _measured(parameters: Mapping[str, str]) -> list[Cell]:
    """Suite files of the user share the cell `own`, which is not cut into shards.

    So do the models that --model names: with OWN_SUITES there are some, and it stands for no suite. Other
    cells leave --model out of RUN_ARGUMENTS, and only the checkout's have --torchbench (SUITE_ARGUMENTS,
    CHECKOUT_ARGUMENTS). MODELS selects models of suites only. Without DTYPES a cell measures the dtypes of
    its suite and configurations. SHARD alone says which part a cell is: with more SHARDS measure.sh would
    divide the cell.
    """
    suites = _words(parameters["SUITES"])
    files = [suite for suite in suites if suite.endswith(".toml") or "/" in suite]
    shards = int(parameters["SHARDS"])
    groups = [(suite, suite, shards) for suite in suites if suite not in files]
    if own_suites := ",".join(files) or parameters.get("OWN_SUITES"):
        groups.append(("own", own_suites, 1))
    arguments = {
        name: parameters["CHECKOUT_ARGUMENTS" if name == "torchbench-checkout" else "SUITE_ARGUMENTS"]
        for name, _, _ in groups
        if name != "own" and "SUITE_ARGUMENTS" in parameters
    }
    return [
        _measured_cell("-".join(filter(None, [name, device, dtype, str(part)])), parameters)
        | {"SUITES": group, "LABEL": f"perfdash-{device}", "DEVICES": device, "DTYPES": dtype,
           "SHARD": f"{part}/{parts}" if parts > 1 else "", "SHARDS": "1"}
        | ({"RUN_ARGUMENTS": arguments[name]} if name in arguments else {})
        | ({"MODELS": ""} if name == "own" and not files else {})
        for device in _words(parameters["DEVICES"])
        for dtype in _words(parameters["DTYPES"]) or [""]
        for name, group, parts in groups
        for part in range(1, parts + 1)
    ]  # fmt: skip


def _measured_cell(name: str, parameters: Mapping[str, str]) -> Cell:
    folder = f"{parameters['NIGHT']}/cells/{name}"
    return {
        "CELL": name,
        # cell.sh ends itself after CELL_MINUTES, counted from when it has the machine for itself.
        "MINUTES": str(int(parameters["CELL_MINUTES"] or 600) + 60),
        "TOTAL_MINUTES": "",
        "FETCH": "",
        "STASH": f"cell-{name}",
        "FILES": f"{folder}/**",
        "SECRETS": "",
        "STAGE": "measure",
        "PERFDASH_NIGHTLY": folder,
        "OUT": f"{folder}/out",
        # A history of its own: that of the night imports the runs when they are gathered or merged. With
        # --no-history they would be marked as runs that no history takes.
        "PERFDASH_DB": f"{folder}/out/history.db",
    }


def _on_devices(
    stage: str, minutes: int, parameters: Mapping[str, str], agents: Mapping[str, str]
) -> list[Cell]:
    """Each on an agent that measured its device, where tonight's and the last good build are."""
    night = parameters["NIGHT"]
    cells = []
    for device in ("cpu", "cuda"):
        measured_on = [agents[name] for name in sorted(agents) if f"-{device}-" in name]
        if not measured_on:
            continue
        folder = f"{night}/found-{device}"
        cells.append({
            "CELL": device,
            "LABEL": measured_on[0],
            "MINUTES": "",
            "TOTAL_MINUTES": str(minutes),
            "FETCH": "night",
            "STASH": f"{stage}-{device}",
            "FILES": f"{folder}/**, {night}/**/confirm.jsonl, {parameters['OUT']}/bisections/**",
            "SECRETS": "PERFDASH_DB",
            "STAGE": stage,
            "DEVICE": device,
            "PERFDASH_NIGHTLY": folder,
            "JOB": f"{parameters['JOB']}-{device}",  # each device has its own last good build
        })  # fmt: skip
    return cells


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def agents_of(night: Path) -> dict[str, str]:
    """Which agent measured each cell: ci/nightly/cell.sh leaves its name in the cell's folder."""
    return {path.parent.name: path.read_text().strip() for path in night.glob("cells/*/agent")}


def _build(night: Path) -> dict[str, str]:
    """TORCH and UNDER_TEST of all cells; empty where ci/nightly/pin.sh could not find them out."""
    try:
        lines = (night / "build").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines)


def as_lines(cells: Iterable[Cell]) -> str:
    return "".join("\t".join(f"{name}={value}" for name, value in cell.items()) + "\n" for cell in cells)


def main(words: Sequence[str]) -> None:
    stage, *more = words
    night = Path(os.environ["NIGHT"])
    cells = cells_of(stage, os.environ, agents_of(night))
    if stage == "measure":
        build = _build(night)
        asked = {f"ASKED_{name}": os.environ.get(name, "") for name in build}
        cells = [{**cell, **build, **asked} for cell in cells]
        # ci/nightly/gather.sh looks there for cells that left nothing
        night.mkdir(parents=True, exist_ok=True)
        (night / "planned").write_text("".join(f"{cell['CELL']}\n" for cell in cells))
    print(f"{json.dumps(cells, indent=1)}\n" if more == ["--json"] else as_lines(cells), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
