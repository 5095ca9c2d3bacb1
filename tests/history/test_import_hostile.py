"""Files that are damaged, foreign or hostile: each is imported or refused with a UsageError."""

import os
import re
import sqlite3
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdash.errors import UsageError
from perfdash.history.importers import ImportOptions, foreign_files, read, recognise
from perfdash.history.importers.foreign_files import FilePlace
from perfdash.history.importers.import_options import from_seconds
from perfdash.metrics import NUMBERS
from perfdash.records import Status
from tests.effort import trials

FIXTURES = Path(__file__).parents[1] / "fixtures"
SAMPLES = sorted((FIXTURES / "imports").iterdir())
BRIEF = ImportOptions(started="2024-01-01", threads=1, host="box")
TOLD = replace(BRIEF, suite="s", dtype="float32", scenario="inference", backend="b", device="cpu")


def attempt(path, options=None):
    """What an import may do: give runs that are whole, or refuse."""
    try:
        runs = read([path], options)
    except UsageError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < 2500
        return None
    assert runs
    for imported in runs:
        assert imported.rows
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", imported.run.started)
        assert imported.content
        assert len({row.case for row in imported.rows}) == len(imported.rows)
        for row in imported.rows:
            Status(row.status)
            assert row.details["origin"]["file"] in imported.run.imported["files"]
            assert row.values.keys() <= set(NUMBERS)
            assert all(
                isinstance(row.values[name], int)
                for name, metric in NUMBERS.items()
                if metric.is_integer and name in row.values
            )
            assert all(abs(value) < 1e300 for value in (*row.values.values(), *row.others.values()))
    return runs


def test_empty_and_binary_files(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="f: the file is empty"):
        recognise(path)
    database = tmp_path / "history.db"
    sqlite3.connect(database).execute("create table t (x)").connection.close()
    with pytest.raises(UsageError, match=r"no file that can be imported\. Known formats: "):
        recognise(database)


def test_what_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="no folder that can be imported"):
        recognise(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        recognise(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"cannot be read \(Too many levels of symbolic links\)"):
        recognise(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a device, pipe or socket"):
        recognise(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a device, pipe or socket"):
        recognise(Path("/dev/zero"))
    with pytest.raises(UsageError, match="cannot be read"):
        recognise(tmp_path / "a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path):
    path = tmp_path / "f"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        recognise(path)


def test_odd_file_names(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\n\x1b[31m.csv")
    path.write_text("dev,name,batch_size,speedup\ncpu,a,1,1.5\n")
    (imported,) = read([path], TOLD)
    imported.run.name.encode()
    assert imported.run.name.isprintable()
    path.write_text("dev,name,batch_size,speedup\ncpu,a,1,x\n")
    with pytest.raises(UsageError) as caught:
        read([path], TOLD)
    assert str(caught.value).isprintable()


HEAD = b"dev,name,batch_size,speedup\n"


def test_wrong_encodings(tmp_path):
    path = tmp_path / "f.csv"
    for data, message in (
        (HEAD + b"cpu,\xff,1,1.5\n", "line 2: not UTF-8 text"),
        (HEAD + b"cpu,a\0,1,1.5\n", "no file that can be imported"),
        (HEAD.decode().encode("utf-16"), "no file that can be imported"),
        (HEAD * 40000 + b"cpu,a\0,1,1.5\n", "not a number|NUL|batch size"),
    ):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=message):
            read([path], TOLD)
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.replace(b"\n", b"\r\n") + b"cpu,a,1,1.5\r\n")
    assert read([path], TOLD)[0].rows[0].case.model == "a"


def test_an_endless_line_is_not_loaded(tmp_path):
    path = tmp_path / "f.csv"
    with path.open("wb") as file:
        file.write(HEAD + b"cpu,a,1,")
        file.truncate(1 << 30)  # a hole of NULs, which the line limit meets first
    tracemalloc.start()
    with pytest.raises(UsageError):
        read([path], TOLD)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_limits(tmp_path, monkeypatch):
    path = tmp_path / "f.csv"
    path.write_bytes(HEAD + b"cpu,a,1," + b" " * foreign_files.LINE_LIMIT + b"1.5\n")
    with pytest.raises(UsageError, match="line 2: the line is longer than 1 MiB"):
        read([path], TOLD)
    monkeypatch.setattr(foreign_files, "FILE_LIMIT", 100)
    path.write_bytes(HEAD + b"".join(b"cpu,a%d,1,1.5\n" % n for n in range(20)))
    with pytest.raises(UsageError, match="line 7: the file is larger than"):
        read([path], TOLD)
    with pytest.raises(UsageError, match="larger than"):
        foreign_files.whole_text(path, 10)


def test_given_values_are_checked(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(HEAD + b"cpu,a,1,1.5\n")
    for changes, message in (
        ({"started": "yesterday"}, "--started is 'yesterday': give a time like"),
        ({"started": "0001-01-01T00:00:00+10:00"}, "--started is"),
        ({"started": "0001-01-01"}, "--started is '0001-01-01': give a time like"),
        ({"threads": 0}, "--threads is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            read([path], ImportOptions(**vars(TOLD) | changes))
    with pytest.raises(UsageError, match="no time: give --started"):
        from_seconds(1e15, FilePlace(path), "its modification time")


EXAMPLES = [path.read_bytes() for path in SAMPLES] + [(FIXTURES / "inductor_cpu_dashboard.md").read_bytes()]
PIECES = [
    b"", b"\n", b"\r", b",", b"|", b":", b'"', b"{", b"[", b"]", b"}", b"nan", b"-1", b"0", b"1e308",
    b"9" * 400, b"null", b"true", b"Infinity", b"pass", b"\xff", b"\0", b"\xef\xbb\xbf", b"\\ud800",
    b"\xe2\x80\xae", b"- ", b"&a", b"*a", b"!!x ", b"+---+", b"|---|", b"# ", b"```",
]  # fmt: skip


@st.composite
def damaged(draw):
    """An example with some spans replaced by pieces that mean something, or by parts of itself."""
    data = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40) | st.integers(0, len(data))))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8) | st.just(data[start:end] * 2))
        data = data[:start] + piece + data[end:]
    return data


HERE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=trials(100))


@pytest.mark.parametrize("options", [None, TOLD], ids=["nothing", "options"])
def test_damaged_files_are_imported_or_refused(tmp_path, options):
    path = tmp_path / "f"

    @HERE
    @given(damaged())
    def check(data):
        path.write_bytes(data)
        attempt(path, options)

    check()


@HERE
@given(
    data=st.binary(max_size=300),
    head=st.sampled_from([b"", HEAD, b'{"metric": {}, "model": {', b"# x\n|a|\n"]),
)
def test_arbitrary_bytes_are_imported_or_refused(tmp_path, data, head):
    path = tmp_path / "f"
    path.write_bytes(head + data)
    attempt(path, TOLD)


@HERE
@given(st.text(max_size=80) | st.floats().map(str) | st.integers().map(str))
def test_a_number_is_finite_or_refused(text):
    try:
        value = foreign_files.parsed_number(text, FilePlace(Path("f"), 1), "x")
    except UsageError:
        return
    assert value == float(text)
    assert abs(value) < 1e300


def test_the_examples_themselves_are_whole(tmp_path):
    for path in SAMPLES:
        assert attempt(
            path,
            TOLD if path.name == "old_harness.csv" else BRIEF,
        )


def test_every_prefix_of_a_file_is_the_whole_or_refused(tmp_path):
    """Nothing half-read: a file cut off anywhere gives no rows, or rows of whole lines only."""
    for original in SAMPLES:
        options = TOLD if original.name == "old_harness.csv" else BRIEF
        copy = tmp_path / original.name
        whole = {(run.run.name, row.case): row for run in read([original], options) for row in run.rows}
        data = original.read_bytes()
        for length in range(0, len(data), 7):
            copy.write_bytes(data[:length])
            for run in attempt(copy, options) or []:
                for row in run.rows:
                    same = whole.get((run.run.name, row.case))
                    assert same is None or row.values.items() <= same.values.items()
