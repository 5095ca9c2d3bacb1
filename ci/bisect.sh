#!/usr/bin/env bash
# A bisection by variables, for ci/Jenkinsfile.bisect: ALERT, or GOOD, BAD, SUITE, MODEL, METRIC; RECIPE,
# BISECT_REPO, TORCH_INDEX as docs/bisect.md says, BISECT_ARGUMENTS for more of its options; RESUME=last or a
# name goes on; BISECT_HOURS at most.
#   bisect.sh          looks for the culprit; the report also goes into PERFDASH_NIGHTLY
#   bisect.sh post     its report as a comment of ISSUE of REPO
threads="${THREADS:-}" # before common.sh gives its default: the threads of an alert are those of its night
. "$(dirname "${BASH_SOURCE[0]}")/nightly/common.sh"
need_night

if [ "${1:-}" = post ]; then
  [ -s "$PERFDASH_NIGHTLY/bisection" ] || complain 3 "there is no bisection to post"
  words=(--bisection "$(cat "$PERFDASH_NIGHTLY/bisection")" --repo "$REPO" --issue "$ISSUE" --out "$OUT")
  if [ -n "$GITHUB_API" ]; then words+=(--base-url "$GITHUB_API"); fi
  if [ "$POST" = dry ]; then words+=(--dry-run); fi
  perfdash post "${words[@]}"
  exit
fi

check_numbers BISECT_HOURS
began="$PERFDASH_NIGHTLY/.began"
# The folder of what this build has begun; one that could not begin has none, and is not to pass another's off as
# its own.
begun() {
  local journal
  journal="$(find "$OUT/bisections" -name journal.jsonl -newer "$began" 2>/dev/null | sort | tail -1 || true)"
  echo "${journal%/*}"
}
# Begun again after its agent was restarted, it resumes.
if [ -e "$began" ] && [ -n "$(begun)" ]; then RESUME="$(basename "$(begun)")"; else touch "$began"; fi
words=(--out "$OUT")
option() { # NAME VALUE
  if [ -n "$2" ]; then words+=("$1" "$2"); fi
}
if [ -n "${RESUME:-}" ]; then option --resume "$RESUME"; else
  option --alert "${ALERT:-}"
  option --good "${GOOD:-}"
  option --bad "${BAD:-}"
  option --suite "${SUITE:-}"
  option --model "${MODEL:-}"
  option --metric "${METRIC:-}"
  option --recipe "${RECIPE:-}"
  option --repo "$BISECT_REPO"
  option --wheels "$TORCH_INDEX"
  option --threads "$threads"
  option --python "$(measured_python)"
  declare -a more=()
  arguments_of "${BISECT_ARGUMENTS:-}"
  words+=("${more[@]}")
fi
code=0
# An agent starts its scripts with SIGINT ignored, by which it is to end and tell what it knows.
timeout --kill-after=300 --signal=INT --foreground "${BISECT_HOURS}h" env --default-signal=INT \
  "$venv/bin/perfdash" bisect "${words[@]}" || code=$?
folder="$(begun)"
if [ -n "$folder" ]; then
  basename "$folder" >"$PERFDASH_NIGHTLY/bisection"
  for form in report.md report.html report.json journal.jsonl; do
    if [ -e "$folder/$form" ]; then cp "$folder/$form" "$PERFDASH_NIGHTLY/"; fi
  done
fi
if [ "$code" = 124 ]; then
  complain 3 "BISECT_HOURS=$BISECT_HOURS are over; RESUME=$(basename "$folder") continues"
fi
exit "$code"
