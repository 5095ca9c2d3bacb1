#!/usr/bin/env bash
# A change against its base, on this machine, in turn: what a pull request does to performance.
#
#   compare.sh prepare   both environments: UNDER_TEST=BASE and UNDER_TEST=CHANGE, or with COMPARE=torch
#                        TORCH=BASE and TORCH=CHANGE (docs/nightly.md has what these take)
#   compare.sh measure   ROUNDS rounds: base, change, then change, base, so that a drift cancels
#   compare.sh judge     compare.txt, junit.xml, night.html; exit code 1 where something got worse for real
#   compare.sh post      the same as a comment of pull request ISSUE of REPO
#
# What is measured is said as for a night; RUN_ARGUMENTS are more options of perfdash run.
# State is in PERFDASH_NIGHTLY; its history is its own, so that no night is judged by a pull request.
. "$(dirname "${BASH_SOURCE[0]}")/nightly/common.sh"
need_night
check_numbers ROUNDS
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

round() { # SIDE NUMBER
  local side="$1" mark="$PERFDASH_NIGHTLY/$1-$2.run" said folder code=0
  local words=(--suite "$SUITES" --dtype "$DTYPES" --threads "$THREADS" --device "${DEVICES%%,*}")
  if [ -s "$mark" ]; then return; fi # started again, it goes on where it stopped
  if [ -n "$MODELS" ]; then words+=(--models "$MODELS"); fi
  if [ "$QUICK" = yes ]; then words+=(--quick); fi
  words+=("${more[@]}" --out "$OUT" --python "$(cat "$PERFDASH_NIGHTLY/python-$side")")
  said="$PERFDASH_NIGHTLY/$side-$2.log"
  perfdash run "${words[@]}" 2>&1 | tee "$said" || code=$?
  [ "$code" -le 1 ] || exit "$code" # 1: a gate; what it measured stands
  folder="$(sed -n 's/^Saved in //p' "$said" | tail -1)"
  if [ -z "$folder" ]; then complain 3 "$side, round $2: perfdash run did not say where the run is"; fi
  basename "$folder" >"$mark"
}

names() { # SIDE
  cat "$PERFDASH_NIGHTLY/$1"-*.run | paste -sd,
}

case "${1:-}" in
  prepare)
    if [ -z "${BASE:-}" ] || [ -z "${CHANGE:-}" ]; then complain 2 "say what is compared: BASE and CHANGE"; fi
    environment base "$BASE"
    environment change "$CHANGE"
    ;;
  measure)
    declare -a more=()
    arguments_of "$RUN_ARGUMENTS"
    for ((number = 1; number <= ROUNDS; number++)); do
      if ((number % 2)); then order="base change"; else order="change base"; fi
      for side in $order; do round "$side" "$number"; done
    done
    ;;
  judge)
    code=0
    perfdash compare "$(names base)" "$(names change)" --out "$OUT" --junit "$PERFDASH_NIGHTLY/junit.xml" \
      --fail-on regression >"$PERFDASH_NIGHTLY/compare.txt" || code=$?
    cat "$PERFDASH_NIGHTLY/compare.txt"
    last="$(names change)"
    perfdash report "${last##*,}" --baseline "$(names base)" --out "$OUT" --format html \
      --to "$PERFDASH_NIGHTLY/night.html"
    exit "$code"
    ;;
  post)
    last="$(names change)"
    words=(--repo "$REPO" --issue "$ISSUE" --baseline "$(names base)" --out "$OUT")
    if [ -n "$GITHUB_API" ]; then words+=(--base-url "$GITHUB_API"); fi
    if [ "$POST" = dry ]; then words+=(--dry-run); fi
    perfdash post "${last##*,}" "${words[@]}"
    ;;
  *) complain 2 "prepare, measure, judge or post" ;;
esac
