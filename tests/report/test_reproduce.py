from __future__ import annotations

import fnmatch

from perfdash.records import Case
from perfdash.report.reproduce import command, pattern


def test_a_case_and_the_setting_it_was_measured_in():
    case = Case("timm", "a model; rm -rf", dtype="amp", amp_dtype="bfloat16", threads=4, dynamic=True)
    setting = {"allocator": "jemalloc", "env": {"A": "b c"}, "inductor_config": {"freezing": True}}
    assert command(case, {**setting, "side_by_side": 3}) == (
        "perfdash run --suite timm --models 'a model; rm -rf' --batch-size 1 --threads 4 --dtype amp "
        "--amp-dtype bfloat16 --dynamic --allocator jemalloc --env 'A=b c' --inductor-config freezing=true "
        "--jobs 3"
    )


def test_what_is_as_always_is_not_said():
    assert command(Case("timm", "x", backend="aot-eager", device="cuda", scenario="training")) == (
        "perfdash run --suite timm --models x --batch-size 1 --threads 1 --dtype float32 --device cuda "
        "--backend aot-eager --scenario training"
    )


def test_where_the_model_came_from():
    own = command(Case("net", "make"), {}, ("perfdash", "run", "--model", "net.py:make", "--threads", "1"))
    assert own.startswith("perfdash run --model net.py:make --batch-size 1")
    suite = command(Case("mine", "x"), {}, ("perfdash", "run", "--suite", "my.toml"))
    assert suite.startswith("perfdash run --suite my.toml --models x ")


def test_a_name_is_no_wildcard():
    for name in ("a[b]c", "what?*", "plain"):
        assert fnmatch.fnmatchcase(name, pattern(name))
        assert not fnmatch.fnmatchcase(name + "x", pattern(name))
