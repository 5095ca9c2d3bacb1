"""Build a commit: a worktree, or what the recipe's build installs from one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfdash.bisection.environments import KNOWN_NOT_TO_BUILD, Unbuildable, build_reuse, pip
from perfdash.bisection.environments.build_command import Commands
from perfdash.bisection.environments.build_holds import BuildHolds, Hold
from perfdash.bisection.environments.build_reuse import digest, lay_over
from perfdash.bisection.environments.cached_builder import GIB, CachedBuilder, packages_in, remove
from perfdash.bisection.environments.interpreter import Interpreter, origins, plain_environment, probe
from perfdash.bisection.environments.worktrees import Worktree
from perfdash.bisection.recipes import Recipe
from perfdash.bisection.sources import BuildContext, Revision
from perfdash.bisection.sources.git_repository import GitFailed, environment, find
from perfdash.child_environment import INDEXES
from perfdash.errors import MachineError

_GIB = 1 << 30
# The user's variables that change what compilers and build tools produce.
TOOL_VARIABLES = re.compile(
    r"(CC|CXX|CPP|FC|LD|AR|CUDACXX|CUDA_HOME|CUDA_PATH|TORCH_CUDA_ARCH_LIST|DEBUG|REL_WITH_DEB_INFO|BLAS|"
    r"(C|CXX|CPP|LD|F|FC|ARCH|RUST|CUDA|NVCC_(AP|PRE)PEND_)FLAGS|CPATH|LIBRARY_PATH|C(PLUS)?_INCLUDE_PATH|"
    r"(CMAKE|USE)_.*)"
)


def jobs(cores: tuple[int, ...], gib_per_job: float, builders: int = 1) -> int:
    """The parallel jobs of one build: its share of cores and memory, at least one."""
    count = len(cores) or len(os.sched_getaffinity(0))
    by_memory = available_bytes() / _GIB / gib_per_job
    return max(1, int(min(count, by_memory) / max(1, builders)))


def available_bytes() -> float:
    """The bytes of memory free for a build, within the limit of this control group."""
    free = float("inf")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = float(line.split()[1]) * 1024
        group = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().strip().rpartition("::/")[2])
        for folder in (group, *group.parents):
            limit = folder / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()).isdigit():
                free = min(free, int(text) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0.0, free)


def ccache(folder: Path) -> dict[str, str]:
    """The variables with which builds share a ccache. Empty if it is not installed."""
    if not shutil.which("ccache"):
        return {}
    return {
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CCACHE_BASEDIR": str(folder),
        "CCACHE_NOHASHDIR": "true",
    }


def toolchain() -> str:
    """The compilers of this machine and their variables, which decide a build's content."""
    variables = {key: value for key, value in sorted(os.environ.items()) if TOOL_VARIABLES.fullmatch(key)}
    variables.pop("CMAKE_BUILD_PARALLEL_LEVEL", None)
    versions = []
    for name in (os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++", "nvcc"):
        try:
            command = [*shlex.split(name), "--version"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
            versions.append(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            versions.append("")
    return json.dumps([variables, versions])


SOURCE, SITE = "source", "site"
_CHECK_OUT_S, _OVERLAY_S = 2.0, 3.0


class CommitsBuilder(CachedBuilder):
    """Builds the commits of one repository, in its own worktrees."""

    def __init__(
        self, recipe: Recipe, context: BuildContext, base: Interpreter, holds: BuildHolds | None
    ) -> None:
        super().__init__(recipe, context, base, holds, thing=toolchain() if recipe.build else "")
        self.repo = find(context.repo)
        self._lanes = f"{recipe.name}-{digest(self.family, str(self.repo))}"
        self._files: dict[str, dict[str, str]] = {}

    @property
    def time_limit_s(self) -> float | None:
        """The recipe's, for the check-out and the command together."""
        return self.recipe.build.time_limit_s if self.recipe.build else None

    @property
    def needed_bytes(self) -> float:
        """The recipe's, or that of a check-out."""
        return (self.recipe.build.disk_gib if self.recipe.build else 0.1) * GIB

    @property
    def usual_s(self) -> float:
        """The recipe's, or that of a check-out."""
        return self.recipe.build.cost_s if self.recipe.build else _CHECK_OUT_S

    def content(self, revision: Revision) -> str:
        """The files of the commit that its build depends on. Inside a pin, also the pinned commits."""
        inside = self.context.inside
        files = build_reuse.product_digest(
            self.recipe, self._entries(inside.outer if inside else revision.id)
        )
        if inside:
            fixed = [(path, commit) for path, commit, _ in inside.fixed]
            return json.dumps([files, fixed, inside.place, revision.id])
        return f"{files} {revision.id}" if self.recipe.exclusive else files

    def check_reused(self, revision: Revision, place: Path, record: dict[str, Any], hold: Hold) -> None:
        """Also restore a worktree that a measurement may have changed; ignored files stay."""
        super().check_reused(revision, place, record, hold)
        if self.recipe.exclusive and not self.recipe.build:
            commands = Commands(place / "build.log", (hold.fd,))
            worktree = Worktree(self.repo, place / SOURCE, commands)
            self._check_out(worktree, revision, clean=False)
            worktree.at_rest()

    def costs(self, revisions: Sequence[Revision], touched: Sequence[Sequence[str]] = ()) -> list[float]:
        """By the files that each changes: an equal build costs nothing, an overlay little."""
        full, overlay = self.usual("full", self.usual_s), self.usual("overlay", _OVERLAY_S)
        built = {record["revision"] for record in self.cache.all() if record.get("family") == self.family}
        failures = self.cache.failures()
        failed = {record["revision"] for record in failures if record.get("family") == self.family}
        if self.context.inside or not touched:
            touched = [("",)] * len(revisions)  # each may need a build
        groups = build_reuse.classes(self.recipe, touched)
        named = list(zip(groups, (revision.id for revision in revisions), strict=True))
        builds = {group[0] for group, name in named if name in built} if self.recipe.overlay else set()
        environments = {group[1] for group, name in named if name in built}
        hopeless = {group[1] for group, name in named if name in failed} - environments
        return [
            0.0 if environment in environments
            else KNOWN_NOT_TO_BUILD if environment in hopeless
            else overlay if build in builds
            else full
            for build, environment in groups
        ]  # fmt: skip

    def make(
        self,
        revision: Revision,
        place: Path,
        commands: Commands,
        fresh: bool,
        until_kept: contextlib.ExitStack,
    ) -> dict[str, Any]:
        """Use the worktree itself, an overlay over another build, or the recipe's command."""
        record: dict[str, Any] = {"kind": "full"}
        build = self.recipe.build
        if not build:
            self._in_place(revision, place, commands, fresh)
        elif not (self.recipe.overlay and not fresh and not self.context.inside):
            self._full(revision, place, commands, fresh)
        else:
            record = self._overlaid(revision, place, commands, until_kept)
        folder = SITE if build and not build.in_place else SOURCE
        record.update(folder=folder, pythonpath=self._pythonpath(place, folder))
        if self.recipe.pythonpath:
            if not any((place / folder).iterdir()):
                raise Unbuildable("the build has installed nothing into $PREFIX")
            self._check_layout(place / folder, place)
            self._compile(place / folder, commands)
        return record

    def _full(self, revision: Revision, place: Path, commands: Commands, fresh: bool) -> None:
        assert self.recipe.build
        if self.recipe.build.in_place:
            self._in_place(revision, place, commands, fresh)
            return
        (place / SITE).mkdir()
        if self.recipe.build.incremental and not fresh:
            with self.cache.lane(self._lanes) as (lane, hold), commands.also_locked(hold.fd):
                self._build_in(lane / SOURCE, revision, place, commands, clean=False)
        else:
            self._build_in(place / SOURCE, revision, place, commands, clean=True)
            remove(place / SOURCE)

    def _in_place(self, revision: Revision, place: Path, commands: Commands, fresh: bool) -> None:
        self._build_in(place / SOURCE, revision, place, commands, clean=fresh)

    def _build_in(self, tree: Path, revision: Revision, place: Path, commands: Commands, clean: bool) -> None:
        """Check out, set the pins, run the command."""
        worktree = Worktree(self.repo, tree, commands)
        self._check_out(worktree, revision, clean)
        if self.recipe.build:
            worktree.building()
            try:
                self._run(tree, revision, place, commands)
            except Unbuildable:
                if not pip.machine_fault(commands.text()):
                    worktree.at_rest()
                raise
        worktree.at_rest()

    def _check_out(self, worktree: Worktree, revision: Revision, clean: bool) -> None:
        """Check out a revision; inside a pin, the outer commit with the pins set."""
        inside = self.context.inside
        worktree.check_out(inside.outer if inside else revision.id, self.recipe.submodules, clean)
        if inside:
            for path, commit, clone in inside.fixed:
                worktree.place_pin(path, False, commit, clone)
            worktree.place_pin(inside.place, inside.pin.file is not None, revision.id, inside.repo)

    def _run(self, tree: Path, revision: Revision, place: Path, commands: Commands) -> None:
        build = self.recipe.build
        assert build
        how = ["-eu", str(self.recipe.script)] if build.script else ["-euc", build.command or ""]
        code = commands.run("sh", *how, cwd=tree, env=self._variables(tree, revision, place, commands.cores))
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise MachineError(
                f"the build of {revision.label} was killed (SIGKILL), as when memory runs out:\n"
                + commands.text()[-1000:]
            )
        if code:
            lines = [text for text in commands.text().splitlines() if text.strip()]
            raise Unbuildable(f"the build ended with exit code {code}: {lines[-1] if lines else ''}")

    def _variables(
        self, tree: Path, revision: Revision, place: Path, cores: tuple[int, ...]
    ) -> dict[str, str]:
        """The build's variables: the user's and the recipe's, with the base interpreter first on PATH."""
        assert self.recipe.build
        env = {key: value for key, value in plain_environment(INDEXES).items() if not key.startswith("GIT_")}
        env.pop("PYTHONPATH", None)
        env.update((key, value) for key, value in environment().items() if key.startswith("GIT_"))
        count = str(jobs(cores, self.recipe.build.gib_per_job, self.context.builders))
        env.update(ccache(tree))
        env.update(
            PATH=f"{self.context.python.parent}:{os.environ.get('PATH', os.defpath)}",
            PYTHON=str(self.context.python),
            PREFIX=str(place / SITE),
            SOURCE=str(tree),
            REVISION=revision.id,
            RECIPE=str(self.recipe.path.parent),
            MAX_JOBS=count,
            CMAKE_BUILD_PARALLEL_LEVEL=count,
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PIP_NO_INPUT="1",
            PIP_USER="0",
            PYTHONDONTWRITEBYTECODE="1",  # bytecode left in a worktree may match the next commit
        )
        return {**env, **self.recipe.build.env}

    def _compile(self, tree: Path, commands: Commands) -> None:
        """Compile bytecode now, so that all builds import equally fast."""
        quiet = ("-m", "compileall", "-q", "-q", "-x", r"[/\\]\.git[/\\]", tree)
        commands.run(self.context.python, *quiet, cwd=Path("/"), env=plain_environment())

    def _overlaid(
        self, revision: Revision, place: Path, commands: Commands, until_kept: contextlib.ExitStack
    ) -> dict[str, Any]:
        """Copy the changed files over a build that differs only in them. Else build in full."""
        files = self._entries(revision.id)
        compiled = digest(self.family, build_reuse.compiled_digest(self.recipe, files))
        until_kept.callback(self.cache.make(f"{compiled}.compiled", commands.stop).release)
        below = self.cache.compiled(compiled)
        if below:
            hold = self.cache.hold(below["key"], stop=commands.stop)
            until_kept.callback(hold.release)
            record = self.cache.finished(below["key"])
            with contextlib.suppress(Unbuildable):  # built from a commit that this clone lacks
                before = self._entries(below["revision"])
                changed = build_reuse.changes(self.recipe, before, files)
                if record and not build_reuse.new_tops(self.recipe, before, changed):
                    folder = record["folder"]
                    lay_over(
                        self.cache.place(below["key"]) / folder, place / folder, self.repo, files, changed
                    )
                    return {"kind": "overlay", "compiled_from": below["revision"]}
        self._full(revision, place, commands, fresh=False)
        self.cache.note_compiled(compiled, place.name, revision.id)
        return {"kind": "full"}

    def _pythonpath(self, place: Path, folder: str) -> list[str]:
        """The folders to import from, relative to `place`. `auto`: src/, the top, or both."""
        folders = self.recipe.pythonpath
        if folders != "auto":
            return [str(Path(folder, path)) for path in folders]
        top, nested = place / folder, place / folder / "src"
        is_one = (nested / "__init__.py").is_file()
        if folder == SITE or is_one or not (packages_in(nested) or any(nested.glob("*/*/__init__.py"))):
            return [folder]
        return [f"{folder}/src", *([folder] if packages_in(top) else [])]

    def _check_layout(self, top: Path, place: Path) -> None:
        """Check that `auto` has not missed packages that the base has too. Raises MachineError."""
        if self.recipe.pythonpath != "auto" or packages_in(top) or packages_in(top / "src"):
            return
        below = {file.parent.name: file.parent.parent.name for file in top.glob("*/*/__init__.py")}
        variables = {"PYTHONPATH": f"{top / 'src'}:{top}"}
        for name, origin in origins(self.base.python, sorted(below), variables).items():
            if Path(origin).is_absolute() and not Path(origin).resolve().is_relative_to(place.resolve()):
                raise MachineError(
                    f"{self.base.python} imports {name} from {origin}, not from the worktree, which has it "
                    f"in {below[name]}/: say so (--set 'pythonpath=[\"{below[name]}\"]')"
                )

    def _entries(self, commit: str) -> dict[str, str]:
        if commit not in self._files:
            if len(self._files) > 64:
                self._files.clear()
            try:
                self._files[commit] = build_reuse.entries(self.repo, commit)
            except GitFailed as error:
                raise Unbuildable(f"{self.repo} has not got {commit[:10]}: {error}") from error
        return self._files[commit]


def open_builder(recipe: Recipe, context: BuildContext, holds: BuildHolds | None) -> CommitsBuilder:
    """Raises UsageError for a missing base interpreter or repository."""
    return CommitsBuilder(recipe, context, probe(context.python), holds)
