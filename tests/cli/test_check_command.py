"""`perfdash check`, and a checkout of torchbench, as typed; with real workers."""

import json

import pytest

from tests.checkouts import write_checkout
from tests.conftest import HERE

pytestmark = pytest.mark.slow

MODELS = "\n".join(
    f'[[models]]\nname = "{name}"\n{more}'
    for name, more in (
        ("resnet18", "parameters = 11_689_512"),
        ("resnet19", ""),
        ("alexnet", "parameters = 61_100_841"),
        ("vgg16", "parameters = 9_000_000_000_000"),
        ("lennard_jones", 'loader = "models"\nparameters = 865'),
        ("lennard_johns", 'loader = "models"'),
        ("lcnet_055", 'loader = "timm"'),
    )
)


def test_what_cannot_be_built_and_why(command, tmp_path):
    (tmp_path / "some.toml").write_text(f'name = "some"\nloader = "torchvision"\n{MODELS}')
    ran = command("check", "--suite", "some.toml", "--json")
    assert ran.code == 1, ran.err
    rows = {row["case"]["model"]: row for row in json.loads(ran.out)}
    assert rows["resnet18"]["status"] is None
    assert rows["resnet18"]["reason"] == ""
    assert rows["resnet18"]["eager_s"] > 0
    assert rows["resnet19"]["status"] == "model_fail_to_load"
    assert "torchvision has no model 'resnet19' (did you mean resnet18" in rows["resnet19"]["reason"]
    assert "timm has no model 'lcnet_055' (did you mean lcnet_0" in rows["lcnet_055"]["reason"]
    assert "did you mean lennard_jones" in rows["lennard_johns"]["reason"]
    assert rows["alexnet"]["reason"] == "it has 61,100,840 parameters, and its suite states 61,100,841"
    assert rows["vgg16"]["status"] == "eager_oom"
    assert "not loaded: its 9,000,000,000,000 parameters alone need 33527.6 GiB" in rows["vgg16"]["reason"]

    ran = command("check", "--suite", "some.toml", "--models", "resnet18,vgg16,lennard_jones")
    assert ran.code == 0, "a want of memory is no fault"
    assert "some: 2 of 3 build and run" in ran.out
    assert "some vgg16: eager_oom in load: not loaded" in ran.out


def test_a_checkout_of_torchbench(command, tmp_path):
    write_checkout(tmp_path / "benchmark")
    ran = command("check", "--torchbench", "benchmark", "--json")
    assert ran.code == 1, ran.err
    rows = {row["case"]["model"]: (row["status"], row["reason"]) for row in json.loads(ran.out)}
    for name in ("plain", "keywords", "fixed", "not_trained", "strange"):
        assert rows[name] == (None, ""), name
    status, reason = rows["needs_package"]
    assert status == "missing_dependency"
    assert "a_package_that_nobody_has" in reason
    assert "install it" in reason
    status, reason = rows["needs_data"]
    assert status == "missing_data"
    assert "python install.py" in reason
    assert rows["needs_hub"][0] == "needs_network"
    assert rows["not_on_cpu"] == ("skipped", "torchbench's metadata.yaml: not implemented on cpu")

    # Where its place is a setting, the suite is named; what is skipped stands in the row.
    (tmp_path / "perfdash.toml").write_text('[torchbench]\npath = "benchmark"\n')
    models = ["--models", "fixed,not_on_cpu,plain"]
    ran = command("run", "--suite", "torchbench-checkout", *models, "--backend", "eager", "--processes", "1")
    assert ran.code == 0, ran.err
    results = ran.results
    assert (results["fixed"].status, results["fixed"].case.batch_size) == ("pass", 16)
    assert results["plain"].case.batch_size == 1
    assert results["not_on_cpu"].status == "skipped"
    assert results["not_on_cpu"].skip_reason == "torchbench's metadata.yaml: not implemented on cpu"
    assert results["not_on_cpu"].error is None

    ran = command("check", "--models", "fixed", "--suite", "torchbench-checkout", "--batch-size", "2")
    assert "fixed comes in batch size 16 only: --batch-size 16" in ran.out


def test_a_folder_that_is_no_checkout(command):
    for arguments in (["check"], ["run"], ["list"]):
        ran = command(*arguments, "--torchbench", str(HERE))
        assert ran.code == 2
        assert "is no checkout of torchbench" in ran.err
        assert not ran.runs.exists()
