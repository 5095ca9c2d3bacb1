"""`perfdash bisect` with the real worker: a slower model, a wrong one, in repositories made here."""

import json

import pytest

from tests.repositories import Repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Each pass takes `ms` beside its product, with noise of a process (0.3 %) and of a pass (3 %), as
# real models have. It is waited, not computed: how busy the machine is that runs the tests must
# not decide what is found. Eager and compiled differ where `wrong` is not 0.
PACKAGE = """
import random, time
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(96, 96) / 10)
        self.dice = random.Random(time.time_ns())
        self.seconds = {ms} / 1000 * self.dice.gauss(1, 0.003)

    def forward(self, x):
        x = torch.tanh(x @ self.weight)
        self.wait()
        if {wrong} and torch.compiler.is_compiling():
            x = x + {wrong}
        return x

    @torch.compiler.disable
    def wait(self):
        time.sleep(max(0.0, self.seconds * self.dice.gauss(1, 0.03)))
"""
MODEL = """
import torch
from pkg import Model

def make(batch_size):
    return Model(), (torch.randn(64, 96),)
"""


class Project:
    """A repository of such commits; `commit` says what is new."""

    def __init__(self, folder):
        self.repository = Repository(folder / "repo")
        (folder / "model.py").write_text(MODEL)
        self.now = {"ms": 5.0, "wrong": 0}
        self.number = 0

    def commit(self, broken=False, **new):
        self.number += 1
        self.now |= new
        text = PACKAGE.format(**self.now) + ("raise SystemError('does not import')\n" if broken else "")
        files = {"pkg/__init__.py": f"# {self.number}\n{text}", "broken": str(broken)}
        return self.repository.commit(f"change {self.number}", files)

    def branch(self, count):
        """A branch merged at once, of changes that touch nothing."""
        self.repository.git("checkout", "--quiet", "-b", f"b{self.number}")
        for k in range(count):
            self.repository.commit(f"on a branch {k}", {f"notes/{self.number}-{k}": "", "side": str(k)})
        self.repository.git("checkout", "--quiet", "main")
        self.repository.commit("meanwhile", {"main": str(self.number)})
        self.repository.merge(f"b{self.number}")


def bisected(command, tmp_path, good, *more):
    ran = command(
        "bisect", "--repo", "repo", "--good", good, "--bad", "main", "--model", "model.py:make",
        "--backend", "aot-eager", "--no-confirm", *more,
        env={"PERFDASH_BUILD_CACHE": str(tmp_path / "cache")}, timeout=1700,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (made,) = (tmp_path / "runs" / "bisections").iterdir()
    return json.loads((made / "report.json").read_text()), ran.out


def test_a_model_that_gets_slower_by_8_percent(command, tmp_path):
    """100 commits on the line of first parents and more beside it; five cannot be built."""
    (tmp_path / "own.toml").write_text(
        'name = "own"\nkind = "commits"\n[build]\ncommand = "grep -q False broken && cp -r pkg $PREFIX"\n'
    )
    project = Project(tmp_path)
    first = project.commit()
    for n in range(1, 90):
        if n == 57:
            culprit = project.commit(ms=5.4)
        else:
            project.commit(broken=n in (25, 49, 50, 53, 75))
        if n % 9 == 0:
            project.branch(3)
    report, text = bisected(command, tmp_path, first, "--recipe", "own.toml", "--metric", "eager")
    assert report["ranges"][0]["revisions"] >= 100
    assert [revision["id"] for revision in report["culprits"][0]["revisions"]] == [culprit]
    change = report["culprits"][0]["change"]
    assert 1 < change["low"] < 1.12
    assert change["high"] > 1.05  # how wide the interval is, is the machine's
    assert "worse" in text


def test_accuracy_that_breaks_on_a_branch(command, tmp_path):
    project = Project(tmp_path)
    first = project.commit(ms=0.0)
    for _ in range(12):
        project.commit()
    project.repository.git("checkout", "--quiet", "-b", "side")
    project.commit()
    culprit = project.commit(wrong=0.5)
    project.commit()
    project.repository.git("checkout", "--quiet", "main")
    project.repository.commit("meanwhile", {"other": ""})
    project.repository.merge("side")
    for n in range(8):
        project.repository.commit(f"late {n}", {"other": str(n)})
    report, text = bisected(command, tmp_path, first, "--metric", "accuracy")
    assert [revision["id"] for revision in report["culprits"][0]["revisions"]] == [culprit]
    assert "right before, wrong since" in text
    assert report["ranges"][1]["how"].startswith("inside the merge")
