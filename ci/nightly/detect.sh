#!/usr/bin/env bash
# Judges the night by those before it; what lives of the alerts is printed, and kept in regressions.json.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
perfdash regressions --out "$OUT"
perfdash regressions --out "$OUT" --json >"$PERFDASH_NIGHTLY/regressions.json"
