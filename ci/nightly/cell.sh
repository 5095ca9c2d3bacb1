#!/usr/bin/env bash
# One cell of Jenkins, whose variables ci/nightly/cells.sh has made.
#   cell.sh prepare    before the machine is locked for it
#   cell.sh
# STAGE=measure: perfdash and the torch to measure (of a cell that is begun again the same torch); then the machine
# made quiet where HOST=apply, measured for CELL_MINUTES at most, and the machine put back, however it ends. Begun
# again, it resumes what it measured. LOST_AGENT: the agent that was lost while it ran this cell.
# STAGE=confirm, STAGE=bisect: the night's runs of DEVICE; then the script of that name.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
# shellcheck disable=SC2153 # DEVICE, one of DEVICES: of cells.sh
case "${STAGE:?is the stage of the cell; ci/nightly/cells.sh says it}:${1:-}" in
  measure:*) ;;
  confirm:prepare | bisect:prepare) exec ci/nightly/gather.sh "$NIGHT" "$DEVICE" ;;
  confirm: | bisect:) exec "ci/nightly/$STAGE.sh" ;;
  *) complain 2 "STAGE=$STAGE is none of measure, confirm, bisect" ;;
esac
if [ "${1:-}" = prepare ]; then
  printf '%s\n' "${NODE_NAME:-this machine}" >"$PERFDASH_NIGHTLY/agent"
  ci/nightly/setup.sh
  if [ -s "$PERFDASH_NIGHTLY/python" ] && [ -x "$(measured_python)" ]; then exit 0; fi
  if [ -n "${LOST_AGENT:-}" ]; then
    say "The agent $LOST_AGENT was lost, and this workspace has none of its results: the cell starts again"
  fi
  exec ci/nightly/torch.sh
fi
: "${CELL_MINUTES:=600}"
check_numbers CELL_MINUTES
# After a lost connection the first attempt may be at work still: two would disturb each other. What it measures
# is resumed.
exec 9>>"$PERFDASH_NIGHTLY/.lock"
if ! lock 9; then
  say "An earlier attempt at this cell is still running on this machine: waiting for its end"
  flock 9
fi
export HOST_HOLDER="$$"
restore() { if [ "$HOST" = apply ]; then ci/prepare_host.sh --restore; fi; }
trap restore EXIT
trap 'exit 143' TERM
ci/nightly/host.sh
# A cell that takes too long is a failure with what it has, not an abort: Jenkins' own limit would be one.
code=0
timeout --kill-after=5m "${CELL_MINUTES}m" env --unset=CELL_MINUTES ci/nightly/measure.sh || code=$?
if [ "$code" -le 1 ]; then # 1: a gate
  touch "$PERFDASH_NIGHTLY/measured"
  rm -f "$OUT"/history.db* # the cell's own; the runs go into that of the night
fi
exit "$code"
