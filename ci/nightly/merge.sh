#!/usr/bin/env bash
# One run of the shards of each plan in the file `runs`; what is no shard stays as it is. The runs that are told
# of then stand in the file `run`: not those in the file `base`.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
touch "$PERFDASH_NIGHTLY/merged"
rm -f "$PERFDASH_NIGHTLY/run" # of an earlier time: without it all are told of
worst=0

# Each run with its plan and its repetition (BASE_RUNS): only shards of one repetition are merged, and one of them
# may have left no run. The JUnit file that ci/nightly/measure.sh gave it names both: cpu-1-2.1.xml is shard 1 of
# the second repetition.
"$venv/bin/python" -c '
import json, os, sys
for line in open(sys.argv[1]):
    folder = line.rstrip("\n")
    run = json.load(open(folder + "/run.json"))
    plan, command = run["plan"], run.get("command") or []
    junit = command[command.index("--junit") + 1] if "--junit" in command else ""
    repetition = os.path.basename(junit).partition(".")[0]
    kind = "shard" if plan.get("shard") else "whole"
    print(kind, plan.get("fingerprint") or "-", repetition or "-", folder, sep="\t")
' "$PERFDASH_NIGHTLY/runs" >"$PERFDASH_NIGHTLY/.parts"

declare -A shards=()
whole=()
while IFS=$'\t' read -r kind plan repetition folder; do
  if [ "$kind" = whole ]; then whole+=("$folder"); else shards["$plan $repetition"]+="$folder"$'\n'; fi
done <"$PERFDASH_NIGHTLY/.parts"
rm -f "$PERFDASH_NIGHTLY/.parts"

: >"$PERFDASH_NIGHTLY/.run"
is_base() { grep -qsxF "$1" "$PERFDASH_NIGHTLY/base"; }
for folder in "${whole[@]}"; do
  if ! is_base "$folder"; then echo "$folder" >>"$PERFDASH_NIGHTLY/.run"; fi
done
for plan in "${!shards[@]}"; do
  mapfile -t folders < <(printf '%s' "${shards[$plan]}")
  # Shards of another plan measured other cases: some would be missing, and nobody would be told.
  if [ -z "$SHARD" ] && [ "${#folders[@]}" -lt "$SHARDS" ]; then
    say "${plan#* }: ${#folders[@]} of $SHARDS shards of one plan: $(basename -a "${folders[@]}" | tr '\n' ' ')" >&2
    worst=3
  fi
  # Which shards were merged into what is kept: started again, the same run is not made twice. One that was
  # gone on with has more results, and another key.
  key="$(printf '%s ' "${folders[@]}")$({ cat "${folders[@]/%//results.jsonl}" 2>/dev/null || true; } | cksum | tr ' ' -)"
  made="$(grep -F "$key"$'\t' "$PERFDASH_NIGHTLY/merged" | tail -1 | cut -f2 || true)"
  if [ -z "$made" ] && [ "${#folders[@]}" -gt 1 ]; then
    code=0
    said="$(perfdash merge-shards "${folders[@]}" --out "$OUT")" || code=$?
    say "$said"
    if [ "$code" -gt "$worst" ]; then worst="$code"; fi
    made="$(sed -n 's/^Saved in //p' <<<"$said" | tail -1)"
    if [ -n "$made" ]; then
      made="$(cd "$made" && pwd)"
      # A run that the history did not take is merged again by a resumed night, which records it then.
      if [ "$code" = 0 ]; then printf '%s\t%s\n' "$key" "$made" >>"$PERFDASH_NIGHTLY/merged"; fi
    fi
  fi
  # perfdash says which cases are missing. Such a run is in no history, so the night is not whole.
  if [ -n "$made" ] && grep -qF '"state": "incomplete"' "$made/run.json" && [ "$worst" -lt 3 ]; then worst=3; fi
  if is_base "${folders[0]}"; then continue; fi
  if [ -n "$made" ]; then echo "$made" >>"$PERFDASH_NIGHTLY/.run"; else
    printf '%s\n' "${folders[@]}" >>"$PERFDASH_NIGHTLY/.run"
  fi
done
awk '!known[$0]++' "$PERFDASH_NIGHTLY/.run" >"$PERFDASH_NIGHTLY/run" # each once
rm -f "$PERFDASH_NIGHTLY/.run"
say "Told of: $(tr '\n' ' ' <"$PERFDASH_NIGHTLY/run")"
exit "$worst"
