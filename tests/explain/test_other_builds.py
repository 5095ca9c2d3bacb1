"""A profile is refused where an interpreter no longer has the build that its run measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfdash.errors import UsageError
from perfdash.explain.profiling import ProfiledBuild, _refuse_other_builds
from perfdash.records import Case
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import Planned

PLANNED = Planned(case=Case("timm", "m"), loader="timm", target="m")
TORCH = {"torch": "2.15.0", "torch_git_version": "a" * 40, "python": "3.12.1"}


def check(old, new, old_now, new_now):
    """Compare what two runs recorded of their builds with what their interpreters have now."""
    builds = {
        side: ProfiledBuild(side, PLANNED, RunSettings(jobs=1, python="/env/python"), {**TORCH, **worker})
        for side, worker in (("old", old), ("new", new))
    }
    hellos = {"old": {"worker": {**TORCH, **old_now}}, "new": {"worker": {**TORCH, **new_now}}}
    _refuse_other_builds(builds, SimpleNamespace(introduce=lambda planned: hellos))


def test_another_commit_of_a_library_is_another_build():
    old, new = ({"packages": {"timm": "1.0"}, "commits": {"timm": letter * 40}} for letter in "bc")
    check(old, new, old, new)
    with pytest.raises(UsageError, match=r"old measured another build .*timm: b+ \| c+.* by --old-python"):
        check(old, new, new, new)
    with pytest.raises(UsageError, match=r"timm: c+ \| b+.* by --python"):
        check(old, new, old, old)


def test_another_version_of_a_library_that_changed_is_another_build():
    old, new = ({"packages": {"timm": version, "numpy": "2.0"}} for version in ("1.0.20", "1.0.21"))
    check(old, new, {"packages": {**old["packages"], "numpy": "2.1"}}, new)
    with pytest.raises(UsageError, match=r"timm: 1\.0\.20 \| 1\.0\.21: .* by --old-python"):
        check(old, new, new, new)


def test_a_torch_of_an_unknown_commit_is_compared_by_its_version():
    unknown = {"torch_git_version": None}
    check(unknown, unknown, {}, {})
    with pytest.raises(UsageError, match=r"torch: 2\.15\.0 \| 2\.16\.0"):
        check(unknown, unknown, {"torch": "2.16.0"}, {})


def test_a_run_that_recorded_nothing_of_its_interpreter_is_compared_with_none():
    builds = {
        side: ProfiledBuild(side, PLANNED, RunSettings(jobs=1, python="/env/python"), {})
        for side in ("old", "new")
    }
    hellos = {side: {"worker": {**TORCH, "packages": {"timm": "1.0"}}} for side in ("old", "new")}
    _refuse_other_builds(builds, SimpleNamespace(introduce=lambda planned: hellos))
