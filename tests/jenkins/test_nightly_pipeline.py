"""The nightly's Jenkinsfile: what runs where with which secrets, and what each failure leaves.

Scripts are answers of a table here; the real ones run in test_real.py and tests/ci.
"""

from __future__ import annotations

import pytest

from tests.jenkins.nights import NIGHT, POST, XEON, night, script
from tests.jenkins.pipelines import Built, run

pytestmark = pytest.mark.slow
CELLS = ("timm-cpu-float32-1", "huggingface-cpu-float32-1")
BISECT = {**POST, "BISECT": "yes"}
SECRETS = {kind: f"{kind}-not-a-real-one" for kind in ("GITHUB", "DB", "SMTP", "WEBHOOK")}
CREDENTIALS = {f"{kind}_CREDENTIAL": kind for kind in SECRETS}
MARK = "'\"$(touch ran)"
TEXTS = (
    "TORCH", "TORCH_INDEX", "TORCH_REPO", "UNDER_TEST", "MODELS", "RUN_ARGUMENTS", "BASE_RUNS", "BASELINE",
    "FAIL_ON", "LINE", "REPO", "ISSUE", "BISECT_REPO", "SITE_URL", "DB", "MAIL_TO", "SMTP", "SMTP_USER",
)  # fmt: skip
STAGES = ("setup", "gather", "merge", "detect", "report", "post", "publish", "trend", "end")
CELL = {"script": "ci/nightly/cell.sh"}
TIMM = {**CELL, "cell": CELLS[0]}
CONFIRM = {**CELL, "stage": "Confirm / cpu"}

SCENARIOS = {
    "whole": night(params={**BISECT, **CREDENTIALS, "SUITES": "timm, mine.toml"}, credentials=SECRETS),
    "told once": night(params=POST),
    "not posted": night(params={"BISECT": "yes"}),
    "two kinds": night(
        params={"SUITES": "timm mine.toml", "DEVICES": "cpu,cuda", "DTYPES": "amp", "SHARDS": "2",
                "BISECT": "yes"}
    ),
    "texts": night(params={**BISECT, **dict.fromkeys(TEXTS, MARK)}),
    "wrong": night(script("check", code=2)),
    "no list": night(script("cells", code=3)),
    "cell fails": night({**TIMM, "code": 3}),
    "cell not set up": night({"script": "ci/nightly/cell.sh prepare", "cell": CELLS[0], "code": 3}),
    "cell hangs": night({**TIMM, "hangs": True}, params=POST),
    "cell not kept": night(full="cells/timm"),
    "gate": night(script("report", code=1), params=POST, failures=1),
    "gate of a cell": night({**TIMM, "code": 1}, params=POST),
    **{f"no {name}": night(params={**POST, name: "none such"}) for name in CREDENTIALS},
    "mail refused": night({"script": "ci/nightly/end.sh tell", "code": 3}, mail_refused=True),
    "confirm fails": night({**CONFIRM, "code": 3}, params=POST),
    "confirm hangs": night({**CONFIRM, "hangs": True}, params=POST),
    "confirm has no agent": night(params=POST, agents={**XEON, "xeon": None}),
    "bisection hangs": night({**CELL, "stage": "Find out / cpu", "hangs": True}, params=BISECT),
    "removed": night({**TIMM, "lost": True, "times": 1}, params=POST),
    "removed twice": night({**TIMM, "lost": True, "times": 2}, params=POST),
    "restarted": night({**TIMM, "code": -1, "times": 1}, params=POST),
    "restarted twice": night({**TIMM, "code": -1, "times": 2}, params=POST),
    "confirm removed": night({**CONFIRM, "lost": True, "times": 1}, params=POST),
    "stopped": night({**TIMM, "abort": True}, params=POST),
    "stopped in confirm": night({**CONFIRM, "abort": True}, params=POST),
    "over": night(script("setup", hangs=True), params=POST),
    **{f"{stage} breaks": night(script(stage, code=7), params=POST) for stage in STAGES},
}  # fmt: skip


@pytest.fixture(scope="module")
def builds() -> dict[str, Built]:
    return run(SCENARIOS)


def told(built: Built) -> str:
    """With which result the last stage ended the night."""
    results = {event["env"]["RESULT"] for event in built.ran("/end.sh")}
    assert len(results) == 1, results
    return str(results.pop())


def kept(built: Built) -> list[str]:
    """The cells that were archived and came to the report agent."""
    there = {event["name"] for event in built.of("unstash")}
    return [cell for cell in CELLS if built.archived(f"{NIGHT}/cells/{cell}/**") and f"cell-{cell}" in there]


def test_a_night_as_it_should_be(builds: dict[str, Built]) -> None:
    built = builds["whole"]
    assert built.result == "SUCCESS", built.log
    assert set(built.stages.values()) == {"SUCCESS"}
    assert [(event["script"], event["node"]) for event in built.ran()] == [
        ("ci/nightly/check.sh", "desk"), ("ci/nightly/setup.sh", "desk"), ("ci/nightly/pin.sh", "desk"),
        ("ci/nightly/cells.sh measure", "desk"),
        *[("ci/nightly/cell.sh prepare", "xeon"), ("ci/nightly/cell.sh", "xeon")] * 2,
        ('ci/nightly/gather.sh "$NIGHT"', "desk"), ("ci/nightly/merge.sh", "desk"),
        ("ci/nightly/detect.sh", "desk"),
        ("ci/nightly/cells.sh confirm", "desk"),
        ("ci/nightly/cell.sh prepare", "xeon"), ("ci/nightly/cell.sh", "xeon"),
        ("ci/nightly/report.sh", "desk"), ("ci/nightly/cells.sh bisect", "desk"),
        ("ci/nightly/post.sh", "desk"),
        ("ci/nightly/cell.sh prepare", "xeon"), ("ci/nightly/cell.sh", "xeon"),
        ("ci/nightly/report.sh", "desk"), ("ci/nightly/post.sh", "desk"), ("ci/nightly/publish.sh", "desk"),
        ("ci/nightly/trend.sh", "desk"), ("ci/nightly/end.sh", "desk"), ("ci/nightly/end.sh tell", "desk"),
    ]  # fmt: skip
    assert [event["env"].get("STAGE") for event in built.ran("cell.sh")][::2] == [
        "measure", "measure", "confirm", "bisect",
    ]  # fmt: skip
    # The machine is locked while it measures, and only then.
    assert {tuple(event["locks"]) for event in built.ran("cell.sh prepare")} == {()}
    assert [event["locks"] for event in built.ran("cell.sh") if "prepare" not in event["script"]] == [
        ["perfdash-xeon"]
    ] * 4
    # What the report agent has goes to the agents and back.
    stashed = [(event["kind"], event["name"]) for event in built.events if "stash" in event["kind"]]
    cells = ["cell-timm-cpu-float32-1", "cell-own-cpu-float32-1"]
    assert stashed == [
        *(("stash", name) for name in cells), *(("unstash", name) for name in cells),
        ("stash", "night"), ("unstash", "night"), ("stash", "confirm-cpu"),
        ("unstash", "night"), ("unstash", "confirm-cpu"),
        ("stash", "night"), ("unstash", "night"), ("stash", "bisect-cpu"),
        ("unstash", "night"), ("unstash", "bisect-cpu"),
    ]  # fmt: skip
    shown = [event for event in built.events if event["kind"] in ("junit", "html", "plot")]
    assert [(event["kind"], event["pattern"]) for event in shown] == [
        ("junit", f"{NIGHT}/junit*.xml"), ("html", f"{NIGHT}/night*.html"), ("html", "site/index.html"),
        *(("plot", f"{NIGHT}/trend/{name}.csv") for name in (
            "speedup_geometric_mean", "pass_rate_percent", "compilation_seconds_mean",
            "compression_ratio_geometric_mean")),
    ]  # fmt: skip
    assert told(built) == "SUCCESS"
    assert not built.of("mail")


def test_secrets_reach_the_scripts_that_use_them_and_nobody_else(builds: dict[str, Built]) -> None:
    built = builds["whole"]
    gets: dict[str, set[str]] = {}
    for event in built.ran():
        name = event["script"].split()[0].rpartition("/")[2]
        key = "tell" if "tell" in event["script"] else event["env"].get("STAGE") or name
        if "prepare" in event["script"]:
            assert not event["secrets"]
        else:
            gets.setdefault(key, set()).update(event["secrets"])
    history = {"PERFDASH_DB"}
    assert gets == {
        "check.sh": set(), "pin.sh": set(), "cells.sh": set(), "measure": set(), "trend.sh": set(),
        "post.sh": {"GITHUB_TOKEN", *history},
        "tell": {"PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK", *history},
        **dict.fromkeys(("setup.sh", "gather.sh", "merge.sh", "detect.sh", "confirm", "report.sh", "bisect",
                         "publish.sh", "end.sh"), history),
    }  # fmt: skip
    assert not [secret for secret in SECRETS.values() if secret in built.log]


def test_no_parameter_is_part_of_a_command(builds: dict[str, Built]) -> None:
    built = builds["texts"]
    assert built.result == "SUCCESS", built.log
    assert not [event["script"] for event in built.ran() if "touch" in event["script"]]
    assert built.ran("report.sh")[0]["env"]["REPO"] == MARK


def test_it_is_posted_once_unless_a_bisection_has_more_to_tell(builds: dict[str, Built]) -> None:
    assert [len(builds["told once"].ran(f"{name}.sh")) for name in ("report", "post")] == [1, 1]
    assert builds["told once"].stages["Find out"] == "NOT_BUILT"
    order = [event["script"] for event in builds["told once"].ran()]
    assert order.index("ci/nightly/cells.sh confirm") < order.index("ci/nightly/report.sh")
    assert [len(builds["not posted"].ran(f"{name}.sh")) for name in ("report", "post")] == [2, 0]


@pytest.mark.parametrize(("name", "last"), [
    ("told once", "End / Publish"), ("not posted", "End / Report again"),
])  # fmt: skip
def test_each_stage_that_tells_has_the_night_whatever_agent_it_has(
    builds: dict[str, Built], name: str, last: str
) -> None:
    """Two agents may have the label perfdash-report."""
    unstashed = [(event["stage"], event["name"]) for event in builds[name].of("unstash")]
    assert ("Tell / Report", "night") in unstashed
    assert (last, "night") in unstashed


def test_cells_go_to_the_agents_of_their_device(builds: dict[str, Built]) -> None:
    built = builds["two kinds"]
    assert built.result == "SUCCESS", built.log
    names = {name for name in built.stages if name.startswith("Measure / ")}
    assert names == {
        f"Measure / {part}" for device in ("cpu", "cuda")
        for part in (f"own-{device}-amp-1", f"timm-{device}-amp-1", f"timm-{device}-amp-2")
    }  # fmt: skip
    ran_on = {event["stage"]: event["node"] for event in built.ran("cell.sh")}
    assert {name: node == "gpu" for name, node in ran_on.items()} == {name: "cuda" in name for name in ran_on}
    assert {"Confirm / cpu", "Confirm / cuda", "Find out / cpu", "Find out / cuda"} < set(ran_on)
    assert {node for name in ("report", "merge", "end") for node in built.nodes(f"/{name}.sh")} == {"desk"}
    measured = [event["env"] for event in built.ran("cell.sh") if event["env"]["STAGE"] == "measure"]
    assert {env.get("SHARD") for env in measured if env["SUITES"] == "timm"} == {"1/2", "2/2"}
    confirmed = [event["env"] for event in built.ran("cell.sh") if event["env"]["STAGE"] == "confirm"]
    assert {env["JOB"] for env in confirmed} == {"perfdash-cpu", "perfdash-cuda"}


def test_a_wrong_parameter_ends_the_build_before_anything_is_done(builds: dict[str, Built]) -> None:
    built = builds["wrong"]
    assert built.result == "FAILURE"
    assert [event["script"] for event in built.ran()] == [
        "ci/nightly/check.sh",
        "ci/nightly/broken.sh 'failed'",
    ]
    assert len(built.of("mail")) == 1


FAILED = "cell fails", "cell not set up", "cell hangs", "cell not kept"


@pytest.mark.parametrize("name", FAILED)
def test_a_cell_that_fails_loses_only_itself(builds: dict[str, Built], name: str) -> None:
    built = builds[name]
    assert built.result == "FAILURE"
    # Also of the one that failed what it had until then; what could not be archived is in its stash.
    assert kept(built) == [cell for cell in CELLS if name != "cell not kept" or "timm" not in cell]
    assert f"cell-{CELLS[0]}" in {event["name"] for event in built.of("unstash")}
    assert built.stages[f"Measure / {CELLS[0]}"] == "FAILURE"
    assert built.stages[f"Measure / {CELLS[1]}"] == "SUCCESS"
    rest = ("gather", "merge", "detect", "cells", "report", "publish", "trend")
    assert all(built.ran(f"{script}.sh") for script in rest)
    assert told(built) == "FAILURE"
    assert [mail["to"] for mail in built.of("mail")] == ["team@example.org"]
    assert not built.ran("broken.sh"), "the last stage has told"


def test_what_hangs_is_ended_in_time_and_is_a_failure(builds: dict[str, Built]) -> None:
    limits = {"cell hangs": 660, "confirm hangs": 55, "confirm has no agent": 55, "bisection hangs": 270}
    for name, minutes in limits.items():
        assert f"{minutes} minutes are over" in builds[name].log, name
        assert builds[name].result == "FAILURE", name
    assert builds["bisection hangs"].ran("post.sh")[-1]["stage"] == "End / Post again"
    assert builds["bisection hangs"].archived("bisections/**")
    assert builds["confirm hangs"].archived(f"{NIGHT}/found-cpu/**")


@pytest.mark.parametrize("how", ["fails", "hangs", "has no agent", "removed"])
def test_one_comment_is_posted_however_confirm_ends(builds: dict[str, Built], how: str) -> None:
    built = builds[f"confirm {how}"]
    assert len(built.ran("post.sh")) == 1
    assert built.ran("publish.sh")
    assert told(built) == built.result
    assert built.result == ("SUCCESS" if how == "removed" else "FAILURE"), built.log


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_breaks_holds_up_nothing_else(builds: dict[str, Built], stage: str) -> None:
    built = builds[f"{stage} breaks"]
    assert built.result == "FAILURE"
    assert kept(built) == list(CELLS)
    ran = [name for name in STAGES if built.ran(f"/{name}.sh")]
    assert ran == list(STAGES)
    assert "exit code 7" in built.log
    assert [mail["to"] for mail in built.of("mail")] == ["team@example.org"]


def test_without_a_list_of_cells_nothing_runs_twice(builds: dict[str, Built]) -> None:
    built = builds["no list"]
    assert built.result == "FAILURE"
    assert not built.ran("cell.sh")
    assert built.ran("/end.sh tell")


@pytest.mark.parametrize(("name", "stage"), [
    ("gate", "Tell / Report"), ("gate of a cell", f"Measure / {CELLS[0]}"),
])  # fmt: skip
def test_a_failed_gate_makes_the_build_unstable_and_is_no_breakage(
    builds: dict[str, Built], name: str, stage: str
) -> None:
    built = builds[name]
    assert built.result == "UNSTABLE", built.log
    assert built.stages[stage] == "UNSTABLE"
    assert kept(built) == list(CELLS)
    assert told(built) == "UNSTABLE"
    assert not built.of("mail")


def test_it_is_reported_when_mail_is_refused_too(builds: dict[str, Built]) -> None:
    """Jenkins cannot send: the other way is still tried, and the build is red."""
    built = builds["mail refused"]
    assert built.result == "FAILURE"
    assert "connection refused" in built.log
    assert built.ran("broken.sh 'failed'")


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_missing_credential_ends_the_build_before_anything_is_measured(
    builds: dict[str, Built], name: str
) -> None:
    built = builds[f"no {name}"]
    assert built.result == "FAILURE"
    assert "could not find credentials entry with ID 'none such'" in built.log
    assert {event["script"] for event in built.ran()} <= {
        "ci/nightly/check.sh", "ci/nightly/broken.sh 'failed'",
    }  # fmt: skip
    assert len(built.of("mail")) == 1


def test_a_lost_agent_is_replaced_once(builds: dict[str, Built]) -> None:
    """What its scripts then resume: tests/ci/test_cell.py."""
    built = builds["removed"]
    assert built.result == "SUCCESS", built.log
    prepared = [event["env"] for event in built.ran("prepare") if event["env"]["CELL"] == CELLS[0]]
    assert [env.get("LOST_AGENT") for env in prepared] == [None, "xeon"]
    assert not built.of("mail")
    twice = builds["removed twice"]
    assert twice.result == "FAILURE"
    assert "The agent (perfdash-cpu) was lost twice" in twice.log
    assert len([event for event in twice.ran("cell.sh") if event["env"]["CELL"] == CELLS[0]]) == 4
    assert twice.stages[f"Measure / {CELLS[0]}"] == "FAILURE"
    assert kept(twice) == [CELLS[1]]
    assert told(twice) == "FAILURE"
    assert len(twice.ran("post.sh")) == 1


def test_a_script_that_a_restart_ended_begins_again(builds: dict[str, Built]) -> None:
    codes = [
        event["code"] for event in builds["restarted"].ran("cell.sh") if event["env"]["CELL"] == CELLS[0]
    ]
    assert codes == [0, -1, 0]
    assert builds["restarted"].result == "SUCCESS", builds["restarted"].log
    assert builds["restarted twice"].result == "FAILURE"
    assert builds["restarted twice"].ran("publish.sh")


@pytest.mark.parametrize("name", ["stopped", "stopped in confirm", "over"])
def test_what_a_person_or_the_limit_of_the_night_stops_is_not_posted(
    builds: dict[str, Built], name: str
) -> None:
    built = builds[name]
    assert built.result == "ABORTED"
    assert not built.ran("post.sh")
    assert built.ran("broken.sh 'was aborted'")
    assert [mail["subject"] for mail in built.of("mail")] == ["perfdash: the nightly was aborted"]
    if name == "stopped in confirm":
        assert built.archived(f"{NIGHT}/**")
