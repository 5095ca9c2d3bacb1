"""The script that shows a slower kernel: what is written, and what it says when it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.explain.profile_comparison import PairedDifference, ProfileRow, compare
from perfdash.explain.reproducer import largest, shows_it, write, write_accuracy
from perfdash.worker import reproduce_script
from tests.explain.profiles import profile
from tests.explain.scripts import run
from tests.lazy import lazy

torch = lazy("torch")

SEEN_BY_CALL = """
import json, os, sys, torch
from perfdash.worker import reproduce_script
os.environ["NVIDIA_TF32_OVERRIDE"] = "1"
side = {"tf32": json.loads(sys.argv[1]), "config": {}, "kernels": [], "tensors": [], "calls": [
    "torch.seen = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32"]}
call, *_ = reproduce_script.prepare(side, "")
call()
print("switches", torch.seen, os.environ.get("NVIDIA_TF32_OVERRIDE"))
"""
SLOW = "aten.sin.default (1000000)"
FAST = "aten.sin.default (10000)"


def library_call(label, elements, **more):
    """A profile whose only call is a sine of so many elements."""
    made = profile({label: elements / 1e6})
    side = made["sides"]["compiled"]
    side["tensors"] = [
        {"shape": [elements], "stride": [1], "dtype": "torch.float32", "device": "cpu", "elements": elements,
         "exact": False}
    ]  # fmt: skip
    side["calls"][0]["invocation"] = {
        "name": "aten.sin.default", "arguments": [{"tensor": 0}], "keywords": {}, **more,
    }  # fmt: skip
    return made


def pairs_of(old, new):
    """The same pair three times, as if measured: the differences have no spread."""
    return [(old, new)] * 3


def written(tmp_path, old, new):
    pairs = pairs_of(old, new)
    folders = tmp_path / "old", tmp_path / "new"
    return write(tmp_path / "script", compare(pairs).compiled, pairs[-1], folders)


def test_one_code_on_both_sides_needs_another_interpreter(tmp_path):
    """What differs is then outside of the code."""
    script = written(tmp_path, library_call(FAST, 10_000), library_call(FAST, 20_000))
    text = script.read_text().replace("20000", "10000")
    script.write_text(text)
    done = run(script)
    assert done.returncode == 2
    assert "--against /other/python" in done.stdout


def test_each_side_runs_under_its_own_variables(tmp_path):
    """The calls are the same, and a variable of the run is what differs."""
    pair = (library_call(FAST, 10_000), library_call(FAST, 10_000))
    slower = (pair[0], library_call(FAST, 20_000))
    side = compare([slower] * 3).compiled
    variables = {}, {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    script = write(tmp_path, side, pair, (tmp_path, tmp_path), variables)
    text = script.read_text()
    assert 'OLD = {"env": {}, "tf32": None,' in text
    assert "NEW = {\"env\": {'ONEDNN_MAX_CPU_ISA': 'SSE41'}, \"tf32\": None," in text
    assert 'env = [python, os.path.abspath(__file__), "--serve", name], {**os.environ, **side["env"]}' in text


def test_each_side_has_the_tf32_setting_of_its_run(tmp_path):
    old, new = library_call(FAST, 10_000), library_call(FAST, 20_000)
    new["settings"] = {**new["settings"], "tf32": True}
    text = written(tmp_path, old, new).read_text()
    assert 'OLD = {"env": {}, "tf32": None,' in text
    assert 'NEW = {"env": {}, "tf32": True,' in text


@pytest.mark.slow
@pytest.mark.parametrize(("tf32", "switches"), [
    ("true", "(True, True) None"), ("false", "(False, False) None"), ("null", "(False, True) 1"),
])  # fmt: skip
def test_a_side_runs_under_the_tf32_setting_of_its_run_on_a_gpu(command_server, tf32, switches):
    told = command_server.workers.run_script(SEEN_BY_CALL, tf32)
    assert told.splitlines()[-1] == f"switches {switches}"


def test_a_kernel_without_a_counterpart_is_no_script_but_the_next_one_is():
    side = compare([(library_call(FAST, 10_000), library_call(SLOW, 30_000))] * 3).compiled
    gone = ProfileRow(("cpp_fused_gone_0",), (), 5.0, 0.0, PairedDifference(-5.0, -5.1, -4.9))
    slower = ProfileRow(("cpp_fused_a_1",), ("cpp_fused_a_0",), 1.0, 3.0, PairedDifference(2.0, 1.9, 2.1))
    assert largest(replace(side, named=(gone, slower))) == slower
    with pytest.raises(UsageError, match="cpp_fused_gone_0 \\(gone\\): the other build has no counterpart"):
        largest(replace(side, named=(gone,)))


@pytest.mark.parametrize(("factor", "code", "words"), [
    (1.0, 0, "neither is"), (1.3, 1, "the new side is slower"), (0.7, 1, "the old side is slower"),
])  # fmt: skip
def test_the_verdict_on_recorded_rounds(factor, code, words):
    old = [1e-4 * (1 + 0.01 * (k % 5)) for k in range(40)]
    new = [factor * 1e-4 * (1 + 0.01 * ((k + 2) % 5)) for k in range(40)]
    found, text = reproduce_script.verdict(old, new)
    assert found == code
    assert words in text


def test_rounds_that_vary_more_than_they_differ_tell_nothing():
    old = [1e-4] * 40
    new = [1e-4 * (3.0 if k % 2 else 0.4) for k in range(40)]
    assert reproduce_script.verdict(old, new)[0] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arguments": [{"opaque": "torch._mkldnn tensor (4, 4)"}]}, "torch._mkldnn tensor"),
        ({"name": "triton_poi_fused_sin_0"}, "only C\\+\\+ kernels"),
    ],
)
def test_what_a_script_cannot_repeat_is_refused(tmp_path, change, message):
    new = library_call(SLOW, 1_000_000, **change)
    new["sides"]["compiled"]["kernels"] = {
        "triton_poi_fused_sin_0": {"name": "triton_poi_fused_sin_0", "kind": "triton", "code": ""}
    }
    with pytest.raises(UsageError, match=message):
        written(tmp_path, library_call(FAST, 10_000), new)


def test_without_a_clear_change_there_is_no_script(tmp_path):
    with pytest.raises(UsageError, match="no kernel or operator of the compiled call changed clearly"):
        written(tmp_path, library_call(FAST, 10_000), library_call(FAST, 10_000))


def test_values_of_whole_numbers_go_with_the_script(tmp_path):
    """A tensor of indices made up at random would be out of range. Each build has numbers of its own."""
    old, new = library_call(FAST, 10_000), library_call(SLOW, 1_000_000)
    for name, made in (("old", old), ("new", new)):
        made["sides"]["compiled"]["tensors"][0] |= {"dtype": "torch.int64", "exact": True}
        (tmp_path / name).mkdir()
        (tmp_path / name / "constants.pt").write_bytes(f"of {name}".encode())
    script = written(tmp_path, old, new)
    assert (script.parent / "constants-old.pt").read_bytes() == b"of old"
    assert (script.parent / "constants-new.pt").read_bytes() == b"of new"
    assert "('compiled', '0')" in script.read_text()


@pytest.mark.slow
def test_the_script_exits_with_1_while_one_side_is_slower(tmp_path):
    """An embedding whose indices are tensor 1 of the old build and tensor 3 of the new one.

    Each side has indices of its own: 2000, and 400 000.
    """
    counts = (2_000, 400_000)
    sides = [library_call(f"embedding ({count})", count) for count in counts]
    for name, made, number, count in zip(("old", "new"), sides, (1, 3), counts, strict=True):
        side = made["sides"]["compiled"]
        table = {**side["tensors"][0], "shape": [9, 4], "stride": [4, 1], "elements": 36}
        indices = {**table, "shape": [count], "stride": [1], "dtype": "torch.int64",
                   "elements": count, "exact": True}  # fmt: skip
        side["tensors"] = [table] * number + [indices]
        side["calls"][0]["invocation"].update(
            name="aten.embedding.default", arguments=[{"tensor": 0}, {"tensor": number}]
        )
        (tmp_path / name).mkdir()
        values = {"compiled": {str(number): torch.arange(count) % 9}}
        torch.save(values, tmp_path / name / "constants.pt")
    script = written(tmp_path, *sides)
    assert "perfdash" not in script.read_text()
    assert len(script.read_text().splitlines()) <= 170
    done = run(script)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].endswith(": the new side is slower")


@pytest.mark.slow
def test_a_planted_kernel_is_named_and_reproduced(tmp_path, warm_workers):
    """One side without vector instructions: its only kernel with arithmetic takes several times as long."""
    from perfdash.explain import profiling
    from perfdash.records import Case
    from perfdash.settings import RunSettings
    from perfdash.suites.case_selection import Planned

    target = f"{Path(__file__).with_name('heavy.py')}:heavy"
    planned = Planned(case=Case("own", "heavy.heavy"), loader="python", target=target)
    old = profiling.ProfiledBuild("old", planned, RunSettings(python=sys.executable, jobs=1), {})
    new = replace(old, run="new", planned=replace(planned, inductor_config={"cpp.simdlen": 1}))
    (pair,) = profiling.profile(old, new, tmp_path / "profiles", 1, None, lambda line: None)
    side = compare([pair] * 3).compiled  # one pair has no interval, and its own numbers suffice here
    (row,) = side.named[:1]
    assert row.name.startswith("cpp_fused_")
    assert row.new_ms > 3 * row.old_ms
    assert 0.5 < row.change_ms.estimate / side.change_ms.estimate < 2  # one, but for other programs
    for name in ("1-old", "1-new"):
        assert (tmp_path / "profiles" / name / "compiled.trace.json").stat().st_size
    buffers = {buffer["name"] for buffer in pair[1]["sides"]["compiled"]["memory"]["buffers"]}
    assert any(name.startswith("extern_kernels.addmm") for name in buffers)
    folders = tmp_path / "profiles" / "1-old", tmp_path / "profiles" / "1-new"
    done = run(write(tmp_path / "script", side, pair, folders))
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].endswith(": the new side is slower")


@pytest.mark.parametrize(("body", "shown"), [
    ("print('output 0: wrong: error 1, of eager 0'); sys.exit(1)", True),
    ("print('output 0: right: error 0, of eager 0'); sys.exit(0)", False),
    ("raise RuntimeError('no such operator')", False),  # Python ends with 1 then, too
    ("import no_such_module", False),
    ("sys.exit(2)", False),
])  # fmt: skip
def test_a_script_that_names_a_wrong_output_shows_it(tmp_path, body, shown):
    script = tmp_path / "reproduce.py"
    script.write_text(f"import os, sys\nassert os.environ['SIDE'] == 'new'\n{body}\n")
    assert shows_it(script, sys.executable, {"SIDE": "new"}) is shown


def test_a_script_is_tried_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hidden")
    monkeypatch.setenv("MY_SETTING", "seen")
    script, seen = tmp_path / "reproduce.py", tmp_path / "seen"
    script.write_text(f"import os\nopen({str(seen)!r}, 'w').write(' '.join(os.environ))\n")
    shows_it(script, sys.executable, {"OWN_TOKEN": "of the run"})
    assert {"MY_TOKEN", "MY_SETTING", "OWN_TOKEN"} & set(seen.read_text().split()) == {
        "MY_SETTING",
        "OWN_TOKEN",
    }


def test_a_script_that_does_not_end_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setattr("perfdash.explain.reproducer._LIMIT_S", 0.01)
    script = tmp_path / "reproduce.py"
    script.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(UsageError, match="did not end within"):
        shows_it(script, sys.executable, {})


def test_wrong_outputs_of_an_operator_of_another_package_are_refused(tmp_path):
    found = {
        "operators": ["aten.relu.default", "<built-in function getitem>", "mylib.f.default"],
        "place": {"operators": 9}, "torch": "2.15.0", "threads": 1, "tf32": None, "tolerance": 1e-3,
        "factor": 2.0, "mode": None, "config": {},
        "code": "def forward(self, x): return torch.ops.mylib.f.default(x)",
    }  # fmt: skip
    (tmp_path / "inputs.pt").write_bytes(b"")
    with pytest.raises(UsageError, match="is an operator of mylib, not of torch"):
        write_accuracy(tmp_path / "script", found, tmp_path / "inputs.pt", {})
    assert not (tmp_path / "script").exists()
