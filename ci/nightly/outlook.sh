#!/usr/bin/env bash
# What a night would measure, how it is cut into shards, and how many hours that takes; measures nothing.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
library="${UNDER_TEST:+, with $UNDER_TEST}"
rest() {
  say "Torch: $TORCH$library"
  say "Host: $HOST; post: $POST${REPO:+ to $REPO#$ISSUE}; bisect: $BISECT; site: ${SITE_DIR:-none}"
}
if [ ! -x "$venv/bin/perfdash" ]; then
  say "The parameters are valid, but cases and hours are not known yet: perfdash is not set up in $venv." \
    "Run ci/setup.sh, then repeat the command."
  rest
  exit 0
fi
plans="$(mktemp -d)"
trap 'rm -rf "$plans"' EXIT
declare -a plan=() more=()
plan_words
plan+=(${LINE:+--line "$LINE"}) # with --hours its nights choose the cases
shard="${SHARD:-}"
if [ -z "$shard" ] && [ "$SHARDS" -gt 1 ]; then shard="1/$SHARDS"; fi
while read -r device threads <&3; do
  perfdash run "${plan[@]}" --device "$device" --threads "$threads" ${shard:+--shard "$shard"} \
    "${more[@]}" --dry-run --json >"$plans/$device $threads"
done 3< <(cells)
"$venv/bin/python" ci/nightly/outlook.py "$plans" "$BASE_RUNS"
rest
