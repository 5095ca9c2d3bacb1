import pytest

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
    masked = host.mask_secrets(["run", "--env", "HF_TOKEN=s3cret", "--env=GITHUB_PASSWORD=s3cret", "A=1"])
    assert masked == ["run", "--env", "HF_TOKEN=***", "--env=GITHUB_PASSWORD=***", "A=1"]


@pytest.mark.parametrize(("words", "masked"), [
    (["DATABASE_URL=postgresql://u:s3cret@h/x"], ["DATABASE_URL=***"]),
    (["--env=PGPASS=s3cret"], ["--env=PGPASS=***"]),
    (["--env=A=https://u:s3cret@h/x=y"], ["--env=A=***"]),
    (["--db", "postgresql://u:s3cret@h/x?a=b"], ["--db", "postgresql://****@h/x?a=b"]),
    (["--db", "host=h password=s3cret"], ["--db", "host=***"]),
    (["sh", "-c", "cd x; A_TOKEN=s3cret B=1 ./go"], ["sh", "-c", "cd x; A_TOKEN=***"]),
    (["--set", "build.env.HF_TOKEN=s3cret"], ["--set", "build.env.HF_TOKEN=***"]),
    (["x.sh", "--api-key", "s3cret", "--token=s3cret"], ["x.sh", "--api-key", "***", "--token=***"]),
    (["--env", "TOKENIZERS_PARALLELISM=false"], ["--env", "TOKENIZERS_PARALLELISM=false"]),
    (["-H", "Authorization: Bearer s3cret"], ["-H", "Authorization: ***"]),
    (["-H", "Private-Token: s3cret"], ["-H", "Private-Token: ***"]),
    (["sh", "-c", "A=1 curl -H 'Authorization: Bearer s3cret' x"], ["sh", "-c", "A=***"]),
    (["curl -H 'Authorization: token s3cret' x"], ["curl -H 'Authorization: token ***' x"]),
    (["sh", "-c", "A=1 B_TOKEN=s3cret ./go"], ["sh", "-c", "A=***"]),
    (["--env", "NOTE=x hf_0123456789abcdefABCDEF0123456789abcd"], ["--env", "NOTE=***"]),
    (["--auth-tokens", "s3cret", "--max-tokens", "512"], ["--auth-tokens", "***", "--max-tokens", "512"]),
    (["pip", "git+ssh://git@github.com/a/b"], ["pip", "git+ssh://git@github.com/a/b"]),
    (["git+ssh://git:s3cret@h/x", "git+https://s3cret@h/x"], ["git+ssh://****@h/x", "git+https://****@h/x"]),
    (["--models", "a,b=c", "--webhook", "--link", "https://h/a@b"],
     ["--models", "a,b=c", "--webhook", "--link", "https://h/a@b"]),
])  # fmt: skip
def test_what_a_user_types_is_written_down_without_secrets(words, masked):
    assert host.mask_secrets(words) == masked


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


@pytest.mark.parametrize(
    ("named", "gpus"), [("0,1", ["0", "1"]), ("GPU-8a, 3", ["GPU-8a", "3"]), ("", []), ("-1", [])]
)
def test_visible_gpus(named, gpus):
    assert host.visible_gpus(named) == gpus
