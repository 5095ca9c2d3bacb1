"""ci/Jenkinsfile.compare and .bisect: what each failure leaves, and who gets the secrets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jenkins.nights import POST
from tests.jenkins.pipelines import ROOT, STARTED, Built, run

pytestmark = pytest.mark.slow
SECRETS = {"github": "ghp_not-a-real-one", "db": "postgresql://me:not-a-real-one@host/perf"}
MARK = "'\"$(touch ran)"
TEXTS = ("BASE", "CHANGE", "MODELS", "RUN_ARGUMENTS"), ("GOOD", "BAD", "MODEL", "BISECT_ARGUMENTS", "RESUME")


def job(name: str, *answers: dict[str, Any], **params: str) -> dict[str, Any]:
    credentials = {"GITHUB_CREDENTIAL": "github", **({"DB_CREDENTIAL": "db"} if name == "bisect" else {})}
    return {
        "jenkinsfile": str(ROOT / "ci" / f"Jenkinsfile.{name}"),
        "params": {**POST, **credentials, **params},
        "credentials": SECRETS,
        "agents": {"perfdash-cpu": "xeon"},
        "answers": list(answers),
    }


def fails(script: str, code: int = 3, **more: Any) -> dict[str, Any]:
    return {"script": script, "code": code, **more}


HANGS = {"hangs": True}
# What breaks; what the build then is, what is published, and whether it is still posted.
CASES: dict[str, tuple[dict[str, Any], str, list[str], bool]] = {
    "compare": (job("compare"), "SUCCESS", ["junit", "html"], True),
    "compare, set-up": (job("compare", fails("ci/nightly/setup.sh")), "FAILURE", [], False),
    "compare, measure": (job("compare", fails("ci/compare.sh measure")), "FAILURE", [], False),
    "compare, gate": (job("compare", fails("ci/compare.sh judge", 1)), "FAILURE", ["junit", "html"], True),
    "compare, post": (job("compare", fails("ci/compare.sh post")), "FAILURE", ["junit", "html"], True),
    "compare, hangs": (job("compare", fails("ci/compare.sh measure", **HANGS)), "ABORTED", [], False),
    "compare, restarted": (
        job("compare", fails("ci/compare.sh measure", -1, times=1)), "SUCCESS", ["junit", "html"], True
    ),
    "compare, not posted": (job("compare", POST="no"), "SUCCESS", ["junit", "html"], False),
    "compare, texts": (job("compare", **dict.fromkeys(TEXTS[0], MARK)), "SUCCESS", ["junit", "html"], True),
    "bisect": (job("bisect"), "SUCCESS", ["html"], True),
    "bisect, set-up": (job("bisect", fails("ci/nightly/setup.sh")), "FAILURE", [], False),
    "bisect, bisect": (job("bisect", fails("ci/bisect.sh")), "FAILURE", [], False),
    "bisect, post": (job("bisect", fails("ci/bisect.sh post")), "FAILURE", ["html"], True),
    "bisect, hangs": (job("bisect", fails("ci/bisect.sh", **HANGS)), "ABORTED", [], False),
    "bisect, restarted": (job("bisect", fails("ci/bisect.sh", -1, times=1)), "SUCCESS", ["html"], True),
    "bisect, not posted": (job("bisect", POST="no"), "SUCCESS", ["html"], False),
    "bisect, texts": (job("bisect", **dict.fromkeys(TEXTS[1], MARK)), "SUCCESS", ["html"], True),
}  # fmt: skip


@pytest.fixture(scope="module")
def builds() -> dict[str, Built]:
    return run({name: scenario for name, (scenario, *_) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_a_build(builds: dict[str, Built], name: str) -> None:
    _, result, shown, posts = CASES[name]
    built, job = builds[name], name.split(",")[0]
    assert built.result == result, built.log
    assert [event["kind"] for event in built.events if event["kind"] in ("junit", "html")] == shown
    assert bool(built.ran(f"{job}.sh post")) == posts
    if "set-up" not in name:
        assert built.archived(f"runs/nightly/{job}-1-{STARTED}/**")
    # One measurement at a time on a machine; nobody but the post gets the token.
    measured = [
        event for event in built.ran() if event["script"] in ("ci/compare.sh measure", "ci/bisect.sh")
    ]
    assert [event["locks"] for event in measured] == [["perfdash-xeon"]] * len(measured)
    if "restarted" in name:
        assert [event["code"] for event in measured] == [-1, 0]
    for event in built.ran():
        history = {"PERFDASH_DB"} if event["script"].startswith("ci/bisect.sh") else set()
        assert set(event["secrets"]) == history | ({"GITHUB_TOKEN"} if "post" in event["script"] else set())
        assert "touch" not in event["script"]
    assert not [secret for secret in SECRETS.values() if secret in built.log]
