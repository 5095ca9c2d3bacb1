"""Counts and fingerprints of what compiling produced, on wrappers as text and on known modules."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest

from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.structure_comparison import compare
from perfdash.records import Case, Job
from tests.explain.sides import BAD, side
from tests.lazy import lazy

torch = lazy("torch")
structure = lazy("perfdash.worker.structure")
modules = lazy("tests.worker.modules")

CPP = """cpp_fused_add_relu_0 = async_compile.cpp_pybinding(['const float*'], r\'\'\'
#include "/tmp/somebody/2r/c2rnilspx43ivnzu4uieul65kx65dfhfbptbh5og4wk6rqebuxoo.h"
extern "C" void kernel(const float* in_ptr0)  // a comment
{
    auto tmp0 = in_ptr0[0];
}
\'\'\')

# Topologically Sorted Source Nodes: [x], Original ATen: [aten.mul]
# Source node to ATen node mapping: /home/somebody/model.py:3
cpp_fused_mul_1 = async_compile.cpp_pybinding(['float*'], r\'\'\'
extern "C" void kernel(float* out_ptr0) { }
\'\'\')
"""
TRITON = """triton_poi_fused_gelu_2 = async_compile.triton('triton_poi_fused_gelu_2', \'\'\'
# kernel path: /tmp/somebody/ab/triton.py
@triton.jit
def triton_poi_fused_gelu_2(in_ptr0):
    x = 1  # a comment
\'\'\', device_str='cuda')
"""
CALL = """

async_compile.wait(globals())
del async_compile

def call(args):
    arg0_1, = args
    cpp_fused_add_relu_0(arg0_1)
    # as extern_kernels.bmm() would
    buf0 = extern_kernels.addmm(arg0_1)
    extern_kernels.addmm(buf0, out=buf0)
    buf1 = torch.ops.aten.sort.stable(buf0)
    cpp_fused_mul_1(buf0)
    cpp_fused_mul_1(buf0)
    triton_poi_fused_gelu_2.run(buf0, grid=grid(1))
    return (buf0, )

def benchmark_compiled_module(times=10, repeat=10):
    cpp_fused_mul_1(buf0)
"""
WRAPPER = "# AOT ID: ['0_inference']\nimport torch\n" + CPP + TRITON + CALL


def figures_of(*wrappers, isa="avx2", settings=None):
    return structure.figures(structure.parse(wrappers), isa, settings or {})


def test_kernels_calls_and_bytes_of_a_wrapper():
    figures = figures_of(WRAPPER)
    kernels = figures["kernels"]
    assert [(k["name"], k["kind"], k["operators"], k["calls"]) for k in kernels] == [
        ("cpp_fused_add_relu_0", "cpp", ["add", "relu"], 1),
        ("cpp_fused_mul_1", "cpp", ["mul"], 2),
        ("triton_poi_fused_gelu_2", "triton", ["gelu"], 1),
    ]
    assert figures["kernel_calls"] == 4
    assert figures["library_calls"] == {"extern_kernels.addmm": 2, "torch.ops.aten.sort.stable": 1}
    assert figures["code_bytes"] == len(WRAPPER)


CPP_WRAPPER = '''
import torch
from torch._inductor.codecache import CppWrapperCodeCache

cpp_wrapper_src = (
r"""
#include <torch/csrc/inductor/cpp_wrapper/cpu.h>
extern "C"  void  cpp_fused_add_relu_0(const float* in_ptr0,
                       float* out_ptr0);

void inductor_entry_impl(AtenTensorHandle* input_handles) {
    // as aoti_torch_cpu_bmm_out() would
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, &buf0_handle));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(buf0, arg1_1, arg2_1, 1L, 1L));
    cpp_fused_add_relu_0((const float*)(buf0.data_ptr()), (float*)(buf1.data_ptr()));
    cpp_fused_add_relu_0((const float*)(buf1.data_ptr()), (float*)(buf2.data_ptr()));
} // inductor_entry_impl

#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  cpp_fused_add_relu_0(const float* in_ptr0,
                       float* out_ptr0)
{
    for(int64_t x0=0; x0<8; x0+=1)
    {
        out_ptr0[x0] = in_ptr0[x0];  // a comment
    }
}
"""
)
inductor_entry = CppWrapperCodeCache.load_pybinding(main_code=cpp_wrapper_src)
call = _wrap_func(inductor_entry)

def benchmark_compiled_module(args, times=10, repeat=10):
    cpp_fused_add_relu_0(buf0)
'''


def test_kernels_and_calls_of_a_wrapper_in_cpp(tmp_path):
    figures = figures_of(CPP_WRAPPER)
    (kernel,) = figures["kernels"]
    assert (kernel["name"], kernel["kind"], kernel["operators"]) == (
        "cpp_fused_add_relu_0", "cpp", ["add", "relu"],
    )  # fmt: skip
    assert kernel["calls"] == figures["kernel_calls"] == 2
    assert figures["library_calls"] == {"aoti_torch_cpu_addmm_out": 1}
    prints = [
        (
            other["kernels"][0]["fingerprint"] == kernel["fingerprint"],
            other["fingerprint"] == figures["fingerprint"],
        )
        for change in (("a comment", "x"), ("x0<8", "x0<9"), ("addmm_out", "mm_out"))
        for other in [figures_of(CPP_WRAPPER.replace(*change))]
    ]
    assert prints == [(True, True), (False, False), (True, False)]
    (tmp_path / "a.py").write_text(CPP_WRAPPER)
    assert structure.wrapper_sources(str(tmp_path)) == [CPP_WRAPPER]


def test_comments_paths_hashes_and_numbers_are_not_in_a_fingerprint():
    other = (
        WRAPPER.replace("somebody", "someone-else")
        .replace("c2rnilspx43ivnzu4uieul65kx65dfhfbptbh5og4wk6rqebuxoo", "c" + "a" * 51)
        .replace("a comment", "another")
        .replace("aten.mul", "aten.mul, aten.mul")
        .replace("0_inference", "7_inference")
    )
    assert figures_of(WRAPPER) == {
        **figures_of(other),
        "code_bytes": len(WRAPPER),
        "kernels": figures_of(WRAPPER)["kernels"],
    }
    prints = [kernel["fingerprint"] for kernel in figures_of(WRAPPER)["kernels"]]
    assert prints == [kernel["fingerprint"] for kernel in figures_of(other)["kernels"]]
    renumbered = figures_of(WRAPPER.replace("mul_1", "mul_5"))
    assert prints == [kernel["fingerprint"] for kernel in renumbered["kernels"]]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("in_ptr0[0]", "in_ptr0[1]", [0]),
        ("['float*']", "['double*']", [1]),
        ("x = 1", "x = 2", [2]),
        ("torch.ops.aten.sort.stable(buf0)", "buf0", []),
    ],
)
def test_other_code_has_another_fingerprint(old, new, changed):
    before, after = figures_of(WRAPPER), figures_of(WRAPPER.replace(old, new))
    assert before["fingerprint"] != after["fingerprint"]
    pairs = zip(before["kernels"], after["kernels"], strict=True)
    assert [n for n, (one, two) in enumerate(pairs) if one["fingerprint"] != two["fingerprint"]] == changed


def test_instructions_and_settings_are_in_a_fingerprint():
    prints = {
        figures_of(WRAPPER)["fingerprint"],
        figures_of(WRAPPER, isa="avx512")["fingerprint"],
        figures_of(WRAPPER, settings={"mode": "max-autotune"})["fingerprint"],
    }
    assert len(prints) == 3


def test_the_fingerprint_of_the_text_is_the_same_under_other_settings():
    plain, other = figures_of(WRAPPER), figures_of(WRAPPER, isa="avx512", settings={"mode": "max-autotune"})
    assert plain["text"] == other["text"]
    assert [k["text"] for k in plain["kernels"]] == [k["text"] for k in other["kernels"]]
    changed = figures_of(WRAPPER.replace("in_ptr0[0]", "in_ptr0[1]"))
    assert changed["text"] != plain["text"]
    pairs = zip(plain["kernels"], changed["kernels"], strict=True)
    assert [one["text"] != two["text"] for one, two in pairs] == [True, False, False]


@pytest.mark.parametrize(
    ("reason", "guard"),
    [
        ("0/1: self.phase == 1     # self.phase = (self.phase + 1) % 3  # repo/net.py:7 in forward "
         "(HINT: make it a tensor)\nUser stack trace:\n  File net.py",
         "self.phase == 1 (net.py:7 in forward)"),
        ("3/0: tensor 'x' size mismatch at index 0. expected 3, actual 4",
         "tensor 'x' size mismatch at index 0. expected 3, actual 4"),
        ("\n- 0/0: ___check_obj_id(G['f'], 77)   # return f(x)  # net.py:9 in <lambda>",
         "___check_obj_id(G['f'], 77) (net.py:9 in <lambda>)"),
    ],
)  # fmt: skip
def test_a_failed_guard_has_its_place_and_no_code(reason, guard):
    assert structure.failed_guard(reason) == guard


def test_the_keys_of_a_model_hold_no_place_of_files():
    keys = {"loader": "python", "target": "/a/net.py:make", "config": {"depth": 2}, "inputs": {"size": [3]}}
    job = Job(Case("own", "net.make"), **keys)
    assert structure.model_keys_of(job) == {**keys, "target": "net.py:make", "variant": {}}
    job = Job(Case("s", "dcgan"), "torchbench", "dcgan", config={"checkout": "/b"})
    assert structure.model_keys_of(job)["config"] == {}


@pytest.mark.parametrize(("scenario", "of_step"), [
    ("inference", {}),
    ("training", {"optimizer": "sgd", "loss": "mean"}),
    ("generation", {"new_tokens": 32, "cache": "static"}),
    ("sizes", {"sizes": [2, 4], "sizes_of": "batch"}),
])  # fmt: skip
def test_the_keys_of_a_model_are_those_that_act_in_its_scenario(scenario, of_step):
    job = Job(Case("s", "m", scenario=scenario), "l", "m", loss="mean", cache="static", sizes=(2, 4))
    own = {"loader": "l", "target": "m", "config": {}, "inputs": {}, "variant": {}}
    assert structure.model_keys_of(job) == {**own, **of_step}


def test_operators_with_underscores_are_told_apart():
    names = {"add", "native_layer_norm", "_softmax", "layer_norm", "native"}
    assert structure.fused_operators("cpp_fused__softmax_add_native_layer_norm_12", names) == [
        "_softmax", "add", "native_layer_norm",
    ]  # fmt: skip
    assert structure.fused_operators("triton_red_fused_add_unheard_0", names) == ["add", "unheard"]
    assert structure.fused_operators("cpp_fused_0", names) == []
    assert structure.fused_operators("cpp_CppMicroGemm_3", names) == []


def test_a_torch_without_records_leaves_null_and_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(structure, "_dynamo_utils", lambda: SimpleNamespace())
    frames = structure.Frames()
    assert frames.recompiles() is None
    figures, _, (note,) = structure.of_case(str(tmp_path), frames, None, {})
    assert figures["guards"] is None
    assert "guards, nodes, recompiles are unknown" in note


def test_records_of_another_shape_do_not_fail_a_case(monkeypatch, tmp_path):
    other = SimpleNamespace(
        get_compilation_metrics=lambda: [SimpleNamespace(guard_count=3), SimpleNamespace()]
    )
    monkeypatch.setattr(structure, "_dynamo_utils", lambda: other)
    monkeypatch.setattr(structure, "parse", lambda sources: 1 / 0)
    (tmp_path / "a.py").write_text(WRAPPER)
    figures, _, notes = structure.of_case(str(tmp_path), structure.Frames(), None, {})
    assert (figures["guards"], figures["graph_nodes"]) == (None, None)
    assert "unreadable: ZeroDivisionError" in notes[-1]
    assert "failed guards are unknown" in notes[0]
    assert structure.Frames().failed_guards() is None


def test_too_much_code_is_not_read(monkeypatch, tmp_path):
    monkeypatch.setattr(structure, "_MOST_BYTES", 10)
    (tmp_path / "a.py").write_text(WRAPPER)
    figures, _, (note,) = structure.of_case(str(tmp_path), structure.Frames(), None, {})
    assert "kernels" not in figures
    assert "kernels were not counted" in note


def test_recompiles_are_counted_and_a_second_artefact_is_not():
    torch._dynamo.reset()
    frames = structure.Frames()
    model = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)
    model(torch.ones(3), 2)
    assert frames.recompiles() == 0
    model(torch.ones(4), 2)
    model(torch.ones(4), 3)
    assert frames.recompiles() == 2
    with frames.uncounted():
        model(torch.ones(5), 3)
    model(torch.ones(5), 3)
    assert frames.recompiles() == 2
    failed = frames.failed_guards()
    assert sum(failed.values()) == 2
    assert any("size mismatch at index 0. expected 3, actual 4" in guard for guard in failed)
    assert not any("actual 5" in guard for guard in failed)
    assert frames.figures()["guards"] > 0
    assert frames.figures()["graph_operators"] == 4
    torch._dynamo.reset()


def test_recompiles_that_are_uncounted_twice_are_left_out_once(monkeypatch):
    again = SimpleNamespace(cache_size=1, recompile_reason="0/0: n == 2  # x * n  # net.py:3 in forward")
    records = [again]
    dynamo = SimpleNamespace(get_compilation_metrics=lambda: records)
    monkeypatch.setattr(structure, "_dynamo_utils", lambda: dynamo)
    frames = structure.Frames()
    with frames.uncounted(), frames.uncounted():
        records.append(again)
    records.append(again)
    assert frames.recompiles() == 2
    assert frames.failed_guards() == {"n == 2 (net.py:3 in forward)": 2}


COMPILES_ITSELF = """
import json, sys
from perfdash.records import Case, Job
from perfdash.worker.case import run_case
backend, target, scratch = sys.argv[1:]
job = Job(Case("own", "net", backend=backend), "python", target, scratch=scratch, role="untimed")
events = {}
run_case(job, lambda event, **facts: events.update({event: facts}))
assert events["accuracy"]["status"] == "pass", events
print(json.dumps(events["recompiled"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot-eager"])
def test_what_eager_compiles_itself_is_no_recompile_of_the_back_end(tmp_path, command_server, backend):
    """Nor is what the float64 judge compiles, which calls a copy of the same module."""
    (tmp_path / "scratch").mkdir()
    model = tmp_path / "net_that_compiles_itself.py"
    model.write_text(
        "import torch\n\n\ndef make(batch_size):\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        "    return torch.compile(net, backend='aot_eager'), (torch.ones(batch_size, 4),)\n"
    )
    out = command_server.workers.run_script(
        COMPILES_ITSELF, backend, f"{model}:make", str(tmp_path / "scratch")
    )
    recompiled = json.loads(out.splitlines()[-1])
    assert recompiled["by_phase"] == {"compile": 0, "accuracy": 0, "timing": 0}
    assert recompiled["guards"] == {}


def test_a_frame_that_dynamo_gives_up_is_counted():
    torch._dynamo.reset()
    frames = structure.Frames()

    def generates(x):
        yield x + 1

    torch.compile(lambda x: x + len(list(generates(x))), backend="eager")(torch.ones(3))
    assert frames.given_up() == {}

    @torch.compile(backend=lambda graph, inputs: 1 / 0)
    def broken(x):
        return x + 1

    with pytest.raises(Exception, match="division by zero"):
        broken(torch.ones(3))
    (reason,) = frames.given_up()
    assert "division by zero" in reason
    torch._dynamo.reset()


COMPILED = """
import json, os, sys, torch
from perfdash.worker import structure
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        hidden = torch.relu(self.one(x))
        if sys.argv[1] == "broken": torch._dynamo.graph_break()
        if sys.argv[1] == "decomposed": hidden = hidden.softmax(1)
        return self.two(hidden).sort(1).values.exp()
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.cpu_vec_isa import VecISA
# No compiler starts: the text of the wrapper is examined, not what its kernels compute.
VecISA.check_build = lambda self, code: True
AsyncCompile.cpp_pybinding = lambda self, argument_types, source: lambda *tensors: None
frames = structure.Frames()
with torch.no_grad():
    torch.compile(Model())(torch.ones(2, 8))
print(json.dumps(structure.of_case(os.environ["TORCHINDUCTOR_CACHE_DIR"], frames, "isa", {})[0]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_equal_in_two_processes_and_another_for_another_model(tmp_path, command_server):
    def folders(name):
        cache = tmp_path / name
        cache.mkdir()
        return {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TMPDIR": str(cache)}

    def compiled(folder, change="none"):
        out = command_server.workers.run_script(COMPILED, change, env=folders(folder))
        return json.loads(out.splitlines()[-1])

    one = compiled("one")
    # An interpreter of its own, with other hashes than the process that the others fork from.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, "none"],
        env={**os.environ, **folders("another-folder"), "PYTHONHASHSEED": "14"},
        capture_output=True,
        check=True,
    )
    two = json.loads(done.stdout.splitlines()[-1])
    assert one == two
    assert [kernel["operators"] for kernel in one["kernels"]] == [["relu"], ["exp"]]
    assert one["library_calls"]["extern_kernels.addmm"] == 2
    softmax, broken = compiled("three", "decomposed"), compiled("four", "broken")
    assert len({figures["fingerprint"] for figures in (one, softmax, broken)}) == 3
    assert [kernel["operators"] for kernel in softmax["kernels"]] == [["_softmax", "relu"], ["exp"]]
    assert softmax["graph_operators"] == one["graph_operators"] + 1
    assert softmax["guards"] == one["guards"] < broken["guards"]
    old = {kernel["fingerprint"] for kernel in one["kernels"]}
    assert any("_softmax" in k["operators"] for k in softmax["kernels"] if k["fingerprint"] not in old)
    assert {kernel["graph"] for kernel in broken["kernels"]} == {0, 1}
    # The planted changes by name; the number of graphs is of dynamo's counters in a record.
    told = [
        sentence(compare(side({**one, "graphs": 1}), side({**figures, "graphs": graphs}, BAD)))
        for figures, graphs in ((two, 1), (softmax, 1), (broken, 2))
    ]
    assert told[0].startswith("The generated code is the same")
    assert told[1] == "cpp_fused__softmax_relu_0 now contains _softmax."
    assert told[2] == "2 graphs instead of 1."


def test_imports_are_not_in_a_fingerprint_and_a_graph_without_kernels_has_one():
    newer = WRAPPER.replace("import torch\n", "import torch\nfrom torch._inductor import another\n")
    assert figures_of(newer)["fingerprint"] == figures_of(WRAPPER)["fingerprint"]
    only_calls = "import torch\nasync_compile = AsyncCompile()\n" + CALL
    figures = figures_of(only_calls)
    assert (figures["kernels"], figures["library_calls"]["extern_kernels.addmm"]) == ([], 2)
    assert figures["fingerprint"] == figures_of("import math\n" + only_calls)["fingerprint"]
    assert figures["fingerprint"] != figures_of(only_calls.replace("addmm", "mm"))["fingerprint"]


CANDIDATE = """
import triton
import triton.language as tl
from torch._dynamo.testing import rand_strided
import torch

@triton_heuristics.template(num_stages=3, num_warps=4)
@triton.jit
def triton_(arg_A, arg_B, out_ptr0):
    BLOCK_M : tl.constexpr = 64


def get_args():
    arg_0 = rand_strided((8, 8), (8, 1), device='cuda:0', dtype=torch.float32)
    return arg_0,


def call(args):
    with torch.cuda._DeviceGuard(0):
        triton_.run(*args, stream=get_raw_stream(0))


def benchmark_all_configs(args):
    return triton_.benchmark_all_configs(*args)
"""


def test_a_kernel_that_autotuning_only_timed_is_no_code_of_the_model(tmp_path):
    """Which candidates are timed is chance: the code of the model is the same."""
    only_calls = "import torch\nasync_compile = AsyncCompile()\n\ndef call(args):\n    return args\n"
    for number, text in enumerate((WRAPPER, CANDIDATE, only_calls)):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        os.utime(path, (number, number))
    assert structure.wrapper_sources(str(tmp_path)) == [WRAPPER, only_calls]


def test_code_is_handed_over_without_the_paths_of_this_case(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    (tmp_path / "a.py").write_text(WRAPPER + f"# {tmp_path}/x.h\n")
    _, (packed,), _ = structure.of_case(str(tmp_path), structure.Frames(), None, {}, keep_code=True)
    text = zlib.decompress(base64.b64decode(packed)).decode()
    assert text == (WRAPPER + "# cache/x.h\n").replace("/home/somebody/", "~/")
    assert structure.of_case(str(tmp_path), structure.Frames(), None, {})[1] is None
    monkeypatch.setattr(structure, "_MOST_KEPT", 10)
    _, code, (note,) = structure.of_case(str(tmp_path), structure.Frames(), None, {}, keep_code=True)
    assert code is None
    assert "it was not kept" in note
