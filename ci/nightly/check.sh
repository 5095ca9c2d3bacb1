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
check_parameters
# Cells measure without the night's history.
more=()
arguments_of "$RUN_ARGUMENTS"
before=""
for word in "${more[@]}"; do
  case "$before $word" in
    *" --hours" | *" --hours="*)
      complain 2 "RUN_ARGUMENTS: --hours needs the history, which cells do not have: choose cases by MODELS or QUICK"
      ;;
    "--fail-on "*regression* | *" --fail-on="*regression*)
      complain 2 "RUN_ARGUMENTS: --fail-on regression needs the history, which cells do not have: give FAIL_ON=regression"
      ;;
  esac
  before="$word"
done
