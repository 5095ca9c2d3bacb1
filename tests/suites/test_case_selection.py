import json
import math
from pathlib import Path

import pytest

from perfdash.errors import UsageError
from perfdash.files import bundled, dumps
from perfdash.records import to_json
from perfdash.settings import RunSettings
from perfdash.suites.case_selection import planned_from_json, select
from perfdash.suites.suite_file import load_suite, own_models, suite_names

GOOD = """
name = "mine"
loader = "timm"
[defaults]
batch_size = { one_thread = 1, cpu = 8, cuda = 64 }
tolerance = { float32 = 1e-3, bfloat16 = 1e-2 }
[[models]]
name = "a_small"
quick = true
[[models]]
name = "b_large"
target = "b"
batch_size = 4
tolerance = 0.5
factor = 7.0
env = { X = "1" }
skip = { reason = "too large", devices = ["cuda"] }
"""


@pytest.fixture
def write(tmp_path):
    def make(text):
        path = tmp_path / "suite.toml"
        path.write_text(text)
        return str(path)

    return make


def test_the_suites_that_ship_load():
    assert "timm" in suite_names()
    for name in suite_names():
        suite = load_suite(name)
        assert suite.name == name
        assert any(model.quick for model in suite.models)


def test_timm_has_the_dashboard_and_todays_list():
    suite = load_suite("timm")
    assert len(suite.models) == 65  # 61 and 18, 14 of them in both
    assert all(suite.setting(m, "batch_size").one_thread == 1 for m in suite.models)
    gluon = next(m for m in suite.models if m.name == "gluon_xception65")
    assert gluon.target == "xception65"


def test_settings_come_from_the_model_then_the_defaults(write):
    suite = load_suite(write(GOOD))
    a, b = select([suite], RunSettings(env={"Y": "2"}))
    assert (a.target, a.case.batch_size, a.tolerance, a.factor, a.env) == (
        "a_small",
        1,
        1e-3,
        2.0,
        {"Y": "2"},
    )
    assert (b.target, b.case.batch_size, b.tolerance, b.factor, b.env) == (
        "b",
        4,
        0.5,
        7.0,
        {"X": "1", "Y": "2"},
    )
    assert b.skip_reason is None


def test_a_dtype_that_a_table_does_not_name_has_the_next_level(write):
    text = """
name = "mine"
loader = "timm"
[defaults]
tolerance = 1e-5
factor = 1.2
distance = { bfloat16 = 0.3, amp = 0.4 }
training = { tolerance = 2e-2 }
[[models]]
name = "a"
tolerance = { bfloat16 = 1e-2 }
factor = { bfloat16 = 5.0 }
distance = { bfloat16 = 0.1 }
training = { tolerance = { amp = 7e-2 } }
"""
    suite = load_suite(write(text.replace("[defaults]", 'baseline_dtype = "float32"\n[defaults]')))

    def judged(**settings):
        planned = select([suite], RunSettings(dtype=("float32", "bfloat16", "amp"), **settings))
        return {p.case.dtype: (p.tolerance, p.factor, p.distance_bound) for p in planned}

    assert judged() == {"float32": (1e-5, 1.2, None), "bfloat16": (1e-2, 5.0, 0.1), "amp": (1e-5, 1.2, 0.4)}
    assert {dtype: tolerance for dtype, (tolerance, _, _) in judged(scenario="training").items()} == {
        "float32": 2e-2, "bfloat16": 2e-2, "amp": 7e-2,
    }  # fmt: skip


def test_batch_size_follows_the_device_and_threads(write):
    suite = load_suite(write(GOOD))
    sizes = [
        select([suite], RunSettings(models=("a*",), **setting))[0].case.batch_size
        for setting in ({}, {"threads": 4}, {"device": "cuda"}, {"batch_size": (3,)})
    ]
    assert sizes == [1, 8, 64, 3]


def test_inputs_follow_the_device_where_a_table_says_so(write):
    inputs = "inputs = { sequence = { cpu = 256, cuda = 1024 }, size = [3, 8, 8] }"
    suite = load_suite(write(GOOD.replace('env = { X = "1" }', inputs)))
    planned = [
        select([suite], RunSettings(models=("b*",), **setting))[0].inputs
        for setting in ({}, {"threads": 4}, {"device": "cuda"})
    ]
    assert planned == [{"sequence": length, "size": [3, 8, 8]} for length in (256, 256, 1024)]


def test_skips_by_device(write):
    suite = load_suite(write(GOOD))
    assert [p.skip_reason for p in select([suite], RunSettings(device="cuda"))] == [None, "too large"]


def test_skips_by_dtype_and_several_of_them(write):
    text = GOOD.replace('devices = ["cuda"] }', 'dtypes = ["amp", "float16"] }')
    dtypes = ("float32", "float16", "amp")
    planned = select([load_suite(write(text))], RunSettings(models=("b_large",), dtype=dtypes))
    assert [p.skip_reason for p in planned] == [None, "too large", "too large"]
    several = GOOD.replace(
        'skip = { reason = "too large", devices = ["cuda"] }',
        'skip = [{ reason = "x", devices = ["cuda"] }, { reason = "y", dtypes = ["amp"] }]',
    )
    planned = select(
        [load_suite(write(several))], RunSettings(models=("b_large",), device="cuda", dtype=dtypes)
    )
    assert [p.skip_reason for p in planned] == ["x", "x", "x; y"]


def test_expansion(write):
    suite = load_suite(write(GOOD))
    planned = select(
        [suite],
        RunSettings(batch_size=(1, 2), dtype=("float32", "amp"), backend=("eager", "aot_eager")),
    )
    assert len({p.case for p in planned}) == len({p.case.name for p in planned}) == len(planned) == 16
    assert {p.case.backend for p in planned} == {"eager", "aot-eager"}
    assert {p.case.amp_dtype for p in planned if p.case.dtype == "amp"} == {"bfloat16"}
    assert {p.tolerance for p in planned if p.case.dtype == "amp" and p.case.model == "a_small"} == {1e-3}


def test_selection(write):
    suite = load_suite(write(GOOD))
    names = lambda **setting: [p.case.model for p in select([suite], RunSettings(**setting))]  # noqa: E731
    assert names(quick=True) == ["a_small"]
    assert names(models=("*LARGE",)) == ["b_large"]
    assert names(models=("b*", "a*")) == ["a_small", "b_large"]
    assert names(quick=True, models=("b*",)) == ["b_large"]


def test_freezing_has_its_own_tolerance():
    suite = load_suite("timm")
    plain, frozen = (
        select([suite], RunSettings(models=("adv_inception_v3",), inductor_config=config))[0].tolerance
        for config in ({}, {"freezing": True})
    )
    assert (plain, frozen) == (1e-3, 0.08)


def test_training_freezes_nothing():
    suite = load_suite("torchbench")
    backends = ("inductor", "inductor-max-autotune")
    tolerances = {
        scenario: [
            case.tolerance
            for case in select(
                [suite], RunSettings(models=("mobilenet_v2",), backend=backends, scenario=scenario)
            )
        ]
        for scenario in ("inference", "training")
    }
    assert tolerances == {"inference": [1e-4, 0.08], "training": [1e-3, 1e-3]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[[models]]", "[[model]]"), ["models", "is missing"]),
        (("quick = true", "quikc = true"), ["models.0.quikc", "a_small", "did you mean quick"]),
        (("batch_size = 4", 'batch_size = "four"'), ["models.1.batch_size", "b_large"]),
        (("batch_size = 4", "batch_size = 0"), ["models.1.batch_size", "0 must be at least 1"]),
        (('loader = "timm"', 'loader = "tim"'), ["key 'loader'", "'tim'", "timm"]),
        (('loader = "timm"', ""), ["key 'loader'", "required"]),
        (('name = "b_large"', 'name = "a_small"'), ["listed twice: a_small"]),
        (('name = "b_large"', 'name = "a-small"'), ["a_small and a-small have one file name: rename one"]),
        (("[defaults]", "[default]"), ["unknown key 'default'", "did you mean defaults"]),
        (("tolerance = 0.5", "tolerance = = 0.5"), ["not valid TOML", "line 14"]),
        (('devices = ["cuda"]', 'devices = ["gpu"]'), ["devices", "b_large"]),
        (("tolerance = 0.5", "tolerance = -1"), ["models.1.tolerance", "b_large", "-1 must be at least 0"]),
        (("factor = 7.0", "factor = nan"), ["models.1.factor", "nan is not a finite number"]),
        (
            ("factor = 7.0", "factor = true"),
            ["models.1.factor", "True is neither a number nor a table by dtype"],
        ),
        (("tolerance = 0.5", "tolerance = '0.5'"), ["models.1.tolerance", "'0.5' is neither a number nor"]),
        (("factor = 7.0", "memory_limit_gb = inf"), ["memory_limit_gb", "inf is not a finite number"]),
        (('env = { X = "1" }', "config = { since = 2020-01-01 }"), ["since", "2020-01-01 is a date or time"]),
        (('env = { X = "1" }', "inputs = { at = [07:32:00] }"), ["inputs.at", "07:32:00 is a date or time"]),
        (('env = { X = "1" }', "variant = { a = nan }"), ["variant.a", "nan is not a finite number"]),
        (
            ('env = { X = "1" }', "inputs = { sequence = { cuda = 4 } }"),
            ["models.1.inputs", "sequence = {'cuda': 4}: a table has one entry for cpu and one for cuda"],
        ),
        (
            ('env = { X = "1" }', "config = { a = [0, inf] }"),
            ["'models.1.config.a.1'", "inf is not a finite"],
        ),
        (('env = { X = "1" }', "timeout_s = nan"), ["models.1.timeout_s", "nan must be more than 0"]),
        (
            ('name = "mine"', 'name = "mine"\ndynamo_name = "team/bench"'),
            ["key 'dynamo_name': 'team/bench' is no name: give up"],
        ),
        (('name = "mine"', f'name = "{"m" * 61}"'), ["key 'name': 'mmm", "is no name"]),
    ],
)
def test_a_wrong_suite_file_names_file_and_key(write, change, words):
    path = write(GOOD.replace(*change))
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    for word in [path, *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["timm", "own", "torchbench-checkout"])
def test_a_name_of_perfdash_itself_is_refused(write, name):
    """Cases know their suite by its name: its results would continue the series of the other suite."""
    path = write(GOOD.replace('"mine"', f'"{name}"'))
    with pytest.raises(UsageError, match=f"{path}: key 'name': {name} is a name of perfdash's own: give it"):
        load_suite(path)
    load_suite(str(bundled("suites") / "timm.toml"))


def test_an_unchanged_copy_of_a_suite_is_the_suite(write):
    """Such as the file of another clone: its results belong to this series."""
    path = write((bundled("suites") / "timm.toml").read_text())
    assert load_suite(path).models == load_suite("timm").models


def test_a_time_limit_may_be_infinite(write):
    limits = "timeout_s = inf\nphase_timeout_s = { compile = inf }"
    suite = load_suite(write(GOOD.replace('env = { X = "1" }', limits)))
    *_, planned = select([suite], RunSettings())
    assert (planned.timeout_s, planned.phase_timeouts["compile"]) == (math.inf, math.inf)
    assert planned_from_json(json.loads(dumps(to_json(planned)))) == planned, "of a run that is re-measured"


def test_unknown_names_come_with_near_ones(write):
    with pytest.raises(UsageError, match="did you mean timm"):
        load_suite("tim")
    with pytest.raises(UsageError, match=r"matches no model.*did you mean mobilenetv3_large_100"):
        select([load_suite("timm")], RunSettings(models=("mobilenetv3_largee*",)))
    with pytest.raises(UsageError, match="cannot be read"):
        load_suite("/nowhere/suite.toml")


def test_several_suites(write):
    mine, timm = load_suite(write(GOOD)), load_suite("timm")
    planned = select([mine, timm, mine], RunSettings(models=("a_small", "lcnet_050")))
    assert [(p.case.suite, p.case.model) for p in planned] == [("mine", "a_small"), ("timm", "lcnet_050")]


def test_patterns_select_among_the_suites_and_keep_models_named_by_file(write, tmp_path):
    (tmp_path / "net.py").write_text("")
    path = Path(write(GOOD)).rename(tmp_path / "my suite.toml")
    suites = [load_suite(str(path)), own_models([f"{tmp_path}/net.py:make"])]
    planned = select(suites, RunSettings(models=("a*",)))
    assert [p.case.model for p in planned] == ["a_small", "net.make"]
    with pytest.raises(
        UsageError, match=rf"--models 'net\*' matches no model of mine; `perfdash list '{path}'`"
    ):
        select(suites, RunSettings(models=("net*",)))
    with pytest.raises(UsageError, match=r"--models 'net\*' selects models of suites, and this run has none"):
        select(suites[1:], RunSettings(models=("net*",)))


def test_own_models_of_one_name_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text("")
    targets = [f"{tmp_path}/a/net.py:make", f"{tmp_path}/b/net.py:make", f"{tmp_path}/a/net.py:make"]
    assert len({p.case.name for p in select([own_models(targets)], RunSettings())}) == 2


def test_own_models_are_told_apart_in_file_names_and_one_of_two_spellings_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("net_2.py", "net-2.py"):
        (tmp_path / name).write_text("")
    targets = ["net_2.py:make", "net-2.py:make", "./net_2.py:make", f"{tmp_path}/net-2.py:make"]
    planned = select([own_models(targets)], RunSettings())
    assert [p.target for p in planned] == [f"{tmp_path}/net_2.py:make", f"{tmp_path}/net-2.py:make"]
    assert [p.case.model for p in planned] == ["net_2.make", "net-2.py.make"]
    assert len({p.case.name for p in planned}) == 2


def test_own_model(tmp_path):
    file = tmp_path / "m.py"
    file.write_text("")
    (planned,) = select([own_models([f"{file}:make"])], RunSettings())
    assert planned.target == f"{file}:make"
    assert planned.case.model == "m.make"
    with pytest.raises(UsageError, match=r"file\.py:function"):
        own_models(["just_a_name"])
    with pytest.raises(UsageError, match=r"--model nowhere\.py:make: there is no file"):
        select([own_models(["nowhere.py:make"])], RunSettings())


def test_two_back_ends_of_one_name_are_refused_and_two_spellings_of_one_are_one(tmp_path):
    (tmp_path / "net.py").write_text("")
    for name in ("old/mine.py", "new/mine.py", "old/my_b.py", "new/my-b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def prepare(module, inputs, job): ...\n")

    def selected(*names):
        backends = tuple(f"{tmp_path}/{name}" for name in names)
        return select([own_models([f"{tmp_path}/net.py:make"])], RunSettings(backend=backends))

    for names, common in [(("old/mine.py", "new/mine.py"), "mine"), (("old/my_b.py", "new/my-b.py"), "my-b")]:
        old, new = (f"{tmp_path}/{name}" for name in names)
        with pytest.raises(UsageError, match=f"--backend: {old} and {new} are both called {common}, and"):
            selected(*names)
    assert [p.case.backend for p in selected("old/mine.py", "new/../old/mine.py", "new/my-b.py")] == [
        "mine",
        "my-b",
    ]


FUNCTION = 'name = "mine"\nloader = "python"\n[[models]]\nname = "wide"\ntarget = "net.py:make"\n'


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("config = { width = 4096 }", "config"),
        ("training = { config = { width = 4096 } }", "config"),
        ("inputs = { size = [3, 64, 64] }", "inputs"),
        ("variant = { channels_last = true, width = 4096 }", "variant.width"),
        ('loader = "torchbench"\nconfig = { width = 4096 }', "config"),
    ],
)
def test_what_the_loader_of_a_model_does_not_read_is_refused(write, change, key):
    with pytest.raises(UsageError, match=rf"key '{key}' \(model 'wide'\): the loader \w+ makes a model of"):
        load_suite(write(FUNCTION + change))


def test_a_function_of_the_users_own_may_have_what_acts_without_its_loader(write):
    load_suite(write(FUNCTION + "variant = { channels_last = true }"))
    load_suite(write(FUNCTION + 'data = "images"\ninputs = { size = [3, 64, 64] }'))
    defaults = FUNCTION.replace("[[models]]", "[defaults]\nconfig = { width = 4096 }\n[[models]]")
    with pytest.raises(UsageError, match=r"key 'config' .* or, of \[defaults\], set config = {} "):
        load_suite(write(defaults))
    load_suite(write(defaults + "config = {}"))
