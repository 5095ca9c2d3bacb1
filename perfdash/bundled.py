"""Where the data that ships with perfdash lies, installed from a wheel or run from a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled(kind: str) -> Path:
    """The folder of `suites` (or another data folder at the top of the checkout).

    In a wheel it lies inside the package (pyproject.toml, force-include), in a checkout beside it.
    """
    installed = _PACKAGE / "_bundled" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind
