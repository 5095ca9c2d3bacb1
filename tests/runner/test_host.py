from perfdash.redaction import mask_secrets
from perfdash.runner import doctor, host


def test_facts_of_this_machine():
    facts = host.facts()
    assert facts["cpu"]
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > facts["memory_available_bytes"] > 0
    assert facts["compiler"]
    assert host.host_class(facts).endswith(f"x {facts['cores']}")


def test_secrets_are_neither_recorded_nor_shown():
    variables = {
        "OMP_NUM_THREADS": "1",
        "HF_TOKEN": "s3cret",
        "TORCH_API_KEY": "s3cret",
        "HOME": "/root",
        "MALLOC_CONF": "x",
    }
    assert host.relevant_variables(variables) == {"MALLOC_CONF": "x", "OMP_NUM_THREADS": "1"}
    masked = mask_secrets(["run", "--env", "HF_TOKEN=s3cret", "--env=GITHUB_PASSWORD=s3cret", "A=1"])
    assert masked == ["run", "--env", "HF_TOKEN=***", "--env=GITHUB_PASSWORD=***", "A=1"]


def levels(**change):
    facts = {
        "cpu": "Xeon",
        "cores": 8,
        "sockets": 2,
        "virtual": False,
        "governor": "performance",
        "turbo": False,
        "smt": False,
        "cpu_limit": None,
        "load": 0.1,
        "memory_available_bytes": 64 << 30,
        "compiler": "g++ 12",
        "variables": {},
        **change,
    }
    return {finding.subject: finding for finding in doctor.judge_host(facts)}


def test_a_fit_machine_has_nothing_to_do():
    assert {finding.level for finding in levels().values()} == {"ok"}


def test_each_fault_says_what_to_do():
    faults = {
        "governor": levels(governor="powersave")["governor"],
        "turbo": levels(turbo=True)["turbo"],
        "SMT": levels(smt=True)["SMT"],
        "container limit": levels(cpu_limit=1.5)["container limit"],
        "load": levels(load=3.0)["load"],
        "memory": levels(memory_available_bytes=2 << 30)["memory"],
        "cores": levels(cores=1)["cores"],
        "compiler": levels(compiler=None)["compiler"],
        "allocator": levels(variables={"LD_PRELOAD": "libx.so"})["allocator"],
    }
    assert all(finding.level in ("warn", "error") and finding.do for finding in faults.values())
    assert faults["compiler"].level == "error"


def test_slower_cores_are_named():
    finding = levels(slower_cores="16-31")["core kinds"]
    assert (finding.level, "16-31" in finding.what, "--cores" in finding.do) == ("note", True, True)


def test_torch_and_torchvision_that_do_not_match():
    hello = {
        "torch": "2.15.0+cpu",
        "python": "3.11",
        "torch_cuda": None,
        "cuda_initialized": False,
        "packages": {"torchvision": "0.29.2"},
        "missing": {"torchvision": "RuntimeError: operator torchvision::nms does not exist"},
    }
    findings = {finding.subject: finding for finding in doctor.judge_torch(hello)}
    assert findings["torchvision"].level == "error"
    assert "together" in findings["torchvision"].do


def test_what_doctor_says_of_gpus():
    (finding,) = doctor.judge_gpus(None)
    assert (finding.level, "pip install nvidia-ml-py" in finding.do) == ("note", True)
    fit = {"uuid": "GPU-1", "name": "H", "persistence": True, "ecc": True, "power_limit_w": 700.0,
           "default_power_limit_w": 700.0, "others": 0}  # fmt: skip
    assert [finding.level for finding in doctor.judge_gpus([fit])] == ["ok"]
    assert [finding.level for finding in doctor.judge_gpus([{"uuid": "GPU-1"}])] == ["ok"]
    faults = {"persistence": False, "ecc": False, "power_limit_w": 350.0, "others": 2}
    assert len(doctor.judge_gpus([{**fit, **faults}])) == 4
    hello = {"torch": "2", "python": "3", "torch_cuda": "13", "cuda_initialized": False,
             "driver_open": True, "packages": {}, "missing": {}}  # fmt: skip
    assert "opens the GPU's driver" in {f.subject: f for f in doctor.judge_torch(hello)}["fork"].what
