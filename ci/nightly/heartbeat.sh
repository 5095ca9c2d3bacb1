#!/usr/bin/env bash
# Tells the history that a nightly begins, or how it ended, so that one that never came is missed. Only with
# EVERY (24h): a run at a desk now and then is not due again.
#   heartbeat.sh begin | heartbeat.sh end ok|partial|failed [WHY]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ -z "$EVERY" ]; then exit 0; fi
night=(--job "$JOB" --night "$(basename "$PERFDASH_NIGHTLY")" --out "$OUT")
case "${1:-}" in
  begin)
    expected=()
    # What a part of it, configurations, or options of one's own come to, is not known here.
    if [ -z "$SHARD$RUN_ARGUMENTS$MODELS$CONFIGURATIONS" ]; then
      for suite in $(words_of "$SUITES"); do
        if [[ "$suite" = *.toml ]]; then suite="$(sed -n 's/^name *= *"\(.*\)"/\1/p' "$suite" | head -1)"; fi
        for dtype in $(words_of "$DTYPES"); do
          while read -r device threads; do
            # How many threads a socket has is known where it is measured.
            if [ "$threads" = socket ]; then threads=; fi
            expected+=(--expect "$suite $device $dtype${threads:+ $threads}")
          done < <(cells)
        done
      done
    fi
    perfdash nightly begin --every "$EVERY" "${night[@]}" "${expected[@]}"
    ;;
  end)
    runs=()
    while IFS= read -r run; do runs+=(--run "$run"); done < <(told_runs)
    perfdash nightly end --state "$2" ${3:+--why "$3"} "${night[@]}" "${runs[@]}"
    ;;
  *) complain 2 "begin, or end STATE [WHY]" ;;
esac
