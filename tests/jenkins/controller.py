"""A Jenkins in small: runs a Jenkinsfile with the Groovy harness, on agents that are folders.

The harness is Groovy (tests/jenkins/harness); this module writes its scenario and reads what came of a build.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GROOVY = shutil.which("groovy")


@dataclass
class Built:
    """What a build left."""

    folder: Path
    log: str
    result: str
    stages: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str | None] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    mails: list[dict[str, str]] = field(default_factory=list)
    published: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def artifacts(self) -> list[str]:
        top = self.folder / "archive"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())

    def archived(self, name: str) -> Path:
        return self.folder / "archive" / name

    def artifact(self, name: str) -> str:
        return self.archived(name).read_text()

    def ran(self, script: str) -> list[dict[str, Any]]:
        """The commands that have these words in them."""
        return [command for command in self.commands if script in command["script"]]

    def parts(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.published if entry["kind"] == kind]


class Controller:
    """One job with its agents. Builds follow one another, workspaces stay."""

    def __init__(self, root: Path, jenkinsfile: Path, scm: Path, agents: dict[str, list[str]]):
        self.root = root
        self.jenkinsfile = jenkinsfile
        self.scm = scm
        self.nodes = [{"name": name, "labels": labels} for name, labels in agents.items()]
        self.credentials: dict[str, dict[str, str]] = {}
        self.env: dict[str, str] = {}
        self.number = 0
        self.previous: str | None = None

    def workspace(self, agent: str) -> Path:
        return self.root / "agents" / agent / "workspace"

    def build(self, timeout: float = 900, env: dict[str, str] | None = None, **more: Any) -> Built:
        """Runs a build.

        more: params; clock (seconds that one of the pipeline's own takes); mail_refused; no_room_for (what
        archiveArtifacts cannot keep, by a part of its pattern); cause.
        """
        self.number += 1
        built = harness(
            self.root,
            {
                "jenkinsfile": str(self.jenkinsfile),
                "number": self.number,
                "scm": str(self.scm),
                "files": tracked(self.scm),
                "nodes": self.nodes,
                "credentials": self.credentials,
                "previous": self.previous,
                "env": {
                    "JOB_NAME": "perfdash",
                    "BUILD_NUMBER": str(self.number),
                    "BUILD_TAG": f"jenkins-perfdash-{self.number}",
                    "BUILD_URL": f"https://jenkins.example/job/perfdash/{self.number}/",
                    **self.env,
                    **(env or {}),
                },
                **more,
            },
            timeout,
        )
        self.previous = built.result
        return built


def check(scratch: Path, *jenkinsfiles: Path) -> list[list[str]]:
    """What is wrong with the syntax of each: `line N: what`."""
    scenario = {"check": [str(path) for path in jenkinsfiles], "number": 0}
    answer = run_groovy(scratch, scenario, 120)
    errors: list[list[str]] = answer["syntax"]
    return errors


def run_groovy(root: Path, scenario: dict[str, Any], timeout: float) -> dict[str, Any]:
    folder = root / "builds" / str(scenario["number"])
    folder.mkdir(parents=True, exist_ok=True)
    scenario_path, answer = folder / "scenario.json", folder / "answer.json"
    scenario_path.write_text(json.dumps({"root": str(root), **scenario}))
    assert GROOVY is not None, "no groovy here: ci/groovy.sh installs it"
    words = [
        GROOVY,
        "-cp",
        compiled(),
        str(HERE / "harness" / "main.groovy"),
        str(scenario_path),
        str(answer),
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=java(), cwd=root,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # it ends what its steps have started
            raise
    assert answer.exists(), out
    answer_json: dict[str, Any] = json.loads(answer.read_text())
    return answer_json


def harness(root: Path, scenario: dict[str, Any], timeout: float) -> Built:
    """A build. What the harness or the pipeline's own Groovy did not expect is an error of the test."""
    answer = run_groovy(root, scenario, timeout)
    folder = root / "builds" / str(scenario["number"])
    log = (folder / "log").read_text() if (folder / "log").exists() else ""
    assert not answer["syntax"], answer["syntax"]
    assert answer["unexpected"] is None, answer["unexpected"] + "\n" + log
    return Built(
        folder,
        log,
        answer["result"],
        {stage["name"]: stage["result"] for stage in answer["stages"]},
        {stage["name"]: stage["node"] for stage in answer["stages"]},
        answer["commands"],
        answer["mails"],
        answer["published"],
        answer["params"],
    )


@cache
def compiled() -> str:
    """The folder of the harness's classes, made once a session: compiling takes longer than most builds."""
    folder = tempfile.mkdtemp(prefix="perfdash-harness-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    files = sorted(str(path) for path in (HERE / "harness").glob("*.groovy") if path.name != "main.groovy")
    subprocess.run(["groovyc", "-d", folder, *files], check=True, env=java(), timeout=300)
    return folder


def java() -> dict[str, str]:
    """Debian's groovy looks for the default Java, which need not be the one that is there."""
    path = shutil.which("java")
    home = str(Path(path).resolve().parents[1]) if path else ""
    return {**os.environ, "JAVA_HOME": home, "JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def tracked(folder: Path) -> list[str]:
    """The files that a checkout would have: of a repository what git does not ignore, else all."""
    if not (folder / ".git").exists():
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    return [name for name in listed if name and (folder / name).is_file()]
