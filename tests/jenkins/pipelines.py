"""Runs Jenkinsfiles without a Jenkins: the harness in Groovy, what it is given, and what came of it.

A scenario of the harness is a dictionary: `jenkinsfile` or `text`; `params`; `env`; `credentials` (secrets
by id); `started`; `agents` (a name by label, None: never comes); `answers` to `sh`, the first that fits:
`script` (a regular expression), `cell`, `stage`, `times`, then `code`, `out`, `hangs`, `lost` (the agent),
`abort` (a person stops the build); `mail_refused`; `full` (what cannot be archived); `failures` (of JUnit).
Other scripts succeed. With `root` and `scm` they run for real, on agents that are folders.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PIPELINES = ("Jenkinsfile", "ci/Jenkinsfile.bisect", "ci/Jenkinsfile.compare")
STARTED = 1_700_000_000_000
"""When a build starts, in milliseconds since 1970, where a scenario does not say `started`."""


@dataclass
class Built:
    """What a build left."""

    result: str
    stages: dict[str, str]
    events: list[dict[str, Any]]
    log: str
    unexpected: str | None

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def ran(self, words: str = "") -> list[dict[str, Any]]:
        """The scripts that have these words in them."""
        return [event for event in self.of("sh") if words in event["script"]]

    def nodes(self, words: str) -> list[str]:
        return [event["node"] for event in self.ran(words)]

    def archived(self, words: str) -> bool:
        return any(words in event["pattern"] for event in self.of("archive"))


def run(scenarios: Mapping[str, dict[str, Any]], timeout: float = 300) -> dict[str, Built]:
    """Builds by their names, all in one Java."""
    env = {"JOB_NAME": "perfdash", "BUILD_NUMBER": "1", "BUILD_URL": "https://jenkins.example/1/"}
    base = {"env": env, "started": STARTED}
    answers = groovy([{**base, **scenario} for scenario in scenarios.values()], timeout)
    builds = {name: Built(**answer) for name, answer in zip(scenarios, answers, strict=True)}
    for name, built in builds.items():
        assert built.unexpected is None, f"{name}: {built.unexpected}\n{built.log}"
    return builds


def groovy(scenarios: Sequence[dict[str, Any]], timeout: float = 300) -> list[Any]:
    assert shutil.which("groovy"), "no groovy here: ci/groovy.sh installs it"
    with tempfile.TemporaryDirectory(prefix="perfdash-groovy-") as scratch:
        given, answer = Path(scratch, "scenarios.json"), Path(scratch, "answers.json")
        given.write_text(json.dumps(scenarios))
        words = ["groovy", "-cp", compiled(), str(HERE / "harness" / "main.groovy"), str(given), str(answer)]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=java(),
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, _ = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        assert answer.exists(), out
        answers: list[Any] = json.loads(answer.read_text())
    return answers


@cache
def compiled() -> str:
    """The folder of the harness's classes, made once a session."""
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
