#!/usr/bin/env bash
# The environment that is measured: the torch that is wanted, with the library under test. Leaves its interpreter
# in the file `python`, torch's commit in `git_version`. A cell of Jenkins has the night's build (pin.sh) in TORCH and
# UNDER_TEST, and what was asked for in ASKED_TORCH and ASKED_UNDER_TEST: its machine may have no such wheel.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
code=0
ci/torch_build.sh >"$PERFDASH_NIGHTLY/.python" || code=$?
if [ "$code" = 3 ] && [ -n "${ASKED_TORCH:-}" ] &&
  [ "$TORCH $UNDER_TEST" != "$ASKED_TORCH ${ASKED_UNDER_TEST:-}" ]; then
  say "$(hostname) cannot have the night's build (TORCH=$TORCH${UNDER_TEST:+, UNDER_TEST=$UNDER_TEST}; see above):" \
    "it takes its own newest. Shards of different builds are not merged."
  code=0
  TORCH="$ASKED_TORCH" UNDER_TEST="${ASKED_UNDER_TEST:-}" ci/torch_build.sh >"$PERFDASH_NIGHTLY/.python" || code=$?
fi
if [ "$code" != 0 ]; then exit "$code"; fi
mv "$PERFDASH_NIGHTLY/.python" "$PERFDASH_NIGHTLY/python"
drop_secrets
# Read, not imported, which takes seconds.
"$(measured_python)" -c '
import importlib.util, pathlib, runpy
found = importlib.util.find_spec("torch")
if found and found.origin:
    version = runpy.run_path(str(pathlib.Path(found.origin).with_name("version.py")))
    print(version.get("git_version") or "")' >"$PERFDASH_NIGHTLY/git_version"
say "Measured is $(measured_python)"
