"""Back ends that are files of the user's own: what they import, and those that do not import."""

import sys

import pytest

from perfdash.worker import registry


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a back end and return its path; what it imports is gone at the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write(text):
        file = tmp_path / "mine.py"
        file.write_text(text)
        return file

    return write


def test_a_back_end_imports_modules_beside_it_but_replaces_no_installed_package(written, tmp_path):
    (tmp_path / "my_kernels.py").write_text("FACTOR = 3\n")
    (tmp_path / "packaging.py").write_text("raise AssertionError('of the checkout')\n")
    file = written(
        "import my_kernels\nimport packaging.version\ndef prepare(module, inputs, job): return my_kernels\n"
    )
    assert registry.backend(str(file)).prepare(None, None, None).FACTOR == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nimport no_such_kernels", [" (line 2) does not import: ModuleNotFoundError", "PACKAGES"]),
        ("x = 1 / 0", [" (line 1) does not import: ZeroDivisionError: division by zero"]),
        ("def prepare(module, inputs, job: return 1", [" does not import: SyntaxError"]),
        ("x = 1", [" has no function prepare"]),
    ],
)
def test_a_back_end_that_does_not_import_is_named(written, text, words):
    file = written(text)
    with pytest.raises(registry.UnusableBackend) as caught:
        registry.backend(str(file))
    for word in [str(file), *words]:
        assert word in str(caught.value)
