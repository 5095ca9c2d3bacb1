"""Wheels, package indexes and interpreters that tests make: pure Python, one module each."""

from __future__ import annotations

import importlib.metadata
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    files: dict[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel of a package `name` whose `__version__` is its version."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {require}\n" for require in requires)
    contents = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n",
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{file},,\n" for file in (*contents, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def make_index(folder: Path, wheels: Sequence[Path], yanked: Sequence[str] = ()) -> str:
    """The address of an index (PEP 503) of wheels; those with a version in `yanked` are marked so."""
    for wheel in wheels:
        page = folder / wheel.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        mark = ' data-yanked="broken"' if wheel.name.split("-")[1] in yanked else ""
        with page.open("a") as out:
            out.write(f'<a href="{wheel.as_uri()}"{mark}>{wheel.name}</a><br>\n')
    return f"{folder.as_uri()}/"


def make_interpreter(folder: Path, with_pip: bool = True) -> Path:
    """An interpreter with nothing installed but this one's pip, which starts faster than pip --python."""
    venv.create(folder, with_pip=False)
    if with_pip:
        # Not imported, nor sought by find_spec: setuptools gives the old distutils back to pip, and with
        # that it does not load any more, which torch's compiler needs.
        mine = importlib.metadata.distribution("pip")
        package = Path(str(mine.locate_file("pip")))
        for source in (package, *package.parent.glob(f"pip-{mine.version}.dist-info")):
            (site_of(folder) / source.name).symlink_to(source, target_is_directory=True)
    return folder / "bin" / "python"


def site_of(folder: Path) -> Path:
    """Where the packages of an interpreter lie."""
    (site,) = folder.glob("lib/python*/site-packages")
    return site
