#!/usr/bin/env bash
# Every check and test: lint, format, types, tests. Arguments go to pytest: then it runs once, as they say.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
ci/postgres.sh
ci/browser.sh
ci/groovy.sh
bin="${PERFDASH_VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/shellcheck" ci/*.sh ci/nightly/*.sh
ci/jenkins_lint.sh
if [ "$#" -gt 0 ]; then
  exec "$bin/python" -m pytest -m "not cuda" "$@"
fi
# Those that measure need a core each; some need them all.
"$bin/python" -m pytest -m "not cuda and not slow" -n 2
"$bin/python" -m pytest -m "slow and not machine and not cuda" -n 2 --own-core --dist loadfile
"$bin/python" -m pytest -m "machine and not cuda"
