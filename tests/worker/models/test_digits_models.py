"""The models of the digits: trained once, well enough, and without a trace in the process."""

import importlib
import os
import threading
import warnings

import pytest

from perfdash.worker import user_cache
from perfdash.worker.child import ChildFailed
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
digits = lazy("perfdash.worker.datasets.digits")
quality = lazy("perfdash.worker.quality")
digits_training = lazy("perfdash.worker.digits_training")
modules = lazy("tests.worker.modules")


NAMES = ("fcn", "cnn", "lstm")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of this file's own, empty at first."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("PERFDASH_CACHE")
    os.environ["PERFDASH_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PERFDASH_CACHE"]
    else:
        os.environ["PERFDASH_CACHE"] = before


@pytest.fixture
def two_epochs(monkeypatch):
    """How good the weights are is not the point. The second epoch has an order of the images of its own."""
    monkeypatch.setattr(digits_training, "_EPOCHS", 2)


def build(name, batch_size=4):
    return importlib.import_module(f"perfdash.worker.models.digits_{name}").build(batch_size)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_f1_is_high_and_the_cache_serves_the_second(name, cache, monkeypatch):
    state = torch.get_rng_state()
    module, (images,) = build(name)
    torch.set_rng_state(state)
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(torch.optim, "Adam", None)
        patched.setattr(torch.optim, "AdamW", None)
        patched.setattr(torch.optim, "SGD", None)
        again, _ = build(name)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == written != {}
    for first, two in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, two)
    assert images.shape == (4, 1, 8, 8)
    assert not module.training

    def run(inputs):
        return module(*inputs)

    scores = quality.score(run, run, digits.open_data(None), 64)
    assert scores["value"] >= 0.97
    assert scores["samples"] == 359


def test_training_is_seeded_and_leaves_no_trace(two_epochs, monkeypatch, tmp_path):
    monkeypatch.setenv("PERFDASH_CACHE", str(tmp_path))
    torch.manual_seed(5)
    first = digits_training.trained(modules.Tiny).state_dict()
    after = torch.rand(1)
    (file,) = (tmp_path / "trained").iterdir()
    assert file.name.startswith("tiny-")
    torch.manual_seed(5)
    cached = digits_training.trained(modules.Tiny).state_dict()
    assert torch.equal(torch.rand(1), after)  # trained or read, what is drawn next is the same
    file.unlink()
    torch.manual_seed(6)
    anew = digits_training.trained(modules.Tiny).state_dict()
    for name, tensor in first.items():
        assert torch.equal(tensor, cached[name])
        assert torch.equal(tensor, anew[name])
        assert tensor.grad is None


@pytest.mark.parametrize("content", [b"", b"broken", None])
def test_a_broken_file_is_made_anew(two_epochs, monkeypatch, tmp_path, content):
    monkeypatch.setenv("PERFDASH_CACHE", str(tmp_path))
    digits_training.trained(modules.Tiny)
    (file,) = (tmp_path / "trained").iterdir()
    good = file.read_bytes()
    if content is None:  # whole, but of another model
        torch.save(nn.Linear(1, 1).state_dict(), file)
    else:
        file.write_bytes(content)
    digits_training.trained(modules.Tiny)
    assert file.read_bytes() == good
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_cache_that_cannot_be_written(two_epochs, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PERFDASH_CACHE", str(tmp_path / "file"))
    assert digits_training.trained(modules.Tiny)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_not_whole_is_removed(monkeypatch, tmp_path):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(digits_training.os, "replace", full)
    digits_training._keep(b"weights", tmp_path / "trained" / "w.pt")
    assert list((tmp_path / "trained").iterdir()) == []


def test_training_in_this_process_leaves_its_random_state(monkeypatch):
    """After a training autograd's threads cannot be forked."""

    def refuse(*_):
        raise ChildFailed({"message": "Unable to handle autograd's threading, see Autograd-and-Fork"})

    monkeypatch.setattr(digits_training, "in_child", refuse)
    monkeypatch.setattr(digits_training, "_train", lambda architecture: {"drawn": torch.rand(1)})
    before = torch.get_rng_state()
    assert "drawn" in digits_training._in_child_or_here(modules.Tiny)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_digest_follows_torch_and_the_sources(monkeypatch):
    before = digits_training._digest(modules.Tiny)
    assert digits_training._digest(modules.Tiny) == before
    monkeypatch.setattr("torch.__version__", "0.0")
    assert digits_training._digest(modules.Tiny) != before


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("PERFDASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache.folder("trained") == tmp_path / "perfdash" / "trained"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache.folder("trained") == tmp_path / "home" / ".cache" / "perfdash" / "trained"


def test_many_writers_leave_one_whole_file(tmp_path):
    file, content = tmp_path / "a" / "w.pt", os.urandom(1 << 20)
    writers = [threading.Thread(target=digits_training._keep, args=(content, file)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert file.read_bytes() == content
    assert len(list(file.parent.iterdir())) == 1


@pytest.mark.parametrize(("name", "parameters"), [("fcn", 1_126_410), ("cnn", 94_186), ("lstm", 801_290)])
def test_architectures(name, parameters):
    module = getattr(importlib.import_module(f"perfdash.worker.models.digits_{name}"), name.upper())().eval()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    images = digits.sample(3)
    with torch.no_grad():
        whole = module(images)
        assert whole.shape == (3, 10)
        torch.testing.assert_close(module(images[1:2]), whole[1:2], rtol=1e-4, atol=1e-5)
        assert module.bfloat16()(images.bfloat16()).dtype == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own about its LSTM's list of weights
        exported = torch.export.export(module.float(), (images,))
    torch.testing.assert_close(exported.module()(images), module(images))
