"""Labelled texts: a CSV file (columns text and label) beside a folder `tokenizer`.

The path is the CSV file, or a folder that contains data.csv. transformers must be able to read the
tokenizer; nothing is downloaded.
"""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path
from typing import Any, Iterator

import torch
from torch import Tensor

from perfdash.records import Job
from perfdash.worker.quality import Labelled

_COLUMNS = ("text", "label")


def open_data(job: Job) -> Labelled:
    """Open the texts as token ids under the names of the model's inputs.

    Token ids are (n, sequence), truncated or padded. `labels`, where the model takes them, are zeros: the
    loss is not used, and a label without a class must not break the model before score() can report it.
    Raises ValueError with file and line for data that cannot be read.
    """
    if not job.data_path:
        raise ValueError("data of the kind text need a CSV file or its folder: --data PATH")
    path = Path(job.data_path)
    file = path / "data.csv" if path.is_dir() else path
    rows = _rows(file)
    labels, names = _indices(file, rows)
    notes = [f"labels are the places of the sorted names: {', '.join(names)[:200]}"] if names else []
    tokenizer = _tokenizer(file.parent / "tokenizer", notes)
    sequence = job.inputs.get("sequence", 512)
    with_mask = job.inputs.get("attention_mask", False)
    truncated = _cut(tokenizer, [text for _, text, _ in rows], sequence)
    if truncated:
        notes.append(
            f"{truncated} of {len(rows)} texts are longer than {sequence} tokens: their ends are not read"
        )
    if not with_mask:
        notes.append("the model is given no attention mask: it reads the padding as text")

    def batches(batch_size: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for start in range(0, len(rows), batch_size):
            texts = [text for _, text, _ in rows[start : start + batch_size]]
            tokens = tokenizer(
                texts, padding="max_length", truncation=True, max_length=sequence, return_tensors="pt"
            )
            inputs = {"input_ids": tokens["input_ids"]}
            if with_mask:
                inputs["attention_mask"] = tokens["attention_mask"]
            if job.inputs.get("labels", True):
                inputs["labels"] = torch.zeros(len(texts), dtype=torch.long)
            yield inputs, torch.tensor(labels[start : start + batch_size])

    return Labelled(len(rows), len(names) or None, batches, notes)


def _rows(file: Path) -> list[tuple[int, str, str]]:
    """Read (line, text, label) of each row."""
    if not file.is_file():
        raise ValueError(
            f"{file} is missing: --data takes a CSV file of text and label, or a folder with data.csv"
        )
    reader = csv.DictReader(io.StringIO(_decoded(file), newline=""))
    try:
        rows = list(_checked(file, reader))
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num + 1}: {error}") from error
    if not rows:
        raise ValueError(f"{file} has no row after its first line")
    return rows


def _checked(file: Path, reader: csv.DictReader[str]) -> Iterator[tuple[int, str, str]]:
    columns = reader.fieldnames
    if not columns:
        raise ValueError(f"{file} is empty: it needs a first line `text,label` and a row for each text")
    for column in _COLUMNS:
        if column not in columns:
            raise ValueError(f"{file}, line 1: no column {column!r}; there are: {', '.join(columns)}")
    for row in reader:
        where = f"{file}, line {reader.line_num}"
        if None in row:
            raise ValueError(f"{where}: more fields than columns; put texts with commas in quotes")
        text, label = row["text"], (row["label"] or "").strip()
        if text is None or not label:
            raise ValueError(f"{where}: the {'text' if text is None else 'label'} is missing")
        yield reader.line_num, text, label


def _decoded(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file}, line {line}: not UTF-8 (byte 0x{content[error.start]:02x}); save it so"
        ) from None


def _indices(file: Path, rows: list[tuple[int, str, str]]) -> tuple[list[int], list[str]]:
    """Return the labels as integers, and the sorted names of the classes.

    The names are empty if the file gives integers.
    """
    named = [(line, label) for line, _, label in rows if not re.fullmatch(r"[+-]?[0-9]{1,9}", label)]
    if not named:
        return [int(label) for _, _, label in rows], []
    if len(named) < len(rows):
        line, label = named[0]
        raise ValueError(
            f"{file}, line {line}: the label {label[:80]!r} is no integer, but others are; "
            "give integers from 0 for all rows, or names for all"
        )
    names = sorted({label for _, label in named})
    place = {name: index for index, name in enumerate(names)}
    return [place[label] for _, label in named], names


def _cut(tokenizer: Any, texts: list[str], sequence: int) -> int:
    """Count the texts with more tokens than the model reads."""
    return sum(
        len(tokens) > sequence
        for start in range(0, len(texts), 1000)
        for tokens in tokenizer(texts[start : start + 1000], verbose=False)["input_ids"]
    )


def _tokenizer(folder: Path, notes: list[str]) -> Any:
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is missing: put the model's tokenizer there, as its save_pretrained() writes it"
        )
    # The tokenizer's threads would use cores of other cases, and would warn when the process forks later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ImportError:
        raise
    except Exception as error:  # a broken file raises any type, also types of the Rust library
        raise ValueError(
            f"{folder} holds no tokenizer that transformers can read: {type(error).__name__}: {error}"
        ) from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(f"the tokenizer in {folder} has no padding token, and no end token to pad with")
        tokenizer.pad_token = tokenizer.eos_token
        notes.append("the tokenizer has no padding token: texts are padded with its end token")
    return tokenizer
