import json
from dataclasses import replace

import pytest

from perfdash.errors import MachineError, UsageError
from perfdash.records import Case, Result, Status
from perfdash.runner import compatibility, host
from perfdash.runner.launcher import Launch, environment
from perfdash.settings import RunSettings
from tests.runner.planned import PLANNED

ENVIRONMENT = {
    "host_class": "Xeon x 100",
    "cores": 100,
    "compiler": "g++ 12",
    "load": 0.5,
    "gpus": [],
    "variables": {"OMP_PROC_BIND": "close", "TORCHINDUCTOR_CACHE_DIR": "/here"},
    "worker": {"torch": "2.15", "torch_git_version": "abc", "packages": {"timm": "1.0", "numpy": "2"}},
}


def changed(**change):
    return compatibility.fingerprint({**ENVIRONMENT, **change})


def test_alike():
    same = compatibility.fingerprint(json.loads(json.dumps(ENVIRONMENT)))
    assert compatibility.differences(compatibility.fingerprint(ENVIRONMENT), same) == []
    assert compatibility.differences(same, changed(load=9.0)) == [], "the load of the moment is no difference"
    elsewhere = {**ENVIRONMENT["variables"], "TORCHINDUCTOR_CACHE_DIR": "/there"}
    assert compatibility.differences(same, changed(variables=elsewhere)) == [], "nor is a folder"


def test_what_differs_is_named():
    first = compatibility.fingerprint(ENVIRONMENT)
    worker = {**ENVIRONMENT["worker"], "torch_git_version": "def", "packages": {"timm": "1.1"}}
    assert compatibility.differences(first, changed(worker=worker)) == [
        "torch_git_version: abc | def",
        "package timm: 1.0 | 1.1",
        "package numpy: 2 | none",
    ]
    assert compatibility.differences(first, changed(variables={})) == ["variable OMP_PROC_BIND: close | none"]
    assert compatibility.differences(first, changed(cores=64))


def test_hosts_may_have_different_versions_of_pip_but_not_of_perfdash():
    """pip only installs; the workers of one run need the same perfdash."""

    def with_package(name, version):
        packages = {**ENVIRONMENT["worker"]["packages"], name: version}
        return changed(worker={**ENVIRONMENT["worker"], "packages": packages, "commits": {name: version}})

    assert compatibility.differences(with_package("pip", "24.0"), with_package("pip", "24.1")) == []
    assert compatibility.differences(with_package("perfdash", "1"), with_package("perfdash", "2")) == [
        "package perfdash: 1 | 2",
        "commit of perfdash: 1 | 2",
    ]


@pytest.mark.parametrize(
    "name", ["TORCHINDUCTOR_FREEZING", "TORCHDYNAMO_DISABLE", "PYTORCH_ALLOC_CONF", "CXXFLAGS"]
)
def test_a_setting_of_torch_or_the_compiler_is_a_difference(name):
    variables = host.relevant_variables({**ENVIRONMENT["variables"], name: "1"})
    differences = compatibility.differences(changed(), changed(variables=variables))
    assert differences == [f"variable {name}: none | 1"]


@pytest.mark.parametrize(
    "name",
    ["TRITON_CACHE_DIR", "CUDA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES",
     "NVIDIA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "TORCH", "TORCH_INDEX"],
)  # fmt: skip
def test_places_devices_and_what_ci_installs_are_no_difference(name):
    variables = host.relevant_variables({**ENVIRONMENT["variables"], name: "1"})
    assert name in variables
    assert compatibility.differences(changed(), changed(variables=variables)) == []


@pytest.mark.parametrize(
    "name",
    [
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "TORCH_WARM_POOL",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "OMP_NUM_THREADS",
    ],
)
def test_what_no_worker_gets_from_the_shell_is_no_difference(name):
    variables = host.relevant_variables({**ENVIRONMENT["variables"], name: "1"})
    assert name in variables
    assert compatibility.differences(changed(), changed(variables=variables)) == []
    workers = [environment(Launch("python", (0,), 1), shell).get(name) for shell in ({}, {name: "7"})]
    assert workers[0] == workers[1]


def test_a_run_is_resumed_where_only_pip_changed_or_a_package_was_added():
    """These would not have ended it, so its other cases may be of both."""

    def refuse(**packages):
        worker = {**ENVIRONMENT["worker"], "packages": {**ENVIRONMENT["worker"]["packages"], **packages}}
        compatibility.refuse_other_environment(then, {**ENVIRONMENT, "worker": worker}, "run")

    worker = ENVIRONMENT["worker"]
    then = {**ENVIRONMENT, "worker": {**worker, "packages": {**worker["packages"], "pip": "24"}}}
    refuse(pip="25", rich="14")
    with pytest.raises(MachineError, match=r"package numpy: 2 \| 3"):
        refuse(pip="24", numpy="3")
    with pytest.raises(MachineError, match=r"cores: .* \| 3"):
        compatibility.refuse_other_environment(then, {**then, "cores": 3}, "run")


def test_the_same_version_of_another_commit():
    first, other = (
        changed(worker={**ENVIRONMENT["worker"], "commits": {"timm": commit}}) for commit in ("a", "b")
    )
    assert compatibility.differences(first, other) == ["commit of timm: a | b"]
    assert compatibility.differences(first, first) == []


def test_what_nobody_has_found_out_is_no_difference():
    assert compatibility.differences(changed(vector_isa="avx512"), changed()) == []
    assert compatibility.differences(changed(vector_isa="avx512"), changed(vector_isa="avx2"))


def test_the_vector_instructions_of_torch_s_own_kernels(monkeypatch):
    """An older perfdash did not record the variable that chooses them."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    unset = host.facts()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    narrow = host.facts()
    older = {name: value for name, value in unset.items() if name != "aten_cpu_capability"}
    differ = [
        compatibility.differences(*map(compatibility.fingerprint, pair))
        for pair in ((unset, narrow), (narrow, unset), (older, narrow), (older, unset))
    ]
    assert differ == [
        ["aten_cpu_capability: default | avx2"],
        ["aten_cpu_capability: avx2 | default"],
        [],
        [],
    ]


def test_a_run_on_the_cpu_that_recorded_the_gpus_of_its_host_is_resumed():
    """As an earlier perfdash did; a run on a GPU always has some (check_slots)."""
    then = {**ENVIRONMENT, "gpus": ["H100"]}
    compatibility.refuse_other_environment(then, ENVIRONMENT, "run")
    with pytest.raises(MachineError, match=r"gpus: \['H100'\] \| \['H200'\]"):
        compatibility.refuse_other_environment(then, {**ENVIRONMENT, "gpus": ["H200"]}, "run")


GPU = {"uuid": "GPU-a", "name": "H100", "driver": "550", "power_limit_w": 700.0, "ecc": True}


def test_numbers_of_unlike_gpus_are_not_mixed():
    first = changed(gpu_facts=GPU)
    assert compatibility.differences(first, changed(gpu_facts={**GPU, "uuid": "GPU-b"})) == []
    other = changed(gpu_facts={**GPU, "driver": "580", "power_limit_w": 350.0})
    assert compatibility.differences(first, other) == [
        "gpu driver: 550 | 580",
        "gpu power_limit_w: 700.0 | 350.0",
    ]
    assert compatibility.differences(first, changed(gpu_facts={**GPU, "ecc": None})) == [], "unknown"
    assert compatibility.differences(first, changed()) == [], "recorded without NVML"


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({"host": "farm", "gpu": "GPU-5", "cores": [3]}, "slots on farm (GPU-0) and farm (GPU-5) are not"),
        ({"host": "farm-b", "gpu": "GPU-5", "cores": [3]}, "slots on farm and farm-b are not"),
    ],
)
def test_the_slots_that_are_not_alike_are_named(where, named):
    first = {"host": "farm", "gpu": "GPU-0", "cores": [2]}
    worker = {**ENVIRONMENT["worker"], "missing": {}, "cuda_initialized": False}
    slots = [
        {"environment": {**ENVIRONMENT, "worker": worker, "gpu_facts": {**GPU, "power_limit_w": watts}},
         "where": place, "probes": [{"complaints": [], "cuda": ["H100"]}]}
        for watts, place in ((700.0, first), (650.0, where))
    ]  # fmt: skip
    with pytest.raises(MachineError) as refused:
        compatibility.check_slots(slots, [PLANNED])
    assert named in str(refused.value)
    assert "gpu power_limit_w: 700.0 | 650.0" in str(refused.value)


def test_on_a_gpu_inductor_needs_a_c_compiler(monkeypatch, tmp_path):
    case = replace(PLANNED, case=Case("s", "m", device="cuda"), skip_reason=None)
    settings = RunSettings(device="cuda")
    monkeypatch.setattr(compatibility, "refuse_missing_torch", lambda launch: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MachineError, match=r"inductor needs a C compiler on a GPU.*: install gcc, or set CC"):
        compatibility.check_machine(settings, [case])
    for other in (replace(case.case, backend="eager"), replace(case.case, backend="onnxrt")):
        compatibility.check_machine(settings, [replace(case, case=other)])
    compiler = tmp_path / "clang"
    compiler.touch(mode=0o755)
    compatibility.check_machine(settings, [case])
    monkeypatch.setenv("CC", "nowhere")
    with pytest.raises(MachineError):
        compatibility.check_machine(settings, [case])
    compatibility.check_machine(settings, [replace(case, env={"CC": str(compiler)})])


def test_many_differences_are_shortened():
    text = compatibility.as_lines([f"line {number}" for number in range(50)])
    assert text.splitlines()[-1] == "  ... and 38 more"


def test_a_run_goes_on_by_the_method_that_it_began_with():
    result = Result(Case("s", "m"), "", 0.0, Status.PASS)
    compatibility.refuse_other_method([result], "night")
    older = replace(result, method={**result.method, "memory": 0})
    with pytest.raises(UsageError, match=r"Cannot resume night: .* another method \(memory 0 -> \d+\)"):
        compatibility.refuse_other_method([result, older], "night")


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        (
            {"type": "SyntaxError", "message": "expected ':' (net.py, line 1)",
             "traceback": 'File "/a/net.py", line 1\n'},
            "--model /a/net.py:make (line 1): SyntaxError: expected ':'",
        ),
        (
            {"type": "LookupError", "message": "/a/net.py has no function 'make' (did you mean made?)"},
            "--model /a/net.py:make has no function 'make' (did you mean made?)",
        ),
        (
            {"type": "TypeError", "message": "/a/net.py:make must return (module, inputs). It returned None"},
            "--model /a/net.py:make must return (module, inputs). It returned None",
        ),
        (
            {"type": "TypeError", "message": "make() takes 0 positional arguments but 1 was given"},
            "--model /a/net.py:make: TypeError: make() takes 0 positional arguments but 1 was given; it is "
            "called with the batch size and returns (module, inputs)",
        ),
    ],
)  # fmt: skip
def test_a_slip_in_a_model_is_shown_with_its_file_and_line_once(failed, message):
    assert compatibility.slip_message("/a/net.py:make", failed) == message
