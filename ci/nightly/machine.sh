#!/usr/bin/env bash
# Starts or stops a machine that comes and goes: START_COMMAND within START_MINUTES, STOP_COMMAND within
# STOP_MINUTES. The commands get no secret.
#   machine.sh start | stop
#   machine.sh guard PID    stops it where the nightly PID was killed, once what that had begun has ended
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = guard ]; then
  need_night
  tail --pid="$2" --follow --sleep-interval=1 /dev/null
  exec 9>>"${PERFDASH_NIGHTLY%/*}/.lock"
  flock 9 || true # a file system may have no locks
  if [ ! -e "$PERFDASH_NIGHTLY/machine" ]; then exit 0; fi
  say "The nightly was killed: its machine is stopped now"
  ci/nightly/machine.sh stop
  rm -f "$PERFDASH_NIGHTLY/machine"
  exit 0
fi
case "${1:-}" in
  start) parameter=START ;;
  stop) parameter=STOP ;;
  *) complain 2 "start, stop or guard" ;;
esac
check_numbers "${parameter}_MINUTES"
command="${parameter}_COMMAND" minutes="${parameter}_MINUTES"
drop_secrets
# In a process group of its own, which `timeout` ends as a whole. What it leaves in the background must not hold
# the lock of the nightlies.
timeout --kill-after=30 "${!minutes}m" bash -c "${!command}" 9>&- &
child="$!"
trap 'kill -TERM "$child" 2>/dev/null || true' INT TERM HUP
while :; do
  code=0
  wait "$child" || code="$?"
  kill -0 "$child" 2>/dev/null || break # else a signal ended the wait, not the command
done
case "$code" in
  0) ;;
  124 | 137)
    say "$command did not end within $minutes=${!minutes}. Try the command by hand, or give it more minutes."
    code=3
    ;;
  *)
    say "$command failed with exit code $code. Try the command by hand."
    code=3
    ;;
esac
if [ "$code$parameter" = 3STOP ]; then say "The machine may still be running: stop it by hand."; fi
exit "$code"
