#!/usr/bin/env bash
# The night by mail (MAIL_TO) and to a chat (WEBHOOK=yes; its address in PERFDASH_WEBHOOK); nothing without them.
# A night that broke is told so: notify.sh WHY.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
ways=()
if [ -n "$MAIL_TO" ]; then ways+=(--mail-to "$MAIL_TO"); fi
if [ "$WEBHOOK" = yes ]; then ways+=(--webhook); fi
if [ "${#ways[@]}" = 0 ]; then exit 0; fi
ways+=(--out "$OUT")
if [ -n "$SITE_URL" ]; then ways+=(--site-url "$SITE_URL"); fi
worst=0
if [ -n "${1:-}" ]; then perfdash notify --broken "$1" "${ways[@]}" || worst=$?; fi
tell() { perfdash notify "$1" ${BASELINE:+--baseline "$BASELINE"} "${ways[@]}"; }
code=0
for_each_run tell || code=$?
if [ "$code" -gt "$worst" ]; then worst="$code"; fi
exit "$worst"
