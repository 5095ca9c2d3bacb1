#!/usr/bin/env bash
# Sets up what is missing, measures the timm suite on one thread and prints the summary.
# Arguments go to `perfdash run` (--quick: a handful of models).
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
exec "${PERFDASH_VENV:-.venv}/bin/perfdash" run --suite timm --threads 1 "$@"
