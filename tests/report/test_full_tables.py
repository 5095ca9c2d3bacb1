"""What the report with all tables says above them."""

from dataclasses import replace

import pytest

from perfdash.history.results import from_result
from perfdash.report.full_tables import full_tables
from tests.report.results import good
from tests.report.technique_runs import night


@pytest.mark.parametrize(
    ("suites", "weights", "words"),
    [
        (("timm",), "random", "Weights are random; there"),
        (("own",), "random", "Weights are those that the models' own functions give; there"),
        (
            ("own", "timm"),
            "random",
            "Weights are random, and in suite own those that the models' own functions",
        ),
        (
            ("own", "timm"),
            "pretrained",
            "Weights are pretrained, and in suite own those that the models' own",
        ),
        (("torchbench-checkout",), "pretrained", "Weights are those that the checkout's models give; there"),
        (
            ("own", "torchbench-checkout"),
            "random",
            "Weights are in suite own those that the models' own functions give, and in suite "
            "torchbench-checkout those that the checkout's models give; there",
        ),
        (("own", "timm"), "/a/file.safetensors", "Weights are those of a file; there"),
    ],
)
def test_the_weights_of_models_that_make_theirs_are_said_so(suites, weights, words):
    result = from_result(good("net", 1.2, "faster"))
    rows = [replace(result, case=replace(result.case, suite=suite)) for suite in suites]
    shown = night(rows)
    setting = {**shown.run.setting, "weights": weights}
    ran = replace(shown.run, origin="perfdash", setting=setting)
    shown = replace(shown, imported=replace(shown.imported, run=ran))
    assert words in full_tables(shown)
