"""Temporary folders end with their maker, or with the next run."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile

import pytest

from perfdash.errors import MachineError
from perfdash.files import TemporaryFolder, remove_abandoned_folders


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_removed_with_all_in_it(temporary):
    with TemporaryFolder() as path:
        os.makedirs(os.path.join(path, "inductor", "cache"))
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_is_swept_and_nothing_else(temporary):
    script = (
        "import os; from perfdash.files import TemporaryFolder; TemporaryFolder(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(temporary)})
    (temporary / "perfdash-scratch-being-made").mkdir()
    (temporary / "another").mkdir()
    assert len(list(temporary.iterdir())) == 3
    with TemporaryFolder() as mine:
        remove_abandoned_folders()
        left = {path.name for path in temporary.iterdir()}
    assert left == {"perfdash-scratch-being-made", "another", os.path.basename(mine)}


def test_one_that_is_just_being_made_is_not_swept(temporary, monkeypatch):
    """Between opening the file and locking it, the sweep of another process may come."""
    lock = fcntl.flock

    def swept_before(fd, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_abandoned_folders()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", swept_before)
    with TemporaryFolder() as path:
        assert os.path.isdir(path)
        remove_abandoned_folders()
        assert os.path.isdir(path), "it is held"
    assert not list(temporary.iterdir())


def test_what_was_removed_while_the_sweep_waited_is_left_alone(temporary, monkeypatch):
    """Its name may be another's by then."""
    scratch = TemporaryFolder()
    lock = fcntl.flock

    def removed_before(fd, how):
        scratch.remove()
        os.mkdir(scratch.path)  # another process has made one of this name
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    remove_abandoned_folders()
    assert os.path.isdir(scratch.path)


def test_a_file_system_without_locks_has_temporary_folders(temporary, monkeypatch):
    def no_locks(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with TemporaryFolder() as path:
        remove_abandoned_folders()
        assert os.path.isdir(path), "its process may be alive"
    assert not list(temporary.iterdir())


def test_no_room(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(MachineError, match=r"no temporary folder in /proc/nowhere: .*set TMPDIR"):
        TemporaryFolder()
