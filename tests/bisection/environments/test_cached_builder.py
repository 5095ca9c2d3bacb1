"""The cache of builds: killed at any moment, two at once, pruned, full disk."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.bisection.environments import BuildStopped, Unbuildable, open_builder
from perfdash.bisection.environments import cached_builder as caching
from perfdash.bisection.environments.cached_builder import GIB, Cache, default_folder
from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, open_source
from perfdash.errors import MachineError
from tests.environments import sleeping
from tests.repositories import Repository

pytestmark = pytest.mark.slow

# Builds the first commit of a repository in a process of its own.
BUILD = """
import sys
from pathlib import Path
from perfdash.bisection.environments import open_builder
from perfdash.bisection.recipes import load_recipe
from perfdash.bisection.sources import BuildContext, open_source
recipe = load_recipe(sys.argv[1])
where = BuildContext(python=Path(sys.executable), repo=Path(sys.argv[2]), cache=Path(sys.argv[3]))
revision = open_source(recipe, where).revisions("main~1", "main")[0]
print("ready", flush=True)
with open_builder(recipe, where) as builder:
    print(builder.build(revision).reused, flush=True)
"""
# Writes many files, and waits after the one that count.hold names; a second one finds a half-made folder out.
SLOW = """
name = "slow"
kind = "commits"
[build]
incremental = {incremental}
command = '''
echo began >> "{count}"
mkdir "$PREFIX/lib"
for i in 1 2 3 4 5 6 7 8 9 10; do
  echo $i > "$PREFIX/lib/$i.txt"; sleep {pause}
  if [ "$(cat "{count}.hold" 2>/dev/null)" = $i ]; then sleep {held}; fi
done
cp code.py "$PREFIX/lib/__init__.py"
echo ended >> "{count}"
'''
"""
# Sleeps as long as the file `hold` says between the two halves of what it writes.
HALF = """
name = "half"
kind = "commits"
[build]
incremental = true
command = '''
[ -e made ] || {{ printf half > made; sleep $(cat {hold}); printf whole > made; }}
cp made $PREFIX
'''
"""


@pytest.fixture
def repo(tmp_path) -> Repository:
    made = Repository(tmp_path / "repo")
    made.commit("one", {"code.py": "n = 1"})
    made.commit("two", {"code.py": "n = 2"})
    return made


def slow(tmp_path, incremental="false", pause=0.05, held="600"):
    path = tmp_path / "slow.toml"
    path.write_text(SLOW.format(count=tmp_path / "count", incremental=incremental, pause=pause, held=held))
    return path


def start(tmp_path, recipe, repo):
    command = [sys.executable, "-c", BUILD, recipe, repo.folder, tmp_path / "cache"]
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )


def words(tmp_path):
    path = tmp_path / "count"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("incremental", ["false", "true"])
def test_killed_at_any_moment(tmp_path, repo, incremental):
    held = {"false": "611", "true": "612"}[incremental]  # both may run at once
    recipe = slow(tmp_path, incremental, pause=0, held=held)
    for number in (1, 4, 9):
        (tmp_path / "count.hold").write_text(str(number))
        process = start(tmp_path, recipe, repo)
        wait_for(lambda n=number: list((tmp_path / "cache").glob(f"built/*/site/lib/{n}.txt")))
        wait_for(lambda: sleeping(held))
        process.kill()
        process.communicate()
        wait_for(lambda: not sleeping(held))
    (tmp_path / "count.hold").unlink()
    assert "ended" not in words(tmp_path)
    process = start(tmp_path, recipe, repo)
    process.communicate()
    assert process.returncode == 0
    assert words(tmp_path) == ["began"] * 4 + ["ended"]
    (built,) = (tmp_path / "cache" / "built").iterdir()
    assert sorted(path.name for path in (built / "site" / "lib").glob("*.txt")) == (
        sorted(f"{n}.txt" for n in range(1, 11))
    )  # fmt: skip
    assert (built / "site" / "lib" / "__init__.py").read_text() == "n = 1"
    assert start(tmp_path, recipe, repo).communicate()[0].split() == ["ready", "True"]


def test_a_lane_is_mended(tmp_path, repo):
    """As git leaves it when it is killed: locked, and with half a commit checked out."""
    recipe = load_recipe(str(slow(tmp_path, "true", pause=0)))
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    first, second = open_source(recipe, where).revisions("main~1", "main")
    with open_builder(recipe, where) as builder:
        builder.build(first)
        (lane,) = (tmp_path / "cache" / "lanes").iterdir()
        for name in ("index.lock", "HEAD.lock", "perfdash-busy"):
            (lane / "source" / ".git" / name).touch()
        (lane / "source" / "code.py").write_text("half")
        (lane / "source" / "stray.py").touch()
        assert (builder.build(second).folder / "lib" / "__init__.py").read_text() == "n = 2"
        assert not (lane / "source" / "stray.py").exists()


def test_what_a_killed_build_has_half_written_in_a_lane(tmp_path, repo):
    """As make, which takes a file that is there, and newer than its source, for whole."""
    hold = tmp_path / "hold"
    (tmp_path / "half.toml").write_text(HALF.format(hold=hold))
    recipe = load_recipe(str(tmp_path / "half.toml"))
    repo.commit("ignores", {".gitignore": "made\n"})
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    first, second = open_source(recipe, where).revisions("main~1", "main")
    with open_builder(recipe, where) as builder:
        stop = threading.Event()
        threading.Thread(
            target=lambda: (wait_for(lambda: list((tmp_path / "cache").glob("lanes/*/*/made"))), stop.set())
        ).start()
        hold.write_text("600")
        with pytest.raises(BuildStopped):
            builder.build(second, stop=stop)
        hold.write_text("0")
        assert (builder.build(first).folder / "made").read_text() == "whole"
        (lane,) = (tmp_path / "cache" / "lanes").iterdir()
        (lane / "source" / "made").write_text("kept")
        assert (builder.build(second).folder / "made").read_text() == "kept"


@pytest.mark.parametrize("fails", ["false", "sleep 600", "echo No space left on device; false"])
def test_no_file_of_a_failed_build_holds_a_password(tmp_path, repo, monkeypatch, fails):
    monkeypatch.setenv("PIP_INDEX_URL", "https://ann:s3cretpw@index.example/simple")
    (tmp_path / "fails.toml").write_text(
        f'name = "fails"\nkind = "commits"\n[build]\ncommand = \'echo "$PIP_INDEX_URL"; {fails}\'\n'
        "time_limit_s = 2\n"
    )
    recipe = load_recipe(str(tmp_path / "fails.toml"))
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    revision = open_source(recipe, where).revisions("main~1", "main")[0]
    with open_builder(recipe, where) as builder, pytest.raises((Unbuildable, MachineError)):
        builder.build(revision)
    logs = [path.read_text() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert any("index.example" in text for text in logs)
    assert not any("s3cretpw" in text for text in logs)


def test_what_a_killed_one_has_started_is_ended(tmp_path, repo):
    recipe = slow(tmp_path, pause=63.5)
    process = start(tmp_path, recipe, repo)
    wait_for(lambda: "began" in words(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not sleeping("63.5"))


def test_two_processes_build_once(tmp_path, repo):
    recipe = slow(tmp_path)
    both = [start(tmp_path, recipe, repo) for _ in range(2)]
    outputs = sorted(process.communicate()[0].split()[1] for process in both)
    assert outputs == ["False", "True"]
    assert words(tmp_path) == ["began", "ended"]


def test_two_threads_build_side_by_side_in_two_lanes(tmp_path, repo):
    recipe = load_recipe(str(slow(tmp_path, "true")))
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    revisions = open_source(recipe, where).revisions("main~1", "main")
    built = {}
    with open_builder(recipe, where) as builder:
        threads = [
            threading.Thread(target=lambda n=n: built.update({n: builder.build(revisions[n % 2])}))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(built[n].folder / "lib" / "__init__.py").read_text() for n in range(4)] == ["n = 1", "n = 2"] * 2
    assert words(tmp_path).count("ended") == 2
    assert len(list((tmp_path / "cache" / "lanes").iterdir())) == 2


def fill(cache, key, kib, used):
    place = cache.place(key)
    place.mkdir()
    (place / "data").write_bytes(os.urandom(kib << 10))
    cache.finish(key, {"recipe": "r", "revision": key})
    os.utime(place / "build.json", (used, used))


def there(cache):
    return sorted(path.name for path in (cache.folder / "built").iterdir())


def test_pruned_oldest_use_first_never_one_in_use(tmp_path):
    cache = Cache(tmp_path)
    for number, key in enumerate("abcde"):
        fill(cache, key, 100, 1000 + number)
    hold = cache.hold("b")
    assert cache.finished("a")["revision"] == "a"  # used now
    cache.prune(320 << 10)
    assert there(cache) == ["a", "b", "e"]
    hold.release()
    cache.prune(0)
    assert there(cache) == []


def test_what_killed_builds_have_left_is_pruned_and_what_is_being_built_is_not(tmp_path):
    cache = Cache(tmp_path)
    for key in ("left", "making"):
        cache.place(key).mkdir()
    making = cache.make("making")
    fill(cache, "done", 1, 1000)
    cache.prune(GIB)
    assert there(cache) == ["done", "making"]
    making.release()


def test_lanes_count_and_are_pruned(tmp_path):
    cache = Cache(tmp_path)
    with cache.lane("f") as (place, _):
        (place / "data").write_bytes(b"x" * (200 << 10))
        cache.prune(0)
        assert place.exists()
        with cache.lane("f") as (other, _):
            assert other != place
    with cache.lane("f") as (again, _):
        assert again == place
    cache.prune(0)
    assert not list((tmp_path / "lanes").iterdir())


def test_read_only_files_are_removed(tmp_path):
    cache = Cache(tmp_path)
    fill(cache, "a", 1, 1000)
    deep = cache.place("a") / "deep"
    deep.mkdir()
    (deep / "file").touch()
    deep.chmod(0o500)
    cache.prune(0)
    assert there(cache) == []


def test_no_space_is_reported_before_the_build(tmp_path, repo, monkeypatch):
    recipe = load_recipe(str(slow(tmp_path))).with_settings({"build.disk_gib": 3})
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    revisions = open_source(recipe, where).revisions("main~1", "main")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(caching.shutil, "disk_usage", lambda path: usage(100 * GIB, 98 * GIB, 2 * GIB))
    with open_builder(recipe, where) as builder:
        with pytest.raises(MachineError, match=r"no space .*: 3.0 GiB are needed .*, 2.0 are free"):
            builder.build(revisions[0])
        assert words(tmp_path) == []
        assert not builder.known(revisions[0])


def test_room_is_made_by_pruning(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    for number, key in enumerate("abc"):
        fill(cache, key, 1024, 1000 + number)
    usage = namedtuple("usage", "total used free")

    def disk(path):
        return usage(GIB, GIB, (1 << 20) * (4 - len(there(cache))))

    monkeypatch.setattr(caching.shutil, "disk_usage", disk)
    cache.make_room(2.5 * (1 << 20), "it")
    assert there(cache) == ["c"]


def test_what_is_needed_is_learned(tmp_path, repo, monkeypatch):
    recipe = load_recipe(str(slow(tmp_path, pause=0)))
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    first, second = open_source(recipe, where).revisions("main~1", "main")
    with open_builder(recipe, where) as builder:
        builder.build(first)
        rooms = []
        monkeypatch.setattr(Cache, "make_room", lambda self, needed, purpose: rooms.append(needed))
        builder.build(second)
    assert 16 << 20 < rooms[0] < 20 << 20


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="PERFDASH_BUILD_CACHE"):
        Cache(tmp_path / "file" / "cache")


def no_locks(fd, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(MachineError, match=r"can be locked \(No locks available\); .*PERFDASH_BUILD_CACHE"):
        Cache(tmp_path)


def test_what_another_user_built_in_the_folder_does_not_make_it_refused(tmp_path, monkeypatch):
    """As root, who called perfdash once by sudo: his files may not be opened."""
    with monkeypatch.context() as root:
        root.setattr(os, "getuid", lambda: 0)
        Cache(tmp_path)
    theirs, opened = set((tmp_path / "locks").iterdir()), os.open

    def forbidden(path, *arguments, **options):
        if path in theirs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "open", forbidden)
    assert theirs
    Cache(tmp_path).make("a").release()


@pytest.mark.timeout(60)
def test_locks_that_fail_are_not_waited_for(tmp_path, monkeypatch):
    """The server of a network file system is gone, and no process has the lock."""
    cache = Cache(tmp_path)
    fill(cache, "a", 1, 1000)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    for take in (
        lambda: cache.hold("a", threading.Event()),
        lambda: cache.hold_alone("a"),
        lambda: cache.make("a"),
        lambda: cache.lane("a").__enter__(),
        lambda: cache.prune(0),
    ):
        with pytest.raises(OSError, match="No locks available"):
            take()
    assert there(cache) == ["a"]


def test_where_it_lies(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("PERFDASH_BUILD_CACHE", raising=False)
    assert default_folder() == Path("/x/perfdash/builds")
    monkeypatch.setenv("PERFDASH_BUILD_CACHE", "/own")
    assert default_folder() == Path("/own")


def test_torn_files_are_as_if_not_there(tmp_path, repo):
    recipe = load_recipe(str(slow(tmp_path, pause=0)))
    where = BuildContext(python=Path(sys.executable), repo=repo.folder, cache=tmp_path / "cache")
    first = open_source(recipe, where).revisions("main~1", "main")[0]
    with open_builder(recipe, where) as builder:
        built = builder.build(first)
    for file in (built.folder.parent / "build.json", *(tmp_path / "cache" / "seconds").iterdir()):
        file.write_text('{"half')
    with open_builder(recipe, where) as builder:
        assert builder.costs([first]) == [60.0]
        assert not builder.build(first).reused
    shutil.rmtree(tmp_path / "cache")
    with open_builder(recipe, replace(where)) as builder:
        assert not builder.build(first).reused


def wait_for(condition, patience_s=400):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
