#!/usr/bin/env bash
# One cell of Jenkins' matrix, as SUITES, DEVICES, DTYPES and SHARD say: the machine made quiet where
# HOST=apply, measured for CELL_MINUTES at most, and the machine put back, however it ends.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
: "${CELL_MINUTES:=600}"
check_numbers CELL_MINUTES
restore() { if [ "$HOST" = apply ]; then ci/prepare_host.sh --restore; fi; }
trap restore EXIT
trap 'exit 143' TERM
ci/nightly/host.sh
# A cell that takes too long is a failure with what it has, not an abort: Jenkins' own limit would be one.
code=0
timeout --kill-after=5m "${CELL_MINUTES}m" env --unset=CELL_MINUTES ci/nightly/measure.sh || code=$?
if [ "$code" -le 1 ]; then touch "$PERFDASH_NIGHTLY/measured"; fi # 1: a gate
exit "$code"
