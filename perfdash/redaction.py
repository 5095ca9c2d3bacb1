"""Replaces secrets by *** in every text that leaves the program: printed, posted, mailed or recorded.

Secrets are the values of variables and KEY=VALUE words that are named like one (the rule for names is in
child_environment), passwords in addresses and connection strings, and what `remember` was given.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, cast
from urllib.parse import quote, unquote, urlsplit

from perfdash.child_environment import is_ambiguous, is_named_secret, is_secret, variable_name

MASK = "***"
_FIELD = re.compile(r"[a-z_]{1,40}")
_SHORTEST = 6  # characters; shorter values are ordinary words
_LONG = 16  # from here on a value is no word, and is replaced inside of others too
_ORDINARY = re.compile(r"true|false|none|null|on|off|yes|no|[\d.,:+-]*|perfdash|postgres", re.IGNORECASE)
# No quotes: a JSON text without blanks holds what looks like the user of an address.
_PASSWORD = re.compile(r"""(://[^/\s:@"'<>\\]*:)([^/\s@"'<>\\]+)@""")
# What a text without a name shows of itself: passwords, and tokens in the place of a user.
_WITHIN = (
    _PASSWORD,
    re.compile(r"""(password=)["']?([^\s&;"']+)""", re.IGNORECASE),
    re.compile(r"""(authorization:\s*(?:(?:token|bearer|basic)\s+)?)([^\s"',;]+)""", re.IGNORECASE),
)
_USER = re.compile(r"""https?://([^/\s:@"'<>\\]+)@""")
_OWN_WORD = re.compile(r"(PASS|_PWD)$", re.IGNORECASE)  # what its user thought of looks like any word
_USER_PASSWORD = re.compile(r"[^\s:/]+:[^\s:/]{6,}")
_PATTERNS = (
    (_PASSWORD, rf"\1{MASK}@"),
    (re.compile(r"(?i)(authorization\W{1,5}(?:token|bearer|basic)\s+)[^\s\"',;]+"), rf"\1{MASK}"),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{30,})"), MASK),
    (re.compile(r"(https://hooks\.slack\.com/services/)[\w/]+"), rf"\1{MASK}"),
)
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_PAIR = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_PAIR_WITHIN = re.compile(r"([A-Za-z_]\w*)=(\S+)")
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(\S.*)", re.DOTALL)
# A user with a password; without one only of the web, where it may be a token: ssh://git@host is no secret.
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^/\s:@]*:[^/\s]+@|(?<=http://)[^/\s]+@|(?<=https://)[^/\s]+@")
_remembered: set[str] = set()


def secrets_of(environ: Mapping[str, str], words: Sequence[str] = ()) -> tuple[str, ...]:
    """The values that no text may show, longest first; `words` are a command line."""
    found: set[str] = set()
    pairs = [
        (word[: match.start()].rpartition("=")[2], word[match.end() :])
        for word in words
        for match in re.finditer("=", word)
    ]
    for name, value in [*environ.items(), *pairs]:
        if _is_secret(name, value):
            found.add(value)
            if "://" in value:
                found.add(_path(value))
    for text in (*environ.values(), *words):
        for pattern in _WITHIN:
            found.update(part for match in pattern.finditer(text) for part in (match[2], unquote(match[2])))
        found.update(match[1] for match in _USER.finditer(text) if _looks_random(match[1]))
    return _worth(found)


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable's value is to be masked; under a name that may mean something else, by its look."""
    if not is_named_secret(name, value):
        return False
    return not is_ambiguous(name, value) or bool(_OWN_WORD.search(name)) or _looks_random(value)


def _looks_random(value: str) -> bool:
    """Whether it is what a generator makes, or USER:PASSWORD; no word, name of a model or path."""
    if re.search(r"\s", value) or value.startswith(("/", "~", ".")):
        return False
    kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in value if char.isalnum()]
    changes = sum(before != after for before, after in itertools.pairwise(kinds))
    mixed = len(value) >= 12 and len(set(kinds)) == 3 and re.search(r"[^\w.-]", value)
    return bool((len(value) >= 8 and changes >= 0.3 * len(kinds)) or mixed or _USER_PASSWORD.fullmatch(value))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with *** for the secrets, however they are escaped, and for what has the shape of one."""
    for form in _forms(tuple(secrets)):
        text = form.sub(MASK, text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def mask_secrets(arguments: list[str]) -> list[str]:
    """A command line in which the values of secrets are MASK, and users with passwords in addresses are ****.

    Secret is what child_environment.is_secret says of a KEY=VALUE, what follows --api-key, what a header of
    such a name says, and what has the shape of a secret (redaction).
    """
    masked = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        follows = _OPTION.fullmatch(before) and is_named_secret(before, word) and word[:1] != "-"
        masked.append(MASK if follows else _masked(word))
    return masked


def _masked(word: str) -> str:
    pair = _PAIR.fullmatch(word)
    if pair is None:
        return _masked_within(word)
    key, value = pair.groups()
    if key.startswith("-") and _PAIR.fullmatch(value):  # --env=KEY=VALUE
        return f"{key}={_masked(value)}"
    # The whole value, so that what was not kept can be told from what was.
    secret = is_secret(variable_name(key), value) or _masked_within(value) != value
    return f"{key}={MASK}" if secret else word


def _masked_within(text: str) -> str:
    """A text with MASK for what is secret in it, also where it is a command in one word."""
    header = _HEADER.fullmatch(text)
    if header and is_named_secret(header[1], header[2]):
        return f"{header[1]}: {MASK}"
    for found in _PAIR_WITHIN.finditer(text):  # what follows may be quoted
        if is_secret(found[1], found[2]):
            text = f"{text[: found.start(2)]}{MASK}"
            break
    return redacted(_USER_OF_ADDRESS.sub("****@", text), ())


def mask_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables in which the values of secrets are MASK."""
    pairs = mask_secrets([f"{name}={value}" for name, value in variables.items()])
    return dict(pair.split("=", 1) for pair in pairs)


def remember(*secrets: str | None) -> None:
    """Add secrets that are neither in the environment nor on the command line."""
    _remembered.update(each for each in secrets if each)


def redact(text: str) -> str:
    """`text` without any secret of this process."""
    return redacted(text, _known())


def redact_all(value: Any, but: Collection[str] = ()) -> Any:
    """A copy of dicts, lists and texts without any secret of this process, in keys neither.

    The names of fields stay as they are, and so do the values of the keys in `but`.
    """
    return _redacted_all(value, _known(), but)


def _redacted_all(value: Any, secrets: tuple[str, ...], but: Collection[str]) -> Any:
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, dict):
        return {
            redacted(key, secrets) if isinstance(key, str) and not _FIELD.fullmatch(key) else key: (
                item if key in but else _redacted_all(item, secrets, but)
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_redacted_all(item, secrets, but) for item in value]
    return value


def _known() -> tuple[str, ...]:
    """The secrets of this process."""
    known = secrets_of(os.environ, sys.argv)
    return _worth({*known, *_remembered}) if _remembered else known


@contextlib.contextmanager
def redacted_output() -> Iterator[None]:
    """Keep secrets out of standard output and standard error while this is open.

    A reader that has gone away (`| head`) ends nothing: files, gates and the exit code come out all the same.
    """
    before = sys.stdout, sys.stderr  # None where it was started with it closed: `>&-`
    sys.stdout, sys.stderr = (stream and cast(TextIO, _Redacting(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, before):
            _Redacting(stream).flush()  # or the interpreter does it at its end, and complains
        sys.stdout, sys.stderr = before


class _Redacting:
    """A text stream that redacts what is written. It has no `buffer`, which would go around it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        clean = redact(text)
        self._unless_gone(lambda: self._stream.write(clean))
        return len(text)

    def flush(self) -> None:
        self._unless_gone(self._stream.flush)

    def _unless_gone(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):  # a stream without a file
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
        except ValueError:  # closed
            if not self._stream.closed:
                raise

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def _path(address: str) -> str:
    try:
        return urlsplit(address).path
    except ValueError:
        return ""


def _worth(values: Iterable[str]) -> tuple[str, ...]:
    """Those that are long enough and no ordinary words; lines of long ones singly too. Longest first."""
    every = {each.strip() for each in values}
    every |= {line.strip() for each in every for line in each.splitlines() if len(line.strip()) >= _LONG}
    chosen = (each for each in every if len(each) >= _SHORTEST and not _ORDINARY.fullmatch(each))
    return tuple(sorted(chosen, key=lambda each: (-len(each), each)))


@functools.lru_cache(maxsize=8)
def _forms(secrets: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """What finds each secret: as it is, with backslashes, and as JSON, HTML, URLs and Basic write it."""
    patterns = []
    for secret in secrets:
        raw = secret.encode("utf-8", "surrogateescape")
        ways = {secret, json.dumps(secret)[1:-1], html.escape(secret), quote(raw, safe="")}
        # XML leaves the apostrophe, and outside of attributes the quotation mark.
        ways |= {html.escape(secret, quote=False), html.escape(secret).replace("&#x27;", "'")}
        ways.add(base64.b64encode(raw).decode())
        # Markdown puts a backslash before some characters.
        spelled = ["".join(re.escape(char) + r"\\?" for char in secret[:-1]) + re.escape(secret[-1])]
        spelled += [re.escape(way) for way in sorted(ways - {secret}, key=len, reverse=True)]
        form = "|".join(spelled)
        patterns.append(
            re.compile(form if len(secret) >= _LONG else rf"(?<![A-Za-z0-9])(?:{form})(?![A-Za-z0-9])")
        )
    return tuple(patterns)
