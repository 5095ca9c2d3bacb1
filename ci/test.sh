#!/usr/bin/env bash
# Every check and test: lint, format, types, tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
ci/postgres.sh
bin="${PERFDASH_VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/python" -m pytest -m "not cuda" "$@"
