#!/usr/bin/env bash
# Sets up what is missing, measures the three suites on one thread and prints the summary.
# Arguments go to `perfdash run` (--quick: a few models of each). PERFDASH_SUITE names other suites.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh
case " $* " in
  *" --model "* | *" --torchbench "* | *" --resume "*) ;; # these say themselves what is measured
  *) export PERFDASH_SUITE="${PERFDASH_SUITE:-torchbench,huggingface,timm}" ;;
esac
exec "${PERFDASH_VENV:-.venv}/bin/perfdash" run --threads 1 "$@"
