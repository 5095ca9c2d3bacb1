#!/usr/bin/env bash
# Looks for the commit behind each confirmed regression of tonight's testbeds that was not bisected yet, with
# BISECT=yes: the worst of tonight first, then older ones, at most BISECT_MOST a night, BISECT_HOURS in all. What is not finished is
# resumed by the next night on this machine, or by hand; what failed, by hand only.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
rm -f "$PERFDASH_NIGHTLY/bisected" # what ci/nightly.sh has to tell once more, if anything
case "$BISECT" in
  no) exit 0 ;;
  yes) ;;
  *) complain 2 "BISECT=$BISECT is none of yes, no" ;;
esac
check_numbers BISECT_MOST BISECT_HOURS
repo="$BISECT_REPO"
if [ -z "$repo" ] && [ -d "$UNDER_TEST" ]; then repo="$UNDER_TEST"; fi
recipe="$BISECT_RECIPE"
if [ -z "$recipe" ]; then
  if [ -n "$UNDER_TEST" ]; then recipe=git; else recipe=nightly; fi
fi
if [ "$recipe" = git ] && [ -z "$repo" ]; then
  complain 2 "BISECT=yes needs a clone of the library under test: BISECT_REPO=PATH"
fi
# TORCH_INDEX has builds of torch, and maybe of nothing else.
is_for_torch_index() { # RECIPE, or several by commas
  local first="${1%%,*}"
  case "$first" in
    nightly | wheels:torch | pypi:torch | *.toml:torch) ;;
    *.toml) grep -qsE "^ *package *= *[\"']torch[\"']" "$first" ;;
    wheels:*) ! has_place_of_wheels ;; # else it would find nothing at all
    *) return 1 ;;
  esac
}
has_place_of_wheels() {
  [ -n "${PERFDASH_BISECT_WHEELS:-}" ] ||
    plain_python -c 'import tomllib; tomllib.load(open("perfdash.toml", "rb"))["bisect"]["wheels"]' 2>/dev/null
}

perfdash regressions --out "$OUT" --worse --json >"$PERFDASH_NIGHTLY/regressions.json"
perfdash history runs --out "$OUT" --json >"$PERFDASH_NIGHTLY/.history.json"
# Under Jenkins each night has an OUT of its own.
"$venv/bin/python" ci/nightly/to_bisect.py "$PERFDASH_NIGHTLY/regressions.json" "$PERFDASH_NIGHTLY/.history.json" \
  "$(told_runs | paste -sd,)" "$BISECT_MOST" "$SUITES" \
  "$OUT/bisections" "${PERFDASH_NIGHTLY%/*/*}"/*/out/bisections >"$PERFDASH_NIGHTLY/bisected"
rm "$PERFDASH_NIGHTLY/.history.json"
if [ ! -s "$PERFDASH_NIGHTLY/bisected" ]; then say "No confirmed regression waits for its culprit"; fi
until="$(($(date +%s) + $(awk -v hours="$BISECT_HOURS" 'BEGIN { printf "%d", hours * 3600 }')))"
worst=0

# Until BISECT_HOURS are over: it ends as on Ctrl-C, which an agent lets its scripts ignore, and reports what it
# knows. In the foreground, so that Ctrl-C and the end of the night reach it.
bisect() { # WORDS...
  local left="$((until - $(date +%s)))"
  code=124
  if [ "$left" -le 0 ]; then return; fi # for timeout, 0 is no limit
  code=0
  timeout --foreground --signal=INT --kill-after=300 "$left" env --default-signal=INT \
    "$venv/bin/perfdash" bisect "$@" "${builds[@]}" --out "$OUT" || code=$?
}

while IFS=$'\t' read -r alert suite unfinished <&3; do
  if [ "$(date +%s)" -ge "$until" ]; then
    say "Alert $alert: BISECT_HOURS=$BISECT_HOURS are over; perfdash bisect --alert $alert begins it"
    continue
  fi
  if [ "$suite" = - ]; then suite=""; fi
  if [ "$unfinished" = - ]; then unfinished=""; fi
  builds=()
  if [ -n "$repo" ]; then builds+=(--repo "$repo"); fi
  if [ -n "$TORCH_INDEX" ] && is_for_torch_index "$recipe"; then builds+=(--wheels "$TORCH_INDEX"); fi
  code=2
  failed="$OUT/bisections/failed-$alert" # to_bisect.py reads which these are
  mkdir -p "$OUT/bisections"
  rm -f "$failed"
  if [ -n "$unfinished" ]; then
    exec 8>>"$unfinished/.lock" || true # perfdash says what is wrong there
    if ! lock 8; then
      say "Alert $alert: $unfinished is running"
      continue
    fi
    say "Alert $alert: resuming $unfinished"
    if [ "${unfinished%/*}" != "$OUT/bisections" ]; then
      mv "$unfinished" "$OUT/bisections/" || true
    fi
    exec 8>&-
    bisect --resume "${unfinished##*/}"
    if [ "$code" = 2 ]; then say "Alert $alert: it cannot be resumed, and starts again"; fi
  fi
  if [ "$code" = 2 ]; then
    bisect --alert "$alert" --recipe "$recipe" --python "$(measured_python)" ${suite:+--suite "$suite"}
  fi
  case "$code" in 2 | 3) touch "$failed" ;; esac
  if [ "$code" = 124 ]; then
    say "Alert $alert: BISECT_HOURS=$BISECT_HOURS are over; the next night resumes it, or the command above"
    code=0
  fi
  if [ "$code" = 130 ]; then exit 130; fi
  if [ "$code" -gt "$worst" ]; then worst="$code"; fi
done 3<"$PERFDASH_NIGHTLY/bisected"
exit "$worst"
