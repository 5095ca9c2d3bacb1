"""Precompiled headers: lent whole, and what a case leaves half-written stays its own."""

import os
import tempfile

import pytest

from perfdash.worker import compiler_caches
from tests.lazy import lazy

codecache = lazy("torch._inductor.codecache", or_skip=True)


@pytest.fixture(autouse=True)
def folders_of_this_process(monkeypatch):
    """What a worker sets for its whole process, set back after each test."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, tempfile.gettempdir()))


@pytest.fixture(autouse=True)
def folder_of_torch(monkeypatch):
    monkeypatch.setattr(codecache, "_HEADER_DIR", "/nowhere")
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", "/nowhere/locks")


def test_a_case_finds_what_is_lent_and_keeps_what_it_adds(tmp_path):
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "a.h.gch").write_bytes(b"whole")
    scratch = tmp_path / "scratch"
    compiler_caches.use_in(str(scratch), str(lent))
    assert str(scratch / "headers") == codecache._HEADER_DIR
    assert codecache._HEADER_LOCK_DIR.startswith(codecache._HEADER_DIR)
    assert os.path.samefile(scratch / "headers" / "a.h.gch", lent / "a.h.gch"), "a link, not 150 MB"
    (scratch / "headers" / "b.h.gch").write_bytes(b"half")
    assert os.listdir(lent) == ["a.h.gch"]


def test_without_lent_ones_a_case_makes_its_own(tmp_path):
    compiler_caches.use_in(str(tmp_path), str(tmp_path / "none"))
    compiler_caches.use_in(str(tmp_path), None)
    assert os.listdir(codecache._HEADER_DIR) == []


def test_a_failed_trifle_leaves_nothing(tmp_path, monkeypatch):
    import torch

    def killed(function):
        (tmp_path / "headers" / "a.h.gch").write_bytes(b"half")
        raise RuntimeError("C++ compile error")

    target = tmp_path / "target"
    target.mkdir()
    compiler_caches.use_in(str(tmp_path), str(target))
    monkeypatch.setattr(torch, "compile", killed)
    assert not compiler_caches.make_headers(str(tmp_path), str(target))
    assert os.listdir(target) == []


def test_temporary_files_of_python_are_in_the_scratch_folder_too(tmp_path):
    assert tempfile.gettempdir() != str(tmp_path / "tmp"), "python has looked it up before"
    compiler_caches.use_in(str(tmp_path), None)
    with tempfile.NamedTemporaryFile() as file:
        assert file.name.startswith(str(tmp_path / "tmp"))


def test_tests_of_vector_instructions_are_lent_where_they_passed(tmp_path):
    """A library without inductor's mark was not loaded: the compiler or the loader may have been killed."""
    compiler_caches.use_in(str(tmp_path / "first"), None)
    made = tmp_path / "first" / "inductor" / "ab"
    made.mkdir()
    for name in ("good.main.so", "good.main.so.load_ok", "half.main.so", "kernel.py"):
        (made / name).write_bytes(name.encode())
    lent = tmp_path / "lent"
    compiler_caches.share_vector_tests(str(lent))
    compiler_caches.use_in(str(tmp_path / "second"), str(lent))
    found = tmp_path / "second" / "inductor" / "ab"
    assert sorted(os.listdir(found)) == ["good.main.so", "good.main.so.load_ok"]
    assert (found / "good.main.so").read_bytes() == b"good.main.so"


@pytest.mark.slow
def test_lent_tests_of_vector_instructions_are_not_compiled_again(tmp_path):
    """Two real processes: the second has the same instructions and calls no compiler for them."""
    import subprocess
    import sys

    script = """
import sys
from torch._inductor import cpp_builder, cpu_vec_isa
from perfdash.worker import compiler_caches
scratch, lent = sys.argv[1:]
compiler_caches.use_in(scratch, lent)
built = []
build = cpp_builder.CppBuilder.build
cpp_builder.CppBuilder.build = lambda self: (built.append(1), build(self))
isa = str(cpu_vec_isa.pick_vec_isa())
compiler_caches.share_vector_tests(lent)
print(isa, len(built), sep="|")
"""
    answers = []
    for name in ("one", "two"):
        arguments = [str(tmp_path / name), str(tmp_path / "lent")]
        run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        answers.append(run.stdout.strip().split("|"))
    (isa, first), (again, second) = answers
    assert isa == again
    assert int(first) >= 1
    assert int(second) == 0


@pytest.mark.slow
def test_vector_instructions_are_tested_before_compiling_is_timed(tmp_path):
    """Also where nothing is lent, as under a torch that leaves no mark of a test that passed."""
    import subprocess
    import sys

    script = """
import sys
from torch._inductor import cpu_vec_isa
from perfdash.records import Case, Job
from perfdash.worker import capabilities, compiler_caches
compiler_caches.use_in(sys.argv[1], None)
assert not cpu_vec_isa.valid_vec_isa_list.cache_info().currsize
capabilities.prepare_backend(Job(case=Case("s", "m"), loader="", target="", scratch=sys.argv[1]))
print(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize)
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert run.stdout.strip() == "1", run.stderr


@pytest.mark.slow
def test_made_headers_are_used(tmp_path):
    """A real compile, twice: g++ accepts what the first has left for the second."""
    import subprocess
    import sys

    script = """
import sys, torch
from perfdash.worker import compiler_caches
scratch, target = sys.argv[1:]
compiler_caches.use_in(scratch, target)
print(compiler_caches.make_headers(scratch, target))
"""
    target = tmp_path / "target"
    target.mkdir()
    for name in ("one", "two"):
        arguments = [str(tmp_path / name), str(target)]
        run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
        assert run.stdout.strip() == "True", run.stderr
    (made,) = [name for name in os.listdir(target) if name.endswith(".gch")]
    assert os.path.samefile(tmp_path / "two" / "headers" / made, target / made)
    assert (target / made).read_bytes()[:3] == b"gpc", "g++'s mark of a whole precompiled header"
