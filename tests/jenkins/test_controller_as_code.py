"""ci/jenkins/: what it names is there, secrets are files only, and nothing but loopback is open.

No controller is started: the shapes are those of the documentation of JCasC, job-dsl and compose.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdash.runner.night_cells import cells_of
from tests.jenkins.nights import DEFAULTS, SET_BY_THE_PIPELINE
from tests.jenkins.pipelines import PIPELINES, ROOT, groovy

HERE = ROOT / "ci" / "jenkins"
# The plugin of each step, option and trigger; what Jenkins' core and the pipeline itself have is left out.
PLUGIN_OF = {
    "archiveArtifacts": "workflow-aggregator", "catchError": "workflow-aggregator",
    "echo": "workflow-aggregator", "error": "workflow-aggregator", "node": "workflow-aggregator",
    "parallel": "workflow-aggregator",
    "retry": "workflow-aggregator", "sh": "workflow-aggregator", "stash": "workflow-aggregator",
    "timeout": "workflow-aggregator", "unstable": "workflow-aggregator", "unstash": "workflow-aggregator",
    "withEnv": "workflow-aggregator", "checkout": "git", "withCredentials": "credentials-binding",
    "lock": "lockable-resources", "timestamps": "timestamper", "junit": "junit",
    "publishHTML": "htmlpublisher", "plot": "plot", "mail": "mailer",
}  # fmt: skip
AS_CODE = {"configuration-as-code", "job-dsl"}
VARIABLE = re.compile(r"\$\{(\w+)((?::[-?])[^}]*)?\}")


def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((HERE / "jenkins.yaml").read_text())
    return loaded


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((HERE / "compose.yaml").read_text())
    return loaded


def plugins() -> set[str]:
    lines = (HERE / "plugins.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def values(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every plain value of a tree with its path."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in values(value, f"{path}.{key}")]
    if isinstance(tree, list):
        return [pair for value in tree for pair in values(value, path)]
    return [(path, tree)]


def steps_of(pipeline: str) -> set[str]:
    grammar = (
        (ROOT / "tests/jenkins/harness/Syntax.groovy").read_text().split("STEPS = [")[1].split("\n    ]")[0]
    )
    known = ["timestamps", *re.findall(r"(?<![\w'])(\w+): '", grammar)]
    text = re.sub(r"//.*|'[^'\n]*'", "", (ROOT / pipeline).read_text())
    return {name for name in known if re.search(rf"(?<![\w.']){name}(\(| |\s*\{{)", text)}


def test_the_plugins_are_those_that_the_pipelines_use() -> None:
    used = {step for pipeline in PIPELINES for step in steps_of(pipeline)}
    no_plugin = {"agent", "nonresumable", "script", "string"}  # conditions, blocks, arguments of other steps
    assert used - no_plugin <= set(PLUGIN_OF), used - no_plugin - set(PLUGIN_OF)
    assert {"parallel", "retry", "plot", "lock"} <= used  # they are found
    assert plugins() == {PLUGIN_OF[step] for step in used - no_plugin} | AS_CODE


def test_the_documentation_lists_the_same_plugins() -> None:
    table = (ROOT / "docs/jenkins.md").read_text().split("## Agents")[0]
    listed = set(re.findall(r"\(`([a-z-]+)`\)", table))
    assert listed == plugins() - AS_CODE


def test_the_configuration_has_what_the_plugin_knows() -> None:
    loaded = config()
    assert set(loaded) == {"jenkins", "credentials", "unclassified", "jobs"}
    assert set(loaded["jenkins"]) == {
        "systemMessage", "numExecutors", "mode", "slaveAgentPort", "securityRealm", "authorizationStrategy",
        "nodes",
    }  # fmt: skip
    assert loaded["jenkins"]["numExecutors"] == 0
    assert not loaded["jenkins"]["securityRealm"]["local"]["allowsSignup"]
    assert loaded["jenkins"]["authorizationStrategy"] == {
        "loggedInUsersCanDoAnything": {"allowAnonymousRead": False}
    }
    (node,) = loaded["jenkins"]["nodes"]
    assert set(node["permanent"]) == {"name", "labelString", "mode", "numExecutors", "remoteFS", "launcher"}
    assert node["permanent"]["numExecutors"] == 1
    # The labels are those that the pipelines ask for.
    text = "".join((ROOT / pipeline).read_text() for pipeline in PIPELINES)
    (measured,) = {cell["LABEL"] for cell in cells_of("measure", {**DEFAULTS, **SET_BY_THE_PIPELINE}, {})}
    assert set(node["permanent"]["labelString"].split()) == {measured, "perfdash-report"}
    assert "label 'perfdash-report'" in text
    provided, file = loaded["jobs"]
    assert set(provided) == {"providedEnv"}
    folder = re.search(r"COPY jenkins.yaml jobs.groovy (\S+)/\n", (HERE / "Containerfile").read_text())
    assert folder
    assert file == {"file": f"{folder[1]}/jobs.groovy"}


def test_secrets_are_files_and_nothing_else() -> None:
    secrets = set(compose()["secrets"])
    named = [(path, value) for path, value in values(config()) if re.search(r"\.(secret|password)$", path)]
    assert len(named) == 5
    assert {value for _, value in named} == {f"${{{name}}}" for name in secrets}
    assert set(compose()["services"]["controller"]["secrets"]) == secrets
    for name, secret in compose()["secrets"].items():
        assert re.fullmatch(rf"\$\{{PERFDASH_SECRETS:\?[^}}]+\}}/{name}", secret["file"])
    # Each credential says which parameter takes its id.
    parameters = {
        name for pipeline in PIPELINES for name in re.findall(r"name: '(\w+)'", (ROOT / pipeline).read_text())
    }
    for entry in config()["credentials"]["system"]["domainCredentials"][0]["credentials"]:
        assert set(entry) == {"string"}
        assert entry["string"]["description"].split(":")[0] in parameters


def test_each_variable_of_the_configuration_reaches_the_container() -> None:
    service = compose()["services"]["controller"]
    for path, value in values(config()):
        for name, default in VARIABLE.findall(str(value)):
            assert name in service["secrets"] or name in service["environment"], path
            # Without a default it must be given, or JCasC takes it for empty.
            assert default or name in service["secrets"] or ":?" in service["environment"][name], path


def test_compose_keeps_to_its_rules_and_to_loopback() -> None:
    loaded = compose()
    assert set(loaded) == {"name", "services", "secrets", "volumes"}
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", loaded["name"])
    (service,) = loaded["services"].values()
    assert set(service) <= {
        "build", "image", "init", "restart", "ports", "environment", "secrets", "volumes",
    }  # fmt: skip
    assert service["restart"] in ("no", "always", "on-failure", "unless-stopped")
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{JENKINS_PORT:-8080\}:8080", port) for port in service["ports"])
    assert (HERE / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for volume in service["volumes"]:
        name, target = volume.split(":")
        assert name in loaded["volumes"]
        assert target == "/var/jenkins_home"
    # Interpolation as compose knows it, and nothing that looks like it.
    for _, value in values(loaded):
        assert "$" not in VARIABLE.sub("", str(value)), value


def test_the_container_copies_what_is_there() -> None:
    lines = [line for line in (HERE / "Containerfile").read_text().splitlines() if line and line[0] != "#"]
    assert [line.split()[0] for line in lines] == ["ARG", "FROM", "COPY", "RUN", "COPY", "ENV", "ENV"]
    for line in lines:
        if line.startswith("COPY"):
            assert all((HERE / name).is_file() for name in line.split()[1:-1]), line
    config_path = next(line for line in lines if "CASC_JENKINS_CONFIG" in line).split("=")[1]
    assert Path(config_path).name == "jenkins.yaml"


@pytest.mark.slow
def test_the_jobs_are_made_of_pipelines_that_are_there() -> None:
    variables = {"REPOSITORY": "ssh://git/perfdash", "BRANCH": "main"}
    assert set(config()["jobs"][0]["providedEnv"]) == set(variables)
    (jobs,) = groovy([{"jobs": str(HERE / "jobs.groovy"), "variables": variables}])
    assert set(jobs) == {"perfdash-nightly", "perfdash-bisect", "perfdash-compare"}
    for job in jobs.values():
        (path,) = job["definition"]["cpsScm"]["scriptPath"]
        assert (ROOT / path).is_file()
        assert path in job.pop("description")[0]
        git = {"remote": {"url": ["ssh://git/perfdash"]}, "branch": ["main"]}
        assert job == {
            "definition": {"cpsScm": {"scm": {"git": git}, "scriptPath": [path], "lightweight": ["true"]}}
        }
    assert {job["definition"]["cpsScm"]["scriptPath"][0] for job in jobs.values()} == set(PIPELINES)


def start(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """start.sh with a docker that only writes down how it was called."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    docker.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    docker.chmod(0o755)
    env = {"PATH": f"{docker.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), **more}
    return subprocess.run(
        [HERE / "start.sh", *words], env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_one_command_starts_it_and_its_password_is_made_once(tmp_path: Path) -> None:
    done = start(tmp_path, PERFDASH_REPOSITORY="ssh://git/perfdash", JENKINS_PORT="9090")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ".config" / "perfdash" / "jenkins"
    password = (folder / "admin_password").read_text()
    assert len(password) == 32
    assert password not in done.stdout + done.stderr
    assert "http://127.0.0.1:9090/" in done.stdout
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == set(compose()["secrets"])
    assert (tmp_path / "calls").read_text().splitlines() == [
        "compose version", "compose -f compose.yaml up --build --detach",
    ]  # fmt: skip
    # An @ in the path behind a port is no password.
    assert start(tmp_path, "down", PERFDASH_REPOSITORY="ssh://git:2222/us@work/perfdash").returncode == 0
    assert (folder / "admin_password").read_text() == password


@pytest.mark.parametrize(("address", "why"), [("", "give the address"), ("https://me:pw@host/x", "password")])
def test_a_wrong_address_starts_nothing(tmp_path: Path, address: str, why: str) -> None:
    done = start(tmp_path, PERFDASH_REPOSITORY=address)
    assert done.returncode == 2
    assert why in done.stderr
    assert "pw" not in done.stderr
    assert not (tmp_path / "calls").exists()
