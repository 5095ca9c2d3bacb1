#!/usr/bin/env bash
# The runs of a night that Jenkins' agents measured, each below TOP/cells/CELL/out:
#   gather.sh TOP           their list (the file `runs`), and the history takes in those that are no shards
#   gather.sh TOP DEVICE    of what is told of, the runs of one device, to be confirmed where it was measured
# Whatever agent a list was made on, it names folders of this one.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ "$#" -lt 1 ] || [ ! -d "$1" ]; then complain 2 "give the folder of the night that the cells lie in"; fi
top="$(cd "$1" && pwd)"
device="${2:-}"

# Of a run: whole or shard, and its device.
about() {
  "$venv/bin/python" -c '
import json, sys
run = json.load(open(sys.argv[1] + "/run.json"))
print("shard" if run["plan"].get("shard") else "whole", run["configuration"].get("device") or "cpu")' "$1"
}

if [ -z "$device" ]; then
  : >"$top/.runs"
  for found in "$top"/cells/*/out/*/run.json; do
    if [ -e "$found" ]; then echo "${found%/run.json}" >>"$top/.runs"; fi
  done
  mv "$top/.runs" "$top/runs"
  # Of the same measured several times (BASE_RUNS) all but the last are only the history's.
  cat "$top"/cells/*/base 2>/dev/null |
    sed "s|^.*/$(basename "$top")/cells/|$top/cells/|" >"$top/base" || true
  worst=0
  while IFS= read -r run <&3; do
    code=0
    kind="$(about "$run")" || code=3
    case "$kind" in
      whole*) perfdash history import "$run" || code=$? ;;
    esac
    if [ "$code" -gt "$worst" ]; then worst="$code"; fi
  done 3<"$top/runs"
  if [ ! -s "$top/runs" ]; then complain 3 "no cell of the night left a run"; fi
  exit "$worst"
fi

list="$top/run"
[ -e "$list" ] || list="$top/runs"
: >"$PERFDASH_NIGHTLY/run"
while IFS= read -r line <&3; do
  run="$top/${line##*/"$(basename "$top")"/}"
  if [ "$(about "$run" | cut -d' ' -f2)" = "$device" ]; then echo "$run" >>"$PERFDASH_NIGHTLY/run"; fi
done 3<"$list"
if [ ! -s "$PERFDASH_NIGHTLY/run" ]; then complain 3 "no run of tonight on $device"; fi
# What was not measured is not told either: confirm.sh keeps the good build then.
for cell in "$top"/cells/*-"$device"-*/; do
  if [ ! -e "${cell}measured" ]; then echo "3 0" >"$PERFDASH_NIGHTLY/measure.failed"; fi
done
for python in "$top"/cells/*-"$device"-*/python; do
  if [ -e "$python" ] && [ -x "$(cat "$python")" ]; then cp "$python" "$PERFDASH_NIGHTLY/python"; fi
done
if [ ! -s "$PERFDASH_NIGHTLY/python" ]; then
  complain 3 "the environment that was measured is not on this machine ($(hostname))"
fi
