#!/usr/bin/env bash
# The end of a night of Jenkins, whose RESULT so far says whether all of it was done:
#   end.sh         recorded in the history
#   end.sh tell    by mail and to the chat
# Of a cell that left no run the others' news says nothing: they hear why the night is only a part.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
case "${RESULT:?is the result of the build so far; the Jenkinsfile sets it}" in
  SUCCESS | UNSTABLE) state=ok why="" ;;
  *) state=partial why="${JOB_NAME:-$JOB} #${BUILD_NUMBER:-}: not all of it was done. ${BUILD_URL:-}" ;;
esac
case "${1:-}" in
  "") exec ci/nightly/heartbeat.sh end "$state" ;;
  tell) exec ci/nightly/notify.sh "$why" ;;
  *) complain 2 "tell, or no argument" ;;
esac
