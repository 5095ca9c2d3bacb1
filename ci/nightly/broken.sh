#!/usr/bin/env bash
# A nightly that broke before it could tell so: the history and a chat learn of it. The argument is why.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
EVERY="${EVERY:-24h}"
export EVERY
code=0
hide_secrets PERFDASH_DB
env "${hidden[@]}" ci/nightly/heartbeat.sh end failed "${1:-broke}" || code=$?
ci/nightly/notify.sh "$JOB ${1:-broke}" || code=$?
exit "$code"
