#!/usr/bin/env bash
# The night in all forms, into its folder: comment.md, night.html, night.csv, night.json, junit.xml, plot/. With
# several runs the names end in the run's. FAIL_ON=regression: exit code 1 where something is worse.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
gate=yes
if [ -z "$(told_runs)" ]; then complain 3 "nothing was measured: there is nothing to report"; fi

report() { # RUN
  local run="$1" form code worst=0
  local common=(--out "$OUT")
  if [ -n "$BASELINE" ]; then common+=(--baseline "$BASELINE"); fi
  if [ -n "$SITE_URL" ]; then common+=(--site-url "$SITE_URL"); fi
  declare -A names=([comment]=comment.md [html]=night.html [csv]=night.csv [json]=night.json [plot-csv]=plot)
  for form in comment html csv json plot-csv; do
    code=0
    perfdash report "$run" --format "$form" "${common[@]}" \
      --to "$(of_run "$run" "${names[$form]%.*}" "$(suffix "${names[$form]}")")" || code=$?
    if [ "$code" -gt "$worst" ]; then worst="$code"; fi
  done
  code=0
  perfdash report "$run" --format junit "${common[@]}" --to "$(of_run "$run" junit .xml)" \
    ${FAIL_ON:+--fail-on "$FAIL_ON"} || code=$?
  if [ "$code" -gt "$worst" ]; then worst="$code"; fi
  return "$worst"
}

suffix() { if [[ "$1" = *.* ]]; then echo ".${1##*.}"; fi; }

for_each_run report || exit "$?" # 1: the gate
