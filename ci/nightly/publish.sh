#!/usr/bin/env bash
# The site of the whole history, in SITE_DIR; nothing without it.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ -z "$SITE_DIR" ]; then exit 0; fi
perfdash site --to "$SITE_DIR" --out "$OUT"
