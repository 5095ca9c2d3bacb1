"""Decide which environment variables child processes get: the user's, without secrets.

Measured models, builds, git and pip run foreign code, and many people read their logs. `ci/secrets.sh` does
the same for the scripts; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Only perfdash itself uses these, so no child gets them.
_OWN = {"GITHUB_TOKEN", "PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK"}
_SECRET_NAME = re.compile(
    r"TOKEN(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|PGPASS|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY|"
    r"CREDENTIAL|WEBHOOK|AUTHORIZATION|COOKIE|CONN(ECTION)?_?STR(ING)?(_|$)",
    re.IGNORECASE,
)
# Names that may be those of secrets; AUTH_MODE, SSH_AUTH_SOCK and AUTHOR never are.
_AMBIGUOUS = re.compile(
    r"(^|_)AUTH(_(CONFIG|HEADER|DATA|JSON|STRING|VALUE))?$|"
    r"^GIT_CONFIG_(COUNT|PARAMETERS|(KEY|VALUE)_\d+)$",  # may contain an authorization header
    re.IGNORECASE,
)
_LIKELY_SECRET = re.compile(r"(^|_)PASS(_|$)|_PWD$|(^|_)(PAT|KEYS?)$", re.IGNORECASE)
_TOKENS = re.compile(r"TOKENS(_|$)", re.IGNORECASE)  # MAX_TOKENS is a number
_NUMBER = re.compile(r"[\d.]*")
# Settings of libraries and build tools, which a measurement depends on: TORCH_COMPILE_STICKY_PGO_KEY.
_SETTING = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|DNNL|ONEDNN|TORCH\w*|PYTORCH|TRITON|MALLOC|CUDA|NVIDIA|CCACHE|CMAKE)_\w*",
    re.IGNORECASE,
)
# An address with a user's name or password, or a connection string with one.
_SECRET_VALUE = re.compile(
    r"\w://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|password=|authorization:", re.IGNORECASE
)
# The addresses of proxies, package indexes and the model hub, which may contain a password.
PROXIES = re.compile(r"\w+_PROXY", re.IGNORECASE)
INDEXES = re.compile(r"(PIP|UV)_\w+|\w+_PROXY", re.IGNORECASE)
HUB = re.compile(r"HF_TOKEN|HUGGING_FACE_HUB_TOKEN|\w+_PROXY", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is secret, by its name or by a password in its value."""
    return name in _OWN or is_named_secret(name, value) or bool(_SECRET_VALUE.search(value))


def is_named_secret(name: str, value: str = "") -> bool:
    """Whether the name of a variable, option or TOML key is that of a secret."""
    return bool(_SECRET_NAME.search(variable_name(name))) or is_ambiguous(name, value)


def is_ambiguous(name: str, value: str = "") -> bool:
    """Whether a name may be that of a secret or of something else: SORT_KEY, BASIC_AUTH."""
    name = variable_name(name)
    likely = _LIKELY_SECRET.search(name) and not _SETTING.fullmatch(name)
    tokens = _TOKENS.search(name) and not _NUMBER.fullmatch(value)
    return not _SECRET_NAME.search(name) and bool(_AMBIGUOUS.search(name) or likely or tokens)


def variable_name(key: str) -> str:
    """Convert the name of an option or TOML key to that of a variable."""
    return key.lstrip("-").rpartition(".")[2].replace("-", "_")


def without_secrets(variables: Mapping[str, str], keep: re.Pattern[str] | None = None) -> dict[str, str]:
    """Drop secret variables, except those whose whole name matches `keep`."""
    return {
        name: value
        for name, value in variables.items()
        if not is_secret(name, value) or (name not in _OWN and keep is not None and keep.fullmatch(name))
    }
