#!/usr/bin/env bash
# A change against its base, on this machine, in turn: what a pull request does to performance.
#
#   compare.sh prepare   both environments: UNDER_TEST=BASE and UNDER_TEST=CHANGE, or with COMPARE=torch
#                        TORCH=BASE and TORCH=CHANGE (docs/nightly.md has what these take)
#   compare.sh measure   pairs of runs, base and change in turn, until it is known what changed: at most PAIRS a
#                        case, and none that begins after COMPARE_MINUTES. Repeated, it continues.
#   compare.sh judge     compare.txt, junit.xml, night.html; exit code 1 if something got worse
#   compare.sh post      the same as a comment of pull request ISSUE of REPO
#
# What is measured is given as for a night; RUN_ARGUMENTS are more options of perfdash compare-builds.
# State is in PERFDASH_NIGHTLY. Nothing of it goes into a history, so no night is judged by a pull request.
. "$(dirname "${BASH_SOURCE[0]}")/nightly/common.sh"
need_night
gate=yes # of judge
check_numbers PAIRS
if [ -n "$COMPARE_MINUTES" ]; then check_numbers COMPARE_MINUTES; fi
OUT="$PERFDASH_NIGHTLY/out"
export PERFDASH_DB="$PERFDASH_NIGHTLY/history.db"
mkdir -p "$OUT"

environment() { # SIDE REVISION
  local python
  if [ "${COMPARE:-library}" = torch ]; then
    python="$(TORCH="$2" ci/torch_build.sh)"
  else
    python="$(UNDER_TEST="$2" ci/torch_build.sh)"
  fi
  echo "$python" >"$PERFDASH_NIGHTLY/python-$1"
  say "$1 ($2): $python"
}

measure() {
  local code=0 words=(--pairs "$PAIRS") folder
  if [ -n "$COMPARE_MINUTES" ]; then words+=(--minutes "$COMPARE_MINUTES"); fi
  folder="$(comparison)"
  if [ -n "$folder" ]; then
    words+=(--resume "$folder" --out "$OUT")
  else
    declare -a plan=() more=()
    plan_words
    words+=("${plan[@]}" --threads "$THREADS" --device "${DEVICES%%,*}" "${more[@]}"
      --python "$(cat "$PERFDASH_NIGHTLY/python-change")" --base-python "$(cat "$PERFDASH_NIGHTLY/python-base")")
  fi
  perfdash compare-builds "${words[@]}" || code=$?
  exit "$code"
}

# The folder of the comparison, once a pair of it was measured; empty before.
comparison() {
  local each
  for each in "$OUT"/*/base/run.json; do
    if [ -e "$each" ]; then dirname "$(dirname "$each")"; fi
  done | tail -1
}

need_comparison() {
  folder="$(comparison)"
  if [ -z "$folder" ]; then complain 3 "no pair was measured yet in $OUT: run compare.sh measure"; fi
}

case "${1:-}" in
  prepare)
    if [ -z "${BASE:-}" ] || [ -z "${CHANGE:-}" ]; then complain 2 "say what is compared: BASE and CHANGE"; fi
    environment base "$BASE"
    environment change "$CHANGE"
    ;;
  measure) measure ;;
  judge)
    need_comparison
    code=0
    perfdash compare "$folder/base" "$folder" --out "$OUT" --junit "$PERFDASH_NIGHTLY/junit.xml" \
      --fail-on regression >"$PERFDASH_NIGHTLY/compare.txt" || code=$?
    cat "$PERFDASH_NIGHTLY/compare.txt"
    perfdash report "$folder" --baseline "$folder/base" --out "$OUT" --format html \
      --to "$PERFDASH_NIGHTLY/night.html"
    exit "$code"
    ;;
  post)
    need_comparison
    words=(--repo "$REPO" --issue "$ISSUE" --baseline "$folder/base" --out "$OUT")
    if [ -n "$GITHUB_API" ]; then words+=(--base-url "$GITHUB_API"); fi
    if [ "$POST" = dry ]; then words+=(--dry-run); fi
    perfdash post "$folder" "${words[@]}"
    ;;
  *) complain 2 "prepare, measure, judge or post" ;;
esac
