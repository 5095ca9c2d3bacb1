import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.detect.csv_series import read_column
from perfdash.errors import UsageError
from perfdash.history.importers import foreign_files


@pytest.fixture
def csv_file(tmp_path):
    def write(text):
        path = tmp_path / "some.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_values_and_lines(csv_file):
    column = read_column(csv_file('a, b\n1,2\n\n3,"4e-1"\n5,-6'), "b")
    assert column.values == [2, 0.4, -6]
    assert column.lines == [2, 4, 5]
    assert column.times is None
    assert not column.ratio


def test_bom_windows_line_ends_and_line_ends_in_cells(csv_file):
    column = read_column(csv_file('\ufeffa,note\r\n1,"two\r\nlines, quoted"\r\n2,x\r\n'), "a")
    assert column.values == [1, 2]
    assert column.lines == [2, 4]


def test_missing_cells(csv_file):
    column = read_column(csv_file("a,b\n,1\nnan,2\nNA,3\n null ,4\n-,5\n7,6\n"), "a")
    assert [math.isnan(value) for value in column.values] == [True] * 5 + [False]
    assert column.missing == 5
    assert column.ratio


@pytest.mark.parametrize(
    "times",
    [
        ["3", "1", "2e0"],
        ["2026-01-03", "2025-12-31", "2026-01-01T12:00"],
        ["2026-01-01T03:00+01:00", "2026-01-01T00:00Z", "2026-01-01T01:00Z"],
    ],
)
def test_rows_are_sorted_by_time(csv_file, times):
    rows = "".join(f"{time},{value}\n" for time, value in zip(times, (30, 10, 20), strict=True))
    column = read_column(csv_file("t,v\n" + rows), "v", "t")
    assert column.values == [10, 20, 30]
    assert column.times == [times[1], times[2], times[0]]
    assert column.lines == [3, 4, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["empty"]),
        ("\n\n", ["empty"]),
        ("v,t\n", ["line 1", "no line below it"]),
        ("value,t\n1,2\n", ["line 1", "--column: no column 'v'", "there are: value, t"]),
        ("vv,t\n1,2\n", ["did you mean vv"]),
        ("v;t\n1;2\n", ["no column 'v'", "separated by commas"]),
        ("v,t,v\n1,2,3\n", ["line 1", "2 columns are named 'v'"]),
        ("v,t\n1,1\n2\n", ["line 3", "1 cells, and the header has 2"]),
        ("v,t\n1,1,1\n", ["line 2", "3 cells"]),
        ("v,t\n1,1\n12 ms,2\n", ["line 3", "column 'v'", "'12 ms' is no finite number"]),
        ("v,t\n1_000,2\n", ["line 2", "'1_000'"]),
        ("v,t\ninf,2\n", ["line 2", "'inf' is no finite number"]),
        ("v,t\n1e999,2\n", ["line 2", "'1e999'"]),
        ('v,t\n"1,5",2\n', ["line 2", "'1,5'"]),
        ("v,t\n1,\n", ["line 2", "column 't'", "'' is no number or ISO 8601 date"]),
        ("v,t\n1,yesterday\n", ["line 2", "'yesterday' is no number or ISO 8601 date"]),
        ("v,t\n1,nan\n", ["line 2", "'nan' is no number"]),
        ("v,t\n1,1\n1,2026-01-01\n", ["line 3", "is no number, as the first one is"]),
        ("v,t\n1,2026-01-01\n1,20x\n", ["line 3", "'20x'"]),
        ("v,t\n1,2026-01-01\n1,2026-01-02T00:00Z\n", ["line 3", "zone"]),
        ("v,t\n1,5\n2,6\n3,5.0\n", ["line 4", "the time of line 2 too"]),
        ("v,t\n1,2026-01-01\n2,2026-01-01T00:00\n", ["line 3", "the time of line 2 too"]),
        (b"v,t\n1,2\n\xff\xfe,3\n", ["line 3", "not UTF-8"]),
        ("v,t\n1,2\n".encode("utf-16"), ["line 1"]),
        (b"v,t\n1,\x002\n", ["line 2", "NUL"]),
        ('v,t\n1,2\n"3,4\n5,6\n', ["line 3", "not a line of a CSV"]),
        (b"v,t\n1," + b"2" * (2 << 20) + b"\n", ["line 2", "longer than 1 MiB"]),
        ('v,t\n1,"' + ("x" * 99 + "\n") * 3000 + '"\n', ["line 2", "not a line of a CSV"]),
    ],
)
def test_wrong_input(csv_file, text, words):
    path = csv_file(text)
    with pytest.raises(UsageError) as error:
        read_column(path, "v", "t")
    for word in ["some.csv", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_time_column(csv_file):
    with pytest.raises(UsageError, match=r"--time: no column 'date' \(did you mean dates"):
        read_column(csv_file("v,dates\n1,2\n"), "v", "date")


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.csv: cannot be read \(No such file"):
        read_column(tmp_path / "nowhere.csv", "v")
    with pytest.raises(UsageError, match="folder"):
        read_column(tmp_path, "v")
    with pytest.raises(UsageError, match="device"):
        read_column(Path("/dev/zero"), "v")


def test_an_endless_line_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(b"v\n1\n")
        file.truncate(1 << 33)  # sparse: 8 GiB of NULs
    with pytest.raises(UsageError, match="line 3: the line is longer than 1 MiB"):
        read_column(path, "v")


def test_too_many_values(csv_file, monkeypatch):
    monkeypatch.setattr("perfdash.detect.csv_series.MOST_VALUES", 3)
    with pytest.raises(UsageError, match="line 5: more than 3 values"):
        read_column(csv_file("v\n1\n2\n3\n4\n"), "v")


def test_a_file_above_the_limit(csv_file, monkeypatch):
    monkeypatch.setattr(foreign_files, "FILE_LIMIT", 5 << 20)
    with pytest.raises(UsageError, match="larger than 5 MiB"):
        read_column(csv_file("v,w\n" + ("1," + "x" * 1000 + "\n") * 6000), "v")


@given(st.text(alphabet=st.sampled_from('v,t"\n\r 1.-e;#\u00e9'), max_size=60))
def test_any_text_is_a_column_or_a_usage_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_bytes(b"v,t\n" + text.encode())
    try:
        column = read_column(path, "v", "t")
    except UsageError as error:
        message = str(error)
    else:
        message = f"any.csv: {len(column.values)} values"
        assert len(column.values) == len(column.lines) == len(column.times)
    assert "any.csv" in message
