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
# The options without these and their values.
arguments_without() { # OPTIONS...
  local word before="" kept=()
  for word in "${more[@]}"; do
    case " $* " in *" ${word%%=*} "* | *" $before "*) ;; *) kept+=("$word") ;; esac
    before="$word"
  done
  quoted "${kept[@]}"
}

arguments_of "$RUN_ARGUMENTS"
if has_option --model || has_option --torchbench; then
  export SUITE_ARGUMENTS CHECKOUT_ARGUMENTS
  SUITE_ARGUMENTS="$(arguments_without --model --torchbench)" CHECKOUT_ARGUMENTS="$(arguments_without --model)"
  SUITES="$(measured_suites)"
  # Their own cell measures them alone: --model replaces the default suites.
  if has_option --model; then export OWN_SUITES="$default_suites"; fi
fi
export "${nightly_parameters[@]}"
plain_python -m perfdash.runner.night_cells "$@"
