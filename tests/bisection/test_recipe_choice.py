"""Which recipe two ends choose: the table of docs/bisect.md."""

import pytest

from perfdash.bisection.recipe_choice import End, choose_recipe
from perfdash.errors import UsageError


@pytest.mark.parametrize(("text", "kind"), [
    ("2026-11-01", "date"),
    ("2026-13-01", "name"),
    ("20261101", "name"),
    ("2.13.0", "version"),
    ("v1.0.9", "version"),
    ("2.13.0+cpu", "version"),
    ("1.0.0rc1", "version"),
    ("2.15.0.dev20261101", "nightly"),
    ("2.15.0.dev20261101+cu130", "nightly"),
    ("main", "name"),
    ("1a2b3c4", "name"),
    ("1234567", "name"),
    ("release/2.13", "name"),
    ("v1.0.9-12-g1a2b3c4", "name"),
])  # fmt: skip
def test_what_an_end_looks_like(text, kind):
    assert End(text).kind == kind


REPO, WHEELS, COMMAND = {"repository": True}, {"wheels": True}, {"command": True}


# An end with * is a commit, tag or branch of the repository.
@pytest.mark.parametrize(("good", "bad", "where", "recipe"), [
    # Commits of the repository.
    ("v1.0.9*", "main*", REPO, "git"),
    ("1.0.9*", "1.0.20*", REPO, "git"),
    ("v1.0.9*", "main*", REPO | COMMAND, "command"),
    ("2026-11-01", "2026-11-05", REPO, "git"),
    ("v1.0.9*", "2026-11-05", REPO, "git"),
    ("2.15.0.dev20261101*", "main*", REPO, "git"),
    ("1.0.9*", "1.0.99", REPO, "git"),  # git says which tags are near
    ("nothing", "main*", REPO, "git"),
    ("nothing", "2.13.0", REPO, "git"),
    # Nightlies.
    ("2026-11-01", "2026-11-05", {}, "nightly"),
    ("2026-11-01", "2026-11-05", WHEELS, "nightly"),
    ("2026-11-01", "2026-11-05", REPO | WHEELS, "git"),
    ("2026-11-01", "2.15.0.dev20261105", {}, "nightly"),
    ("2.15.0.dev20261101", "2.15.0.dev20261105", REPO, "nightly"),
    ("2.15.0.dev20261101", "2.15.0.dev20261105", COMMAND, "nightly"),
    # Releases.
    ("2.13.0", "2.14.0", {}, "pypi:torch"),
    ("1.0.9", "1.0.20", REPO | {"package": "timm"}, "pypi:timm"),
    ("v1.0.9", "v1.0.20", {"package": "timm"}, "pypi:timm"),
    ("2.13.0", "2.14.0", WHEELS, "wheels:torch"),
    ("1.0.9*", "1.0.20*", REPO | WHEELS | {"package": "timm"}, "git"),
    ("1.0.9*", "1.0.20*", WHEELS | {"package": "timm"}, "wheels:timm"),
    ("2.13.0", "2.14.0", REPO | WHEELS, "wheels:torch"),
    ("2.13.0", "2.15.0.dev20261105", WHEELS, "wheels:torch"),
])  # fmt: skip
def test_the_recipe_of_two_ends(good, bad, where, recipe):
    ends = [End(text.removesuffix("*"), text.endswith("*")) for text in (good, bad)]
    assert choose_recipe(*ends, **where) == recipe


@pytest.mark.parametrize(("good", "bad", "why"), [
    ("v1.0.9", "main", "'main' is no version and no date, so it is a commit, and there is no repository"),
    ("2.13.0", "2026-11-05", "--good 2.13.0 is a version and --bad 2026-11-05 a date: say by --recipe"),
    ("2.13.0", "2.15.0.dev20261105", "--recipe wheels:torch --wheels FOLDER"),
])  # fmt: skip
def test_ends_that_choose_none(good, bad, why):
    with pytest.raises(UsageError, match=why):
        choose_recipe(End(good), End(bad))
