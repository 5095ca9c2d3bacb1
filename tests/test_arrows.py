"""The house rules that a program can check: arrows point one way, the worker needs only torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lazy import imported_while_collecting

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "perfdash"

# What each part may import of perfdash, beside itself.
ALLOWED = {
    "metrics": set(),
    "methods": {"metrics"},
    "records": {"methods"},
    "errors": set(),
    "redaction": {"child_environment"},
    "files": {"errors", "redaction"},
    "child_environment": set(),
    "worker": {"records"},
    "suites": {
        "suggestions",
        "validation_messages",
        "errors",
        "files",
        "records",
        "redaction",
        "run_options",
        "settings",
        "worker",
    },
    "run_options": {"metrics", "records"},
    "series_rules": {"errors", "metrics"},
    "owners": {"errors"},
    "suggestions": set(),
    "validation_messages": {"suggestions"},
    "settings": {
        "suggestions",
        "validation_messages",
        "errors",
        "owners",
        "records",
        "run_options",
        "series_rules",
        "topology",
    },
    "topology": {"errors"},
    "stats": {"methods", "metrics", "records"},
    "history": {
        "suggestions",
        "errors",
        "files",
        "methods",
        "metrics",
        "records",
        "redaction",
        "stats",
        "suites",
    },
    "detect": {
        "suggestions",
        "errors",
        "files",
        "history",
        "methods",
        "metrics",
        "records",
        "series_rules",
        "stats",
    },
    "runner": {
        "suggestions",
        "child_environment",
        "detect",
        "errors",
        "files",
        "history",
        "methods",
        "records",
        "redaction",
        "run_options",
        "settings",
        "stats",
        "suites",
        "worker",
        "topology",
    },
    "explain": {
        "child_environment",
        "detect",
        "errors",
        "files",
        "history",
        "methods",
        "metrics",
        "records",
        "redaction",
        "runner",
        "settings",
        "stats",
        "suites",
        "worker",
    },
    "report": {
        "bisection",
        "detect",
        "errors",
        "explain",
        "files",
        "history",
        "methods",
        "metrics",
        "owners",
        "series_rules",
        "records",
        "redaction",
        "runner",
        "settings",
        "stats",
        "suites",
    },
    "bisection": {
        "suggestions",
        "validation_messages",
        "child_environment",
        "detect",
        "errors",
        "explain",
        "files",
        "history",
        "metrics",
        "records",
        "redaction",
        "runner",
        "settings",
        "stats",
        "suites",
        "worker",
        "topology",
    },
    "charts": {"files"},
    "publish": {
        "detect",
        "errors",
        "explain",
        "files",
        "history",
        "owners",
        "redaction",
        "report",
        "series_rules",
    },
    "site": {
        "charts",
        "detect",
        "errors",
        "explain",
        "files",
        "history",
        "methods",
        "metrics",
        "records",
        "redaction",
        "report",
        "stats",
    },
    "serve": {
        "detect",
        "errors",
        "files",
        "history",
        "methods",
        "metrics",
        "records",
        "redaction",
        "report",
        "site",
        "stats",
    },
    # What users import: the command line is made of it.
    "api": {
        "suggestions",
        "bisection",
        "detect",
        "errors",
        "history",
        "metrics",
        "records",
        "report",
        "runner",
        "settings",
        "suites",
    },
    "cli": {
        "suggestions",
        "api",
        "bisection",
        "detect",
        "errors",
        "explain",
        "files",
        "history",
        "methods",
        "metrics",
        "publish",
        "records",
        "redaction",
        "report",
        "run_options",
        "runner",
        "series_rules",
        "serve",
        "settings",
        "site",
        "suites",
        "worker",
    },
    "__main__": {"cli"},
    "__init__": {"api", "bisection", "errors", "records"},
}
# The worker runs under an interpreter in which nothing but torch and the measured library is installed;
# what else a loader, a back end or a data set needs it imports when it is asked for.
WORKER_MAY_IMPORT_EVERYWHERE = {"torch", "perfdash", "__future__", *sys.stdlib_module_names}
WORKER_MAY_IMPORT = WORKER_MAY_IMPORT_EVERYWHERE | {
    "deepspeed",
    "timm",
    "torchvision",
    "transformers",
    "torchbenchmark",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "torchao",
    "torch_tensorrt",
    "bitsandbytes",
    "modelopt",
    "safetensors",
    "numpy",
    "PIL",
    "cloudpickle",
}
# Inside functions only: these take longer to import than --help may take.
HEAVY = {
    "torch", "numpy", "scipy", "pandas", "matplotlib", "sqlalchemy", "alembic", "ruptures", "rich",
    "prettytable", "jinja2", "requests", "fastapi", "starlette", "uvicorn",
}  # fmt: skip


# Where json.dumps gets no measured number: digests and quoted texts.
TEXTS_ONLY = {"reproduce.py", "results.py", "userbenchmark.py", "benchmark_database.py"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    here = part(path)
    parts = {p.stem for p in PACKAGE.glob("*.py")} | {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    used = {
        name.split(".")[1] for name in imports(ast.parse(path.read_text())) if name.startswith("perfdash.")
    }
    forbidden = (used & parts) - ALLOWED[here] - {here}
    assert not forbidden, f"{path} imports {forbidden}"


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if part(p) in ("worker", "records", "methods", "metrics")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_worker_needs_only_torch_and_python_3_9(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert not {name.split(".")[0] for name in imports(tree)} - WORKER_MAY_IMPORT
    at_once = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert not {name.split(".")[0] for name in imports(at_once)} - WORKER_MAY_IMPORT_EVERYWHERE


@pytest.mark.parametrize(
    "path", [p for p in modules() if part(p) == "cli"], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_commands_import_nothing_heavy_before_they_run(path):
    top = ast.Module(
        [n for n in ast.parse(path.read_text()).body if isinstance(n, (ast.Import, ast.ImportFrom))], []
    )
    assert not {name.split(".")[0] for name in imports(top)} & HEAVY


def test_help_and_list_import_nothing_heavy():
    code = (
        "import sys; from perfdash.cli import main; sys.argv = ['perfdash', 'list']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(sorted({HEAVY - {'rich'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_json_never_holds_nan():
    """Numbers that leave go through files.dumps; json.dumps is for texts alone."""
    leave = {"charts", "cli", "report", "history", "publish", "site", "serve"}
    for path in modules():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if part(path) in leave and path.name not in TEXTS_ONLY:
            assert "json.dumps" not in {ast.unparse(call.func) for call in calls}, path


def test_files_for_readers_are_written_in_one_place():
    """perfdash.files takes secrets out of their text; what is listed here writes no text of its own."""
    exceptions = {"site/site_folder.py", "report/progress.py", "report/plots/drawing.py"}
    for path in modules():
        if part(path) not in {"cli", "report", "publish", "site"}:
            continue
        if path.relative_to(PACKAGE).as_posix() in exceptions:
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
        assert not names & {"write_text", "write_bytes", "savefig"}, path


def test_files_stay_small():
    long = {str(path): n for path in modules() if (n := len(path.read_text().splitlines())) > 600}
    assert not long


def test_tests_share_only_modules_that_are_not_tests():
    files = sorted(TESTS.rglob("*.py"))
    shared = {path.stem for path in files} | {path.name for path in TESTS.iterdir() if path.is_dir()}
    wrong = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in files
        for name in imports(ast.parse(path.read_text()))
        if any(word.startswith("test_") for word in name.split(".")) or name.split(".")[0] in shared
    }
    assert not wrong, f"Import as tests.<folder>.<module>, from a module that is no test: {sorted(wrong)}"


def test_collecting_the_tests_imports_nothing_heavy():
    """Of the files that this call of pytest collects: all of them where CI runs it."""
    assert not imported_while_collecting, "Name what these files import at once with tests.lazy.lazy()."
