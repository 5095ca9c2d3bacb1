"""A model of the user's own, and what is found beside its file."""

import importlib
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdash.worker import own_files
from perfdash.worker.loaders import python
from tests.lazy import lazy

torch = lazy("torch")

LOAD = """
import sys
from perfdash.worker.loaders import python
from tests.worker.loaders.test_python import job
print(python.load(job(sys.argv[1]))[0])
"""


def job(file, scratch="", of_build=True):
    case = SimpleNamespace(batch_size=1)
    return SimpleNamespace(target=f"{file}:make", case=case, scratch=str(scratch), of_build=of_build)


@pytest.fixture
def imports(monkeypatch):
    """What a test imports is gone at its end. Not torch, which a process can import only once."""
    torch.ones(1)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.slow
def test_a_build_is_imported_although_the_file_lies_in_the_checkout(tmp_path):
    """Or every build that is bisected would be the checkout."""
    for name in ("checkout", "build"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.py").write_text(f"name = '{name}'\n")
    (tmp_path / "checkout" / "beside.py").write_text("name = 'beside'\n")
    model = tmp_path / "checkout" / "model.py"
    model.write_text(
        "import lib, beside\n\n\ndef make(batch_size):\n    return f'{lib.name} {beside.name}', ()\n"
    )
    path = ":".join([str(tmp_path / "build"), *filter(None, sys.path)])
    process = subprocess.run(
        [sys.executable, "-c", LOAD, model], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert process.stdout.strip() == "build beside", process.stderr
    alone = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{LOAD}", model],
        env={}, capture_output=True, text=True,
    )  # fmt: skip
    assert alone.stdout.strip() == "checkout beside", alone.stderr


@pytest.fixture
def installed(tmp_path, monkeypatch, imports):
    """net.py in a checkout of `flatlib`; its package is installed from the folder that is given."""
    for name in ("checkout", "environment"):
        (tmp_path / name / "flatlib").mkdir(parents=True)
        (tmp_path / name / "flatlib" / "__init__.py").write_text(f"name = '{name}'\n")
    model = tmp_path / "checkout" / "net.py"
    model.write_text("def make(batch_size):\n    import flatlib\n\n    return flatlib.name, ()\n")

    def load(environment, of_build=True):
        sys.path.append(str(tmp_path / environment))
        return python.load(job(model, of_build=of_build))

    return load


def test_a_checkout_that_hides_the_installed_build_is_refused_with_both_places(installed, tmp_path):
    """Or `compare-builds` would measure the checkout on both sides."""
    with pytest.raises(LookupError) as error:
        installed("environment")
    for folder in ("checkout", "environment"):
        assert str(tmp_path / folder / "flatlib" / "__init__.py") in str(error.value)


def test_a_package_of_a_project_that_happens_to_be_installed_too_is_measured_with_a_note(installed, tmp_path):
    """Where no build is meant: many packages install a `utils` or `tests` of their own."""
    assert installed("environment", of_build=False) == ("checkout", ())
    (note,) = python.notes(job(tmp_path / "checkout" / "net.py"))
    for folder in ("checkout", "environment"):
        assert str(tmp_path / folder / "flatlib" / "__init__.py") in note


def test_an_editable_install_with_a_finder_of_its_own_is_an_installed_build(installed, tmp_path, monkeypatch):
    there = tmp_path / "environment" / "flatlib" / "__init__.py"

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            place = [str(there.parent)]
            of = importlib.util.spec_from_file_location
            return of(name, there, submodule_search_locations=place) if name == "flatlib" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    with pytest.raises(LookupError, match=str(there)):
        installed("nothing")


def test_a_checkout_that_is_itself_installed_and_one_that_is_not_are_measured(installed, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "checkout")
    assert installed("link") == ("checkout", ())


def test_a_checkout_that_the_user_put_first_is_what_the_user_measures(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "checkout"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "checkout"), *sys.path])
    assert installed("environment") == ("checkout", ())


def test_a_module_beside_the_model_may_be_named_as_an_installed_package_of_others(installed, tmp_path):
    """`utils.py` is no checkout of a package `utils`; nor is one of the standard library's names."""
    (tmp_path / "environment" / "utils").mkdir()
    (tmp_path / "environment" / "utils" / "__init__.py").touch()
    for name in ("utils", "this"):
        (tmp_path / "checkout" / f"{name}.py").write_text("size = 3\n")
    (tmp_path / "checkout" / "net.py").write_text(
        "import this, utils\n\n\ndef make(batch_size):\n    return this.size + utils.size, ()\n"
    )
    assert installed("environment") == (6, ())


@pytest.mark.usefixtures("imports")
def test_the_files_of_a_model_are_its_own_and_those_beside_it(tmp_path):
    from perfdash.worker.loaders import python

    (tmp_path / "parts_of_it").mkdir()
    (tmp_path / "parts_of_it" / "layers.py").write_text("size = 3\n")
    (tmp_path / "unused.py").write_text("")
    model = tmp_path / "model_of_files.py"
    model.write_text(
        "import json\nfrom parts_of_it import layers\n\n\ndef make(batch_size):\n    return layers, ()\n"
    )
    python.load(job(model))
    assert python.files(job(model)) == {
        "model_of_files.py": model.read_text(), "parts_of_it/layers.py": "size = 3\n",
    }  # fmt: skip


def test_perfdash_is_no_file_of_a_model_that_lies_above_the_folder_of_its_worker(tmp_path):
    """A model in /tmp: each worker has a link to perfdash in a folder of its own there."""
    home = tmp_path / "perfdash-scratch-x"
    home.mkdir()
    (home / "perfdash").symlink_to(Path(own_files.__file__).resolve().parents[1], target_is_directory=True)
    listed = "from perfdash.worker import own_files; from pathlib import Path; import sys; "
    listed += "print(own_files.__file__, *own_files.imported_from(Path(sys.argv[1]), '/other'))"
    process = subprocess.run(
        [sys.executable, "-c", listed, tmp_path], cwd="/",
        env={"PYTHONPATH": str(home)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.split() == [str(home / "perfdash/worker/own_files.py")]


@pytest.mark.usefixtures("imports")
def test_code_that_compiling_generates_is_no_file_of_the_model(tmp_path):
    """A model in /tmp has the folder of its own case below it."""
    from perfdash.worker.loaders import python

    model, scratch = tmp_path / "model_beside_its_scratch.py", tmp_path / "perfdash-x"
    scratch.mkdir()
    (scratch / "generated.py").write_text("")
    model.write_text("def make(batch_size):\n    return 'net', ()\n")
    own = job(model, scratch)
    python.load(own)
    sys.modules["generated"] = SimpleNamespace(__file__=str(scratch / "generated.py"))
    assert list(python.files(own)) == [model.name]


@pytest.mark.usefixtures("imports")
def test_the_source_of_a_model_is_what_was_executed(tmp_path):
    from perfdash.worker.loaders import python

    model, beside = tmp_path / "model_that_is_edited.py", tmp_path / "beside_a_model_that_is_edited.py"
    beside.write_text("size = 3\n")
    model.write_text(f"from {beside.stem} import size\n\n\ndef make(batch_size):\n    return size, ()\n")
    sources = {path.name: path.read_text() for path in (beside, model)}
    assert python.load(job(model)) == (3, ())
    for path in (beside, model):
        path.write_text("size = 4\n")
    assert python.files(job(model)) == sources


@pytest.mark.usefixtures("imports")
def test_a_file_is_executed_once_a_process_and_its_function_called_again(tmp_path):
    model = tmp_path / "model_with_an_operator.py"
    model.write_text(
        "import os\nos.mkdir(__file__ + '.executed')\n\n\n"
        "def make(batch_size):\n    return object(), (batch_size,)\n"
    )
    first, second = (python.load(job(model)) for _ in range(2))
    assert first[0] is not second[0]
    other = tmp_path / "other" / model.name
    other.parent.mkdir()
    other.write_text("def make(batch_size):\n    return 'another file', ()\n")
    assert python.load(job(other))[0] == "another file"


@pytest.mark.usefixtures("imports")
def test_a_file_that_failed_is_executed_again(tmp_path):
    model = tmp_path / "model_that_fails.py"
    model.write_text("def make(batch_size):\n    return 'half', ()\n\n\nraise OSError('half')\n")
    for _ in range(2):
        with pytest.raises(OSError, match="half"):
            python.load(job(model))


@pytest.mark.parametrize("name", ["random", "numpy", "torch", "timeit", "__main__"])
def test_a_file_that_is_named_as_a_module_of_python_or_torch_replaces_none(tmp_path, monkeypatch, name):
    """Or compiling fails, for which compiler and model would be blamed. `timeit` is not loaded before."""
    torch.ones(1)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("beside_it", f"perfdash_model_{name}", "timeit"):  # not there now, and as now afterwards
        monkeypatch.setitem(sys.modules, module, sys.modules.get(module))
        del sys.modules[module]
    before = sys.modules.get(name)
    (tmp_path / "beside_it.py").write_text("size = 3\n")
    model = tmp_path / f"{name}.py"
    model.write_text(
        "from beside_it import size\n\n\nclass Net:\n    size = size\n\n\n"
        "def make(batch_size):\n    return Net(), ()\n"
    )
    net = python.load(job(model))[0]
    assert type(pickle.loads(pickle.dumps(net))) is type(net)
    assert sys.modules.get(name) is before
    assert getattr(importlib.import_module(name), "__file__", None) != str(model), "torch may import it later"
    assert python.load(job(model))[0].size == 3
    assert set(python.files(job(model))) == {model.name, "beside_it.py"}
    assert python.module_name(model) == type(net).__module__
    assert sys.path[0] != str(tmp_path), "processes that compile get this path"


@pytest.mark.usefixtures("imports")
def test_a_file_that_is_named_as_no_loaded_module_is_imported_by_its_name(tmp_path):
    """Its siblings may import it."""
    model = tmp_path / "net_of_siblings.py"
    model.write_text("size = 3\n\n\ndef make(batch_size):\n    import sibling\n    return sibling.size, ()\n")
    (tmp_path / "sibling.py").write_text("from net_of_siblings import size\n")
    assert python.load(job(model)) == (3, ())
    assert python.module_name(model) == "net_of_siblings"


@pytest.mark.parametrize("kind", ["tuple", "list", "tensor", "dict", "outer list"])
def test_what_a_function_may_return(kind):
    """The inputs as a tuple, a list, one tensor or a dict; the pair as a tuple or a list."""
    x = torch.ones(2)
    returned = {
        "tuple": ("net", (x,)),
        "list": ("net", [x]),
        "tensor": ("net", x),
        "dict": ("net", {"x": x}),
        "outer list": ["net", (x,)],
    }[kind]
    module, inputs = python.call(lambda size: returned, 1, "net.py:make")
    assert module == "net"
    assert isinstance(inputs, dict if kind == "dict" else tuple)
    assert (inputs["x"] if kind == "dict" else inputs[0]) is x


@pytest.mark.parametrize("when", ["executed", "called"])
def test_a_relative_path_that_is_missing_is_said_to_be_looked_for_in_another_folder(
    tmp_path, monkeypatch, when
):
    """A case runs in its scratch folder, not where the user has typed the command."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    model, (at_once, later) = tmp_path / f"model_that_opens_when_{when}.py", ("pass", "open('there.pt')")
    if when == "executed":
        at_once, later = later, at_once
    model.write_text(f"{at_once}\n\n\ndef make(batch_size):\n    {later}\n")
    with pytest.raises(FileNotFoundError, match=r"in another folder: .* from __file__.*: 'there.pt'"):
        python.load(job(model))


def test_a_missing_absolute_path_is_what_python_says():
    with pytest.raises(FileNotFoundError) as caught:
        python.call(lambda size: Path("/there.pt").read_bytes(), 1, "net.py:make")
    assert str(caught.value) == "[Errno 2] No such file or directory: '/there.pt'"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "It returned None: is its `return` missing?"),
        ("net", "It returned an object of type str"),
        (("net", (1,), 3), "It returned a tuple of 3"),
        (((1,), "net"), "the module first: write `return net, (x,)`"),
        (("net", "x"), "Its inputs are an object of type str"),
    ],
)
def test_what_a_function_may_not_return(returned, words):
    with pytest.raises(TypeError, match=r"^net.py:make must return \(module, inputs\)") as caught:
        python.call(lambda size: returned, 1, "net.py:make")
    assert words in str(caught.value)
