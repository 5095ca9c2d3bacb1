"""The page of configurations beside each other: what differs, and which outcome is the better one."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.results import Row
from perfdash.history.store import open_store
from perfdash.methods import CURRENT
from perfdash.records import Case
from tests.history.made import run
from tests.site.stored import FIRST, Page, built, check, result

CONFIGURATIONS = (("default", ""), ("freezing", '{"inductor_config":{"freezing":true}}'))
# A model's outcomes under default and under freezing.
OUTCOMES = {
    "same": ("pass", "pass"),
    "left_out": ("pass", "skipped"),
    "another_night": ("not_tonight", "pass"),
    "waits": ("crash", "not_tonight"),
    "broken": ("pass", "fail_to_run"),
    "mended": ("crash", "pass"),
    "fails_otherwise": ("crash", "oom"),
}


def outcome(model: str, place: int) -> Row:
    configuration, settings = CONFIGURATIONS[place]
    case = Case("timm", model, configuration=configuration, settings=settings)
    status = OUTCOMES[model][place]
    if status in ("skipped", "not_tonight"):
        return Row(case, status, {}, details={"skip_reason": "no time"})
    return result(case, status=status)


def page_of(tmp_path, *runs):
    """The path of the page."""
    with open_store(str(tmp_path / "history.db")) as store:
        take_in(store, list(runs))
        folder = built(store, tmp_path / "site")
    check(folder)
    (page,) = folder.glob("beds/*/configurations.html")
    return page


def tables(page):
    """The tables of models that differ: the columns, and the lines by model."""
    found = []
    for table in re.findall(r'id="differing[-0-9]*"(.*?)</table>', page.read_text(), re.DOTALL):
        columns = re.findall(r'<th scope="col" class="num">(.*?)</th>', table)
        found.append((columns, dict(re.findall(r'<tr><th scope="row">(\w+) (.*?)</tr>', table, re.DOTALL))))
    return found


@pytest.fixture
def lines(tmp_path):
    """The lines of the table of models that differ, by model."""
    rows = [outcome(model, place) for model in OUTCOMES for place in range(2)]
    ((_, by_model),) = tables(page_of(tmp_path, run(str(FIRST), rows)))
    return by_model


def test_what_was_not_run_differs_from_nothing(lines):
    assert set(lines) == {"broken", "mended", "fails_otherwise"}


@pytest.mark.parametrize(
    ("model", "badge"),
    [
        ("broken", 'badge worse">fail to run<'),
        ("mended", 'badge better">pass<'),
        ("fails_otherwise", 'badge info">oom<'),
    ],
)
def test_the_badge_says_which_side_passes(lines, model, badge):
    assert badge in lines[model]
    assert lines[model].count("badge ") == 1


def test_models_without_two_results_to_compare_are_not_said_to_be_alike(tmp_path):
    """Of these only `same` and `fails` were compared: the others have no numbers that count."""

    def both(model, status="pass", **other):
        cases = (Case("timm", model, configuration=name, settings=text) for name, text in CONFIGURATIONS)
        return [replace(result(case, status=status), **other) for case in cases]

    rows = [
        *both("same"), *both("fails", "crash"), *both("noisy", verdict="disturbed"), *both("skip", "skipped"),
        *both("unchecked", "pass_due_to_skip"),
    ]  # fmt: skip
    page = page_of(tmp_path, run(str(FIRST), rows))
    assert tables(page) == []
    assert "2 models do not differ. 3 have nothing to compare" in Page(page).text


FREEZING = {"configuration": "freezing", "settings": CONFIGURATIONS[1][1]}
SOCKET = {"configuration": "socket", "settings": '{"bind_memory":true}', "threads": 56}


def measured(level, model="resnet18", **way):
    """A result whose latency is `level`, and whose speedup that of an eager step of 100 ms."""
    values = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), 100 / level)
    return result(Case("timm", model, **way), level, **values)


def test_the_mark_and_the_change_say_the_same(tmp_path):
    """A case measured while its eager was faster too, of 1.08x and 1.05x, is no better for its latency."""
    bounds = {"speedup": 1.05, "speedup_low": 1.04, "speedup_high": 1.06}
    default = {"speedup": 1.08, "speedup_low": 1.07, "speedup_high": 1.09}
    amp = {**FREEZING, "dtype": "amp", "amp_dtype": "bfloat16"}
    apart = {"backend_ms_low": 4.9, "backend_ms_high": 5.1}
    rows = [
        result(Case("timm", "resnet18"), 10.0, **default, backend_ms_low=9.9, backend_ms_high=10.1),
        result(Case("timm", "resnet18", **FREEZING), 9.9, **bounds),
        result(Case("timm", "resnet18", **amp), 5.0, **bounds, **apart),
    ]
    ((columns, by_model),) = tables(page_of(tmp_path, run(str(FIRST), rows)))
    cells = dict(zip(columns, by_model["resnet18"].split("<td")[2:], strict=True))
    other = {name: cell for name, cell in cells.items() if "float32" in name and "freezing" in name}
    (cell,) = other.values()
    assert "badge worse" in cell
    assert "+2.9%" in cell
    (cell,) = (cell for name, cell in cells.items() if "amp" in name)
    assert "badge better" in cell
    assert "-50.0%" in cell


def test_only_what_is_run_alike_is_compared(tmp_path):
    """A training step is not slower than inference, nor one thread slower than four."""
    rows = [
        measured(10.0), measured(12.0, **FREEZING), measured(2.0, **SOCKET),
        measured(5.0, threads=4), measured(4.0, threads=4, **FREEZING),
        measured(30.0, scenario="training"), measured(1.0, device="cuda"),
    ]  # fmt: skip
    page = page_of(tmp_path, run(str(FIRST), rows))
    one, four = tables(page)
    assert one[0] == [
        "inductor 1 threads default",
        "inductor 1 threads freezing",
        "inductor 56 threads socket",
    ]
    assert four[0] == ["inductor default", "inductor freezing"]
    assert re.findall('badge (.*?)"', one[1]["resnet18"]) == ["worse", "better"]
    assert re.findall('badge (.*?)"', four[1]["resnet18"]) == ["better"]
    titles = re.findall("<h3>(.*?)</h3>", page.read_text())
    assert titles == ["cpu, inference, 1 thread", "cpu, inference, 4 threads"]


def test_a_model_that_the_first_column_lacks_is_compared_with_nothing(tmp_path):
    dynamic = {"configuration": "dynamic", "dynamic": True}
    rows = [
        measured(10.0, "everywhere"), measured(20.0, "everywhere", **FREEZING),
        measured(10.0, "not_in_default", **FREEZING), measured(20.0, "not_in_default", **dynamic),
    ]  # fmt: skip
    page = page_of(tmp_path, run(str(FIRST), rows))
    ((columns, by_model),) = tables(page)
    assert len(columns) == 3
    assert set(by_model) == {"everywhere"}
    assert "1 is not compared: it is not in the first column." in Page(page).text


AMP = {"dtype": "amp", "amp_dtype": "bfloat16"}
BFLOAT16 = {"dtype": "bfloat16"}
EAGER = {"backend": "eager"}
MODELS = [f"model{number}" for number in range(4)]


def night_of(day, *ways, models=MODELS):
    """A night of the models in each of some ways; freezing takes 8 ms, the default 10 ms."""
    level = {True: 8.0, False: 10.0}
    rows = [measured(level["configuration" in way], model, **way) for model in models for way in ways]
    return run(str(FIRST + timedelta(days=day)), rows)


@pytest.mark.parametrize("way", [BFLOAT16, AMP])
def test_a_model_run_by_hand_in_another_dtype_is_no_baseline(tmp_path, way):
    nights = night_of(0, {}, FREEZING), night_of(1, way, models=MODELS[:1])
    page = page_of(tmp_path, *nights)
    ((columns, by_model),) = tables(page)
    names = [column.partition(" <")[0] for column in columns]
    assert names[:2] == ["inductor float32 default", "inductor float32 freezing"]
    assert len(names) == 3
    assert set(by_model) == set(MODELS)
    assert all("-20.0%" in line for line in by_model.values())
    assert "not compared: " not in Page(page).text


@pytest.mark.parametrize(
    ("nights", "first"),
    [
        ([night_of(0, {}, BFLOAT16, FREEZING)], "float32 default"),
        ([night_of(0, BFLOAT16, FREEZING), night_of(1, {}, models=MODELS[:1])], "bfloat16 default"),
        ([night_of(0, BFLOAT16, FREEZING), night_of(1, AMP, models=MODELS[:3])], "bfloat16 default"),
        ([night_of(0, {}, FREEZING), night_of(60, BFLOAT16, {**BFLOAT16, **FREEZING})], "bfloat16 default"),
        ([night_of(0, EAGER, FREEZING), night_of(1, {}, models=MODELS[1:])], "float32 default"),
    ],
    ids=["float32", "float32 by hand", "more models", "float32 no more", "inductor"],
)
def test_the_first_column_is_the_default_of_what_is_measured(tmp_path, nights, first):
    ((columns, _),) = tables(page_of(tmp_path, *nights))
    name = columns[0].partition(" <")[0]
    assert name.removeprefix("inductor ") in (first, first.removeprefix("float32 "))


def test_an_edited_configuration_has_its_settings_and_the_date_of_its_last_night(tmp_path):
    def of_night(night, size):
        settings = f'{{"inductor_config":{{"max_fusion_size":{size}}}}}'
        rows = [measured(10.0), measured(4.0, configuration="mine", settings=settings)]
        return run(str(FIRST + timedelta(days=night)), rows)

    page = page_of(tmp_path, of_night(0, 16), of_night(60, 64))
    names = [f"inductor configuration mine (max_fusion_size={size})" for size in (16, 64)]
    ((columns, by_model),) = tables(page)
    last = f' <span class="muted">last night {FIRST}</span>'
    assert columns == ["inductor default", names[1], names[0] + last], "what is no longer measured is last"
    matrix = page.read_text().partition('id="matrix"')[2].partition("</table>")[0]
    assert matrix.count(last) == 1
    assert f">{names[0]}</a>{last}" in matrix
    assert str(FIRST) not in by_model["resnet18"], "the column says it"


def test_numbers_of_different_methods_are_not_compared(tmp_path):
    old = run(str(FIRST), [measured(4.0, **FREEZING)], method={**CURRENT, "latency": 0})
    new = run(str(FIRST + timedelta(days=60)), [measured(10.0)])
    assert tables(page_of(tmp_path, old, new)) == []


@pytest.mark.parametrize(("version", "is_compared"), [(1, False), (CURRENT["own_threads"], True)])
def test_what_eagers_threads_disturbed_is_not_compared_with_another_night(tmp_path, version, is_compared):
    method = {**CURRENT, "own_threads": version}
    old = run(str(FIRST), [measured(4.0, backend="openvino", threads=2)], method=method)
    new = run(str(FIRST + timedelta(days=60)), [measured(10.0, threads=2)], method=dict(CURRENT))
    assert bool(tables(page_of(tmp_path, old, new))) == is_compared


def test_a_configuration_that_was_dynamic_before_keeps_its_own_suite_page(tmp_path):
    """Its last night must not be on the page of the nights that are measured today."""
    runs = [
        run(
            str(FIRST + timedelta(days=night)),
            [measured(100.0 if night < 3 else 50.0, **FREEZING, dynamic=night < 3)],
        )
        for night in range(6)
    ]
    with open_store(str(tmp_path / "history.db")) as store:
        take_in(store, runs)
        folder = built(store, tmp_path / "site")
    check(folder)
    pages = {path.name: path.read_text() for path in folder.glob("beds/*/suites/*.html")}
    assert len(pages) == 2
    (live,) = [text for name, text in pages.items() if "dynamic" not in name]
    assert "<dd>2.000x" in live
    tiles = re.findall(r'<li><a class="k" href="([^"]+)">(.*?)</a>', (folder / "index.html").read_text())
    assert len({href for href, _ in tiles}) == len({words for _, words in tiles}) == 2


def test_the_night_that_a_mean_is_compared_with_is_named(tmp_path):
    """The last night's machine was away for three days: its change is since then."""
    hosts = ("b", "a", "a", "b")
    nights = [
        run(str(FIRST + timedelta(days=night)), [measured(10.0), measured(9.0, **FREEZING)], host=host)
        for night, host in enumerate(hosts)
    ]
    path = page_of(tmp_path, *nights)
    matrix = path.read_text().partition('id="matrix"')[2].partition("</table>")[0]
    assert matrix.count('<span class="muted">3 days before</span>') == 2
    assert "night before" not in Page(path).text
    assert (tmp_path / "site/index.html").read_text().count("; compared with 3 days before") == 2


def test_numbers_of_two_machines_are_not_marked(tmp_path):
    """One machine measures the first column, another one of its class, 5 % slower, the others."""
    amp = {**FREEZING, "dtype": "amp", "amp_dtype": "bfloat16"}

    def numbers(level, model, status="pass", **way):
        ends = {"backend_ms_low": level * 0.995, "backend_ms_high": level * 1.005}
        speedup = {"speedup": 1.3, "speedup_low": 1.29, "speedup_high": 1.31}
        speedup |= {"speedup": 1.2, "speedup_low": 1.19, "speedup_high": 1.21} if way else {}
        return result(Case("timm", model, **way), level, status=status, **ends, **speedup)

    passing = [numbers(10.0, model) for model in ("resnet18", "broken", "freezes")]
    here = run(str(FIRST), [*passing, numbers(10.0, "bad", "crash")], host="bench-1")
    others = [
        numbers(10.5, model, **way) for model in ("resnet18", "broken") for way in (amp, FREEZING)
        if (model, way) != ("broken", amp)
    ]  # fmt: skip
    failing = [numbers(10.5, "bad", "crash", **way) for way in (amp, FREEZING)]
    failing += [numbers(10.5, "freezes", **amp), numbers(10.5, "freezes", "crash", **FREEZING)]
    there = run(
        str(FIRST), [*others, numbers(10.0, "broken", "crash", **amp), *failing],
        host="bench-2", name="there", started=f"{FIRST}T02:00:00Z",
    )  # fmt: skip
    page = page_of(tmp_path, here, there)
    ((columns, by_model),) = tables(page)
    assert set(by_model) == {"broken", "freezes"}, "no number of resnet18 is certain"
    cells = dict(zip(columns, by_model["broken"].split("<td")[2:], strict=True))
    (crashed,) = (cell for name, cell in cells.items() if "amp" in name)
    (freezing,) = (cell for name, cell in cells.items() if "float32" in name and "freezing" in name)
    assert 'badge worse">crash<' in crashed
    assert "badge" not in freezing
    assert "+8.3%" in freezing
    assert freezing.count("on another machine: bench-1 | bench-2") == 1
    (compared,) = (cell for cell in by_model["freezes"].split("<td")[2:] if "1.200x" in cell)
    assert "badge" not in compared
    assert "%" not in compared, "no latency of another machine, but its own speedup"
    text = Page(page).text
    assert "1 model does not differ. 1 was measured on several machines" in text, "bad fails on all machines"
    alone = (
        run(str(FIRST), [numbers(level, "resnet18", **way)], host=f"bench-{level}", name=f"{level}")
        for level, way in ((1, {}), (2, FREEZING))
    )
    alone_text = Page(page_of(tmp_path / "alone", *alone)).text
    assert "1 model was measured on several machines, which may differ without any change." in alone_text
