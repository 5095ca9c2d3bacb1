#!/usr/bin/env bash
# Measures: a run for each device and number of threads (all its suites and dtypes), cut into SHARDS. One that
# fails does not stop the others; the code is the worst. Started again, it goes on where it stopped.
# Each run's folder goes into the file `runs`.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
gate=yes
check_numbers SHARDS BASE_RUNS ${CELL_MINUTES:+CELL_MINUTES}
mkdir -p "$PERFDASH_NIGHTLY/cells" "$OUT"
# Told to end, as by the limit of a cell, it first waits for perfdash, which got the signal, too, and saves the run.
ended=no
trap 'ended=yes' TERM
worst=0
declare -a plan=() more=()
arguments_of "$RESUME_ARGUMENTS"
changed=() retry=() before=""
for word in "${more[@]}"; do
  case "$before $word" in
    "--retry "*) retry+=(--retry "$word") ;;
    *" --retry="*) retry+=("$word") ;;
    *" --retry") ;;
    *) changed+=("$word") ;;
  esac
  before="$word"
done
if [ "${#retry[@]}" = 0 ]; then retry=(--retry infra_error); fi # what the machine lost
plan_words
plan+=(--python "$(measured_python)" ${LINE:+--line "$LINE"})
# A run keeps no secret: what --env gives is given again where it goes on.
variables=() before=""
for word in "${more[@]}"; do
  case "$before $word" in "--env "*) variables+=(--env "$word") ;; *" --env="*) variables+=("$word") ;; esac
  before="$word"
done

# A run goes on in the history that it began with, unless it is given another one, as to a resumed night. A
# password on a command line is refused; of such an address perfdash reads the variable again.
db=()
if [ -n "${PERFDASH_DB:-}" ] && ! has_password "$PERFDASH_DB"; then db=(--db "$PERFDASH_DB"); fi

# The run of a cell is known by its JUnit file, which no other run names but the one that it was merged into.
run_of() { # JUNIT
  "$venv/bin/python" -c '
import contextlib, json, os, sys
from pathlib import Path
for path in sorted(Path(sys.argv[1]).glob("*/run.json"), reverse=True):
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text(encoding="utf-8")
        if json.dumps(sys.argv[2]) in text and not json.loads(text).get("merged_from"):
            sys.stdout.buffer.write(os.fsencode(path.parent.absolute()))
            break
' "$OUT" "$1"
}

# How often ci/nightly.sh --from has measured the night anew: such runs have JUnit files of their own.
anew="$(cat "$PERFDASH_NIGHTLY/anew" 2>/dev/null || true)"

# perfdash, ended as by Ctrl-C after CELL_MINUTES.
perfdash_in_time() {
  local limit=()
  if [ -n "$CELL_MINUTES" ]; then limit=(timeout --foreground --signal=INT --kill-after=300 "${CELL_MINUTES}m"); fi
  "${limit[@]}" "$venv/bin/perfdash" "$@"
}

measure() { # NAME OPTIONS...
  local name="$1" junit="$PERFDASH_NIGHTLY/cells/$1${anew:+.anew$anew}.xml" folder code=0
  if [ "$ended" = yes ]; then exit 130; fi
  if [ -e "$PERFDASH_NIGHTLY/cells/$name.done" ]; then return 0; fi
  folder="$(run_of "$junit")"
  if [ -n "$folder" ]; then
    say "$name: going on with $folder"
    perfdash_in_time run --resume "$folder" --out "$OUT" "${db[@]}" "${retry[@]}" "${variables[@]}" \
      "${changed[@]}" || code=$?
  else
    perfdash_in_time run "${plan[@]}" "${@:2}" --junit "$junit" "${more[@]}" "${changed[@]}" || code=$?
    folder="$(run_of "$junit")"
  fi
  if [ -n "$folder" ] && ! grep -qsxF "$folder" "$PERFDASH_NIGHTLY/runs"; then
    echo "$folder" >>"$PERFDASH_NIGHTLY/runs"
    # Of the same measured several times the last is told of; the others are the history's.
    if [ "$again" -lt "$BASE_RUNS" ]; then echo "$folder" >>"$PERFDASH_NIGHTLY/base"; fi
  fi
  if [ "$code" = 130 ]; then exit 130; fi
  # 1: a gate; what it measured stands.
  if [ "$code" -le 1 ]; then touch "$PERFDASH_NIGHTLY/cells/$name.done"; else
    say "$name: exit code $code; the other runs continue" >&2
  fi
  if [ "$code" -gt "$worst" ]; then worst="$code"; fi
}

while read -r device threads <&3; do
  where=(--device "$device" --threads "$threads")
  for ((again = 1; again <= BASE_RUNS; again++)); do
    name="$device-$threads"
    if [ "$again" -gt 1 ]; then name+="-$again"; fi
    if [ -n "$SHARD" ]; then
      measure "$name" "${where[@]}" --shard "$SHARD"
    elif [ "$SHARDS" -gt 1 ]; then
      for ((part = 1; part <= SHARDS; part++)); do
        measure "$name.$part" "${where[@]}" --shard "$part/$SHARDS"
      done
    else
      measure "$name" "${where[@]}"
    fi
  done
done 3< <(cells)
if [ ! -s "$PERFDASH_NIGHTLY/runs" ] && [ "$worst" -le 1 ]; then worst=3; fi
exit "$worst"
