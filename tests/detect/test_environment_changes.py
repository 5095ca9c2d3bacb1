"""What differs between the machines and the packages of two runs."""

from dataclasses import replace

import pytest

from perfdash.detect.environment_changes import machine_changes, package_changes
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from tests.history.made import PACKAGES, row, run, with_worker


def runs(path, *commits):
    with open_store(str(path)) as store:
        for day, commit in enumerate(commits, start=1):
            night = run(f"2026-11-0{day}", [row()])
            if commit:
                night.run.environment["worker"]["commits"] = {"timm": commit * 40}
            take_in(store, [night])
        with store.read() as connection:
            return list_runs(connection)


def test_a_package_of_the_same_version_but_another_commit(tmp_path):
    old, new = runs(tmp_path / "h.db", "a", "b")
    version = PACKAGES["timm"]
    assert package_changes(old, new) == [f"timm: {version} {'a' * 10} | {version} {'b' * 10}"]
    assert (old.commits, new.commits) == ({"timm": "a" * 40}, {"timm": "b" * 40})
    assert old.environment_id != new.environment_id


def test_a_package_that_came_from_an_index_before(tmp_path):
    old, new = runs(tmp_path / "h.db", None, "b")
    version = PACKAGES["timm"]
    assert package_changes(old, new) == [f"timm: {version} | {version} {'b' * 10}"]


def test_a_wheel_whose_commit_an_older_perfdash_did_not_record():
    def night(version, commit=None):
        commits = {"torchvision": commit * 40} if commit else {}
        return with_worker(run().run, packages={"torchvision": version}, commits=commits)

    assert package_changes(night("0.20.1"), night("0.20.1", "a")) == []
    assert package_changes(night("0.20.1", "a"), night("0.20.1")) == []
    assert package_changes(night("0.20.1"), night("0.20.2", "a")) == [
        f"torchvision: 0.20.1 | 0.20.2 {'a' * 10}"
    ]
    assert package_changes(night("0.20.1", "a"), night("0.20.1", "b")) == [
        f"torchvision: 0.20.1 {'a' * 10} | 0.20.1 {'b' * 10}"
    ]


def test_nothing_else_changes(tmp_path):
    old, new = runs(tmp_path / "h.db", "a", "a")
    assert package_changes(old, new) == []
    assert old.environment_id == new.environment_id


GPU = {"uuid": "GPU-a", "name": "H100", "driver": "550", "power_limit_w": 700.0, "ecc": True}


def on_gpu(**facts):
    row = run().run
    return replace(row, environment={**row.environment, "gpu_facts": {**GPU, **facts}})


def test_vector_instructions_that_an_older_perfdash_did_not_record_are_no_change():
    def night(**facts):
        return replace(run().run, environment={**run().run.environment, **facts})

    narrow = {"aten_cpu_capability": "avx2", "variables": {"ATEN_CPU_CAPABILITY": "avx2"}}
    assert machine_changes(night(), night(**narrow)) == []
    assert machine_changes(night(aten_cpu_capability="default"), night(**narrow)) == [
        "aten_cpu_capability: default | avx2"
    ]


def test_another_gpu_of_the_same_kind_is_no_change_of_the_machine():
    assert machine_changes(on_gpu(), on_gpu(uuid="GPU-b")) == []


def test_what_changed_of_a_gpu_is_named():
    assert machine_changes(on_gpu(), on_gpu(uuid="GPU-b", driver="580")) == ["gpu driver: 550 | 580"]
    assert machine_changes(on_gpu(), on_gpu(power_limit_w=350.0)) == ["gpu power_limit_w: 700.0 | 350.0"]


def test_what_is_not_known_of_a_gpu_is_no_change():
    assert machine_changes(on_gpu(), on_gpu(ecc=None)) == []
    assert machine_changes(run().run, on_gpu()) == []


def cluster(**kernels):
    """A run of several machines that recorded each machine's kernel."""
    by_host = {host: {"kernel": kernel} for host, kernel in kernels.items()}
    shared = {name: value for name, value in run().run.environment.items() if name != "kernel"}
    if len({str(kernel) for kernel in kernels.values()}) == 1:
        shared["kernel"], by_host = next(iter(kernels.values())), {host: {} for host in kernels}
    return replace(run().run, host="+".join(kernels), environment={**shared, "by_host": by_host})


def of_older_perfdash(kernel, host="a+b+c"):
    """A run whose facts are those of its first shard, of which the machine is unknown."""
    return replace(run().run, host=host, environment={**run().run.environment, "kernel": kernel})


@pytest.mark.parametrize(("old", "new", "hosts", "lines"), [
    (cluster(a="1", b="2", c="1"), cluster(c="1", b="2", a="1"), "", []),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", c="2"), "", ["kernel: 1 | 2 (c)"]),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", c="2"), "c", ["kernel: 1 | 2 (c)"]),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", c="2"), "ab", []),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", c="2"), "bc", ["kernel: 1 | 2 (c)"]),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", c="2"), "z", ["kernel: 1 | 2 (c)"]),
    (cluster(a="1", b="1", c="1"), cluster(a="2", b="2", c="2"), "", ["kernel: 1 | 2"]),
    (cluster(a="1", b="1", c="1"), cluster(a="2", b="2", c="2"), "c", ["kernel: 1 | 2"]),
    (cluster(a="1", b="3", c="1"), cluster(a="2", b="2", c="2"), "b", ["kernel: 3 | 2"]),
    (cluster(a="1", b="1", c="1"), cluster(a="2", b="2", c="3"), "ab", ["kernel: 1 | 2 (a, b)"]),
    (cluster(a="1", b="3", c="1"), cluster(a="2", b="2", c="1"), "", ["kernel: 1 (a), 3 (b) | 2 (a, b)"]),
    (cluster(a="1", b="1", c="2"), cluster(a="1", b="1"), "", []),
    (cluster(a="1", b="1", c="2"), cluster(a="1", b="1", d="2"), "", []),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", d="2"), "", ["kernel: 1 | 2 (d)"]),
    (cluster(a="1", b="1", c="1"), cluster(a="1", b="1", d="2"), "cd", ["kernel: 1 | 2 (d)"]),
    (of_older_perfdash("1"), cluster(a="1", b="1", c="2"), "", []),
    (of_older_perfdash("1"), cluster(a="1", b="1", c="2"), "c", []),
    (cluster(a="1", b="1", c="2"), of_older_perfdash("1"), "", []),
    (of_older_perfdash("0"), cluster(a="1", b="1", c="2"), "", ["kernel: 0 | 1 (a, b), 2 (c)"]),
    (of_older_perfdash("0"), cluster(a="1", b="1", c="1"), "", ["kernel: 0 | 1"]),
    (of_older_perfdash("0"), of_older_perfdash("1"), "", ["kernel: 0 | 1"]),
    (cluster(a={1: 1}, b={1: 1}), cluster(a={1: 1}, b={1: 2}), "", ["kernel: {1: 1} | {1: 2} (b)"]),
    (of_older_perfdash({1: 1}), of_older_perfdash({1: 2}), "", ["kernel: {1: 1} | {1: 2}"]),
    (of_older_perfdash("1", "a"), cluster(a="1", b="1"), "", []),
    (of_older_perfdash("1", "z"), cluster(a="1", b="2"), "", ["host: z | a+b", "kernel: 1 | 2 (b)"]),
])  # fmt: skip
def test_facts_are_compared_host_by_host(old, new, hosts, lines):
    """`hosts`: those that measured the case; one that measured neither run says nothing."""
    assert machine_changes(old, new, hosts) == lines


def test_many_hosts_are_counted():
    old, new = (cluster(a="1", **dict.fromkeys("bcdefgh", kernel)) for kernel in "12")
    assert machine_changes(old, new) == ["kernel: 1 | 2 (b, c, d, e and 3 more)"]
