import math

import pytest

from tests.lazy import lazy

torch = lazy("torch")
comparison = lazy("perfdash.worker.output_comparison")


def judge_case(error, scale=1.0, tolerance=1e-3):
    torch.manual_seed(0)
    judge = torch.randn(1000, dtype=torch.float64) * scale
    eager = (judge * (1 + 1e-7 * torch.randn(1000, dtype=torch.float64))).float()
    compiled = (judge * (1 + error * torch.randn(1000, dtype=torch.float64))).float()
    return comparison.compare(eager, compiled, judge, tolerance=tolerance, factor=2.0)


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e4])
def test_the_same_relative_error_has_the_same_verdict_at_every_scale(scale):
    assert judge_case(1e-6, scale)["status"] == "pass"
    assert judge_case(1e-1, scale)["status"] == "fail"


def test_as_far_from_the_judge_as_eager_passes():
    judge = torch.linspace(1, 2, 100, dtype=torch.float64)
    eager, compiled = (judge * 1.01).float(), (judge * 0.985).float()
    verdict = comparison.compare(eager, compiled, judge, tolerance=1e-3, factor=2.0)
    assert (verdict["status"], verdict["metric"]) == ("pass", "rmse_to_float64")
    assert comparison.compare(eager, compiled, judge, tolerance=1e-3, factor=1.0)["status"] == "fail"


def test_structure_dtype_and_keys_must_agree():
    x = torch.ones(2)
    for other in ((x, x), [x], {"a": x}, x.double(), torch.ones(3), (x, None)):
        assert comparison.compare((x,), other, None, tolerance=1e-3, factor=2)["metric"] == "structure"
    assert comparison.compare({"a": x}, {"a": x.clone()}, None, tolerance=1e-3, factor=2)["status"] == "pass"


def test_nan_equals_nan_only_in_the_same_places():
    nan = float("nan")
    a, b = torch.tensor([1.0, nan]), torch.tensor([nan, 1.0])
    assert comparison.compare(a, a.clone(), None, tolerance=1e-3, factor=2)["status"] == "pass"
    assert "NaN" in comparison.compare(a, a.clone(), None, tolerance=1e-3, factor=2)["detail"]
    assert comparison.compare(a, b, None, tolerance=1e-3, factor=2)["status"] == "fail"
    inf = torch.tensor([float("inf"), -float("inf")])
    assert comparison.compare(inf, inf.clone(), None, tolerance=1e-3, factor=2)["status"] == "pass"
    assert comparison.compare(inf, -inf, None, tolerance=1e-3, factor=2)["status"] == "fail"


@pytest.mark.parametrize(("change", "status"), [
    (lambda x: x * 2, "fail"),  # cosine similarity 1.000
    (lambda x: x * (1 + 0.13 * torch.randn(1000)), "fail"),  # 13 % noise: cosine similarity 0.992
    (lambda x: x * 1.05, "fail"), (lambda x: -x, "fail"),
    (lambda x: x * 1.005, "pass"), (lambda x: x * (1 + 0.004 * torch.randn(1000)), "pass"),
])  # fmt: skip
def test_without_a_judge_direction_and_distance_both_count(change, status):
    torch.manual_seed(0)
    x = torch.randn(1000)
    verdict = comparison.compare(x, change(x), None, tolerance=1e-3, factor=2)
    assert verdict["status"] == status, verdict
    assert verdict["metric"] in ("relative_rmse", "cosine")
    assert "relative rmse to eager" in verdict["detail"]


def test_what_may_be_away_without_a_judge_is_reported_by_the_caller():
    x = torch.linspace(1, 2, 100)
    assert comparison.compare(x, x * 1.04, None, tolerance=1e-3, factor=2, unjudged=0.05)["status"] == "pass"
    assert comparison.compare(x, x * 1.06, None, tolerance=1e-3, factor=2, unjudged=0.05)["status"] == "fail"


def test_a_suite_that_asks_for_the_cosine_still_gets_the_size_checked():
    x = torch.linspace(1, 2, 100)
    assert (
        comparison.compare(x, x * 1.08, x.double(), tolerance=1e-3, factor=2, cosine=True)["status"] == "pass"
    )
    assert comparison.compare(x, x * 2, x.double(), tolerance=1e-3, factor=2, cosine=True)["status"] == "fail"


def test_a_gate_that_rounding_opens_is_allowed_without_a_judge_too():
    x = torch.linspace(1, 2, 100)
    first, other = {"gradients": {"w": x}}, {"gradients": {"w": x * 1.02}}
    allowed = {"tolerance": 1e-3, "factor": 2, "of_group": 0.01}
    assert comparison.compare(first, other, None, gated=("gradients",), **allowed)["status"] == "pass"
    assert comparison.compare(first, other, None, **allowed)["status"] == "fail"


def test_integers_must_be_equal():
    x = torch.arange(5)
    assert comparison.compare(x, x.clone(), None, tolerance=1, factor=2)["status"] == "pass"
    assert comparison.compare(x, x + 1, None, tolerance=1, factor=2)["status"] == "fail"
    assert comparison.compare(x, x + 1, x, tolerance=1, factor=2)["status"] == "fail"


def labels(count=2048, classes=9):
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(0))


def moved(whole, places):
    """The same with other classes in the places of a slice."""
    other = whole.clone()
    other[places] = (other[places] + 4) % 9
    return other


@pytest.mark.parametrize(("places", "status"), [
    (slice(150, 350), "pass"),  # as many as eager's 200
    (slice(0, 240), "pass"),  # within three standard deviations of a count of 200
    (slice(0, 300), "skipped"), (slice(500, 880), "skipped"),  # within `factor`
    (slice(500, 910), "fail"), (slice(0, 2048), "fail"),
])  # fmt: skip
def test_integers_may_be_as_far_from_the_judge_as_eagers(places, status):
    judge = labels()
    eager = moved(judge, slice(0, 200))
    compared = comparison.compare(eager, moved(judge, places), judge, tolerance=1e-3, factor=2)
    assert compared["status"] == status, compared
    assert compared["metric"] == "elements_differ"
    assert "200 of eager's" in compared["detail"]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("wrong", [
    lambda right: right + 1, lambda right: (right + 1) % 9, lambda right: right.roll(1),
    lambda right: right * 0, lambda right: torch.full_like(right, right.mode().values),
])  # fmt: skip
def test_wrong_integers_never_pass_however_far_eager_is(share, wrong):
    judge = labels()
    eager = moved(judge, slice(0, int(share * 2048)))
    status = comparison.compare(eager, wrong(judge), judge, tolerance=1e-3, factor=3)["status"]
    assert status == "fail" if share < 0.3 else status != "pass"
    # Nearly all are of one class: the wrong ones among the right ones are few.
    rare = torch.where(torch.arange(2048) % 40 == 0, judge, 8)
    eager = moved(rare, slice(0, int(share * 2048)))
    assert comparison.compare(eager, wrong(rare), rare, tolerance=1e-3, factor=3)["status"] != "pass"


def test_a_judge_that_is_right_nowhere_or_of_another_dtype_judges_no_integers():
    x = torch.arange(100)
    assert comparison.compare(x, x + 1, x + 2, tolerance=1e-3, factor=2)["status"] == "fail"
    assert comparison.compare(x, x + 1, x + 1.0, tolerance=1e-3, factor=2)["status"] == "fail"
    assert comparison.compare(x, x.clone(), x + 2, tolerance=1e-3, factor=2)["status"] == "pass"
    one = torch.tensor([3])
    assert comparison.compare(one, one + 1, one + 1, tolerance=1e-3, factor=2)["status"] == "pass"
    assert comparison.compare(one, one + 1, one, tolerance=1e-3, factor=2)["status"] == "fail"


def test_one_wrong_leaf_among_right_ones_fails():
    x = torch.ones(10)
    verdict = comparison.compare([x, x, x], [x, x * 2, x], [x.double()] * 3, tolerance=1e-3, factor=2)
    assert verdict["status"] == "fail"
    assert "out[1]" in verdict["detail"]


def test_zero_outputs():
    zero = torch.zeros(10)
    assert comparison.compare(zero, zero.clone(), zero.double(), tolerance=1e-3, factor=2)["status"] == "pass"
    assert comparison.compare(zero, zero + 1e-3, zero.double(), tolerance=1e-3, factor=2)["status"] == "fail"


def test_two_runs():
    x = torch.randn(100)
    assert comparison.two_runs_differ((x,), (x.clone(),)) is None
    assert comparison.two_runs_differ((x,), (x * (1 + 1e-7),)) is None
    assert "differs" in comparison.two_runs_differ((x,), (x + 0.1,))
    assert "structure" in comparison.two_runs_differ((x,), [x])


@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_outputs_that_are_not_dense(convert):
    def same(x):
        return getattr(x, convert)()

    torch.manual_seed(0)
    x = torch.randn(6, 6).relu()
    judged = {"tolerance": 1e-3, "factor": 2}
    assert comparison.two_runs_differ(same(x), same(x.clone())) is None
    assert comparison.two_runs_differ(same(x), same(2 * x)) is not None
    assert comparison.compare(same(x), same(x), x.double(), **judged)["status"] == "pass"
    assert comparison.compare(same(x), same(2 * x), x.double(), **judged)["status"] == "fail"


def test_sparse_whole_numbers():
    x = torch.eye(4, dtype=torch.int64)
    compared = comparison.compare(x.to_sparse(), (2 * x).to_sparse(), None, tolerance=1e-3, factor=2)
    assert (compared["status"], compared["value"]) == ("fail", 4)
    assert (
        comparison.compare(x.to_sparse(), x.to_sparse(), None, tolerance=1e-3, factor=2)["status"] == "pass"
    )


def test_objects_and_arrays():
    class Output:
        def __init__(self, x):
            self.logits = x
            self.marker = object()

    import numpy as np

    x = torch.randn(10)
    assert comparison.two_runs_differ(Output(x), Output(x.clone())) is None
    assert (
        comparison.compare(Output(x), Output(x * 1.004), None, tolerance=1e-3, factor=2)["status"] == "pass"
    )
    assert comparison.compare(Output(x), Output(-x), None, tolerance=1e-3, factor=2)["status"] == "fail"
    assert (
        comparison.compare(Output(x), Output(x[:5]), None, tolerance=1e-3, factor=2)["metric"] == "structure"
    )
    assert comparison.two_runs_differ(np.ones(3), np.ones(3)) is None
    assert comparison.two_runs_differ(np.ones(3), np.zeros(3)) is not None


def test_rounding_of_bfloat16_is_no_difference():
    x = torch.randn(100).bfloat16()
    assert comparison.two_runs_differ(x, (x.float() * 1.004).bfloat16()) is None
    assert comparison.two_runs_differ(x, x * 1.2) is not None


def test_the_distance_is_that_of_the_worst_leaf():
    x = torch.tensor([3.0, 4.0])
    distances = comparison.distance({"a": x, "b": x, "n": 1}, {"a": x * 1.1, "b": x * 1.01, "n": 2})
    assert distances["relative_rmse"] == pytest.approx(0.1, rel=1e-5)
    assert distances["cosine"] == pytest.approx(1.0)
    turned = comparison.distance(x, torch.tensor([4.0, -3.0]))
    assert turned["cosine"] == pytest.approx(0.0, abs=1e-7)
    assert turned["relative_rmse"] == pytest.approx(2**0.5)


def test_the_distance_to_what_is_not_finite_or_not_alike():
    nan = float("nan")
    x = torch.tensor([1.0, nan])
    assert comparison.distance(x, x) == {"relative_rmse": 0.0, "cosine": 1.0}, (
        "what eager has not finite does not count"
    )
    assert comparison.distance(x.nan_to_num(), x) == {"relative_rmse": None, "cosine": None}
    assert comparison.distance(x, torch.ones(3)) is None
    assert comparison.distance((x,), {"a": x}) is None
    assert comparison.distance(torch.zeros(2), torch.zeros(2)) == {"relative_rmse": 0.0, "cosine": 1.0}
    assert comparison.distance(torch.zeros(2), torch.ones(2))["relative_rmse"] == 1.0
    assert comparison.distance(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))["relative_rmse"] == 0.0


def test_within_a_bound():
    x = torch.ones(10)
    assert comparison.within(x, x * 1.05, 0.06)["status"] == "pass"
    beyond = comparison.within(x, x * 1.05, 0.04)
    assert (beyond["status"], beyond["metric"], beyond["tolerance"]) == ("fail", "relative_rmse", 0.04)
    assert comparison.within(x, torch.full((10,), float("nan")), 0.1)["status"] == "fail"
    assert comparison.within(x, torch.ones(9), 0.1)["metric"] == "structure"


def test_what_is_zero_but_for_rounding_is_judged_as_part_of_its_group():
    torch.manual_seed(0)
    noise = 1e-8 * torch.randn(100)
    eager = {"gradients": {"a": torch.randn(1000), "bias": noise}, "loss": torch.tensor(1.0)}
    compiled = {**eager, "gradients": {**eager["gradients"], "bias": -noise}}
    assert comparison.compare(eager, compiled, None, tolerance=1e-3, factor=2)["status"] == "fail"
    assert (
        comparison.compare(eager, compiled, None, tolerance=1e-3, factor=2, of_group=0.01)["status"] == "pass"
    )
    # A small gradient that is wrong by a tenth is found all the same.
    eager["gradients"]["bias"] = 1e-2 * torch.randn(100)
    compiled["gradients"]["bias"] = eager["gradients"]["bias"] * 1.1
    judge = {key: value.double() if key == "loss" else {k: v.double() for k, v in value.items()}
             for key, value in eager.items()}  # fmt: skip
    compared = comparison.compare(eager, compiled, judge, tolerance=1e-3, factor=2, of_group=0.01)
    assert compared["status"] == "fail"
    assert "bias" in compared["detail"]


def _masked(value, size=4):
    logits = torch.linspace(-1, 1, 2 * size)
    logits[size:] = torch.tensor(value)
    return logits


@pytest.mark.parametrize(("of_eager", "of_compiled", "status"), [
    (-math.inf, -math.inf, "pass"), (math.nan, math.nan, "pass"),
    (-math.inf, [-100.0, -30.0, 30.0, 100.0], "fail"), (-math.inf, math.inf, "fail"),
    (-math.inf, math.nan, "fail"), (math.nan, 7.0, "fail"), (math.nan, -math.inf, "fail"),
    (0.5, math.nan, "fail"),
    # The largest number of float16 in place of an infinity masks as well.
    (-math.inf, -65504.0, "pass"), (math.inf, 65504.0, "pass"),
    (math.inf, -65504.0, "fail"),
])  # fmt: skip
def test_a_bound_does_not_let_a_mask_or_nan_be_lost(of_eager, of_compiled, status):
    verdict = comparison.within(_masked(of_eager), _masked(of_compiled), 0.2)
    assert verdict["status"] == status, verdict
    if status == "fail":
        assert (verdict["metric"], verdict["value"]) == ("not_finite", 4), verdict


def test_a_number_that_others_of_its_tensor_exceed_is_no_mask():
    eager = torch.tensor([-1e6, 1.0, -math.inf])
    verdict = comparison.within(eager, torch.tensor([-1e6, 1.0, -5e4]), 0.2)
    assert verdict["status"] == "fail"


def test_nothing_to_compare_is_not_within_a_bound():
    assert comparison.within((torch.ones(2), None), (None, torch.ones(2)), 0.1)["status"] == "fail"
    nan = torch.full((2,), float("nan"))
    assert comparison.within(nan, torch.ones(2), 0.1)["status"] == "fail"
    assert comparison.within((nan, torch.arange(2)), (nan + 1, torch.arange(2)), 0.1)["status"] == "fail"
    tokens = {"logits": torch.ones(2), "tokens": torch.arange(2)}
    assert comparison.within(tokens, {**tokens, "tokens": torch.ones(2)}, 0.1)["status"] == "pass"


@pytest.mark.parametrize(("compiled", "status"), [
    (lambda x: x.clone(), "pass"), (lambda x: moved(x, slice(0, 1)), "skipped"),
    (lambda x: moved(x, slice(0, 1000)), "skipped"), (lambda x: moved(x, slice(0, 1100)), "fail"),
    (lambda x: x + 1, "fail"), (lambda x: x.roll(1), "fail"), (lambda x: x * 0, "fail"),
])  # fmt: skip
def test_where_only_integers_are_returned_a_bound_says_nothing_of_them(compiled, status):
    x = labels()
    for eager, other in (
        (x, compiled(x)),
        ((x[:, None], x[:0].float()), (compiled(x)[:, None], x[:0].float())),
    ):
        verdict = comparison.within(eager, other, 0.2)
        assert (verdict["status"], verdict["metric"]) == (status, "elements_differ"), verdict
        assert ("not judged" in verdict["detail"]) == (status == "skipped")


def test_few_integers_that_differ_are_too_few_to_judge():
    one = torch.tensor([3])
    assert comparison.within(one, one + 1, 0.2)["status"] == "skipped"
    assert comparison.within((7, "a"), (7, "a"), 0.2)["status"] == "pass"
    assert comparison.within((7, "a"), (8, "a"), 0.2)["status"] == "skipped"
    assert comparison.within(torch.arange(8), torch.arange(8) + 1, 0.2)["status"] == "fail"


def test_two_runs_of_what_is_zero_but_for_rounding():
    """A leaf counts as at least a share of its group, as where both sides are compared."""
    first = {"gradients": {"weight": torch.ones(8), "bias": torch.full((8,), 1e-9)}}
    second = {"gradients": {"weight": torch.ones(8), "bias": torch.full((8,), -1e-9)}}
    assert comparison.two_runs_differ(first, second) is not None
    assert comparison.two_runs_differ(first, second, of_group=0.01) is None
    other = {"gradients": {"weight": torch.ones(8), "bias": torch.full((8,), 1e-3)}}
    assert comparison.two_runs_differ(first, other, of_group=0.01) is not None


def _gradients(**leaves):
    return {"loss": torch.tensor(1.0), "gradients": leaves}


def test_errors_of_a_group_are_relative_to_each_leaf():
    of_judge = {"a": 2.0, "b": 1.0, "tiny": 1e-9, "turned": 0.05}
    of_eager = {"a": 2.02, "b": 1.03, "tiny": 1.3e-9, "turned": -0.04}
    judge, eager = (
        _gradients(**{name: torch.full((4,), value) for name, value in leaves.items()})
        for leaves in (of_judge, of_eager)
    )
    compared = comparison.relative_errors(eager, judge, 0.01)
    assert compared["out['gradients'"] == pytest.approx(0.03 / 1.03), (
        "neither a small leaf nor one without a right digit says how far others may be"
    )
    assert compared["out['loss'"] == 0.0


@pytest.mark.parametrize(("by", "verdict"), [(1.02, "pass"), (1.06, "fail"), (0.0, "fail"), (-1.0, "fail")])
def test_no_leaf_need_be_nearer_than_eagers_others_are(by, verdict):
    """A ReLU's gate met `b` in eager and `a` in the other: neither is wrong."""
    judge = _gradients(a=torch.full((4,), 1.0), b=torch.full((4,), 1.0))
    eager = _gradients(a=torch.full((4,), 1.0), b=torch.full((4,), 1.015))
    other = _gradients(a=torch.full((4,), by), b=torch.full((4,), 1.0))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01}
    noise = comparison.relative_errors(eager, judge, 0.01)
    compared = comparison.compare(eager, other, judge, noise=noise, **arguments)
    assert compared["status"] == verdict
    assert comparison.compare(eager, other, judge, **arguments)["status"] == "fail"
    assert verdict == "pass" or "relative to their size" in compared["detail"]


@pytest.mark.parametrize(("rounding", "verdict"), [(3e-4, "pass"), (3e-3, "fail")])
def test_a_gradient_that_is_zero_but_for_rounding_has_no_digits(rounding, verdict):
    judge = _gradients(large=torch.full((40,), 1.0), zero=torch.full((4,), 1e-15))
    eager = _gradients(large=torch.full((40,), 1.0), zero=torch.full((4,), 1e-6))
    other = _gradients(large=torch.full((40,), 1.0), zero=torch.full((4,), -rounding))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01}
    assert comparison.compare(eager, other, judge, **arguments)["status"] == verdict
    small = _gradients(large=torch.full((40,), 1.0), zero=torch.full((4,), 1e-4))
    smaller = _gradients(large=torch.full((40,), 1.0), zero=torch.full((4,), 6e-5))
    for of_judge in (small, smaller):
        outcome = comparison.compare(small, other, of_judge, **arguments)
        assert outcome["status"] == "fail", "small, and not zero"


@pytest.mark.parametrize(("by", "gated", "verdict"), [
    (1.008, ["gradients"], "pass"), (1.008, [], "fail"), (1.008, ["updates"], "fail"),
    (1.03, ["gradients"], "fail"),
])  # fmt: skip
def test_one_gate_moves_a_gradient_by_near_to_a_per_cent(by, gated, verdict):
    judge = _gradients(a=torch.full((4,), 1.0))
    other = _gradients(a=torch.full((4,), by))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01, "gated": gated}
    assert comparison.compare(judge, other, judge, **arguments)["status"] == verdict


@pytest.mark.parametrize(
    ("by", "verdict"), [(1.3, "pass"), (1.9, "skipped"), (0.0, "skipped"), (4.0, "fail")]
)
def test_no_verdict_where_eager_is_too_far_away(by, verdict):
    """Least of all that a gradient that was left out is right."""
    judge = _gradients(a=torch.full((4,), 1.0))
    other = _gradients(a=torch.full((4,), by))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01, "gated": ["gradients"]}
    compared = comparison.compare(judge, other, judge, noise={"out['gradients'": 0.4}, **arguments)
    assert compared["status"] == verdict
    assert ("not judged" in compared["detail"]) == (verdict == "skipped")


@pytest.mark.parametrize("gated", [[], ["gradients"]])
def test_a_small_gradient_that_was_left_out_is_wrong_however_large_others_are(gated):
    judge = _gradients(large=torch.full((4,), 1.0), small=torch.full((4,), 1e-3))
    other = _gradients(large=torch.full((4,), 1.0), small=torch.zeros(4))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01, "gated": gated}
    compared = comparison.compare(judge, other, judge, noise={"out['gradients'": 0.1}, **arguments)
    assert compared["status"] == "fail"


def test_one_that_is_wrong_is_reported_before_one_that_cannot_be_judged():
    judge = _gradients(a=torch.full((4,), 1.0), b=torch.full((4,), 1.0))
    arguments = {"tolerance": 1e-3, "factor": 2.0, "of_group": 0.01, "noise": {"out['gradients'": 0.4}}
    for wrong in ("a", "b"):
        leaves = {"a": torch.full((4,), 1.8), "b": torch.full((4,), 1.8), wrong: torch.full((4,), -9.0)}
        assert comparison.compare(judge, _gradients(**leaves), judge, **arguments)["status"] == "fail"


def test_distances_of_each_leaf():
    first = _gradients(a=torch.full((4,), 1.0), b=torch.full((4,), 2.0))
    two = _gradients(a=torch.full((4,), 1.5), b=torch.full((4,), 2.0))
    assert comparison.distances(first, two) == {
        "out['loss']": 0.0,
        "out['gradients']['a']": 0.5,
        "out['gradients']['b']": 0.0,
    }


def returned(y, number):
    return {"y": y, "aux": number}


def test_a_plain_float_is_judged_as_a_tensor_is():
    """A loss as `.item()` has the rounding of the tensor that it was."""
    y, exact = torch.ones(3), 0.1
    eager, near, wrong = exact * (1 + 1e-7), exact * (1 - 1e-7), exact * 1.1

    def status(compiled, judge=None, **more):
        reference = None if judge is None else returned(y.double(), judge)
        outputs = returned(y, eager), returned(y, compiled), reference
        return comparison.compare(*outputs, tolerance=1e-3, factor=2, **more)["status"]

    assert (status(near), status(wrong)) == ("pass", "fail")
    assert (status(near, exact), status(wrong, exact)) == ("pass", "fail")
    assert status(near, cosine=True) == "pass"
    assert comparison.compare(eager, 1, None, tolerance=1e-3, factor=2)["metric"] == "structure"
    nan, inf = float("nan"), float("inf")
    assert comparison.compare(nan, nan, None, tolerance=1e-3, factor=2)["status"] == "pass"
    assert comparison.compare(inf, -inf, None, tolerance=1e-3, factor=2)["status"] == "fail"
    assert comparison.compare(eager, inf, None, tolerance=1e-3, factor=2)["status"] == "fail"


@pytest.mark.parametrize("as_tensor", [True, False])
def test_values_whose_squares_overflow_are_judged(as_tensor):
    """Their distance relative to a bound is no number."""
    left, right = (
        torch.tensor(value, dtype=torch.float64) if as_tensor else value for value in (1e300, 2e300)
    )
    assert comparison.compare(left, right, None, tolerance=1e-3, factor=2)["status"] == "fail"
    assert comparison.compare(left, right, left, tolerance=1e-3, factor=2)["status"] == "fail"
    same = comparison.compare(left, left, None, tolerance=1e-3, factor=2)
    assert (same["status"], same["metric"]) == ("pass", "allclose")


def test_a_plain_float_that_eager_is_far_from_is_judged_beside_the_float64_judge():
    verdict = comparison.compare(0.99, 1.008, 1.0, tolerance=1e-3, factor=2)
    assert (verdict["status"], verdict["metric"]) == ("pass", "rmse_to_float64")
    assert comparison.compare(0.99, 1.03, 1.0, tolerance=1e-3, factor=2)["status"] == "fail"


@pytest.mark.parametrize(("left", "right"), [(7, 8), (True, False), ("a", "b"), (1 << 60, (1 << 60) + 1)])
def test_other_plain_values_must_be_equal(left, right):
    assert comparison.compare(left, right, None, tolerance=1e-3, factor=2)["metric"] == "equality"
    assert comparison.compare(left, right, None, tolerance=1e-3, factor=2)["status"] == "fail"
    assert "differs" in comparison.two_runs_differ(left, right)


def test_two_runs_of_a_plain_float_may_differ_by_rounding():
    assert comparison.two_runs_differ({"loss": 0.1}, {"loss": 0.1 * (1 + 1e-7)}) is None
    assert "differs" in comparison.two_runs_differ({"loss": 0.1}, {"loss": 0.101})


def test_a_plain_float_has_a_distance_and_is_within_a_bound():
    y = torch.ones(3)
    assert comparison.within(returned(y, 0.5), returned(y, 0.52), 0.05)["status"] == "pass"
    assert comparison.within(returned(y, 0.5), returned(y, 0.6), 0.05)["status"] == "fail"
    assert comparison.within(returned(y, 0.5), returned(y, torch.tensor(0.5)), 0.05)["metric"] == "structure"
    distance = comparison.distance(returned(y, 0.5), returned(y, 0.6))
    assert distance["relative_rmse"] == pytest.approx(0.2)


def test_a_plain_float_counts_as_finite_where_nothing_else_is_floating():
    nan = float("nan")
    assert not comparison.nothing_finite((0.5, None))
    assert comparison.nothing_finite((nan, None))
    assert comparison.nothing_finite((torch.full((2,), nan), 0.5))
