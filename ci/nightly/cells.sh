#!/usr/bin/env bash
# The cells that Jenkins runs side by side, a line each: its variables, separated by tabs (--json: a JSON list).
# perfdash/runner/night_cells.py says what a cell is. `measure` also writes the names into the file `planned`.
#   cells.sh measure | confirm | bisect [--json]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${NIGHT:?is the folder of the night in the workspace; the Jenkinsfile sets it}"
case "${1:-}:${2:-}" in
  measure: | confirm: | bisect: | measure:--json | confirm:--json | bisect:--json) ;;
  *) complain 2 "name the stage: measure, confirm or bisect; then --json, if at all" ;;
esac
check_numbers SHARDS CONFIRM_MINUTES BISECT_HOURS ${CELL_MINUTES:+CELL_MINUTES}
export "${nightly_parameters[@]}"
arguments_of "$RUN_ARGUMENTS"
if measures_own_models; then export OWN_MODELS=yes; fi
plain_python -m perfdash.runner.night_cells "$@"
