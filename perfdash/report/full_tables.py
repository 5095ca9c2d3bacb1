"""All tables of a run in Markdown, as the reference dashboard has them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import sqlalchemy as sa
from prettytable import PrettyTable

from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.causes import Cause
from perfdash.detect.findings import WORSE
from perfdash.history.failures import reason
from perfdash.history.pass_rates_and_means import gave_up, nothing_captured
from perfdash.history.queries import rows_of
from perfdash.history.results import Row
from perfdash.report import dashboard_tables, site_links
from perfdash.report.dashboard_tables import DashboardSetting, by_suite, model_names
from perfdash.report.markdown import code, escaped, fenced, folded, link, plain
from perfdash.report.night import Night, gpus_of, package_versions
from perfdash.report.published_totals import published
from perfdash.report.reproduce import CHECKOUT, OWN, command_of_run, pattern
from perfdash.report.step_sizes import has_own_batch_sizes, step_in_words
from perfdash.report.step_tables import StepTable, generation, training

_NAMED = 30  # models named in one line
_TOO_MANY = 400  # cases of a night, for a table of all numbers: it would fill comment after comment
# Only packages that influence the numbers are listed; the run's record has all of them.
_PACKAGES = ("triton", "torchvision", "torchao", "torchbench", "timm", "transformers", "onnxruntime", "numpy")
# What an experiment of a scenario runs.
_WORK = {
    "inference": "one iteration of forward pass",
    "training": "one iteration of forward and backward pass, with the optimizer's step",
    "generation": "one generation: the prompts are read, and tokens decoded greedily",
    "sizes": "one step: a forward pass at each of several sizes",
}
_MADE_WEIGHTS = {
    OWN: "those that the models' own functions give",
    CHECKOUT: "those that the checkout's models give",
}
_MEANING = {
    "perfdash": "Speedup is eager latency over compiled latency, sampled in pairs in one pinned process; "
    "outputs are checked against a float64 copy of the model; compilation starts with cold caches; peak "
    "memory is what the model needs on each side."
}


def full_tables(night: Night, *, site_url: str | None = None, fold: bool = True) -> str:
    """All tables of a run in GitHub Markdown, as the reference dashboard has them.

    `site_url`: the site's address, for links to its pages; fold False: nothing is hidden behind a click.
    """
    site = site_url.rstrip("/") + "/" if site_url else None
    parts: list[str] = []
    for setting, rows in dashboard_tables.settings(night.rows).items():
        parts += _dashboard(night, setting, rows, site, fold)
    return "\n\n".join(parts) + "\n" if parts else ""


def _dashboard(
    night: Night, setting: DashboardSetting, rows: Sequence[Row], site: str | None, fold: bool
) -> list[str]:
    summary = _executive_summary(night, setting, rows)
    parts = [f"# {setting.title}", "## Executive Summary"]
    parts.append(folded("see more", summary) if fold else summary)
    parts.append(
        "Models that fail, whose outputs are wrong or were not checked, of which nothing was captured, that "
        "reached dynamo's limit of recompiles, or whose measurement other programs disturbed are not in the "
        "means."
    )
    parts += [f"{title}\n\n{fenced(text)}" for title, text in by_suite(rows)]
    if own := published(night.run.environment, rows, setting):
        parts.append(f"What the source published, and what perfdash makes of its rows\n\n{fenced(own)}")
    if marked := _marked(rows):
        parts.append(marked)
    suites: dict[str, list[Row]] = {}
    for row in rows:
        suites.setdefault(row.case.suite, []).append(row)
    for suite, suite_rows in suites.items():
        parts.append(f"## {escaped(suite)} suite with {escaped(setting.dtype)} precision")
        body = _suite(night, suite_rows, site)
        parts.append(folded("see more", body) if fold else body)
    return parts


def _executive_summary(night: Night, setting: DashboardSetting, rows: Sequence[Row]) -> str:
    environment = night.run.environment
    suites = list(dict.fromkeys(row.case.suite for row in rows))
    machine = (
        environment.get("cpu") if setting.device == "cpu" else gpus_of(night.run)
    ) or "an unknown machine"
    what = _WORK.get(setting.scenario, _WORK["inference"])
    caveats = [
        *_sizes(rows),
        _shapes(setting),
        "0.0 and nan stand for what was not measured; its status is in the Accuracy table.",
        "A number with an asterisk is not in the means: it is of a model that failed, whose outputs were not "
        "checked, of which nothing was captured, that reached dynamo's limit of recompiles, or whose "
        "measurement other programs disturbed.",
    ]
    if night.run.origin == "perfdash":
        optimizer = "" if setting.scenario == "training" else "; there is no optimizer"
        caveats += [
            f"Weights are {_weights(rows, str(night.run.setting.get('weights', 'random')))}{optimizer}.",
            "A verdict marked (pooled) has its spread between processes from other cases of the run, or "
            "earlier nights; (within) means that this spread is not known.",
        ]
    packages = [("torch", night.run.torch), ("commit", night.run.torch_git_version)]
    packages += package_versions(night.run, _PACKAGES)
    listed = ", ".join(f"{escaped(name)} {code(version)}" for name, version in packages if version)
    settings = ", ".join(f"{escaped(k)} {code(v)}" for k, v in night.run.setting.items())
    lines = [
        f"{len(suites)} suite{'s' * (len(suites) != 1)}: {', '.join(map(escaped, suites))}. "
        f"We run these experiments on {escaped(machine)}. Each experiment runs {what}. "
        + _MEANING.get(
            night.run.origin,
            f"Imported ({escaped(night.run.origin)}): what the numbers mean is what that tool means by them.",
        ),
        f"{listed}." if listed else "",
        f"Setting: {settings}." if settings else "",
        "Caveats\n\n" + "\n".join(f"{n}. {text}" for n, text in enumerate(caveats, 1)),
    ]
    return "\n\n".join(line for line in lines if line)


def _weights(rows: Sequence[Row], setting: str) -> str:
    """What weights the models have: a file is for all; own models and those of a checkout make theirs."""
    if setting not in ("random", "pretrained"):
        return "those of a file"
    suites = {row.case.suite for row in rows}
    made = {suite: words for suite, words in _MADE_WEIGHTS.items() if suite in suites}
    if len(suites) == len(made) == 1:
        return made[suites.pop()]
    others = [setting] if len(suites) > len(made) else []
    return ", and ".join(others + [f"in suite {suite} {words}" for suite, words in made.items()])


def _sizes(rows: Sequence[Row]) -> list[str]:
    """The batch sizes of the rows, and in scenario sizes the sizes of a step."""
    rows = [row for row in rows if step_in_words(row)] or rows  # those that ran
    steps = {words for row in rows if (words := step_in_words(row))}
    lines = [f"A step has these sizes: {escaped(next(iter(steps)))}."] if len(steps) == 1 else []
    lines += ["The sizes of a step are those of the suites."] if len(steps) > 1 else []
    batches = {row.case.batch_size for row in rows if not has_own_batch_sizes(row)}
    if len(batches) == 1:
        lines.append(f"Batch size is {escaped(next(iter(batches)))}.")
    return lines + (["Batch sizes are those of the suites."] if len(batches) > 1 else [])


def _shapes(setting: DashboardSetting) -> str:
    if setting.dynamic:
        return "Shapes are dynamic."
    if setting.scenario == "sizes":
        return "Only the dimensions that differ between the sizes are dynamic."
    return "Experiments do not cover dynamic shapes."


def _marked(rows: Sequence[Row]) -> str:
    """The models that passed without being compiled completely."""
    names_by_model = model_names(row.case for row in rows)
    rows = [row for row in rows if row.status == "pass"]
    lines = []
    for title, marked in (
        ("Nothing was captured: the compiled side is eager", [r for r in rows if nothing_captured(r)]),
        (
            "Dynamo reached its limit of recompiles: part of the compiled side ran in eager",
            [r for r in rows if gave_up(r)],
        ),
        (
            "Graph breaks",
            [r for r in rows if not nothing_captured(r) and (r.values.get("graph_breaks") or 0) > 0],
        ),
        ("Kernels that fell back to eager", [r for r in rows if (r.values.get("fallbacks") or 0) > 0]),
    ):
        names = list(dict.fromkeys(names_by_model[row.case.suite, row.case.model] for row in marked))
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"- {title} ({len(names)}): {', '.join(map(code, names[:_NAMED]))}{more}")
    return "\n".join(lines)


def _suite(night: Night, rows: Sequence[Row], site: str | None) -> str:
    parts = [f"{title}\n\n{fenced(text)}" for title, text in dashboard_tables.four_tables(rows)]
    if len(rows) <= _TOO_MANY:
        parts += [
            f"{steps.title}\n\n{fenced(_text(steps))}" + "".join(f"\n\n{note}." for note in steps.notes)
            for steps in (training(rows), generation(rows))
            if steps
        ]
    if len(night.rows) > _TOO_MANY:
        parts.append("All numbers, with intervals: `perfdash report --format csv`, or the site.")
    elif any("eager_ms" in row.values for row in rows):
        parts.append(f"All numbers\n\n{fenced(dashboard_tables.all_numbers(rows))}")
    failures = [
        f"- {code(row.case.model)} bs {escaped(row.case.batch_size)} {code(row.case.backend)}: "
        f"{escaped(row.status)}: {code(why, 300)}"
        for row in rows
        if (why := reason(row))
    ]
    if failures:
        parts.append("Failures\n\n" + "\n".join(failures))
    if night.run.origin == "perfdash":
        commands = [command_of_run(row.case, night.run) for row in rows]
        parts.append("A row again\n\n" + fenced(_generic(rows, commands)))
    if site:
        pages = dict.fromkeys(site_links.suite_page(night.testbed, row.case) for row in rows)
        parts.append(" · ".join(link(f"page {n}", site + page) for n, page in enumerate(pages, 1)))
    return "\n\n".join(parts)


def _text(steps: StepTable) -> str:
    text_table = PrettyTable(steps.head)
    text_table.align = "r"
    for name in steps.head[: steps.words]:
        text_table.align[name] = "l"
    text_table.add_rows(steps.lines)
    return str(text_table.get_string())


def _generic(rows: Sequence[Row], commands: Sequence[str]) -> str:
    """The commands that repeat the rows; similar ones are combined with NAME and SIZE."""
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for row, text in zip(rows, commands, strict=True):
        words = shlex.split(text)
        kind, model = list(words), ["--models", pattern(row.case.model)]
        for place in range(2, len(words) - 1):
            if words[place : place + 2] == model:
                kind[place + 1] = "NAME"
                if words[place + 2] == "--batch-size":
                    kind[place + 3] = "SIZE"
                break
        alike.setdefault(tuple(kind), []).append(words)
    lines = []
    for kinds, commands_alike in alike.items():
        # A placeholder replaces a word only where the commands differ in it.
        shared = zip(kinds, zip(*commands_alike, strict=True), strict=True)
        lines.append(shlex.join(values[0] if len(set(values)) == 1 else kind for kind, values in shared))
    printed = [plain(line, 2000) for line in lines[:20]]
    if hidden := len(lines) - len(printed):
        printed.append(f"# and {hidden} more: perfdash report --format json has the command of each case")
    return "\n".join(printed)


def reason_of_failure(connection: sa.Connection, cause: Cause) -> str:
    """The reason of a failure that a cause explains, of the first model; empty for other causes."""
    row = failed_row(connection, cause.main[0])
    text = reason(row) if row else ""
    if row is None or not text:
        return ""
    names = model_names([row.case, *(one.case for one in cause.main if one.case)])
    return f"{names[row.case.suite, row.case.model]}: {text}" if len(names) > 1 else text


def failed_row(connection: sa.Connection, evidence: AlertEvidence) -> Row | None:
    """The result with which a failure was first seen; None for other alerts, and where it was pruned."""
    run = evidence.bad or evidence.seen
    if evidence.alert.kind != "status" or evidence.alert.direction != WORSE or run is None:
        return None
    rows = rows_of(connection, run.id, details=True, case_id=evidence.alert.case_id)
    return rows[0] if rows else None
