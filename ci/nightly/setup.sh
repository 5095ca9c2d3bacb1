#!/usr/bin/env bash
# perfdash and what it needs, and the history told that a nightly begins.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
rm -f "$PERFDASH_NIGHTLY/ready"
(drop_secrets && ci/setup.sh)
touch "$PERFDASH_NIGHTLY/ready" # whatever becomes of the history
ci/nightly/heartbeat.sh begin
