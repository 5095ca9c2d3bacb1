"""A small checkout of torchbench: the public calls that perfdash uses, and a model for every ending."""

from __future__ import annotations

from pathlib import Path

INIT = """
import importlib, os, pathlib
HERE = pathlib.Path(__file__).parent
class ModelNotFoundError(RuntimeError): pass
def _load(kind, name):
    if not (HERE / kind / name).is_dir():
        raise ModelNotFoundError(f"{name} is not found in the {kind} list.")
    return importlib.import_module(f"torchbenchmark.{kind}.{name}").Model
def load_model_by_name(name): return _load("models", name)
def load_canary_model_by_name(name): return _load("canary_models", name)
def get_metadata_from_yaml(path):
    import json
    file = pathlib.Path(path, "metadata.yaml")  # JSON is YAML
    return json.loads(file.read_text()) if file.exists() else None
"""

MODEL = """
import torch
{imports}
class Base:
    ALLOW_CUSTOMIZE_BSIZE = True
    def __init__(self, test, device, batch_size=None, extra_args=[]):
        assert test in ("train", "eval") and extra_args == ["--precision", "fp32"]
        self.test, self.device = test, device
        own = self.DEFAULT_TRAIN_BSIZE if test == "train" else self.DEFAULT_EVAL_BSIZE
        self.batch_size = batch_size or own
        {setup}
    def get_module(self):
        return torch.nn.Linear(4, 2), {inputs}
class Model(Base):
    DEFAULT_EVAL_BSIZE = {size}
    DEFAULT_TRAIN_BSIZE = {train_size}
    {fixed}
"""


def write_checkout(folder: Path) -> Path:
    """The folder, filled."""

    def model(
        name, *, kind="models", size=8, fixed=False, imports="", setup="pass", inputs=None, metadata=None
    ):
        place = folder / "torchbenchmark" / kind / name
        place.mkdir(parents=True)
        text = MODEL.format(
            imports=imports,
            setup=setup,
            size=size,
            train_size=2 * size,
            fixed="ALLOW_CUSTOMIZE_BSIZE = False" if fixed else "",
            inputs=inputs or "[torch.rand(self.batch_size, 4)]",
        )
        (place / "__init__.py").write_text(text)
        if metadata:
            (place / "metadata.yaml").write_text(metadata)

    model("plain")
    model("keywords", inputs='{"input": torch.rand(self.batch_size, 4)}')
    model("fixed", size=16, fixed=True)
    model("needs_package", imports="import a_package_that_nobody_has")
    model("needs_data", setup='open("/nowhere/torchbenchmark/data/.data/images/list.txt")')
    model("needs_hub", setup='raise __import__("urllib.error").error.URLError("Name or service not known")')
    model("not_on_cpu", metadata='{"not_implemented": [{"device": "cpu"}]}')
    model("not_trained", metadata='{"not_implemented": [{"device": "cpu", "test": "train"}]}')
    model("strange", kind="canary_models")
    (folder / "torchbenchmark" / "__init__.py").write_text(INIT)
    for kind in ("models", "canary_models"):
        (folder / "torchbenchmark" / kind / "__init__.py").write_text("")
    return folder
