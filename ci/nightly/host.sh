#!/usr/bin/env bash
# The machine made quiet (HOST=apply), or only told what that would be (HOST=show). ci/nightly.sh restores it.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "$HOST" in
  apply) ci/prepare_host.sh --apply ;;
  show) ci/prepare_host.sh ;;
  *) complain 2 "HOST=$HOST is none of show, apply" ;;
esac
