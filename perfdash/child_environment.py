"""The environment variables that programs started by perfdash get: the user's, without secrets.

Measured models, builds, git and pip run code of others, and what they print comes into logs that many read.
`ci/secrets.sh` does the same for the scripts; tests hold the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# perfdash's own: only perfdash itself uses these, whatever is in them.
_OWN = {"GITHUB_TOKEN", "PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK"}
_SECRET_NAME = re.compile(
    r"TOKEN(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|PGPASS|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY|"
    r"CREDENTIAL|WEBHOOK|AUTHORIZATION|COOKIE|"
    r"^GIT_CONFIG_(COUNT|PARAMETERS|(KEY|VALUE)_\d+)$",  # may hold a header that logs in
    re.IGNORECASE,
)
_LIKELY_SECRET = re.compile(r"(^|_)PASS(_|$)|_PWD$|(^|_)(PAT|KEY)$", re.IGNORECASE)
# Settings of libraries and build tools, which a measurement depends on: TORCH_COMPILE_STICKY_PGO_KEY.
_SETTING = re.compile(
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|DNNL|ONEDNN|TORCH\w*|PYTORCH|TRITON|MALLOC|CUDA|NVIDIA|CCACHE|CMAKE)_\w*"
)
# An address with a user's name or password, or a connection string with one.
_SECRET_VALUE = re.compile(
    r"\w://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|password=|authorization:", re.IGNORECASE
)
# How the network, indexes of packages and the hub of models are reached: this may need a password.
PROXIES = re.compile(r"\w+_PROXY", re.IGNORECASE)
INDEXES = re.compile(r"(PIP|UV)_\w+|\w+_PROXY", re.IGNORECASE)
HUB = re.compile(r"HF_TOKEN|HUGGING_FACE_HUB_TOKEN|\w+_PROXY", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a secret, by its name or by a password in its value."""
    likely = _LIKELY_SECRET.search(name) and not _SETTING.fullmatch(name)
    return bool(name in _OWN or _SECRET_NAME.search(name) or likely or _SECRET_VALUE.search(value))


def without_secrets(variables: Mapping[str, str], keep: re.Pattern[str] | None = None) -> dict[str, str]:
    """The variables that are no secrets; those whose whole name matches `keep` stay."""
    return {
        name: value
        for name, value in variables.items()
        if not is_secret(name, value) or (name not in _OWN and keep is not None and keep.fullmatch(name))
    }
