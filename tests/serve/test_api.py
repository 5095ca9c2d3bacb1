"""The JSON API: answers are what the store holds and what the description says."""

from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.served import EVIL, NIGHTS, commit_of
from tests.serve.shape import complaints

LAST = "2026-10-24T01-00-00Z_farm"


@pytest.fixture(scope="module")
def described(server):
    reply = server.get("/api/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    return reply.json


@pytest.fixture
def ask(server, described):
    """Asks an endpoint; a good answer must be as described."""

    def get(name, status=200, **parameters):
        reply = server.get(f"/api/{name}?{urlencode(parameters)}")
        assert reply.status == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        responses = described["paths"][f"/api/{name}"]["get"]["responses"]
        response = responses["4XX" if 400 <= status < 500 else str(status)]
        schema = response["content"]["application/json"]["schema"]
        assert complaints(reply.json, schema, described["components"]["schemas"]) == []
        return reply.json

    return get


def bed_of(ask, name=LAST):
    return ask("run", run=name)["run"]["testbed_id"]


@pytest.mark.slow
def test_the_description_names_every_address_and_shape(server, described):
    assert described["openapi"] == "3.1.0"
    names = ("runs", "run", "cases", "series", "compare", "alerts", "trend")
    assert set(described["paths"]) == {f"/api/{name}" for name in names}
    names = [path["get"]["operationId"] for path in described["paths"].values()]
    assert len(set(names)) == len(names)
    for path, operations in described["paths"].items():
        assert operations["get"]["summary"]
        required = [
            operation["name"] for operation in operations["get"]["parameters"] if operation["required"]
        ]
        reply = server.get(path)
        assert reply.status == (400 if required else 200), path
    used = str(described)
    for name in described["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in used


def test_a_description_that_is_wrong_would_be_seen(described):
    schemas = described["components"]["schemas"]
    point = {
        "run": "r",
        "started": "t",
        "status": "pass",
        "value": 1.0,
        "torch": None,
        "torch_git_version": "a",
        "method": {"latency": 1},
        "excluded": None,
        "remark": None,
    }
    assert complaints(point, schemas["PointFields"], schemas) == []
    for wrong in ({"value": "1"}, {"value": True}, {"run": None}, {"more": 1}):
        assert complaints(point | wrong, schemas["PointFields"], schemas)
    assert complaints({}, schemas["PointFields"], schemas)


def test_runs_newest_first_in_pages(ask):
    every = ask("runs")
    assert every["total"] == len(every["runs"]) == NIGHTS + 1
    names = [run["name"] for run in every["runs"]]
    assert names == sorted(names, reverse=True)
    assert ask("runs", offset=3, limit=2)["runs"] == every["runs"][3:5]
    assert ask("runs", offset=1000)["runs"] == []
    assert [run["name"] for run in ask("runs", since="2026-10-24", until="2026-10-24")["runs"]] == [LAST]
    bed = every["runs"][0]["testbed_id"]
    assert {run["host_class"] for run in ask("runs", testbed=bed)["runs"]} == {"other"}
    assert "source" not in every["runs"][0]


def test_a_run_and_its_results(ask):
    whole = ask("run", run=LAST)
    assert whole["run"]["torch_git_version"] == commit_of(NIGHTS)
    assert whole["total"] == len(whole["results"]) == 13
    (odd,) = ask("run", run=LAST, model=EVIL)["results"]
    assert odd["case"]["model"] == EVIL
    assert odd["values"]["speedup"] == pytest.approx(1.5, rel=0.01)
    (failed,) = ask("run", run=LAST, model="model5")["results"]
    assert failed["status"] == "crash"
    assert failed["values"] == {"wall_s": 2.0}
    last = ask("run")
    assert last["run"]["name"].startswith("2026-10-30")
    notes = [(result["case"]["model"], result["remark"], result["clock"]) for result in last["results"]]
    assert notes == [("alone", None, None), ("limited", "recompile limit", "cpu")]
    assert [result["others"] for result in last["results"]] == [{"throughput": 7.5}, {}]


def test_a_case_over_the_nights(ask):
    bed = bed_of(ask)
    (case,) = ask("cases", testbed=bed, model="model3")["cases"]
    series = ask("series", case=case["id"], testbed=bed, metric="backend_ms", limit=1000)
    values = [point["value"] for point in series["points"]]
    assert len(values) == NIGHTS
    assert values[14] / values[13] == pytest.approx(1.3, rel=0.02)
    assert ask("series", case=case["id"], testbed=bed, since="2026-10-20")["total"] == 5
    other = ask("cases")["testbed"]  # of the last run, where this case was never measured
    assert other != bed
    assert ask("series", case=case["id"])["points"] == []


def test_anything_compared_with_anything(ask):
    comparison = ask("compare", old="2026-10-08..2026-10-13", new="2026-10-15..2026-10-20")
    first = comparison["cases"][0]
    assert first["case"]["model"] == "model3"
    assert first["regressed"]
    assert first["metrics"]["backend_ms"]["ratio"] == pytest.approx(1.3, rel=0.01)
    assert comparison["total"] == 13
    assert comparison["means"][0]["metric"] == "speedup"
    assert len(ask("compare", old="2026-10-01", new="2026-10-02", limit=3)["cases"]) == 3
    assert ask("compare", old=LAST, new=LAST)["cases"]


def test_alerts_with_their_life(ask):
    every = ask("alerts", state="all")
    assert {alert["case"]["model"] for alert in every["alerts"]} >= {"model3", "model5"}
    assert all(alert["events"] for alert in every["alerts"])
    worse = ask("alerts", direction="worse")
    assert {alert["direction"] for alert in worse["alerts"]} == {"worse"}
    assert ask("alerts", direction="better")["total"] + worse["total"] <= every["total"]
    assert ask("alerts", state="all", limit=1)["alerts"] == every["alerts"][:1]


def test_the_trend_of_a_suite(ask):
    nights = ask("trend", suite="timm", testbed=bed_of(ask))["nights"]
    assert {night["backend"] for night in nights} == {"inductor", "onnxruntime"}
    last = next(night for night in nights if night["run"] == LAST and night["backend"] == "inductor")
    assert last["attempted"] == 12
    assert last["passed"] == 11
    assert last["speedup"] == pytest.approx((1.5**10 * 1.5 / 1.3) ** (1 / 11), rel=0.01)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("runs", {"limit": "0"}, "limit: '0' is no whole number from 1 to"),
        ("runs", {"limit": "many"}, "limit: 'many'"),
        ("runs", {"limit": "9" * 30}, "limit:"),
        ("runs", {"limit": "\u0661"}, "limit:"),
        ("runs", {"since": "yesterday"}, "since: 'yesterday' is no time"),
        ("runs", {"until": "2026-13"}, "until: '2026-13' is no time"),
        ("series", {"case": 1, "since": "2026-02-30T01"}, "since: '2026-02-30T01' is no time"),
        ("runs", {"colour": "red"}, "there is no parameter 'colour' here; there are: since, until"),
        ("run", {"run": "x" * 400}, "run: more than 300 characters"),
        ("run", {"run": "2026-10"}, "'2026-10' means 25 runs; give the id of one of them: id:"),
        ("series", {}, "case is missing"),
        (
            "series",
            {"case": "1", "metric": "id; drop table runs"},
            "metric: 'id; drop table runs' is none of",
        ),
        ("compare", {"old": "last"}, "new is missing"),
        ("compare", {"old": "2026-10-24", "new": "2026-10-30"}, "unlike hosts"),
        ("compare", {"old": "2026-10-01..2026-10-05", "new": "2026-10-05..2026-10-09"}, "on both sides"),
        ("alerts", {"state": "sleeping"}, "state: 'sleeping' is none of live, all"),
        ("alerts", {"direction": "sideways"}, "direction: 'sideways' is none of worse, better"),
        ("trend", {}, "suite is missing"),
    ],
)
def test_a_wrong_parameter_is_named(ask, name, parameters, message):
    assert message in ask(name, 400, **parameters)["error"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("run", {"run": "2019-01-01"}),
        ("run", {"run": "' or 1=1 --"}),
        ("series", {"case": "123456"}),
        ("cases", {"testbed": "99"}),
        ("compare", {"old": "nothing", "new": "last"}),
        ("compare", {"old": "last", "new": "last", "host_class": "none such"}),
    ],
)
def test_what_is_not_there_is_404(ask, name, parameters):
    assert ask(name, 404, **parameters)["error"]


def test_the_same_parameter_twice(server):
    reply = server.get("/api/runs?limit=1&limit=2")
    assert reply.status == 400
    assert reply.json == {"error": "limit is given twice"}


def test_an_unknown_address_of_the_api(server):
    reply = server.get("/api/nothing")
    assert reply.status == 404
    assert reply.json == {"error": "There is no such page."}


def test_an_empty_value_counts_as_not_given(server, ask):
    assert server.get("/api/runs?limit=&since=&testbed=").json == ask("runs")
    assert server.get("/api/series?case=").json["error"].startswith("case is missing: a case's number")


def test_no_page_of_scripts_from_elsewhere(server):
    for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"):
        assert server.get(path).status == 404, path


PARAMETERS = (
    "runs?limit=",
    "runs?since=",
    "alerts?direction=",
    "series?case=1&metric=",
    "run?suite=",
    "run?run=",
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PARAMETERS), st.text())
def test_no_text_breaks_a_parameter(server, address, text):
    reply = server.get(f"/api/{address}{quote(text, safe='')}")
    assert reply.status in (200, 400, 404)
    if reply.status != 200:
        assert set(reply.json) == {"error"}
        assert "Input should" not in reply.text
