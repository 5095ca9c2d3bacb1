"""Digests of loaded modules and libraries, on files of the tests' own."""

from __future__ import annotations

import functools
import json
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from perfdash.worker import loaded_files, registry


@pytest.fixture(scope="module")
def read_once():
    """The digest of a small file; with torch loaded there are gigabytes of libraries, which stand still."""
    digest = loaded_files._digest

    @functools.cache
    def of_state(path, inode, size, *times):
        return digest(path) if size < 1 << 20 else f"{path} {size}"

    def read(path):
        facts = os.stat(path)
        return of_state(path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    return read


@pytest.fixture(autouse=True)
def quick_digests(monkeypatch, read_once):
    monkeypatch.setattr(loaded_files, "_digest", read_once)


def loaded(monkeypatch, *paths):
    """Let these be all modules that are loaded."""
    for number, path in enumerate(paths):
        module = ModuleType(f"made.part{number}")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, f"made.part{number}", module)


@pytest.mark.slow
def test_a_digest_follows_the_content_of_a_module_not_its_time(monkeypatch, tmp_path):
    path, kept = tmp_path / "a.py", tmp_path / "kept"
    path.write_text("one")
    loaded(monkeypatch, path)
    first = loaded_files.digests(str(kept))
    os.utime(path, ns=(5, 5))
    assert loaded_files.digests(str(kept)) == first
    path.write_text("two")
    second = loaded_files.digests(str(kept))
    assert {name for name in first if first[name] != second[name]} == {"made (Python)"}
    assert loaded_files.digests(None) == second
    assert "libc.so.6" in second
    assert "standard library of Python" in second


def test_what_the_user_wrote_is_the_model_and_the_back_end(tmp_path):
    backend = tmp_path / "mine.py"
    backend.write_text("def prepare(module, inputs, job): ...\n")
    loader = SimpleNamespace(files=lambda job: {"net.py": "x = 1\n"})
    executed = registry.backend(str(backend))
    before = loaded_files.of_user(loader, SimpleNamespace(backend=str(backend)))
    assert list(before) == ["net.py", str(backend)]
    backend.write_text("edited\n")
    assert loaded_files.of_user(loader, SimpleNamespace(backend=executed.__file__)) == before
    assert loaded_files.of_user(SimpleNamespace(), SimpleNamespace(backend="inductor")) == {}


@pytest.mark.slow
def test_a_file_is_read_once(monkeypatch, tmp_path):
    path, kept = tmp_path / "a.py", tmp_path / "kept"
    path.write_text("one")
    loaded(monkeypatch, path)
    first = loaded_files.digests(str(kept))
    monkeypatch.setattr(loaded_files, "_digest", lambda path: 1 / 0)
    assert loaded_files.digests(str(kept)) == first
    other = tmp_path / "other"
    loaded_files.copy_kept(str(kept), str(other))
    assert loaded_files.digests(str(other)) == first
    assert json.loads((other / "loaded_files.json").read_text())


def test_files_of_the_case_itself_do_not_count(monkeypatch, tmp_path):
    path = tmp_path / "scratch" / "a.py"
    path.parent.mkdir()
    path.write_text("generated")
    loaded(monkeypatch, path, tmp_path / "deleted.py")
    assert "made (Python)" in loaded_files.digests(None)
    assert "made (Python)" not in loaded_files.digests(None, without=[str(path.parent)])


def test_damaged_digests_are_taken_anew(monkeypatch, tmp_path):
    first = loaded_files.digests(str(tmp_path))
    for damaged in ("", "[]", "{", "null"):
        (tmp_path / "loaded_files.json").write_text(damaged)
        assert loaded_files.digests(str(tmp_path)) == first
