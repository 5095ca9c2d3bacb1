#!/usr/bin/env bash
# The environment that is measured: the torch that is wanted, with the library under test. Leaves its interpreter
# in the file `python`, torch's commit in `git_version`.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_night
ci/torch_build.sh >"$PERFDASH_NIGHTLY/.python"
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
