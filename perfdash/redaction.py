"""Replace secrets by *** in every text that is printed, posted, mailed or recorded.

Secrets are values of variables and of KEY=VALUE words whose name is that of a secret (child_environment has
the rule for names), passwords in addresses and connection strings, and the values given to `remember`.
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
_LONG = 16  # characters; longer values are no words, and are replaced within other words too
_ORDINARY = re.compile(r"true|false|none|null|on|off|yes|no|[\d.,:+-]*|perfdash|postgres", re.IGNORECASE)
# No quotes, because JSON text without blanks contains strings that look like the user of an address.
_PASSWORD = re.compile(r"""(://[^/\s:@"'<>\\]*:)([^/\s@"'<>\\]+)@""")
# Secrets that are recognised without a variable's name: passwords, and tokens instead of a user.
_WITHIN = (
    _PASSWORD,
    re.compile(r"""(password=)["']?([^\s&;"']+)""", re.IGNORECASE),
    re.compile(r"""(authorization:\s*(?:(?:token|bearer|basic)\s+)?)([^\s"',;]+)""", re.IGNORECASE),
)
_USER = re.compile(r"""https?://([^/\s:@"'<>\\]+)@""")
_OWN_WORD = re.compile(
    r"(PASS|_PWD)$", re.IGNORECASE
)  # a password that a person chose may look like any word
_USER_PASSWORD = re.compile(r"[^\s:/]+:[^\s:/]{6,}")
# Each with what is in every text that it matches: a page without it is not searched.
_PATTERNS = (
    (("://",), _PASSWORD, rf"\1{MASK}@"),
    (
        ("authorization",),
        re.compile(r"(?i)(authorization\W{1,5}(?:token|bearer|basic)\s+)[^\s\"',;]+"),
        rf"\1{MASK}",
    ),
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{30,})"),
        MASK,
    ),
    (("hooks.slack.com",), re.compile(r"(https://hooks\.slack\.com/services/)[\w/]+"), rf"\1{MASK}"),
)
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_PAIR = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_PAIR_WITHIN = re.compile(r"([A-Za-z_]\w*)=(\S+)")
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(\S.*)", re.DOTALL)
# A user with a password. A user without one only in http addresses, where it may be a token, unlike ssh://git@.
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^/\s:@]*:[^/\s]+@|(?<=http://)[^/\s]+@|(?<=https://)[^/\s]+@")
_remembered: set[str] = set()


def secrets_of(environ: Mapping[str, str], words: Sequence[str] = ()) -> tuple[str, ...]:
    """The values that no text may show, longest first; `words`: a command line."""
    values: set[str] = set()
    pairs = [
        (word[: match.start()].rpartition("=")[2], word[match.end() :])
        for word in words
        for match in re.finditer("=", word)
    ]
    for name, value in [*environ.items(), *pairs]:
        if _is_secret(name, value):
            values.add(value)
            if "://" in value:
                values.add(_path(value))
    for text in (*environ.values(), *words):
        for pattern in _WITHIN:
            values.update(part for match in pattern.finditer(text) for part in (match[2], unquote(match[2])))
        values.update(match[1] for match in _USER.finditer(text) if _looks_random(match[1]))
    return _maskable(values)


def _is_secret(name: str, value: str) -> bool:
    """Whether a value is masked: by its name, and if that is ambiguous by its look."""
    if not is_named_secret(name, value):
        return False
    return not is_ambiguous(name, value) or bool(_OWN_WORD.search(name)) or _looks_random(value)


def _looks_random(value: str) -> bool:
    """Whether a value looks generated, or like USER:PASSWORD, unlike a word, model or path."""
    if re.search(r"\s", value) or value.startswith(("/", "~", ".")):
        return False
    kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in value if char.isalnum()]
    changes = sum(before != after for before, after in itertools.pairwise(kinds))
    mixed = len(value) >= 12 and len(set(kinds)) == 3 and re.search(r"[^\w.-]", value)
    return bool((len(value) >= 8 and changes >= 0.3 * len(kinds)) or mixed or _USER_PASSWORD.fullmatch(value))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text, however escaped, and words with the shape of a secret."""
    bones = _bones(text)
    for parts, form in _forms(tuple(secrets)):
        if any(part in bones for part in parts):
            text = form.sub(MASK, text)
    for parts, pattern, instead in _PATTERN_BONES:
        if any(part in bones for part in parts):
            text = pattern.sub(instead, text)
    return text


_LOWER = bytes(range(256)).lower()
_NO_BONES = b"0123456789 .,-\\"


def _bones(text: str) -> bytes:
    """A text in lower case without digits and some marks, which are most of a page.

    It is quick to search: where the bones of a secret are missing, the secret is.
    """
    return text.encode("utf-8", "surrogatepass").translate(_LOWER, _NO_BONES)


_PATTERN_BONES = [(tuple(map(_bones, parts)), pattern, instead) for parts, pattern, instead in _PATTERNS]


def mask_secrets(arguments: list[str]) -> list[str]:
    """Mask the secrets of a command line by MASK, and users in addresses by ****.

    Secrets are the values of KEY=VALUE words for which child_environment.is_secret is true, words after an
    option like --api-key, values of headers with such a name, and words with the shape of a secret.
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
    # Mask the whole value, so that a masked variable is recognised as such.
    secret = is_secret(variable_name(key), value) or _masked_within(value) != value
    return f"{key}={MASK}" if secret else word


def _masked_within(text: str) -> str:
    """Mask the secrets within a word, which may be a whole command or a header."""
    header = _HEADER.fullmatch(text)
    if header and is_named_secret(header[1], header[2]):
        return f"{header[1]}: {MASK}"
    for pair in _PAIR_WITHIN.finditer(text):  # mask all the rest: the value may be quoted
        if is_secret(pair[1], pair[2]):
            text = f"{text[: pair.start(2)]}{MASK}"
            break
    return redacted(_USER_OF_ADDRESS.sub("****@", text), ())


def mask_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of secret variables."""
    pairs = mask_secrets([f"{name}={value}" for name, value in variables.items()])
    return dict(pair.split("=", 1) for pair in pairs)


def remember(*secrets: str | None) -> None:
    """Add secrets that are neither in the environment nor on the command line."""
    _remembered.update(filter(None, secrets))


def redact(text: str) -> str:
    """Replace the secrets of this process in a text."""
    return redacted(text, _own_secrets())


def redact_all(value: Any, but: Collection[str] = ()) -> Any:
    """Replace the secrets of this process in dicts, lists and texts, also in keys.

    Keys that look like names of fields stay, and so do the values of the keys in `but`.
    """
    return _redacted_all(value, _own_secrets(), but)


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


def _own_secrets() -> tuple[str, ...]:
    """The secrets of this process."""
    return _secrets_now(tuple(os.environ.items()), tuple(sys.argv), frozenset(_remembered))


@functools.lru_cache(maxsize=8)
def _secrets_now(
    environ: tuple[tuple[str, str], ...], words: tuple[str, ...], more: frozenset[str]
) -> tuple[str, ...]:
    """The secrets of an environment, a command line and what was remembered; texts by thousands ask."""
    secrets = secrets_of(dict(environ), words)
    return _maskable({*secrets, *more}) if more else secrets


@contextlib.contextmanager
def redacted_output() -> Iterator[None]:
    """Replace secrets in standard output and standard error within this context.

    A closed pipe (`| head`) is ignored, so that files, gates and the exit code are as without it.
    """
    before = sys.stdout, sys.stderr  # None if the stream was closed at the start: `>&-`
    sys.stdout, sys.stderr = (stream and cast(TextIO, _Redacting(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, before):
            _Redacting(stream).flush()  # otherwise the interpreter flushes at its end and prints an error
        sys.stdout, sys.stderr = before


class _Redacting:
    """A text stream that replaces secrets. It has no `buffer`, which would bypass it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        clean = redact(text)
        try:
            self._unless_closed(lambda: self._stream.write(clean))
        except UnicodeEncodeError:  # an ASCII terminal, or the name of a file that is no text
            encoding = self._stream.encoding
            shown = clean.encode(encoding, "backslashreplace").decode(encoding)
            self._unless_closed(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._unless_closed(self._stream.flush)

    def _unless_closed(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):  # a stream without a file
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, self._stream.fileno())
                os.close(devnull)
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


def _maskable(values: Iterable[str]) -> tuple[str, ...]:
    """The values that are long enough and no ordinary words, and their long lines; longest first."""
    texts = {value.strip() for value in values}
    texts |= {line.strip() for text in texts for line in text.splitlines() if len(line.strip()) >= _LONG}
    chosen = (text for text in texts if len(text) >= _SHORTEST and not _ORDINARY.fullmatch(text))
    return tuple(sorted(chosen, key=lambda text: (-len(text), text)))


@functools.lru_cache(maxsize=8)
def _forms(secrets: tuple[str, ...]) -> tuple[tuple[tuple[bytes, ...], re.Pattern[str]], ...]:
    """A pattern of each secret, plain and escaped by Markdown, JSON, HTML, URLs and Basic.

    Beside it the bones of all ways to write the secret.
    """
    patterns = []
    for secret in secrets:
        raw = secret.encode("utf-8", "surrogateescape")
        ways = {secret, json.dumps(secret)[1:-1], html.escape(secret), quote(raw, safe="")}
        # XML does not escape the apostrophe, nor the quotation mark outside attributes.
        ways |= {html.escape(secret, quote=False), html.escape(secret).replace("&#x27;", "'")}
        ways.add(base64.b64encode(raw).decode())
        # Markdown puts a backslash before some characters.
        spelled = ["".join(re.escape(char) + r"\\?" for char in secret[:-1]) + re.escape(secret[-1])]
        spelled += [re.escape(way) for way in sorted(ways - {secret}, key=len, reverse=True)]
        form = "|".join(spelled)
        within = form if len(secret) >= _LONG else rf"(?<![A-Za-z0-9])(?:{form})(?![A-Za-z0-9])"
        patterns.append((tuple(map(_bones, ways)), re.compile(within)))
    return tuple(patterns)
