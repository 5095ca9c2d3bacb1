"""Where each page of the site lies, so that a comment can link to it: paths relative to the site's root.

The live server answers under the same paths.
"""

from __future__ import annotations

import re

from perfdash.history.results import case_digest, digest
from perfdash.records import Case

OVERVIEW, COMPARE, REGRESSIONS, MACHINES, METHOD = (
    "index.html", "compare.html", "regressions.html", "machines.html", "method.html"
)  # fmt: skip
_LONGEST = 120  # characters of a file's name that come from elsewhere


def bed_folder(testbed_digest: str) -> str:
    """The folder of a testbed: pages never mix what must not be compared."""
    return f"beds/{testbed_digest[:10]}"


def model_page(testbed_digest: str, case: Case) -> str:
    """A case's page: its digest keeps apart what a file name cannot."""
    return f"{bed_folder(testbed_digest)}/models/{case.name[:_LONGEST]}-{case_digest(case)[:8]}.html"


def suite_page(testbed_digest: str, case: Case) -> str:
    """The page of a case's suite in the case's setting (device, dtype, threads, ...), whatever the model."""
    dtype = f"amp-{case.amp_dtype}" if case.dtype == "amp" else case.dtype
    words = [case.suite, case.device, dtype, f"t{case.threads}", case.scenario, case.backend]
    if case.dynamic:
        words.append("dynamic")
    plain = [re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip(".") for word in words]
    name = "_".join(plain)
    if plain != words or len(name) > _LONGEST:  # another suite may come out the same
        name = f"{name[:_LONGEST]}-{digest(words)[:8]}"
    return f"{bed_folder(testbed_digest)}/suites/{name}.html"


def compare_page(testbed_digest: str) -> str:
    """A testbed's nights compared; its data files lie in `data/` beside it."""
    return f"{bed_folder(testbed_digest)}/{COMPARE}"


def alert_link(number: int) -> str:
    """Where the life of an alert is told."""
    return f"{REGRESSIONS}#alert-{number}"
