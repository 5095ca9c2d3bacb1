"""Weights from files: what loads, what is refused, and what is said of those that do not fit."""

import os
import pickle
import warnings

import pytest

from tests.lazy import lazy

safetensors = lazy("safetensors.torch")
torch = lazy("torch")
nn = lazy("torch.nn")
weights = lazy("perfdash.worker.weights")
modules = lazy("tests.worker.modules")


def small(classes=3):
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


def randomised(module):
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(
                torch.randint(2, 9, tensor.shape) if tensor.dtype == torch.long else torch.randn(tensor.shape)
            )
    return module


def assert_same(module, state):
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def saved(state, path):
    if path.suffix == ".safetensors":
        safetensors.save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
def test_round_trip(tmp_path, suffix, prefix):
    state = randomised(small()).state_dict()
    path = saved({prefix + name: tensor for name, tensor in state.items()}, tmp_path / f"w{suffix}")
    module = small()
    weights.load_into(module, path)
    assert_same(module, state)


def test_a_checkpoint_that_holds_a_state_dict(tmp_path):
    state = randomised(small()).state_dict()
    module = small()
    weights.load_into(module, saved({"epoch": 3, "state_dict": state}, tmp_path / "checkpoint.pth"))
    assert_same(module, state)


def test_half_precision_becomes_the_modules_own(tmp_path):
    state = {name: tensor.half() for name, tensor in randomised(nn.Linear(2, 2)).state_dict().items()}
    module = nn.Linear(2, 2)
    weights.load_into(module, saved(state, tmp_path / "half.safetensors"))
    assert module.weight.dtype == torch.float32
    assert_same(module, state)


def test_what_does_not_fit_is_named_and_nothing_is_loaded(tmp_path):
    state = randomised(small(7)).state_dict()
    del state["1.running_mean"]
    state.update({f"extra.{name}": torch.zeros(1) for name in "abcde"})
    path = saved(state, tmp_path / "w.safetensors")
    module = small()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(ValueError, match="does not fit Sequential") as caught:
        weights.load_into(module, path)
    assert str(caught.value).startswith(path)
    assert "1 missing (1.running_mean)" in str(caught.value)
    assert "5 unexpected (extra.a, extra.b, extra.c, ...)" in str(caught.value)
    assert "2 of another shape (2.weight (7, 5) instead of (3, 5), 2.bias (7,)" in str(caught.value)
    assert "number of classes" in str(caught.value)
    assert_same(module, before)


def test_names_that_do_not_matter(tmp_path):
    """Old files lack the count of training batches, and hold buffers that are now made anew."""
    module = small()
    module.register_buffer("positions", torch.arange(4), persistent=False)
    state = randomised(small()).state_dict()
    without = {name: tensor for name, tensor in state.items() if "num_batches" not in name}
    weights.load_into(module, saved({**without, "positions": torch.arange(4)}, tmp_path / "w.pt"))
    assert_same(module, {**state, "1.num_batches_tracked": torch.tensor(0)})


@pytest.mark.parametrize("names", ["embedding.weight", "head.weight"])
def test_a_tied_weight_under_one_of_its_names(tmp_path, names):
    value = torch.randn(6, 4)
    module = modules.Tied()
    weights.load_into(module, saved({names: value}, tmp_path / "w.safetensors"))
    assert module.head.weight is module.embedding.weight
    assert torch.equal(module.head.weight, value)


def test_a_tied_weight_that_is_none_in_the_file(tmp_path):
    state = {"embedding.weight": torch.ones(6, 4), "head.weight": torch.zeros(6, 4)}
    with pytest.raises(ValueError, match=r"1 tied to another in the model, but not in the file .head.weight"):
        weights.load_into(modules.Tied(), saved(state, tmp_path / "w.pt"))


def test_a_folder_of_transformers(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
    model = BertForMaskedLM(config)
    model.save_pretrained(tmp_path)
    other = BertForMaskedLM(config)
    weights.load_into(other, str(tmp_path / "model.safetensors"))
    assert_same(other, model.state_dict())


class Malicious:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (self.witness,)


@pytest.mark.parametrize("plain", [False, True])
def test_code_is_never_run(tmp_path, plain):
    path, witness = tmp_path / "w.pt", tmp_path / "witness"
    if plain:
        path.write_bytes(pickle.dumps({"weight": Malicious(str(witness))}))
    else:
        torch.save({"weight": Malicious(str(witness))}, path)
    with pytest.raises(ValueError, match=r"w.pt is refused: .* could run code") as caught:
        weights.load_into(small(), str(path))
    assert "weights_only" not in str(caught.value)
    assert not witness.exists()


def test_a_whole_module_is_refused(tmp_path):
    torch.save(small(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"refused: .*torch.save.model.state_dict"):
        weights.load_into(small(), str(tmp_path / "model.pt"))


@pytest.mark.parametrize("content", [b"", b"no weights, by no means", b"PK\x03\x04 broken"])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_broken_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is (no .*file.* that can be read|refused: it is broken)"):
        weights.load_into(small(), str(tmp_path / name))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: {"epoch": 3}, "'epoch' is a int"),
        (dict, "it is empty"),
        (lambda: [torch.zeros(1)], "holds a list"),
        (lambda: torch.zeros(1), "holds a Tensor"),
    ],
)
def test_files_of_something_else(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        weights.load_into(small(), saved(content(), tmp_path / "w.pt"))


def test_torchscript_is_no_state_dict(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(1, 1)), tmp_path / "w.pt")
    with pytest.raises(ValueError, match="TorchScript archives"):
        weights.load_into(small(), str(tmp_path / "w.pt"))


def test_missing_file_and_missing_package(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"w.pt is missing"):
        weights.load_into(small(), str(tmp_path / "w.pt"))
    path = saved(small().state_dict(), tmp_path / "w.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        weights.load_into(small(), path)
