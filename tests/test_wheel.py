"""The wheel, installed in an empty environment away from the checkout, lists suites and runs a case.

torch is not installed there: the case runs under this interpreter, by --python, as it would for
another torch build. It is sampled a few times only: the numbers are not the point.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from perfdash.runner.run_journal import read_info, read_results
from tests.wheels import site_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CHECKOUT = Path(__file__).parents[1]
MODEL = "import torch\ndef f(n):\n    return torch.nn.Linear(8, 8), (torch.randn(n, 8),)\n"


def link_what_is_required(site: Path, name: str, extras: frozenset[str] = frozenset()) -> None:
    """Link what a package in `site` requires, and nothing else, from here: to unpack it takes 12 seconds."""
    (package,) = importlib.metadata.distributions(name=name, path=[str(site)])
    for requirement in map(Requirement, package.requires or []):
        chosen = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if requirement.marker is not None and not any(map(requirement.marker.evaluate, chosen)):
            continue
        here = importlib.metadata.distribution(requirement.name)
        tops = {file.parts[0] for file in here.files or []} - {"..", "__pycache__"}
        is_new = any(not (site / top).exists() for top in tops)
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(here.locate_file(top))))
        if is_new or requirement.extras:
            link_what_is_required(site, requirement.name, frozenset(requirement.extras))


def test_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, CHECKOUT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    modules = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "perfdash").rglob("*.py")}
    assert modules <= set(zipfile.ZipFile(wheel).namelist()), "those that only a worker loads, too"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "--no-deps", wheel], check=True)
    link_what_is_required(site_of(tmp_path / "venv"), "perfdash")
    checked = subprocess.run([*pip, "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert checked.returncode == 0, f"what the wheel requires is not what is here:\n{checked.stdout}"

    away = tmp_path / "away"
    away.mkdir()
    (away / "m.py").write_text(MODEL)
    command = tmp_path / "venv" / "bin" / "perfdash"

    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments, program=(command,)):
        return subprocess.run([*program, *arguments], cwd=away, env=env, capture_output=True, text=True)

    listed = run("list", "timm")
    assert listed.returncode == 0, listed.stderr
    assert "lcnet_050" in listed.stdout

    without = run("run", "--model", "m.py:f")
    assert without.returncode == 3
    assert "torch does not import" in without.stderr

    # What loads this suite's models needs torch, which is not in this environment: planning does not.
    words = ["--suite", "timm", "--models", "lcnet_050", "--python", sys.executable]
    planned = run("run", "--dry-run", *words)
    assert planned.returncode == 0, planned.stderr
    assert "timm_lcnet-050" in planned.stdout

    words = ["--model", "m.py:f", "--backend", "aot_eager", "--processes", "1", "--out", "o"]
    few_samples = shutil.copy(Path(__file__).with_name("few_samples.py"), tmp_path / "few_samples.py")
    done = run("run", *words, "--python", sys.executable, program=(python, few_samples))
    assert done.returncode == 0, done.stderr
    (folder,) = [path for path in (away / "o").iterdir() if path.is_dir()]
    assert [r.status.value for r in read_results(folder)] == ["pass"]
    runs_listed = run("history", "runs", "--out", "o")
    assert folder.name in runs_listed.stdout, "the migrations are in the wheel"
    pages = run("site", "--to", "pages", "--out", "o")
    assert pages.returncode == 0, pages.stderr
    assert (away / "pages" / "assets" / "site.css").is_file(), "templates and assets are in the wheel"
    report = run("report", "--format", "html", "--out", "o")
    assert folder.name in report.stdout, report.stderr
    worker = read_info(folder).environment["worker"]
    assert worker["executable"] == sys.executable
    assert worker["torch"]
