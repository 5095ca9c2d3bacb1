#!/usr/bin/env bash
# Every check and test: lint, format, types, tests. Arguments go to pytest: then it runs once, as they say.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
ci/postgres.sh
ci/browser.sh
bin="${PERFDASH_VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
if [ "$#" -gt 0 ]; then
  exec "$bin/python" -m pytest -m "not cuda" "$@"
fi
# The quick ones side by side; those that measure need the cores for themselves.
"$bin/python" -m pytest -m "not cuda and not slow" -n 2
"$bin/python" -m pytest -m "slow and not cuda"
