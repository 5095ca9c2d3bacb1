"""The paths of the site's pages, relative to its root.

The live server answers under the same paths.
"""

from __future__ import annotations

import re

from perfdash.history.results import case_digest, digest
from perfdash.records import Case, variation

OVERVIEW, COMPARE, REGRESSIONS, MACHINES, METHOD = (
    "index.html", "compare.html", "regressions.html", "machines.html", "method.html"
)  # fmt: skip
CONFIGURATIONS = "configurations.html"  # in the folder of a testbed
_LONGEST = 120  # characters of a file's name that come from elsewhere


def bed_folder(testbed_digest: str) -> str:
    """The folder of a testbed; pages never mix testbeds, which must not be compared."""
    return f"beds/{testbed_digest[:10]}"


def model_page(testbed_digest: str, case: Case) -> str:
    """The page of a case; a digest separates cases whose file names would be equal."""
    return f"{bed_folder(testbed_digest)}/models/{case.name[:_LONGEST]}-{case_digest(case)[:8]}.html"


def suite_page(testbed_digest: str, case: Case) -> str:
    """The page of a case's suite in its setting.

    The setting is device, dtype, threads, scenario, back end and configuration; a digest separates two
    configurations of one name.
    """
    dtype = f"amp-{case.amp_dtype}" if case.dtype == "amp" else case.dtype
    words = [case.suite, case.device, dtype, f"t{case.threads}", case.scenario, case.backend]
    words += [word for word in [variation(case.configuration, case.dynamic)] if word]
    words += [digest(case.settings)[:8]] if case.settings else []
    plain = [re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip(".") for word in words]
    name = "_".join(plain)
    if plain != words or len(name) > _LONGEST:  # another suite may come out the same
        name = f"{name[:_LONGEST]}-{digest(words)[:8]}"
    return f"{bed_folder(testbed_digest)}/suites/{name}.html"


def compare_page(testbed_digest: str) -> str:
    """The compare page of a testbed; its data files are in `data/` beside it."""
    return f"{bed_folder(testbed_digest)}/{COMPARE}"


def configurations_page(testbed_digest: str) -> str:
    """The page of a testbed's configurations and back ends beside each other."""
    return f"{bed_folder(testbed_digest)}/{CONFIGURATIONS}"


def alert_link(number: int) -> str:
    """The link to an alert and its events."""
    return f"{REGRESSIONS}#alert-{number}"


def cause_page(number: int) -> str:
    """The page of a cause, by the number of its oldest alert."""
    return f"causes/{number}.html"
