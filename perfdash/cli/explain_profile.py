"""What `perfdash explain` measures: profiles of both sides, and the script that shows the slowest part."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdash.cli.shared_options import warn

if TYPE_CHECKING:
    from perfdash.errors import UsageError
    from perfdash.explain.profiling import ProfiledBuild
    from perfdash.explain.structure_comparison import Explanation

Say = Callable[[str], None]
Measured = tuple[dict[str, Any], "UsageError | None"]  # plain values, and why there is no script


@dataclass(frozen=True)
class Wanted:
    """The flags: for (old, new) what the user called the runs, and their interpreters; None by default."""

    runs: tuple[str | None, str | None]
    pythons: tuple[str | None, str | None]
    pairs: int | None
    cores: str | None
    out: Path | None


def measured(
    explanation: Explanation,
    metric: str | None,
    wanted: Wanted,
    reproducer: Path | None,
    tlparse: Path | None,
    say: Say,
) -> Measured:
    """Profile both sides and say what explains the change; of wrong outputs, cut out the part to blame."""
    from perfdash.explain import profile_text, profiling
    from perfdash.explain.profile_comparison import compare
    from perfdash.metrics import METRICS

    builds = _builds(explanation, wanted)
    run, _ = builds[1]
    folder = profiling.new_folder(run, explanation.after.case)
    old, case = (
        profiling.with_kept_model(
            build, of, side.structure.get("model_files") or {}, folder / "models" / name
        )
        for (of, build), side, name in zip(
            builds, (explanation.before, explanation.after), ("old", "new"), strict=True
        )
    )
    if reproducer is not None and _is_wrong(explanation, metric):
        return _reproduce_accuracy(case, old.worker, folder, reproducer, say)
    profiling.refuse_same_build(old, case)
    count = wanted.pairs or profiling.PAIRS
    profiles = profiling.profile(old, case, folder, count, None, warn, tlparse)
    comparison = compare(profiles)
    of_eager = metric in METRICS and METRICS[metric].of_eager
    report = profile_text.text(comparison, str(folder), of_eager=of_eager)
    profiling.keep_report(folder, report)
    say(f"\n{report}")
    if tlparse is not None:
        say(f"TORCH_TRACE logs of both sides: {tlparse}")
    plain = {"profile": {**profile_text.to_plain(comparison), "folder": str(folder)}}
    if reproducer is None:
        return plain, None
    from perfdash.errors import UsageError
    from perfdash.explain.reproducer import write
    from perfdash.runner.host import relevant_variables

    sides = [comparison.compiled, comparison.eager]
    if of_eager:
        sides.reverse()
    side = next((side for side in sides if side.named), sides[0])
    try:
        variables = relevant_variables(old.planned.env), relevant_variables(case.planned.env)
        folders = folder / f"{len(profiles)}-old", folder / f"{len(profiles)}-new"
        script = write(reproducer, side, profiles[-1], folders, variables)
    except UsageError as problem:  # the profile is printed all the same
        return plain, problem
    say(f"Reproducer: {shlex.join([case.settings.python, str(script)])}")
    return {**plain, "reproducer": str(script)}, None


def _builds(explanation: Explanation, wanted: Wanted) -> list[tuple[Path, ProfiledBuild]]:
    """(run folder, build) of the older and of the newer side."""
    from perfdash.explain.profiling import build_of
    from perfdash.runner.host import relevant_variables
    from perfdash.runner.run_journal import find_run
    from perfdash.settings import resolve

    runs = resolve({"out": wanted.out})[0].out
    shell = relevant_variables(dict(os.environ))
    builds = []
    for side, word, python in zip(
        (explanation.before, explanation.after), wanted.runs, wanted.pythons, strict=True
    ):
        folder = find_run(word or side.run.name, runs)
        builds.append((folder, build_of(folder, side.case, shell, python, wanted.cores)))
    return builds


def _is_wrong(explanation: Explanation, metric: str | None) -> bool:
    """Whether the outputs are what changed: then the part that is compiled wrongly is shown."""
    return metric in (None, "accuracy", "status") and explanation.after.status == "fail_accuracy"


def _reproduce_accuracy(
    build: ProfiledBuild, old_worker: Mapping[str, Any], folder: Path, reproducer: Path, say: Say
) -> Measured:
    from perfdash.errors import UsageError
    from perfdash.explain import profiling
    from perfdash.explain.reproducer import shows_it, write_accuracy
    from perfdash.runner.host import relevant_variables

    found = profiling.failing_subgraph(build, old_worker, folder, warn)
    operators, all_of_it = len(found["operators"]), found["place"]["operators"]
    say(f"{operators} of {all_of_it} operators are compiled wrongly: {', '.join(found['operators'])}")
    plain: dict[str, Any] = {"subgraph": found}
    try:
        variables = relevant_variables(build.planned.env)
        script = write_accuracy(reproducer, found, folder / "subgraph" / profiling.INPUTS, variables)
        plain["reproducer"] = str(script)
        is_shown = shows_it(script, build.settings.python, build.planned.env)
    except UsageError as problem:  # the operators are printed all the same
        return plain, problem
    if not is_shown:
        return plain, UsageError(
            f"{script} does not show wrong outputs of {', '.join(found['operators'])}: run it to see why. If "
            "it calls the outputs right, the model's file, or what it imports, changes how torch compiles: "
            "add that code to the script."
        )
    say(f"Reproducer: {shlex.join([build.settings.python, str(script)])}")
    return plain, None
