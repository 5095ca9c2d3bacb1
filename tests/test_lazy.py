"""A lazy module behaves as the module itself, and is imported no earlier than its first use."""

from __future__ import annotations

import sys

import pytest

from tests.lazy import lazy


@pytest.fixture
def real(tmp_path, monkeypatch):
    """lazy() of a new module of its own, which is not imported yet."""
    (tmp_path / "made_for_lazy.py").write_text("value = 1\n\ndef double():\n    return 2 * value\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield lazy("made_for_lazy")
    sys.modules.pop("made_for_lazy", None)


def test_it_is_imported_at_its_first_use(real):
    assert "made_for_lazy" not in sys.modules
    assert not hasattr(real, "_pytestfixturefunction")
    assert "made_for_lazy" not in sys.modules, "pytest asks for this name while it collects"
    assert real.double() == 2
    assert "made_for_lazy" in sys.modules


def test_patches_reach_the_module_and_are_undone(real):
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(real, "value", 5)
            assert real.double() == 10
            patched.delattr(real, "double")
            assert "double" not in dir(real)
        assert real.double() == 2
        assert {"value", "double"} <= set(dir(real))


def test_without_the_package_a_test_is_skipped_only_where_it_says_so():
    with pytest.raises(pytest.skip.Exception):
        print(lazy("no_such_package_at_all", or_skip=True).value)
    with pytest.raises(ModuleNotFoundError):
        print(lazy("no_such_package_at_all").value)
