#!/usr/bin/env bash
# The runs of a night that Jenkins' agents measured, each below TOP/cells/CELL/out:
#   gather.sh TOP           their list (the file `runs`), and the history takes in those that belong there
#   gather.sh TOP DEVICE    of what is told of, the runs of one device, to be confirmed where it was measured
# Whatever agent a list was made on, it names folders of this one.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
if [ "$#" -lt 1 ] || [ ! -d "$1" ]; then complain 2 "give the folder of the night that the cells lie in"; fi
top="$(cd "$1" && pwd)"
device="${2:-}"

device_of() { # RUN
  "$venv/bin/python" -c '
import json, sys
print(json.load(open(sys.argv[1] + "/run.json"))["configuration"].get("device") or "cpu")' "$1"
}

if [ -z "$device" ]; then
  : >"$top/.runs"
  for found in "$top"/cells/*/out/*/run.json; do
    if [ ! -e "$found" ]; then continue; fi
    run="${found%/run.json}" cell="${found%/out/*}"
    # Of a cell that ended, but not here: this agent was lost while it measured the cell, and another began anew.
    if [ -e "$cell/measured" ] && [ -s "$cell/runs" ] &&
      ! grep -qxF "${run##*/}" <(sed 's|.*/||' "$cell/runs"); then
      mkdir -p "$cell/lost"
      mv "$run" "$cell/lost/"
      say "$(basename "$cell"): ${run##*/} is of a lost agent, and the cell was measured again: moved to $cell/lost"
    else
      echo "$run" >>"$top/.runs"
    fi
  done
  mv "$top/.runs" "$top/runs"
  # Of the same measured several times (BASE_RUNS) all but the last are only the history's.
  cat "$top"/cells/*/base 2>/dev/null |
    sed "s|^.*/$(basename "$top")/cells/|$top/cells/|" >"$top/base" || true
  if [ ! -s "$top/runs" ]; then complain 3 "no cell of the night left a run"; fi
  # Of a folder of runs it leaves out shards, and what --strict or --no-history keeps out, and says so.
  mapfile -t folders < <(sed 's|/[^/]*$||' "$top/runs" | sort -u)
  code=0
  perfdash history import "${folders[@]}" || code=$?
  exit "$code"
fi

list="$top/run"
[ -e "$list" ] || list="$top/runs"
: >"$PERFDASH_NIGHTLY/run"
while IFS= read -r line <&3; do
  run="$top/${line##*/"$(basename "$top")"/}"
  if [ "$(device_of "$run")" = "$device" ]; then echo "$run" >>"$PERFDASH_NIGHTLY/run"; fi
done 3<"$list"
if [ ! -s "$PERFDASH_NIGHTLY/run" ]; then complain 3 "no run of tonight on $device"; fi
# What was not measured is not told either: confirm.sh keeps the good build then. A cell that lost its agent twice
# left no folder, so the planned cells are counted (ci/nightly/cells.sh).
while IFS= read -r cell; do
  case "$cell" in
    *-"$device"-*) [ -e "$top/cells/$cell/measured" ] || echo "3 0" >"$PERFDASH_NIGHTLY/measure.failed" ;;
  esac
done <"$top/planned"
mapfile -t runs <"$PERFDASH_NIGHTLY/run"
"$venv/bin/python" ci/nightly/interpreters.py "$top" "${runs[@]}" >"$PERFDASH_NIGHTLY/pythons"
cut -f2 "$PERFDASH_NIGHTLY/pythons" | grep -vxF missing | tail -1 >"$PERFDASH_NIGHTLY/python" || true
if [ ! -s "$PERFDASH_NIGHTLY/python" ]; then
  complain 3 "the environment that was measured is not on this machine ($(hostname))"
fi
