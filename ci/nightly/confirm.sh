#!/usr/bin/env bash
# Measure again what may have changed, beside the environment of the last good night, for CONFIRM_MINUTES in all:
# the night is told after it, and somebody waits for that. When all is told for sure, tonight's environment becomes
# the good one.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
python="$(measured_python)"
if [ -z "$(told_runs)" ]; then complain 3 "nothing was measured: there is nothing to confirm"; fi
# How many runs measured a case. Else the machine failed, which says nothing of tonight's environment.
mapfile -t runs < <(told_runs)
measured="$("$venv/bin/python" -c '
import sys
from pathlib import Path
from perfdash.records import NOT_MEASURED
from perfdash.runner.run_journal import RESULTS, read_readable
def measured(run):
    return not (run / RESULTS).exists() or any(
        result.status not in NOT_MEASURED for result in read_readable(run)[0]
    )
print(sum(map(measured, map(Path, sys.argv[1:]))))
' "${runs[@]}")"
if [ "$measured" = 0 ]; then
  say "Nothing was measured tonight, so there is nothing to confirm. The last good environment stays"
  exit 0
fi
good="$(ci/torch_build.sh --last-good)"
if [ -z "$good" ]; then
  say "No good night is known yet: tonight's is the first"
  ci/torch_build.sh --good "$python"
  exit 0
fi
different=no
for run in "${runs[@]}"; do
  if [ "$(python_of "$run")" != "$good" ]; then different=yes; fi
done
if [ "$different" = no ]; then
  say "Tonight's environment is that of the last good night: there are no two builds to compare"
  exit 0
fi

check_numbers CONFIRM_MOST CONFIRM_MINUTES
is_over="CONFIRM_MINUTES=$CONFIRM_MINUTES are over: what was not measured again stays suspected"
until="$(awk -v now="$(date +%s.%N)" -v minutes="$CONFIRM_MINUTES" 'BEGIN { printf "%.1f", now + minutes * 60 }')"
cannot=no
confirm() { # RUN
  local code=0 left words run_python
  run_python="$(python_of "$1")"
  if [ "$run_python" = missing ]; then
    say "$(basename "$1"): its environment is not on this machine ($(hostname)): what it suspects stays suspected"
    cannot=yes
    return 0
  elif [ "$run_python" = "$good" ]; then
    say "$(basename "$1"): its environment is that of the last good night: there are no two builds to compare"
    cannot=yes
    return 0
  fi
  words=(--good-python "$good" --python "$run_python" --limit "$CONFIRM_MOST" --out "$OUT")
  words+=(${PERFDASH_CORES:+--cores "$PERFDASH_CORES"})
  left="$(awk -v until="$until" -v now="$(date +%s.%N)" 'BEGIN { left = until - now; print left < 0.1 ? 0 : left }')"
  if [ "$left" = 0 ]; then
    say "$(basename "$1"): $is_over"
    cannot=yes
    return 0
  fi
  # No pair begins in the last tenth of the time, so that few are cut short.
  words+=(--minutes "$(awk -v left="$left" 'BEGIN { minutes = 0.9 * left / 60; print minutes < 0.1 ? 0.1 : minutes }')")
  # It ends as on Ctrl-C and keeps what it measured; one that hangs is killed. In the foreground, so that Ctrl-C
  # and the end of the night reach it. -i: on Ctrl-C perfdash still has something to say.
  # An agent lets its scripts ignore SIGINT.
  timeout --foreground --signal=INT --kill-after=120 "$left" env --default-signal=INT \
    "$venv/bin/perfdash" confirm "$1" "${words[@]}" 2>&1 |
    tee -i "$PERFDASH_NIGHTLY/.confirm" || code=$?
  if [ "$code" = 124 ]; then
    say "$is_over"
    code=0 cannot=yes
  elif [ "$code" = 137 ] && awk -v until="$until" -v now="$(date +%s.%N)" 'BEGIN { exit !(now >= until) }'; then
    say "CONFIRM_MINUTES=$CONFIRM_MINUTES are over; perfdash confirm did not end when asked, and was killed"
  elif [ "$code" = 137 ]; then
    say "perfdash confirm was killed before its time was over: the machine may have run out of memory"
  fi
  # The good build is from after the change, or tonight's once more: the change is left to the nights that come.
  if grep -q -e 'no night before the changes measured' -e ' have one build, though ' \
    "$PERFDASH_NIGHTLY/.confirm"; then
    cannot=yes
    if [ "$code" = 2 ]; then code=0; fi
  fi
  if [ "$code" != 0 ] || grep -q -e ': cannot tell' -e ' minutes are over: ' "$PERFDASH_NIGHTLY/.confirm"; then
    cannot=yes
  fi
  # More may have changed than CONFIRM_MOST.
  if awk '/ cases may have changed; / && $1 > $6 { more = 1 } END { exit !more }' "$PERFDASH_NIGHTLY/.confirm"; then
    cannot=yes
  fi
  rm -f "$PERFDASH_NIGHTLY/.confirm"
  return "$code"
}

code=0
for_each_run confirm || code=$?
if [ "$code" = 130 ]; then exit 130; fi
# What was not measured is not told either; a gate (1) is no matter.
if [ -e "$PERFDASH_NIGHTLY/measure.failed" ] && ! grep -q '^1 ' "$PERFDASH_NIGHTLY/measure.failed"; then
  cannot=yes
fi
if [ "$cannot" = no ]; then
  ci/torch_build.sh --good "$python"
else
  # What is open tonight is to be told by a night before it, but not for ever: some noise is never told.
  ci/torch_build.sh --doubt "$python"
fi
exit "$code"
