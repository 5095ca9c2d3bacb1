"""perfdash explain and perfdash code, on run folders and histories that were never measured."""

from __future__ import annotations

import base64
import json
import zipfile
import zlib
from dataclasses import replace

import pytest

from perfdash.errors import UsageError
from perfdash.explain.case_sides import row_of_case
from perfdash.history import alert_store
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.runner import code_files
from tests.cli.run_folders import write_run
from tests.explain.sides import kernel, structure
from tests.history.made import case, row, run
from tests.report.results import good

OLD = structure(kernel("add _softmax mul", 1), kernel("sum", 6))
NEW = structure(kernel("add _softmax", 1), kernel("mul", 2), kernel("sum", 6))
WRAPPER = """cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* out) {BODY}
''')

async_compile.wait(globals())
def call(args):
    cpp_fused_add_0(args)
"""


def folder(out, name, night, of, code=None):
    """The folder of a run of one model."""
    result = good("vit_tiny", 1.2, "faster")
    result.structure = of
    path = write_run(out / name, [result])
    plain = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**plain, "id": name, "started": f"{night}T01:00:00Z"}))
    if code:
        packed = base64.b64encode(zlib.compress(code.encode())).decode()
        code_files.write(path, result.case, [packed])
    return path


@pytest.fixture
def folders(called, tmp_path):
    folder(tmp_path / "runs", "first", "2026-11-01", OLD, WRAPPER)
    folder(tmp_path / "runs", "second", "2026-11-02", NEW)
    return called


def test_two_runs_are_explained(folders):
    done = folders("explain", "second", "vit_tiny", "--against", "first")
    assert (done.code, done.err) == (0, "")
    told = "3 kernels instead of 2: cpp_fused_add__softmax_mul_1 is split into add + _softmax and mul."
    assert " ".join(done.out.split()).endswith(told)
    assert folders("explain", "second", "vit_*").out == done.out  # the previous run of the case
    plain = json.loads(folders("explain", "second", "vit_tiny", "--json").out)
    assert plain["sentence"].startswith("3 kernels instead of 2")
    assert [change["how"] for change in plain["kernels"]] == ["split"]


def test_a_damaged_run_folder_is_left_out(folders, tmp_path):
    damaged = tmp_path / "runs" / "middle"
    damaged.mkdir()
    (damaged / "run.json").write_text("")
    done = folders("explain", "second", "vit_tiny")
    assert done.code == 0, done.err
    assert "3 kernels instead of 2" in " ".join(done.out.split())
    assert done.err.count("middle is not looked at for an earlier run") == 1
    done = folders("explain", "first", "vit_tiny")
    assert done.code == 2
    assert done.err.count("middle is not looked at") == 1
    assert "no run before first measured" in done.err


def test_a_run_of_other_settings_is_compared_and_said_to_be_one(folders, tmp_path):
    settings = {"mode": None, "config": {"max_fusion_size": 1}}
    third = folder(tmp_path / "runs", "third", "2026-11-03", {**NEW, "settings": settings})
    plain = json.loads((third / "run.json").read_text())
    plain["configuration"]["inductor_config"] = settings["config"]
    (third / "run.json").write_text(json.dumps(plain))
    for _ in range(2):
        done = folders("explain", "third", "vit_tiny")
        words = " ".join(done.out.split())
        assert done.code == 0, done.err
        assert "No run before third measured this with the same settings: it is compared with second" in words
        assert "Compiled with other settings (max_fusion_size: none -> 1)" in words
        assert folders("history", "import", "runs").code == 0
    assert "same settings" not in folders("explain", "second", "vit_tiny").out


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"threads": 2}, {"backend": "aot_eager"}])
def test_a_run_that_measured_the_model_otherwise_says_what_it_measured(change):
    """Whoever asks why bfloat16 is slower than float32 has given the right run."""
    before = run(rows=[row("resnet18"), row("resnet50")])
    with pytest.raises(UsageError) as raised:
        row_of_case(before, case("resnet18", **change))
    assert str(raised.value).endswith(
        "; of this model it measured timm_resnet18_cpu_float32_bs1_t1_inference_inductor. explain compares "
        "cases that differ only in settings and batch size: give another run with --against"
    )


def test_a_case_of_other_settings_and_another_batch_size_is_found():
    before = run(rows=[row("resnet18"), row("resnet50")])
    assert row_of_case(before, case("resnet18", batch_size=8, settings='{"tf32":true}')) is before.rows[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "second"], "give the MODEL: second MODEL"),
        (["explain", "3", "--against", "first"], "--against belongs to RUN MODEL"),
        (["explain", "second", "resnet18"], "matches no model of second; there are: vit_tiny"),
        (["explain", "first", "vit_tiny"], "no run before first measured"),
        (["explain", "fourth", "vit_tiny"], "no run 'fourth'"),
        (["code", "second", "vit_tiny"], "no generated code of timm_vit-tiny"),
        (["code", "first", "vit_tiny", "--kernel", "x"], "matches no kernel; there are: cpp_fused_add_0"),
        (["code", "first", "vit_tiny", "--to", "/dev/null/x"], "--to /dev/null/x"),
    ],
)
def test_wrong_usage_is_one_message(folders, words, message):
    done = folders(*words)
    assert done.code == (3 if "--to" in words else 2)
    assert message in done.err


def test_code_is_printed_and_written_from_folder_and_history(folders, tmp_path):
    whole = folders("code", "first", "vit_tiny")
    assert whole.out == f"# graph0.py\n{WRAPPER}"
    one = folders("code", "first", "vit_tiny", "--kernel", "cpp_fused_*", "--to", "kernels")
    assert one.out == "kernels: cpp_fused_add_0.cpp\n"
    text = (tmp_path / "kernels" / "cpp_fused_add_0.cpp").read_text()
    assert text == 'extern "C" void kernel(float* out) {BODY}\n'
    assert folders("history", "import", "runs").code == 0
    assert folders("code", "first", "vit_tiny", "--out", "elsewhere", "--db", "runs/history.db") == whole
    explained = folders("explain", "second", "vit_tiny", "--out", "elsewhere", "--db", "runs/history.db")
    assert "3 kernels instead of 2" in " ".join(explained.out.split())


def test_code_of_a_run_folder_from_elsewhere_is_written_nowhere_else(folders, tmp_path):
    (kept,) = (tmp_path / "runs" / "first" / "code").iterdir()
    outside = tmp_path / "outside.py"
    with zipfile.ZipFile(kept, "a") as file:
        for name in ("../evil.py", str(outside)):
            file.writestr(name, "print('evil')")
    done = folders("code", "first", "vit_tiny", "--to", "into/code")
    assert (done.code, done.out) == (0, "into/code: graph0.py\n")
    assert [path.name for path in (tmp_path / "into").rglob("*.py")] == ["graph0.py"]
    assert not outside.exists()


def test_an_alert_is_explained_by_the_runs_around_it(called, tmp_path):
    with open_store(str(tmp_path / "history.db")) as store:
        nights = [("2026-11-01", 1.0, OLD), ("2026-11-02", 1.1, NEW), ("2026-11-03", 1.1, NEW)]
        take_in(store, [run(n, [replace(row(backend_ms=ms), structure=of)]) for n, ms, of in nights])
        with store.write() as connection:
            first, second, third = list_runs(connection)
            alert = alert_store.Alert(
                "metric", first.testbed_id, 1, "backend_ms", alert_store.CONFIRMED, 1, first.id, second.id,
                third.id, "2026-11-02", "2026-11-03", 1.0, 1.1, 0.095,
            )  # fmt: skip
            alert_store.save(connection, alert)
            alert_store.save(connection, replace(alert, kind="host", case_id=None))
            alert_store.save(connection, replace(alert, kind="drift", good_run_id=None))
    done = called("explain", "1", "--db", "history.db")
    assert done.code == 0
    assert "3 kernels instead of 2" in " ".join(done.out.split())
    for number, message in (
        ("2", "is about a host"),
        ("3", "does not have a run of its case"),
        ("9", "no alert 9"),
    ):
        failed = called("explain", number, "--db", "history.db")
        assert failed.code == 2
        assert message in failed.err
