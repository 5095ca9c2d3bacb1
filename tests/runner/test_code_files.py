"""Generated code in run folders: written, read, merged, imported, shown."""

from __future__ import annotations

import base64
import zipfile
import zlib

import pytest

from perfdash.history.generated_code import texts
from perfdash.records import Case
from perfdash.runner import code_files

CASE = Case("timm", "vit_tiny")


def packed(text):
    return base64.b64encode(zlib.compress(text.encode())).decode()


def test_code_is_read_as_it_was_written(tmp_path):
    code_files.write(tmp_path, CASE, [packed("first"), packed("sec\u00f6nd")])
    assert texts(code_files.of_folder(tmp_path, CASE)) == {"graph0.py": "first", "graph1.py": "sec\u00f6nd"}
    assert code_files.of_folder(tmp_path, Case("timm", "another")) == {}
    (path,) = (tmp_path / "code").iterdir()
    before = path.read_bytes()
    code_files.write(tmp_path, CASE, [packed("first"), packed("sec\u00f6nd")])
    assert path.read_bytes() == before
    code_files.copy(tmp_path, tmp_path / "code")
    assert (tmp_path / "code" / "code" / path.name).read_bytes() == before


def test_a_secret_in_the_code_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a-b3rY-s3cr3t-V4lue")
    code_files.write(tmp_path, CASE, [packed("x = 'a-b3rY-s3cr3t-V4lue'")])
    assert texts(code_files.of_folder(tmp_path, CASE)) == {"graph0.py": "x = '***'"}


@pytest.mark.parametrize("damaged", ["", "no base64 !", "aGVsbG8="])
def test_damaged_code_of_a_worker_is_refused(tmp_path, damaged):
    with pytest.raises((ValueError, zlib.error)):
        code_files.write(tmp_path, CASE, [damaged])
    assert code_files.of_folder(tmp_path, CASE) == {}


def test_a_damaged_zip_is_no_code(tmp_path, monkeypatch):
    code_files.write(tmp_path, CASE, [packed("first")])
    (path,) = (tmp_path / "code").iterdir()
    path.write_bytes(path.read_bytes()[:40])
    assert code_files.of_folder(tmp_path, CASE) == {}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("graph0.py", "x" * 100)
    monkeypatch.setattr(code_files, "_MOST_BYTES", 50)
    assert code_files.of_folder(tmp_path, CASE) == {}
