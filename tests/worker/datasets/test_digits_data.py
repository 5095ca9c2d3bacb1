"""The digits of scikit-learn without scikit-learn."""

import importlib.util
import subprocess
import sys

import pytest

from perfdash.records import Case, Job
from perfdash.worker import registry
from tests.lazy import lazy

torch = lazy("torch")
digits = lazy("perfdash.worker.datasets.digits")


FIRST = [6, 1, 2, 5, 7, 0, 6, 5, 8, 7, 6, 8]  # labels of the test part


def job(batch_size=32):
    case = Case("techniques", "digits_fcn", batch_size=batch_size)
    return Job(case=case, loader="models", target="digits_fcn", scratch="")


def test_they_are_the_digits_split_by_class():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    (images, labels), (held_images, held_labels) = digits.training(), digits.testing()
    assert images.shape == (1438, 1, 8, 8)
    assert held_images.shape == (359, 1, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    whole = torch.tensor(theirs.target).bincount()
    torch.testing.assert_close(held_labels.bincount() / whole, torch.full((10,), 0.2), rtol=0.02, atol=0)
    ours = sorted((*image.flatten().tolist(), label) for image, label in zip(
        torch.cat([images, held_images]), torch.cat([labels, held_labels]).tolist(), strict=True
    ))  # fmt: skip
    expected = sorted(
        (*(row / 16).tolist(), label) for row, label in zip(theirs.data, theirs.target.tolist(), strict=True)
    )
    assert ours == expected


def test_the_split_is_always_the_same():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, two = digits.testing(), digits.testing()
    assert torch.equal(first[0], two[0])
    assert first[1][:12].tolist() == FIRST
    assert torch.equal(torch.get_rng_state(), before)


def test_batches():
    data = registry.find("datasets", "digits").open_data(job())
    assert (data.samples, data.classes, data.notes) == (359, 10, [])
    for _ in range(2):
        batches = list(data.batches(100))
        assert [images.shape for (images,), _ in batches] == [(n, 1, 8, 8) for n in (100, 100, 100, 59)]
        images, labels = digits.testing()
        assert torch.equal(torch.cat([images for (images,), _ in batches]), images)
        assert torch.equal(torch.cat([labels for _, labels in batches]), labels)


def test_calibration_is_of_whole_batches_of_training_images():
    batches = list(digits.calibration(job(1000), 3))
    training, _ = digits.training()
    assert [images.shape for (images,) in batches] == [(1000, 1, 8, 8)] * 3
    assert torch.equal(torch.cat([images for (images,) in batches])[: len(training)], training)
    assert torch.equal(batches[1][0][438], training[0])


def test_samples_are_repeated():
    images, _ = digits.testing()
    assert torch.equal(digits.sample(400), torch.cat([images, images[:41]]))
    assert torch.equal(digits.sample(5), images[:5])


@pytest.mark.slow
def test_nothing_of_scikit_learn_is_imported():
    code = (
        "import sys; from perfdash.worker.datasets import digits; digits.testing(); "
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"scikit-learn, which is not installed: pip install scikit-learn"):
        digits.open_data(job())
