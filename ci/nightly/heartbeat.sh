#!/usr/bin/env bash
# Tells the history that a nightly begins, or how it ended, so that one that never came is missed. Only with
# EVERY (24h): a run at a desk now and then is not due again.
#   heartbeat.sh begin | heartbeat.sh end ok|partial|failed [WHY]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ -z "$EVERY" ]; then exit 0; fi
night=(--job "$JOB" --night "$(basename "$PERFDASH_NIGHTLY")" --out "$OUT")
lines_of() { "$venv/bin/python" ci/nightly/heartbeat.py "$@"; }
case "${1:-}" in
  begin)
    expected=()
    # What a part of it, configurations, or options of one's own come to, is not known here.
    if [ -z "$SHARD$RUN_ARGUMENTS$MODELS$CONFIGURATIONS" ]; then
      lines="$(cells | lines_of expected "$SUITES" "$DTYPES")"
      while IFS= read -r line; do expected+=(${line:+--expect "$line"}); done <<<"$lines"
    fi
    perfdash nightly begin --every "$EVERY" "${night[@]}" "${expected[@]}"
    ;;
  end)
    mapfile -t told < <(told_runs)
    runs=() # without those that stay out of the history: they would be missed there
    while IFS= read -r run; do runs+=(--run "$run"); done < <(lines_of recorded "${told[@]}")
    perfdash nightly end --state "$2" ${3:+--why "$3"} "${night[@]}" "${runs[@]}"
    ;;
  *) complain 2 "begin, or end STATE [WHY]" ;;
esac
