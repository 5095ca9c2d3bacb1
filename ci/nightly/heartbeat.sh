#!/usr/bin/env bash
# Tells the history that a nightly begins, or how it ended, so that one that never came is missed. Only with
# EVERY (24h): a run at a desk now and then is not due again.
#   heartbeat.sh begin | heartbeat.sh end ok|partial|failed [WHY]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ -z "$EVERY" ]; then exit 0; fi
night=(--job "$JOB" --night "$(basename "$PERFDASH_NIGHTLY")" --out "$OUT")
suite_facts() { # SUITE DEVICE: its name, then the dtypes in which it is measured without DTYPES
  "$venv/bin/python" -c '
import sys
from perfdash.suites.suite_file import load_suite
suite = load_suite(sys.argv[1])
ways = [way for way in suite.ways if sys.argv[2] in way.devices]
print(suite.name, *(dict.fromkeys(dtype for way in ways for dtype in way.dtypes) or ["float32"]))
' "$@"
}
case "${1:-}" in
  begin)
    expected=()
    # What a part of it, configurations, or options of one's own come to, is not known here.
    if [ -z "$SHARD$RUN_ARGUMENTS$MODELS$CONFIGURATIONS" ]; then
      while read -r device threads; do
        # How many threads a socket has is known where it is measured.
        if [ "$threads" = socket ]; then threads=; fi
        for suite in $(words_of "$SUITES"); do
          read -ra facts < <(suite_facts "$suite" "$device" 2>/dev/null || echo "$suite float32")
          dtypes=("${facts[@]:1}")
          if [ -n "$DTYPES" ]; then read -ra dtypes < <(words_of "$DTYPES"); fi
          for dtype in "${dtypes[@]}"; do
            expected+=(--expect "${facts[0]} $device $dtype${threads:+ $threads}")
          done
        done
      done < <(cells)
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
