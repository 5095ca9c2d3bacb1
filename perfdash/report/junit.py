"""JUnit XML for CI servers: one test per case and one test per alert."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfdash import files
from perfdash.detect.alert_evidence import AlertEvidence
from perfdash.detect.comparison import Comparison
from perfdash.detect.findings import OTHER, WORSE
from perfdash.errors import MachineError
from perfdash.history.alert_store import ACKNOWLEDGED, LIVE
from perfdash.history.failures import failure
from perfdash.history.results import Row
from perfdash.records import PASSING, Status
from perfdash.report.alert_text import consequences, model_of, origin, what
from perfdash.report.changes import RunChange
from perfdash.report.number_format import percent_change

# What XML 1.0 cannot hold at all, escaped or not.
_UNFIT = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# What says nothing of the model: it was left out, or something that it needs is not there.
_NOT_MEASURED = {Status.SKIPPED, Status.NOT_TONIGHT, Status.MISSING_DEPENDENCY, Status.NEEDS_NETWORK,
                 Status.MISSING_DATA}  # fmt: skip


def write(path: Path, name: str, rows: Iterable[Row], alerts: Sequence[AlertEvidence] = ()) -> None:
    """Write the results and alerts of a run to a file.

    A case that did not pass is a failure, one that was not measured is skipped; an alert that is worse and
    not acknowledged is a failure of its own, in the suite `regressions`.
    """
    suites = _suites(rows)
    if alerts:
        suites.append(_alerts(alerts))
    _save(path, _root(name, suites))


def document(name: str, rows: Iterable[Row], changes: Sequence[RunChange] = ()) -> str:
    """The results of a run as JUnit text; each change that fails a check is a failure."""
    suites = _suites(rows)
    loud = [change for change in changes if change.fails_check]
    if loud:
        suites.append(ET.Element("testsuite", name="regressions"))
    for change in loud:
        title = f"{model_of(change.case)}: {change.what}"
        test = ET.SubElement(suites[-1], "testcase", classname="regressions", name=_fit(title))
        levels = f"{change.before} -> {change.after}" if change.before or change.after else ""
        size = " ".join(filter(None, [levels, percent_change(change.change)]))
        message = ": ".join(filter(None, [change.what, size]))
        ET.SubElement(test, "failure", type=_fit(change.group), message=_fit(message))
    root = _root(name, suites)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _root(name: str, suites: Sequence[ET.Element]) -> ET.Element:
    root = ET.Element("testsuites", name=_fit(name))
    for suite in suites:
        _count(suite)
        root.append(suite)
    return root


def _suites(rows: Iterable[Row]) -> list[ET.Element]:
    suites: dict[str, ET.Element] = {}
    for row in rows:
        case = row.case
        suite = suites.setdefault(case.suite, ET.Element("testsuite", name=_fit(case.suite)))
        test = ET.SubElement(
            suite,
            "testcase",
            classname=_fit(case.suite),
            name=_fit(case.name),
            time=f"{row.values.get('wall_s', 0.0):.3f}",
        )
        reason = str(failure(row).get("message") or row.details.get("skip_reason") or "")
        if row.status in _NOT_MEASURED:
            ET.SubElement(test, "skipped", type=_fit(row.status), message=_fit(reason))
        elif row.status not in PASSING:
            ET.SubElement(test, "failure", type=_fit(row.status), message=_fit(reason or row.status))
    return list(suites.values())


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write a test per case: failed where it became significantly worse or vanished, skipped if untested.

    A case that fails on both sides is skipped, too, and one that only the old side has but that has not
    vanished. Where there is nothing to compare the file has one test, which fails with the reason.
    """
    root = ET.Element("testsuites", name="perfdash compare")
    suite = ET.SubElement(root, "testsuite", name="compare")
    if nothing := comparison.nothing_to_compare:
        test = ET.SubElement(suite, "testcase", classname="compare", name="cases in both")
        ET.SubElement(test, "failure", type="nothing to compare", message=_fit(nothing))
    for compared in comparison.both if nothing is None else ():
        test = ET.SubElement(
            suite, "testcase", classname=_fit(compared.case.suite), name=_fit(compared.case.name)
        )
        if compared.regressed:
            worse = [
                f"{name} {percent_change(compared.deltas[name].change)}" for name in compared.worse_metrics
            ]
            if compared.status_direction == WORSE:
                worse.insert(0, f"{compared.old_status} -> {compared.new_status}")
            ET.SubElement(test, "failure", type="regression", message=_fit(", ".join(worse)))
        elif compared.nothing_tested:
            ET.SubElement(test, "skipped", type="not checked", message="could not be tested")
        elif not compared.passes and compared.status_direction == OTHER:
            words = f"{compared.old_status} -> {compared.new_status}"
            ET.SubElement(test, "skipped", type="not checked", message=_fit(words))
    for case, why in comparison.why_missing.items() if nothing is None else ():
        test = ET.SubElement(suite, "testcase", classname=_fit(case.suite), name=_fit(case.name))
        if why:
            words = f"missing from the new side, as {why}"
            ET.SubElement(test, "skipped", type="not checked", message=words)
        else:
            ET.SubElement(test, "failure", type="vanished", message="no longer measured")
    _count(suite)
    _save(path, root)


def write_alerts(path: Path, alerts: Sequence[AlertEvidence]) -> None:
    """Write the alerts alone; without alerts the file has one test that passes."""
    root = ET.Element("testsuites", name="perfdash regressions")
    suite = _alerts(alerts)
    if not len(suite):
        ET.SubElement(suite, "testcase", classname="regressions", name="nothing changed")
    _count(suite)
    root.append(suite)
    _save(path, root)


def _alerts(alerts: Sequence[AlertEvidence]) -> ET.Element:
    suite = ET.Element("testsuite", name="regressions")
    for evidence in alerts:
        alert = evidence.alert
        test = ET.SubElement(
            suite,
            "testcase",
            classname="regressions",
            name=_fit(f"{alert.id}: {model_of(evidence.case)}: {what(alert)}"),
        )
        if alert.direction > 0 and alert.state in LIVE and alert.state != ACKNOWLEDGED:
            again = evidence.remeasured
            size = percent_change(again.ratio if again else alert.change)
            words = " ".join([what(alert), size]).rstrip()
            failure = ET.SubElement(
                test, "failure", type="regression", message=_fit(f"{words}, {alert.state}")
            )
            failure.text = _fit("\n".join([origin(evidence), *consequences(evidence)]))
    return suite


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))


def _save(path: Path, root: ET.Element) -> None:
    ET.indent(root)
    try:
        files.write(path, '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode"))
    except OSError as error:
        raise MachineError(f"--junit {path} cannot be written: {error.strerror}") from error


def _fit(text: str) -> str:
    return _UNFIT.sub("?", text)
