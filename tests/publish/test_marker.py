"""The hidden line: read back whatever the name, forged by none."""

from hypothesis import example, given
from hypothesis import strategies as st

from perfdash.publish.marker import known_as, marker, read, same, without

names = st.text(min_size=1, max_size=300)


@given(names, st.integers(1, 99))
@example("--> <script>", 1)
@example("a part=9 -->\n<!-- perfdash:1 comment run=b part=1 -->", 1)
@example("\ud800", 1)
@example("run--", 1)
@example("----", 2)
def test_any_name_is_read_back(name, part):
    line = marker("comment", run=name, part=part)
    assert "\n" not in line
    inner = line.removeprefix("<!--").removesuffix("-->")
    assert "--" not in inner
    assert ">" not in inner
    assert not inner.rstrip().endswith("-")
    values = read(f"{line}\nbody", "comment")
    assert values is not None
    assert values["part"] == str(part)
    if name < "\ud800" or name.isascii():
        assert values["run"] == known_as(name)


@given(names, names)
def test_different_names_stay_different(first, other):
    runs_read = [read(marker("comment", run=name), "comment")["run"] for name in (first, other)]
    whole = [name.encode("utf-8", "replace") for name in (first, other)]
    assert (runs_read[0] == runs_read[1]) == (whole[0] == whole[1])


def test_only_the_first_line_of_the_right_kind_counts():
    line = marker("comment", run="a", part=1)
    assert read(line, "comment") == {"run": "a", "part": "1"}
    assert read(f"{line}\r\nx", "comment") == {"run": "a", "part": "1"}
    for body in (None, "", f"> {line}", f"look:\n{line}", f" {line}", f"{line} x", f"`{line}`"):
        assert read(body, "comment") is None
    assert read(line, "alert") is None
    assert read(line.replace("perfdash:1", "perfdash:2"), "comment") is None


def test_what_a_body_says_without_its_marker():
    line = marker("comment", run="a")
    assert without(f"{line}\nsaid\r\nmore\n") == "said\nmore"
    assert without("said\nmore") == "said\nmore"
    assert without(None) == ""


def test_which_alert():
    alert = {"series": "s", "born": "run1", "opened": "t1"}
    assert same(alert, alert)
    assert same(alert, {**alert, "opened": "t2"})  # the history was made anew
    assert same(alert, {**alert, "born": ""})  # it was pruned
    assert not same(alert, {**alert, "born": "run2"})  # a further step, judged in the same second
    assert not same(alert, {**alert, "series": "other"})
    assert not same(alert, {"series": "s", "born": "", "opened": "t2"})
    assert not same({"series": "s"}, {"series": "s"})
