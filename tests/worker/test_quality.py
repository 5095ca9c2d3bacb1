"""Scores against scikit-learn's, partial batches, and what cannot be scored."""

import types

import pytest

from tests.lazy import lazy

torch = lazy("torch")
quality = lazy("perfdash.worker.quality")


def data_of(images, labels, classes=None, notes=()):
    def batches(size):
        for start in range(0, len(labels), size):
            yield (images[start : start + size],), labels[start : start + size]

    return quality.Labelled(len(labels), classes, batches, list(notes))


def same(inputs):
    return inputs[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", range(20))
def test_f1_and_top1_are_those_of_scikit_learn(seed):
    from sklearn.metrics import accuracy_score, f1_score

    generator = torch.Generator().manual_seed(seed)
    classes = 2 + seed
    labels = torch.randint(max(1, classes - 1), (30,), generator=generator)  # one class never is the label
    predictions = torch.where(
        torch.rand(30, generator=generator) < 0.6,
        labels,
        torch.randint(classes, (30,), generator=generator),
    )
    expected = f1_score(labels.numpy(), predictions.numpy(), average="macro")
    assert quality.macro_f1(labels, predictions, classes) == pytest.approx(expected, abs=1e-12)
    expected = accuracy_score(labels.numpy(), predictions.numpy())
    assert quality.top1(labels, predictions) == pytest.approx(expected, abs=1e-12)


def test_no_class_is_wrong_and_no_class_of_its_own():
    labels, predictions = torch.tensor([0, 0, 1, 1]), torch.tensor([0, quality.NO_CLASS, 1, 1])
    assert quality.macro_f1(labels, predictions, 5) == pytest.approx((2 / 3 + 1) / 2)
    assert quality.top1(labels, predictions) == 0.75


@pytest.mark.parametrize("batch_size", [1, 4, 7, 10, 16])
def test_scores_do_not_depend_on_the_batch_size_and_batches_are_whole(batch_size):
    torch.manual_seed(0)
    images, labels = torch.randn(10, 3), torch.randint(3, (10,))
    shapes = set()

    def backend(inputs):
        shapes.add(tuple(inputs[0].shape))
        return -inputs[0]

    scores = quality.score(same, backend, data_of(images, labels, 3), batch_size)
    assert shapes == {(batch_size, 3)}
    eager, other = images.argmax(1), images.argmin(1)
    assert scores == {
        "metric": "f1",
        "value": quality.macro_f1(labels, other, 3),
        "eager_value": quality.macro_f1(labels, eager, 3),
        "samples": 10,
        "top1": quality.top1(labels, other),
        "eager_top1": quality.top1(labels, eager),
        "agreement": 0.0,
        "classes": 3,
        "notes": [],
    }


def test_a_partial_batch_is_filled_up_with_its_own_rows():
    inputs = {"ids": torch.arange(3)[:, None], "scale": torch.tensor(2.0)}
    filled = quality.filled_up(inputs, 3, 8)
    assert filled["ids"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert filled["scale"] == 2


def test_inputs_by_keyword_and_a_back_end_wrong_by_a_known_amount():
    labels = torch.arange(100) % 4
    values = torch.nn.functional.one_hot(labels, 4).float()

    def batches(size):
        for start in range(0, 100, size):
            yield (
                {"values": values[start : start + size], "row": torch.arange(start, 100)[:size]},
                labels[start : start + size],
            )

    def backend(inputs):  # the first ten samples, of all classes, become class 0
        wrong = (inputs["row"] < 10)[:, None]
        return {"logits": torch.where(wrong, torch.tensor([1.0, 0, 0, 0]), inputs["values"])}

    scores = quality.score(lambda inputs: inputs["values"], backend, quality.Labelled(100, 4, batches), 16)
    assert (scores["eager_value"], scores["eager_top1"]) == (1, 1)
    assert (scores["top1"], scores["agreement"]) == (0.93, 0.93)
    f1 = [2 * 25 / (50 + 7), 2 * 22 / (44 + 3), 2 * 23 / (46 + 2), 2 * 23 / (46 + 2)]
    assert scores["value"] == pytest.approx(sum(f1) / 4)


def test_a_model_that_changes_its_inputs_changes_nothing_for_the_other():
    images = torch.eye(4)

    def eager(inputs):
        inputs[0].neg_()
        return -inputs[0]

    scores = quality.score(eager, same, data_of(images, torch.arange(4)), 4)
    assert (scores["value"], scores["eager_value"], scores["agreement"]) == (1, 1, 1)
    assert torch.equal(images, torch.eye(4))


def test_nan_counts_as_wrong_and_is_noted():
    images = torch.eye(4)
    images[1, 2] = float("nan")
    scores = quality.score(
        lambda inputs: torch.nan_to_num(inputs[0]), same, data_of(images, torch.arange(4), notes=["first"]), 3
    )
    assert (scores["top1"], scores["eager_top1"]) == (0.75, 1)
    assert scores["notes"] == ["first", "the back end gives NaN for 1 of 4 samples; they count as wrong"]


@pytest.mark.parametrize("bad", [-1, 3, 1000])
def test_labels_out_of_range(bad):
    labels = torch.tensor([0, 1, bad, 2, bad])
    with pytest.raises(
        ValueError, match=rf"label {bad} is none of the model's 3 classes .0 to 2.; .* 2 of 5"
    ):
        quality.score(same, same, data_of(torch.randn(5, 3), labels), 8)


def test_other_numbers_of_classes():
    data = data_of(torch.eye(3), torch.arange(3), classes=2)
    assert "have 2 classes, the model 3" in quality.score(same, same, data, 2)["notes"][0]
    with pytest.raises(ValueError, match=r"back end have shape \(2, 2\), not \(2, 3\)"):
        quality.score(same, lambda inputs: inputs[0][:, :2], data, 2)
    with pytest.raises(ValueError, match="no samples"):
        quality.score(same, same, quality.Labelled(0, None, lambda size: iter(())), 2)


def test_where_logits_are():
    logits = torch.randn(2, 5)
    for outputs in (
        logits,
        {"loss": torch.tensor(1.0), "logits": logits},
        types.SimpleNamespace(logits=logits),
        (torch.tensor(1.0), torch.ones(2, 5, dtype=torch.long), logits, torch.randn(2, 7)),
        [logits.bfloat16(), logits],
    ):
        leaf = quality.logits(outputs)
        assert torch.equal(leaf.float(), logits if leaf.dtype == torch.float32 else logits.bfloat16().float())


def test_logits_of_a_transformers_output():
    from transformers.modeling_outputs import SequenceClassifierOutput

    logits = torch.randn(2, 5)
    assert quality.logits(SequenceClassifierOutput(loss=torch.tensor(1.0), logits=logits)) is logits


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda: torch.zeros(2, 3, 4), r"a tensor \(2, 3, 4\) of float32"),
        (lambda: torch.zeros(2, 3, dtype=torch.long), "of int64"),
        (lambda: {"out": torch.zeros(2, 3)}, "a dict with out"),
        (lambda: {"logits": torch.zeros(2, 3, 4)}, r"\(2, 3, 4\)"),
        (lambda: (torch.zeros(2), None), r"a tuple of a tensor \(2,\) of float32, a NoneType"),
        (lambda: 3, "a int"),
    ],
)
def test_outputs_without_logits(outputs, message):
    with pytest.raises(ValueError, match=message):
        quality.logits(outputs())
