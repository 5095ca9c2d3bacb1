"""`perfdash report`: write the report of a run for readers or programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdash.cli.shared_options import (
    Baseline,
    Db,
    Out,
    RunName,
    SiteUrl,
    check_address,
    lookup,
    print_result,
    warn,
)
from perfdash.files import dumps

if TYPE_CHECKING:
    from perfdash.report.night import Night

FORMATS = ("comment", "markdown", "html", "csv", "json", "junit", "grid", "plot-csv", "digest")


def report(
    run: RunName = "last",
    format_: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}.  [default: comment]")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="The file to write; for plot-csv the folder.  [default: standard output]"),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, help="With --format digest: the number of days up to today.  [default: 7]"),
    ] = None,
    baseline: Baseline = None,
    site_url: SiteUrl = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="`regression`: exit with code 1 if there is a regression that nobody acknowledged."
        ),
    ] = None,
    db: Db = None,
    out: Out = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: as --format json; with --to the names of the files."),
    ] = False,
) -> None:
    """Write the report of a run: what changed, then the tables."""
    from perfdash.errors import UsageError

    form = format_ or ("json" if as_json else "comment")
    if form not in FORMATS:
        from perfdash.suggestions import not_one_of

        raise UsageError(not_one_of("--format", form, FORMATS))
    if as_json and to is None and form != "json":
        raise UsageError(f"--json prints --format json: leave out --format {form}, or write it with --to")
    if fail_on and set(fail_on) != {"regression"}:
        raise UsageError(f"--fail-on {', '.join(fail_on)}: here there is only regression")
    if form == "plot-csv" and to is None:
        raise UsageError("--format plot-csv makes several files: give their folder with --to FOLDER")
    if to is not None and form != "plot-csv" and (not to.name or to.is_dir()):
        raise UsageError(f"--to {to}: it is a folder; give the file to write")
    check_address("--site-url", site_url)
    if form != "digest" and days is not None:
        raise UsageError(f"--days is of --format digest, not of {form}")
    if form == "digest":
        if run != "last" or baseline is not None or fail_on:
            raise UsageError("--format digest is of the history: leave out the run, --baseline and --fail-on")
        text = lookup(db, out).weekly_digest(days or 7, site_url).mail()
        if to is None:
            typer.echo(text, nl=False)
        else:
            write_output(to, text)
            _show_files([to], as_json)
        return
    night = lookup(db, out).night(run, baseline)
    gated = bool(fail_on)
    if gated and night.refused:
        raise UsageError(f"--fail-on regression: {night.refused}; give another --baseline")
    if form == "plot-csv" and to is not None:
        from perfdash.report.night_export import plot_csv

        files = plot_csv(night.rows)
        for name, text in files.items():
            write_output(to / name, text)
        _show_files([to / name for name in files], as_json)
    else:
        if form == "html" and to is not None:
            _write_page(night, site_url, to)
        elif to is None:
            text = _FORMATS[form](night, site_url, gated)
            typer.echo(text, nl=not text.endswith("\n"))
        else:
            write_output(to, _FORMATS[form](night, site_url, gated))
        if to is not None:
            _show_files([to], as_json)
    if gated:
        from perfdash.report.gates import night_gate

        raise typer.Exit(night_gate(night, warn))


def _show_files(paths: list[Path], as_json: bool) -> None:
    print_result({"files": list(map(str, paths))}, "\n".join(map(str, paths)), as_json)


def _write_page(night: Night, site_url: str | None, to: Path) -> None:
    """Write the HTML page with its style sheet beside it: Jenkins serves no page with style of its own."""
    from perfdash.report.comment import page
    from perfdash.report.markdown import STYLE

    sheet = to.with_suffix(".css")
    write_output(sheet, STYLE)
    write_output(to, page(night, site_url=site_url, style=sheet.name))


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user asked for. Raises MachineError where it cannot be written."""
    from perfdash import files
    from perfdash.errors import MachineError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror or error}") from error


def _comment(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.comment import comment

    return comment(night, site_url=site_url)


def _markdown(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.comment import whole_report

    return whole_report(night, site_url=site_url, fold=False)


def _html(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.comment import page

    return page(night, site_url=site_url)


def _csv(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.night_export import to_csv

    return to_csv(night)


def _json(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.night_export import to_plain

    return dumps(to_plain(night), indent=1)


def _junit(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.junit import document

    return document(night.run.name, night.rows, night.changes if gated else ())


def _grid(night: Night, site_url: str | None, gated: bool) -> str:
    from perfdash.report.techniques.technique_report import technique_report

    return technique_report(night)


_FORMATS: dict[str, Callable[[Night, str | None, bool], str]] = {
    "comment": _comment,
    "markdown": _markdown,
    "html": _html,
    "csv": _csv,
    "json": _json,
    "junit": _junit,
    "grid": _grid,
}
