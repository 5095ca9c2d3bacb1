"""The files of both versions, as the kernel lays them out; the real thing is in test_launcher."""

import pytest

from perfdash.runner import worker_limits
from perfdash.runner.worker_limits import MemoryGroup


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A root in which a new group has the kernel's files, and says what /proc/self/cgroup says."""

    def make(lines, folder, files, control=None):
        own = tmp_path / folder
        own.mkdir(parents=True)
        proc = tmp_path / "proc-self-cgroup"
        proc.write_text(lines)
        if control is not None:
            (own / "cgroup.subtree_control").write_text(control)
        plain = worker_limits.Path.mkdir

        def mkdir(path, *arguments, **options):
            plain(path, *arguments, **options)
            if path.name.startswith("perfdash-"):
                for name, text in files.items():
                    (path / name).write_text(text)

        monkeypatch.setattr(worker_limits.Path, "mkdir", mkdir)
        read = worker_limits.Path.read_text
        monkeypatch.setattr(
            worker_limits.Path,
            "read_text",
            lambda path, *a: read(proc if str(path) == "/proc/self/cgroup" else path, *a),
        )
        return tmp_path

    return make


def test_version_2_below_the_parent(kernel):
    files = {"cgroup.procs": "", "memory.max": "max", "memory.events": "oom 0\noom_kill 0\n"}
    root = kernel("0::/user.slice/app.slice/run.scope\n", "user.slice/app.slice/run.scope", files)
    (root / "user.slice/app.slice/cgroup.subtree_control").write_text("memory pids\n")
    group = MemoryGroup.create(123456, root)
    assert group.folder.parent == root / "user.slice/app.slice"
    assert (group.folder / "memory.max").read_text() == "123456"
    assert (group.folder / "memory.swap.max").read_text() == "0"
    assert group.oom_kills() == 0
    (group.folder / "memory.events").write_text("oom 2\noom_kill 1\noom_group_kill 1\n")
    assert group.oom_kills() == 1


def test_version_2_without_memory_given_to_us(kernel):
    root = kernel("0::/run.scope\n", "run.scope", {}, control="pids\n")
    assert MemoryGroup.create(1, root) is None


def test_version_1(kernel):
    files = {
        "cgroup.procs": "",
        "memory.limit_in_bytes": "",
        "memory.oom_control": "under_oom 0\noom_kill 0\n",
    }
    root = kernel("4:memory:/job\n3:cpu:/\n0::/\n", "memory/job", files)
    group = MemoryGroup.create(123456, root)
    assert group.folder.parent == root / "memory/job"
    assert (group.folder / "memory.limit_in_bytes").read_text() == "123456"
    assert group.oom_kills() == 0


def test_what_killed_runs_have_left_is_swept_up(kernel):
    files = {"cgroup.procs": "", "memory.limit_in_bytes": "", "memory.oom_control": "oom_kill 0\n"}
    root = kernel("4:memory:/job\n", "memory/job", files)
    left = root / "memory/job/perfdash-999999999-0"
    plain = left.parent / "other"
    for folder in (left, plain):
        worker_limits.os.mkdir(folder)
    MemoryGroup.create(1, root)
    assert not left.exists()
    assert plain.exists()
