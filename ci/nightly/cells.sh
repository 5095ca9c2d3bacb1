#!/usr/bin/env bash
# The cells of a night that Jenkins measures side by side, a line each: its variables, separated by tabs. A cell is
# one suite, device, dtype and part of SHARDS; suite files of your own share the cell `own`, which is not cut.
#   cells.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
check_numbers SHARDS
night="${NIGHT:?is the folder of the night in the workspace; the Jenkinsfile sets it}"

cell() { # SUITE SUITES DEVICE DTYPE PART SHARD
  local name="$1-$3-$4-$5" folder
  folder="$night/cells/$name"
  printf '%s\t' "CELL=$name" "SUITES=$2" "DEVICES=$3" "DTYPES=$4" "SHARD=$6" "PERFDASH_NIGHTLY=$folder"
  # The history takes in what a cell measured when the cells are gathered.
  printf '%s\t%s\n' "OUT=$folder/out" PERFDASH_NO_HISTORY=true
}

named=() files=()
for suite in $(words_of "$SUITES"); do
  case "$suite" in
    *.toml | */*) files+=("$suite") ;;
    *) named+=("$suite") ;;
  esac
done
own="$(printf '%s\n' "${files[@]}" | paste -sd,)"
for device in $(words_of "$DEVICES"); do
  for dtype in $(words_of "$DTYPES"); do
    for suite in "${named[@]}"; do
      for ((part = 1; part <= SHARDS; part++)); do
        shard=""
        if [ "$SHARDS" -gt 1 ]; then shard="$part/$SHARDS"; fi
        cell "$suite" "$suite" "$device" "$dtype" "$part" "$shard"
      done
    done
    if [ -n "$own" ]; then cell own "$own" "$device" "$dtype" 1 ""; fi
  done
done
