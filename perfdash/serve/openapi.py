"""Describe the API: its addresses, parameters and answer shapes, as OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from perfdash import __version__
from perfdash.metrics import NUMBERS
from perfdash.serve import api
from perfdash.serve.parameters import Parameter

DESCRIPTION = "/api/openapi.json"
_ERRORS = {
    "400": "a parameter is wrong: the message says which",
    "404": "there is no such thing",
    "503": "the history cannot be read at the moment",
}


@dataclass(frozen=True)
class Endpoint:
    """`answer` makes plain values of `shape` from a connection and the parameters."""

    name: str
    parameters: Sequence[Parameter]
    answer: Callable[[sa.Connection, dict[str, Any]], dict[str, Any]]
    shape: str

    @property
    def path(self) -> str:
        return f"/api/{self.name}"


ENDPOINTS = (
    Endpoint("runs", api.RUNS, api.runs, "Runs"),
    Endpoint("run", api.RUN, api.run, "RunResults"),
    Endpoint("cases", api.CASES, api.cases, "Cases"),
    Endpoint("series", api.SERIES, api.series, "Series"),
    Endpoint("compare", api.COMPARE, api.compare, "Comparison"),
    Endpoint("alerts", api.ALERTS, api.alerts, "Alerts"),
    Endpoint("trend", api.TREND, api.trend, "Trend"),
)


def description() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "perfdash",
            "version": __version__,
            "summary": "The history of what torch.compile does to models",
            "description": "Read only. Times are UTC; latencies in ms, *_s in seconds, *_bytes in bytes; "
            "speedup is eager latency / compiled latency. null: not known or not measured.",
        },
        "servers": [{"url": "../"}],
        "paths": {endpoint.path: {"get": _operation(endpoint)} for endpoint in ENDPOINTS},
        "components": {"schemas": SHAPES},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "operationId": endpoint.name,
        "summary": (endpoint.answer.__doc__ or "").strip(),
        "parameters": [
            {
                "name": parameter.name,
                "in": "query",
                "description": parameter.about,
                "required": parameter.required,
                "schema": parameter.schema(),
            }
            for parameter in endpoint.parameters
        ],
        "responses": {
            "200": {"description": "the answer", "content": _json(endpoint.shape)},
            **{code: {"description": text, "content": _json("Error")} for code, text in _ERRORS.items()},
        },
    }


def _json(shape: str) -> dict[str, Any]:
    return {"application/json": {"schema": named(shape)}}


Shape = dict[str, Any]
TEXT: Shape = {"type": "string"}
WHOLE: Shape = {"type": "integer"}
NUMBER: Shape = {"type": "number"}
YES_NO: Shape = {"type": "boolean"}
OPEN: Shape = {"type": "object"}  # what a host or a package says of itself


def of(shape: Shape) -> Shape:
    """The same, or null: not known or not measured."""
    if "type" in shape:
        return {**shape, "type": [shape["type"], "null"]}
    return {"anyOf": [shape, {"type": "null"}]}


def many(shape: Shape) -> Shape:
    return {"type": "array", "items": shape}


def named(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


def record(**properties: Shape) -> Shape:
    """An object with all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def cut(**properties: Shape) -> Shape:
    """A list of which a part is shown: total says how long it is."""
    return record(total=WHOLE, offset=WHOLE, limit=WHOLE, **properties)


_CASE: dict[str, Shape] = {
    "suite": TEXT, "model": TEXT, "device": TEXT, "dtype": TEXT, "batch_size": WHOLE, "threads": WHOLE,
    "scenario": TEXT, "backend": TEXT, "dynamic": YES_NO, "amp_dtype": of(TEXT),
    "settings": TEXT, "configuration": TEXT,
}  # fmt: skip
_SPAN = record(value=of(NUMBER), ci_low=of(NUMBER), ci_high=of(NUMBER))
_MENTIONED = of(record(run=TEXT, started=TEXT, torch=of(TEXT), torch_git_version=of(TEXT)))
_SIDE = record(title=TEXT, runs=many(TEXT))
_DELTA = record(old=NUMBER, new=NUMBER, ratio=NUMBER, p=of(NUMBER), significant=YES_NO)

SHAPES: dict[str, Shape] = {
    "Error": record(error=TEXT),
    "Case": record(**_CASE),
    "Run": record(
        id=WHOLE, name=TEXT, started=TEXT, state=TEXT, origin=TEXT, host=TEXT, testbed_id=WHOLE,
        host_class=TEXT, setting=OPEN, environment_id=WHOLE, torch=of(TEXT), torch_git_version=of(TEXT),
        python=of(TEXT), packages=OPEN, facts=OPEN, noise=OPEN, expected=of(WHOLE), results=WHOLE,
        judged=of(TEXT), excluded=of(TEXT), commits=OPEN, method=OPEN,
    ),
    "Result": record(
        case=named("Case"), status=TEXT, verdict=of(TEXT), basis=of(TEXT), started=of(TEXT),
        values={
            "type": "object",
            "properties": dict.fromkeys(NUMBERS, NUMBER),
            "additionalProperties": False,
        },
    ),
    "Point": record(
        run=TEXT, started=TEXT, status=TEXT, value=of(NUMBER), torch=of(TEXT), torch_git_version=of(TEXT),
        method=OPEN, excluded=of(TEXT),
    ),
    "Alert": record(
        id=WHOLE, state=TEXT, kind=TEXT, direction=TEXT, case=of(named("Case")), metric=of(TEXT),
        side=of(TEXT), before=of(NUMBER), after=of(NUMBER), change=of(NUMBER), p=of(NUMBER),
        speedup=of(many(NUMBER)), good=_MENTIONED, bad=_MENTIONED, last_seen=_MENTIONED, opened=TEXT,
        changed=TEXT, details=OPEN,
        events=many(record(at=TEXT, state=TEXT, run=of(TEXT), note=of(TEXT))),
    ),
    "Night": record(
        run=TEXT, started=TEXT, torch=of(TEXT), torch_git_version=of(TEXT), method=OPEN,
        excluded=of(TEXT), suite=TEXT,
        device=TEXT, dtype=TEXT, threads=WHOLE, scenario=TEXT, backend=TEXT, dynamic=YES_NO,
        settings=TEXT, configuration=TEXT, cases=WHOLE,
        attempted=WHOLE, passed=WHOLE, measured=WHOLE, speedup=of(NUMBER), speedup_low=of(NUMBER),
        speedup_high=of(NUMBER), speedup_clipped=of(NUMBER), compilation_s=of(NUMBER),
        compression_ratio=of(NUMBER), compression_ratio_arithmetic=of(NUMBER), statuses=OPEN,
    ),
    "Compared": record(
        case=named("Case"), old_status=TEXT, new_status=TEXT, regressed=YES_NO,
        metrics={"type": "object", "additionalProperties": _DELTA},
    ),
    "Runs": cut(runs=many(named("Run"))),
    "RunResults": cut(run=named("Run"), results=many(named("Result"))),
    "Cases": cut(
        testbed=WHOLE, cases=many(record(id=WHOLE, **_CASE)),
    ),
    "Series": cut(case=named("Case"), metric=TEXT, testbed=WHOLE, points=many(named("Point"))),
    "Alerts": cut(alerts=many(named("Alert"))),
    "Trend": cut(suite=TEXT, testbed=WHOLE, nights=many(named("Night"))),
    "Comparison": cut(
        old=_SIDE, new=_SIDE,
        means=many(record(metric=TEXT, cases=WHOLE, old=_SPAN, new=_SPAN, ratio=_SPAN)),
        cases=many(named("Compared")), only_old=many(named("Case")), only_new=many(named("Case")),
        nothing_to_compare=of(TEXT),
        methods=many(TEXT),
    ),
}  # fmt: skip
