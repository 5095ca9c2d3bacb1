"""The suites hold the 159 models of the reference dashboard, under its names."""

import csv

import pytest

from perfdash.settings import RunSettings
from perfdash.suites.case_selection import select
from perfdash.suites.suite_file import load_suite, suite_names
from perfdash.worker import registry
from tests.conftest import HERE


def rows(suite):
    with (HERE / "fixtures" / "dashboard" / f"{suite}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("suite", "number"), [("torchbench", 54), ("huggingface", 44), ("timm", 61)])
def test_every_model_in_its_batch_size(suite, number):
    dashboard = {row["name"]: max(1, int(row["bs"])) for row in rows(suite)}
    assert len(dashboard) == number
    ours = {p.case.model: p.case.batch_size for p in select([load_suite(suite)], RunSettings())}
    assert {name: ours.get(name) for name in dashboard} == dashboard


@pytest.mark.parametrize("name", suite_names())
def test_suites_are_whole(name):
    suite = load_suite(name)
    assert any(model.quick for model in suite.models)
    for model in suite.models:
        assert suite.loader_of(model) in registry.names("loaders")
        for skip in suite.setting(model, "skip", ()):
            assert len(skip.reason) > 10
