#!/usr/bin/env bash
# Looks for the commit behind each confirmed regression that was not bisected yet, with BISECT=yes: the worst
# first, at most BISECT_MOST a night, BISECT_HOURS in all. What is not finished goes on by hand.
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

perfdash regressions --out "$OUT" --worse --json >"$PERFDASH_NIGHTLY/regressions.json"
"$venv/bin/python" ci/nightly/to_bisect.py "$PERFDASH_NIGHTLY/regressions.json" "$BISECT_MOST" "$SUITES" \
  >"$PERFDASH_NIGHTLY/bisected"
if [ ! -s "$PERFDASH_NIGHTLY/bisected" ]; then say "No confirmed regression waits for its culprit"; fi
until="$(($(date +%s) + $(awk -v hours="$BISECT_HOURS" 'BEGIN { printf "%d", hours * 3600 }')))"
worst=0
while IFS=$'\t' read -r alert suite <&3; do
  left="$((until - $(date +%s)))"
  if [ "$left" -le 0 ]; then
    say "Alert $alert: BISECT_HOURS=$BISECT_HOURS are over; perfdash bisect --alert $alert begins it"
    continue
  fi
  words=(--alert "$alert" --recipe "$recipe" --python "$(measured_python)" --out "$OUT")
  if [ -n "$suite" ]; then words+=(--suite "$suite"); fi
  if [ -n "$repo" ]; then words+=(--repo "$repo"); fi
  if [ -n "$TORCH_INDEX" ] && [[ "$recipe" != git ]]; then words+=(--wheels "$TORCH_INDEX"); fi
  code=0
  # It ends as on Ctrl-C, tells what it knows, and can be gone on with. In the foreground, so that Ctrl-C and
  # the end of the night reach it.
  timeout --foreground --signal=INT --kill-after=300 "$left" "$venv/bin/perfdash" bisect "${words[@]}" || code=$?
  if [ "$code" = 124 ]; then
    say "Alert $alert: BISECT_HOURS=$BISECT_HOURS are over; perfdash bisect --resume last goes on"
    code=0
  fi
  if [ "$code" = 130 ]; then exit 130; fi
  if [ "$code" -gt "$worst" ]; then worst="$code"; fi
done 3<"$PERFDASH_NIGHTLY/bisected"
exit "$worst"
