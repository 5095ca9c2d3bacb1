#!/usr/bin/env bash
# Sets up what is missing, measures the three suites on one thread and prints the summary.
# Arguments go to `perfdash run` (--quick: a few models of each). PERFDASH_SUITE names other suites.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
export PERFDASH_SUITE="${PERFDASH_SUITE:-torchbench,huggingface,timm}"
exec "${PERFDASH_VENV:-.venv}/bin/perfdash" run --threads 1 "$@"
