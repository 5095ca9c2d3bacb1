"""Structure and generated code of results in the history.

Every text is kept once, under the SHA-256 of its content, however many runs produced it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from perfdash.files import dumps, encoded
from perfdash.history import schema
from perfdash.history.results import Row

STRUCTURE = "structure"  # the name of a case's structure beside its graphs
_LEVEL = 9
_MOST_BYTES = 256 << 20  # of one text: what is larger is no code of ours


def texts(code: Mapping[str, bytes]) -> dict[str, str]:
    """The text of each graph by its file name."""
    return {name: _inflated(data).decode("utf-8", "replace") for name, data in code.items()}


def _inflated(data: bytes) -> bytes:
    """Decompress at most _MOST_BYTES. Raises zlib.error for damaged data."""
    return zlib.decompressobj().decompress(data, _MOST_BYTES)


def store(connection: sa.Connection, by_result: Iterable[tuple[int, Row]]) -> None:
    """Store structure and code of results; a text that is there already is not stored again."""
    names: list[tuple[int, str, str]] = []
    data: dict[str, bytes] = {}
    for result_id, row in by_result:
        parts = dict(row.code)
        if row.structure:
            plain = dumps(dict(row.structure), sort_keys=True, separators=(",", ":"))
            parts[STRUCTURE] = zlib.compress(encoded(plain), _LEVEL)
        for name, packed in parts.items():
            digest = sha256(_inflated(packed)).hexdigest()
            data[digest] = packed
            names.append((result_id, name, digest))
    if not names:
        return
    ids = _ids(connection, list(data))
    new = [{"digest": digest, "data": packed} for digest, packed in data.items() if digest not in ids]
    if new:
        connection.execute(sa.insert(schema.texts), new)
        ids = _ids(connection, list(data))
    links = [
        {"result_id": result_id, "name": name, "text_id": ids[digest]} for result_id, name, digest in names
    ]
    connection.execute(sa.insert(schema.result_texts), links)


def _ids(connection: sa.Connection, digests: list[str]) -> dict[str, int]:
    """The ids of the texts that are there, by digest."""
    table = schema.texts
    ids: dict[str, int] = {}
    for start in range(0, len(digests), 500):
        query = sa.select(table.c.digest, table.c.id).where(table.c.digest.in_(digests[start : start + 500]))
        ids |= {row.digest: row.id for row in connection.execute(query)}
    return ids


def load(
    connection: sa.Connection, run_id: int, case_id: int | None = None
) -> dict[int, tuple[dict[str, Any], dict[str, bytes]]]:
    """(structure, code) of the results of a run, or of one case of it, by result."""
    links, table, results = schema.result_texts, schema.texts, schema.results
    query = (
        sa.select(links.c.result_id, links.c.name, table.c.data)
        .join_from(links, results, links.c.result_id == results.c.id)
        .join(table, links.c.text_id == table.c.id)
        .where(results.c.run_id == run_id)
        .order_by(links.c.result_id, links.c.name)
    )
    if case_id is not None:
        query = query.where(results.c.case_id == case_id)
    found: dict[int, tuple[dict[str, Any], dict[str, bytes]]] = {}
    for result_id, name, data in connection.execute(query):
        structure, code = found.setdefault(result_id, ({}, {}))
        if name == STRUCTURE:
            structure.update(json.loads(_inflated(data)))
        else:
            code[name] = data
    return found


def drop_unused(connection: sa.Connection) -> int:
    """Remove texts that no result refers to any more; return their number."""
    table, links = schema.texts, schema.result_texts
    used = sa.select(links.c.text_id).where(links.c.text_id == table.c.id).exists()
    return connection.execute(sa.delete(table).where(~used)).rowcount
