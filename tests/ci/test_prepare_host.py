"""ci/prepare_host.sh on machines that are made of files: what it would do, does, refuses, takes back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "prepare_host.sh"
CPU = "sys/devices/system/cpu"
PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


class Host:
    """A machine below a folder."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    def read(self, name: str) -> str:
        return (self.root / name).read_text().strip()

    def picture(self) -> dict[str, str]:
        """Every file but perfdash's own."""
        files = [path for path in self.root.rglob("*") if path.is_file() and "perfdash" not in path.parts]
        return {str(path.relative_to(self.root)): path.read_text().strip() for path in files}

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HOST_")}
        return subprocess.run(
            [SCRIPT, *words],
            env={**env, "HOST_ROOT": str(self.root), **variables},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip


@pytest.fixture
def xeon(tmp_path: Path) -> Host:
    host = Host(tmp_path / "root")
    host.write({f"{CPU}/cpu{n}/cpufreq/scaling_governor": "powersave" for n in range(4)})
    host.write(
        {f"{CPU}/cpu{n}/cpufreq/scaling_available_governors": "performance powersave" for n in range(4)}
    )
    host.write({
        f"{CPU}/intel_pstate/no_turbo": "0",
        f"{CPU}/smt/control": "on",
        PAGES: "always",
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node1/cpulist": "2-3",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/cpuinfo": "flags\t\t: fpu avx512f",
        "usr/lib/x86_64-linux-gnu/libjemalloc.so.2": "",
    })  # fmt: skip
    return host


def test_it_only_says_what_it_would_do(xeon):
    before = xeon.picture()
    done = xeon.run()
    assert done.returncode == 0, done.stderr
    for part in ("governor cpu3", "powersave -> performance", "no_turbo", "0 -> 1", "SMT siblings",
                 "on -> off", "always -> madvise", "NUMA balancing", "2 nodes",
                 "--allocator jemalloc", "preload tcmalloc", "not installed",
                 "Nothing was changed"):  # fmt: skip
        assert part in done.stdout
    assert xeon.picture() == before
    assert not (xeon.root / "run").exists()


def test_applied_and_taken_back(xeon):
    before = xeon.picture()
    done = xeon.run("--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [xeon.read(f"{CPU}/cpu{n}/cpufreq/scaling_governor") for n in range(4)] == ["performance"] * 4
    assert xeon.read(f"{CPU}/intel_pstate/no_turbo") == "1"
    assert xeon.read(f"{CPU}/smt/control") == "off"
    assert xeon.read(PAGES) == "madvise"
    assert xeon.read("proc/sys/kernel/numa_balancing") == "0"
    # A second one, after one that was killed: what was before the first is still known.
    again = xeon.run("--apply")
    assert again.returncode == 0
    assert "was not restored" in again.stdout
    assert "performance already" in again.stdout
    done = xeon.run("--restore")
    assert done.returncode == 0, done.stdout
    assert xeon.picture() == before
    assert "Nothing to restore" in xeon.run("--restore").stdout


def test_it_is_not_restored_while_another_night_measures(xeon):
    before = xeon.picture()
    first, second = str(os.getpid()), str(os.getppid())
    assert xeon.run("--apply", HOST_HOLDER=first).returncode == 0
    done = xeon.run("--restore")  # as systemd calls it after a service that found this night running
    assert (done.returncode, xeon.read(f"{CPU}/intel_pstate/no_turbo")) == (0, "1")
    assert f"Not restored: process {first} still measures" in done.stdout
    assert xeon.run("--apply", HOST_HOLDER=second).returncode == 0
    assert f"Not restored: process {second} still" in xeon.run("--restore", HOST_HOLDER=first).stdout
    assert xeon.run("--restore", HOST_HOLDER=second).returncode == 0
    assert xeon.picture() == before


def test_a_night_that_was_killed_holds_nothing(xeon):
    before = xeon.picture()
    with subprocess.Popen(["sleep", "60"]) as night:
        xeon.run("--apply", HOST_HOLDER=str(night.pid))
        night.kill()
    xeon.run("--restore")
    assert xeon.picture() == before
    xeon.run("--apply", HOST_HOLDER=str(os.getpid()))
    holders = xeon.root / "run/perfdash/host-holders"
    holders.write_text(f"{os.getpid()} 1\n")  # an earlier process had its number
    xeon.run("--restore")
    assert xeon.picture() == before


def test_what_is_to_be_kept_is_left_alone(xeon):
    keep = {"HOST_GOVERNOR": "keep", "HOST_TURBO": "keep", "HOST_SMT": "keep", "HOST_NUMA_BALANCING": "keep"}
    before = xeon.picture()
    assert xeon.run("--apply", HOST_THP="never", **keep).returncode == 0
    assert xeon.picture() == {**before, PAGES: "never"}


def test_a_machine_that_is_ready_needs_no_restoring(xeon):
    xeon.write({f"{CPU}/cpu{n}/cpufreq/scaling_governor": "performance" for n in range(4)})
    xeon.write({
        f"{CPU}/intel_pstate/no_turbo": "1", f"{CPU}/smt/control": "notsupported",
        PAGES: "always [madvise] never", "proc/sys/kernel/numa_balancing": "0",
    })  # fmt: skip
    done = xeon.run("--apply")
    assert done.returncode == 0
    assert "performance already, on 4 cores" in done.stdout
    assert "there are none" in done.stdout
    assert "madvise already" in done.stdout
    assert "Nothing to restore" in xeon.run("--restore").stdout


def test_amd_has_its_own_switch(xeon):
    (xeon.root / CPU / "intel_pstate/no_turbo").unlink()
    xeon.write({f"{CPU}/cpufreq/boost": "1"})
    assert "turbo (boost)          1 -> 0" in xeon.run().stdout


def test_a_virtual_machine_has_no_such_switches(tmp_path):
    host = Host(tmp_path)
    host.write({"proc/cpuinfo": "flags\t\t: fpu hypervisor", PAGES: "madvise"})
    done = host.run("--apply")
    assert done.returncode == 0
    assert done.stdout.count("the host of this virtual machine decides") == 3  # governor, turbo, siblings


def test_a_container_that_does_not_let_it(xeon):
    """A file that can be read and not be written, by root neither; and one that cannot be read."""
    xeon.write({".dockerenv": ""})
    path = xeon.root / CPU / "intel_pstate/no_turbo"
    path.unlink()
    path.mkdir()  # which nobody can write to, root neither
    (xeon.root / PAGES).unlink()
    (xeon.root / PAGES).symlink_to("/proc/sys/kernel/ostype")
    before = xeon.picture()
    done = xeon.run("--apply", HOST_GOVERNOR="keep")
    assert done.returncode == 3
    assert "this container does not let it be changed" in done.stdout
    assert "cannot be read" in done.stdout
    assert xeon.read(f"{CPU}/smt/control") == "off", "what can be done is done"
    assert xeon.run("--restore").returncode == 0
    assert xeon.picture() == before


def test_what_a_second_one_cannot_set_is_still_taken_back(xeon):
    before = xeon.picture()
    assert xeon.run("--apply").returncode == 0
    # The files of this test take any word; a kernel does not: this one says madvise for ever.
    path = xeon.root / PAGES
    path.unlink()
    path.mkdir()
    assert xeon.run("--apply", HOST_THP="never").returncode in (0, 3)
    path.rmdir()
    path.write_text("madvise\n")
    assert xeon.run("--restore").returncode == 0
    assert xeon.picture() == before


@pytest.mark.parametrize(("words", "variables", "why"), [
    (["--applu"], {}, "'--applu' is none of its options"),
    (["--apply", "--restore"], {}, "is none of its options"),
    (["--apply"], {"HOST_TURBO": "no"}, "HOST_TURBO=no is none of off on keep"),
    (["--apply"], {"HOST_GOVERNOR": "../x"}, "is no governor"),
])  # fmt: skip
def test_wrong_usage(xeon, words, variables, why):
    before = xeon.picture()
    done = xeon.run(*words, **variables)
    assert done.returncode == 2
    assert why in done.stderr
    assert xeon.picture() == before


def test_a_governor_that_is_not_there(xeon):
    done = xeon.run("--apply", HOST_GOVERNOR="schedutil", HOST_SMT="keep", HOST_TURBO="keep", HOST_THP="keep")
    assert done.returncode == 3
    assert "schedutil is none of those here: performance powersave" in done.stdout


def test_it_restores_all_where_its_output_goes_to_a_full_disk(xeon):
    before = xeon.picture()
    xeon.run("--apply")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [SCRIPT, "--restore"], env={**os.environ, "HOST_ROOT": str(xeon.root)}, stdout=full, stderr=full
        )
    assert done.returncode == 0
    assert xeon.picture() == before
