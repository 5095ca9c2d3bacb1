#!/usr/bin/env bash
# Checks the parameters of a nightly before anything is done: Jenkins' first stage, so that a wrong one is
# reported in the first minute. The arguments name parameters that must not be empty. Exit code 2: one is wrong.
here="$PWD"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. ci/nightly/parameters.sh
for name in "$@"; do
  [ -n "${!name:-}" ] || complain 2 "$name is empty: give it"
done
if has_password "${DB:-}"; then
  complain 2 "DB: an address with a password is shown to all; make it a secret text and name it in DB_CREDENTIAL"
fi
# Cells measure without the night's history.
more=()
arguments_of "$RUN_ARGUMENTS"
case "$(option_of_history)" in
  --hours)
    complain 2 "RUN_ARGUMENTS: --hours needs the history, which cells do not have: choose cases by MODELS or QUICK"
    ;;
  --fail-on*)
    complain 2 "RUN_ARGUMENTS: --fail-on regression needs the history, which cells do not have: give FAIL_ON=regression"
    ;;
esac
check_parameters
# A setting of each run, of its variable or of [run] in perfdash.toml.
setting() { # NAME
  plain_python -c '
import os, sys, tomllib
name = sys.argv[1]
print(os.environ.get("PERFDASH_" + name.upper()) or tomllib.load(open("perfdash.toml", "rb"))["run"][name])
' "$1" 2>/dev/null || true
}
if [ -n "${NIGHT:-}" ]; then # else a comparison or a bisection, which has no cells
  hours="$(setting hours)"
  if [ -n "$hours" ]; then
    complain 2 "PERFDASH_HOURS or perfdash.toml: hours=$hours needs the history, which cells do not have:" \
      "choose cases by MODELS or QUICK"
  fi
  case "$(setting fail_on)" in
    *regression*)
      complain 2 "PERFDASH_FAIL_ON or perfdash.toml: fail_on=regression needs the history, which cells do not have:" \
        "give FAIL_ON=regression"
      ;;
  esac
fi
