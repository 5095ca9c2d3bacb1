"""Precompiled headers: lent whole, and what a case leaves half-written stays its own."""

import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.worker import compiler_caches
from tests.lazy import lazy

codecache = lazy("torch._inductor.codecache", or_skip=True)


@pytest.fixture(autouse=True)
def folders_of_this_process(monkeypatch):
    """What a worker sets for its whole process, set back after each test."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
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
    made = tmp_path / "first" / "inductor"
    for folder in ("ab", "cd"):  # one for each kind of instructions
        (made / folder).mkdir()
        for name in ("good.main.so", "good.main.so.load_ok", "half.main.so", "kernel.py"):
            (made / folder / name).write_bytes(name.encode())
    lent = tmp_path / "lent"
    compiler_caches.share_vector_tests(str(lent))
    compiler_caches.use_in(str(tmp_path / "second"), str(lent))
    for folder in ("ab", "cd"):
        cached = tmp_path / "second" / "inductor" / folder
        assert sorted(os.listdir(cached)) == ["good.main.so", "good.main.so.load_ok"]
        assert (cached / "good.main.so").read_bytes() == b"good.main.so"


def test_the_driver_stub_of_triton_is_lent_and_the_drivers_own_cache_is_not(tmp_path):
    compiler_caches.use_in(str(tmp_path / "first"), None)
    assert os.environ["CUDA_CACHE_PATH"] == str(tmp_path / "first" / "nv"), "not ~/.nv/ComputeCache"
    made = tmp_path / "first" / "triton" / "KEY"
    made.mkdir()
    for name in ("cuda_utils.cpython-311-x86_64-linux-gnu.so", "kernel.cubin", "__triton_launcher.so"):
        (made / name).write_text(name)
    compiler_caches.share_driver_stub(str(tmp_path / "lent"))
    compiler_caches.use_in(str(tmp_path / "second"), str(tmp_path / "lent"))
    assert os.listdir(tmp_path / "second" / "triton" / "KEY") == [
        "cuda_utils.cpython-311-x86_64-linux-gnu.so"
    ], "kernels and their launchers are of the case's own compilation"
    assert os.listdir(tmp_path / "second" / "nv") == []


@pytest.mark.slow
def test_vector_instructions_are_tested_before_compiling_is_timed(tmp_path, command_server):
    """Also where nothing is lent, as under a torch that leaves no mark of a test that passed."""
    script = """
import sys
from torch._inductor import cpu_vec_isa
from perfdash.records import Case, Job
from perfdash.worker import capabilities, compiler_caches
cpu_vec_isa.VecISA.check_build = lambda self, code: True  # whether they are asked for is the point
compiler_caches.use_in(sys.argv[1], None)
assert not cpu_vec_isa.valid_vec_isa_list.cache_info().currsize
capabilities.prepare_backend(Job(case=Case("s", "m"), loader="", target="", scratch=sys.argv[1]))
print(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize)
"""
    assert command_server.workers.run_script(script, str(tmp_path)).strip() == "1"


# What is kept for the next run


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFDASH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compiler"


def shared_folder(path, names=("a.h", "a.h.gch")):
    tests, stubs = path / "vector_tests" / "ab", path / "triton_driver" / "KEY"
    for folder in (tests, stubs):
        folder.mkdir(parents=True)
    for name in ("good.main.so", "good.main.so.load_ok"):
        (tests / name).write_text(name)
    (stubs / "cuda_utils.so").write_text("stub")
    for name in names:
        (path / name).write_text(name)
    return str(path)


def all_files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_what_is_shared_is_kept_for_the_next_run(tmp_path, cache):
    folder = compiler_caches.kept_folder()
    compiler_caches.keep(shared_folder(tmp_path / "first"), folder)
    (Path(folder) / "b.h.gch.17.part").write_text("a process was killed here")
    (tmp_path / "second").mkdir()
    compiler_caches.take_kept(compiler_caches.kept_folder(), str(tmp_path / "second"))
    assert all_files(tmp_path / "second") == all_files(tmp_path / "first")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_nothing_is_taken_before_anything_is_kept(tmp_path, cache):
    compiler_caches.take_kept(compiler_caches.kept_folder(), str(tmp_path))
    compiler_caches.take_kept(None, str(tmp_path))
    assert all_files(tmp_path) == []


def test_only_the_last_used_compilers_are_kept(tmp_path, cache):
    shared = shared_folder(tmp_path / "shared")
    cache.mkdir(parents=True)
    for age, name in enumerate(("newest", "second", "third")):
        compiler_caches.keep(shared, str(cache / name))
        os.utime(cache / name, (1e9 - age, 1e9 - age))
    compiler_caches.keep(shared, str(cache / "third"))  # adds nothing, but a run has used it
    compiler_caches.keep(shared, str(cache / "fourth"))
    assert sorted(os.listdir(cache)) == ["fourth", "newest", "third"]


FAULTS = ("others may write", "the group may", "others may write above", "another owner", "a link", "a file")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_cannot_be_trusted_is_not_used(tmp_path, cache, fault, monkeypatch):
    folder = Path(compiler_caches.kept_folder())
    if fault == "others may write":
        folder.mkdir()
        folder.chmod(0o702)
    elif fault == "the group may":
        folder.mkdir()
        folder.chmod(0o720)
    elif fault == "others may write above":
        cache.chmod(0o702)
    elif fault == "another owner":
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    elif fault == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        cache.rmdir()
        cache.write_text("")
    assert compiler_caches.kept_folder() is None
    compiler_caches.keep(shared_folder(tmp_path / "shared"), None)


def test_the_last_room_on_a_disk_is_left_free(tmp_path, cache, monkeypatch):
    folder = compiler_caches.kept_folder()
    room = SimpleNamespace(free=2 * 2**30 - 1)
    monkeypatch.setattr(compiler_caches.shutil, "disk_usage", lambda path: room)
    compiler_caches.keep(shared_folder(tmp_path / "shared"), folder)
    assert all_files(cache) == []


def test_a_full_disk_keeps_nothing_and_fails_nothing(tmp_path, cache, monkeypatch, capsys):
    def no_room(old, new):
        Path(new).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    folder = compiler_caches.kept_folder()
    shared = shared_folder(tmp_path / "shared")
    monkeypatch.setattr(compiler_caches.shutil, "copy", no_room)
    compiler_caches.keep(shared, folder)
    assert all_files(cache) == []
    assert "No space left" in capsys.readouterr().err


def test_another_compiler_has_a_folder_of_its_own(tmp_path, cache, monkeypatch):
    from torch._inductor import cpp_builder

    def of_compiler(text):
        compiler = tmp_path / "g++"
        compiler.write_text(f"#!/bin/sh\necho cc1plus # {text}\n")
        compiler.chmod(0o755)
        monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: str(compiler))
        return compiler_caches.kept_folder()

    own = compiler_caches.kept_folder()
    assert own == compiler_caches.kept_folder()
    first = of_compiler("first")
    assert first != own
    assert of_compiler("the second") != first
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "no-such-compiler")
    assert compiler_caches.kept_folder() is None


# Real processes: the first slot of a run makes what the next run and all cases are lent

# One test of vector instructions instead of four: those that all processors have.
ONE_ISA = """
from torch._inductor import cpu_vec_isa
cpu_vec_isa.supported_vec_isa_list[:] = [cpu_vec_isa.VecAVX2(), cpu_vec_isa.VecNEON()]
"""
FIRST = f"""{ONE_ISA}
import os, sys
import torch
from torch._inductor import cpp_builder
from perfdash.records import Case, Job
from perfdash.worker import capabilities, compiler_caches, registry
scratch, machine_cache, backend, config = sys.argv[1:]
built = []
build = cpp_builder.CppBuilder.build
def counted(self):
    built.append(str(self.get_target_file_path()))
    empty = (".gch",) if config != "{{}}" else ()  # g++ ignores such a header
    if backend == "aot-inductor":  # tests/truth/test_exported.py compiles and loads a package
        empty = (".gch", ".o", ".so")
        torch._inductor.aoti_load_package = lambda path: None
    if built[-1].endswith(empty):
        open(built[-1], "wb").close()
    else:
        build(self)
cpp_builder.CppBuilder.build = counted
job = Job(
    case=Case("s", "m", backend=backend), loader="", target="", scratch=scratch,
    machine_cache=machine_cache, inductor_config=eval(config),
)
"""
SLOT = f"""{FIRST}
capabilities.isa(job, lambda name, **values: print(values["vector_isa"], values["whole"], sep="|", end="|"))
print(sum(path.endswith(".gch") for path in built), len(built), sep="|")
"""
CASE = f"""{FIRST}
import contextlib, torch
compiler_caches.use_in(scratch, machine_cache)
capabilities.prepare_backend(job)
def until_code(self):
    target = str(self.get_target_file_path())
    if not target.endswith((".i", ".gch")):  # inductor has asked for all headers before its first object
        built.append(target)
        raise RuntimeError("the rest is not compiled")
    counted(self)
cpp_builder.CppBuilder.build = until_code
model, inputs = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), torch.ones(4, 8)
with torch.no_grad(), contextlib.suppress(Exception):
    registry.backend(backend).prepare(model, (inputs,), job)(inputs)
print(sum(path.endswith(".gch") for path in built), *built[-1:], sep="|")
"""


# Without a header g++ takes as long for the wrapper with -O1 as for the header.
CPP_WRAPPER = "{'cpp_wrapper': True, 'aot_inductor.compile_wrapper_opt_level': 'O0'}"


@dataclass(frozen=True)
class Process:
    """What a process of `script` said, with folders of its own and a cache from run to run."""

    folder: Path
    said: list[str]

    @classmethod
    def run(cls, script, folder, shared, cache, command_server, *job):
        for path in (folder, shared):
            path.mkdir(exist_ok=True)
        words = [str(folder), str(shared), *(job or ("inductor", "{}"))]
        env = {"PERFDASH_CACHE": str(cache)}
        return cls(folder, command_server.workers.run_script(script, *words, env=env).strip().split("|"))


@pytest.fixture(scope="module")
def first(tmp_path_factory, command_server):
    """The first slot of the first run, beside the folders `shared` and `cache`."""
    home = tmp_path_factory.mktemp("first")
    return Process.run(SLOT, home / "slot", home / "shared", home / "cache", command_server)


@pytest.fixture
def cache_of_first(first, tmp_path):
    """A copy of what the first run kept, to be added to."""
    shutil.copytree(first.folder.parent / "cache", tmp_path / "cache", copy_function=os.link)
    return tmp_path / "cache"


@pytest.mark.slow
def test_the_next_run_compiles_neither_headers_nor_vector_tests(
    first, tmp_path, cache_of_first, command_server
):
    again = Process.run(SLOT, tmp_path / "two", tmp_path / "shared", cache_of_first, command_server)
    isa, whole, headers, built = first.said
    assert again.said[:3] == [isa, whole, "0"]
    assert (whole, headers) == ("True", "1")
    assert int(again.said[3]) < int(built)
    assert all_files(tmp_path / "shared") == all_files(first.folder.parent / "shared")


@pytest.mark.slow
def test_lent_headers_and_tests_of_vector_instructions_are_used(first, tmp_path, command_server):
    """Of a real compile: g++ accepts them, and is called neither for a header nor for the instructions."""
    script = f"""{ONE_ISA}
import sys
from torch._inductor import cpp_builder
from perfdash.worker import compiler_caches
scratch, lent = sys.argv[1:]
compiler_caches.use_in(scratch, lent)
built = []
build = cpp_builder.CppBuilder.build
cpp_builder.CppBuilder.build = lambda self: (built.append(str(self.get_target_file_path())), build(self))
isa = str(cpu_vec_isa.pick_vec_isa())
tested = len(built)
made = compiler_caches.make_headers(scratch, lent)
print(isa, tested, made, sum(path.endswith(".gch") for path in built), sep="|")
"""
    lent = first.folder.parent / "shared"
    said = command_server.workers.run_script(script, str(tmp_path / "two"), str(lent))
    assert said.strip().split("|") == [first.said[0], "0", "True", "0"]
    (header,) = [name for name in os.listdir(lent) if name.endswith(".gch")]
    assert os.path.samefile(tmp_path / "two" / "headers" / header, lent / header)
    assert (lent / header).read_bytes()[:3] == b"gpc", "g++'s mark of a whole precompiled header"


@pytest.mark.slow
@pytest.mark.parametrize("job", [("inductor", CPP_WRAPPER), ("aot-inductor", "{}")], ids=lambda job: job[0])
def test_a_case_of_another_kind_compiles_no_headers_either(job, tmp_path, cache_of_first, command_server):
    """Two processes: the slot's, which makes them, and that of another model's case."""
    shared = tmp_path / "shared"
    slot = Process.run(SLOT, tmp_path / "slot", shared, cache_of_first, command_server, *job)
    case = Process.run(CASE, tmp_path / "case", shared, cache_of_first, command_server, *job)
    _, whole, made, _ = slot.said
    assert whole == "True"
    assert int(made) >= 1
    made_by_case, last = case.said
    assert made_by_case == "0"
    assert last.endswith((".o", ".so")), "the case began to compile its own code"
