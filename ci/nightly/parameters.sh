# shellcheck shell=bash
# The parameters of a nightly put in order and checked, before anything is done. Sourced by ci/nightly.sh and
# ci/nightly/check.sh, which say in `here` where they were called.
: "${here:?}"
. ci/torch_kind.sh

absolute() { # a path as it was meant where the command was typed
  case "$1" in
    "" | /* | *://* | git+*) echo "$1" ;;
    "~"/*) echo "$HOME/${1#"~/"}" ;;
    *) echo "$here/$1" ;;
  esac
}

# A list, with the TOML files in it as they were meant where the command was typed.
with_absolute_files() { # LIST
  local each
  for each in $(words_of "$1"); do
    case "$each" in *.toml | *.toml:*) absolute "$each" ;; *) echo "$each" ;; esac
  done | paste -sd,
}

resolve_paths() {
  local each
  # These may also be names and addresses.
  for each in UNDER_TEST TORCH_INDEX; do
    if [[ "${!each}" =~ ^(\.|~/) ]] || [ -e "$here/${!each}" ]; then
      printf -v "$each" '%s' "$(absolute "${!each}")"
    fi
  done
  if [[ "$TORCH" = *.whl ]]; then
    TORCH="$(for each in $TORCH; do absolute "$each"; done | paste -sd' ')"
  fi
  TORCH_REPO="$(absolute "$TORCH_REPO")" BISECT_REPO="$(absolute "$BISECT_REPO")"
  SITE_DIR="$(absolute "$SITE_DIR")"
  SUITES="$(with_absolute_files "$SUITES")" CONFIGURATIONS="$(with_absolute_files "$CONFIGURATIONS")"
  BISECT_RECIPE="$(with_absolute_files "$BISECT_RECIPE")"
  if [ "$OUT" != runs ]; then OUT="$(absolute "$OUT")"; fi
  if [ -n "${PERFDASH_DB:-}" ]; then PERFDASH_DB="$(absolute "$PERFDASH_DB")"; fi
}

one_of() { # NAME ALLOWED...
  local allowed
  for allowed in "${@:2}"; do
    if [ "${!1}" = "$allowed" ]; then return; fi
  done
  complain 2 "$1=${!1} is none of $(printf '%s, ' "${@:2}" | sed 's/, $//')"
}

# The options of perfdash run. Where no Python can read them, ci/setup.sh says what is missing.
check_run_options() {
  local each words=() more=()
  arguments_of "$RUN_ARGUMENTS"
  for each in $(words_of "$SUITES"); do # a file of the user's own may be on another machine
    case "$each" in *.toml | */*) ;; *) words+=(--suite "$each") ;; esac
  done
  for each in $(words_of "$DTYPES"); do words+=(--dtype "$each"); done
  for each in $(words_of "$CONFIGURATIONS"); do
    case "$each" in *.toml) ;; *) words+=(--configuration "$each") ;; esac
  done
  refuse_wrong_options -- "${words[@]}" "${more[@]}"
  arguments_of "$RESUME_ARGUMENTS"
  if [ "${#more[@]}" != 0 ]; then refuse_wrong_options --resume "${more[@]}"; fi
}

refuse_wrong_options() { # -- or --resume, WORDS...
  local wrong code=0
  # shellcheck disable=SC2154 # of common.sh
  wrong="$(drop_secrets &&
    plain_python ci/nightly/check_run_options.py "${nightly_parameters[*]}" "$@" 2>/dev/null)" || code="$?"
  if [ "$code" = 2 ] && [ -n "$wrong" ]; then complain 2 "$wrong"; fi
}

# Prints which option in `more` needs the history, if any.
option_of_history() {
  local word before=""
  for word in "${more[@]}"; do
    case "$before $word" in
      *" --hours" | *" --hours="*) echo "--hours" && return ;;
      "--fail-on "*regression* | *" --fail-on="*regression*) echo "--fail-on regression" && return ;;
      "--costs last" | *" --costs=last") echo "--costs last" && return ;;
    esac
    before="$word"
  done
}

# A shard is in the history only once it is merged.
check_options_of_shards() {
  local more=() parts="${SHARD#*/}"
  # shellcheck disable=SC2153 # both are parameters
  if [ -z "$parts" ] && [ "$QUICK" = no ]; then parts="$SHARDS"; fi
  if [ "${parts:-1}" = 1 ]; then return; fi
  arguments_of "$RUN_ARGUMENTS $RESUME_ARGUMENTS"
  case "$(option_of_history)" in
    --hours) complain 2 "--hours needs the history, which shards do not have: leave out --hours, or SHARDS and SHARD" ;;
    --fail-on*)
      complain 2 "--fail-on regression needs the history, which shards do not have: give the variable FAIL_ON=regression"
      ;;
    --costs*) complain 2 "--costs last is another run for each shard: give the run's name or folder" ;;
  esac
}

# What must be on this machine. Under Jenkins these are paths of an agent.
check_paths() {
  local each file
  for each in $(words_of "$SUITES"); do
    case "$each" in *.toml | */*) [ -f "$each" ] || complain 2 "SUITES: there is no file $each" ;; esac
  done
  for each in $(words_of "$CONFIGURATIONS"); do
    case "$each" in *.toml) [ -f "$each" ] || complain 2 "CONFIGURATIONS: there is no file $each" ;; esac
  done
  for each in $TORCH; do
    case "$each" in *://*) ;; *.whl) [ -f "$each" ] || complain 2 "TORCH: there is no file $each" ;; esac
  done
  case "$TORCH_INDEX" in
    /*) [ -d "$TORCH_INDEX" ] || complain 2 "TORCH_INDEX=$TORCH_INDEX: there is no such folder" ;;
    "" | *://*) ;;
    *) complain 2 "TORCH_INDEX=$TORCH_INDEX: give an address, or a folder that is there" ;;
  esac
  case "$UNDER_TEST" in
    /* | .* | "~"*) [ -e "$UNDER_TEST" ] || complain 2 "UNDER_TEST=$UNDER_TEST: there is no such folder" ;;
  esac
  for each in TORCH_REPO BISECT_REPO; do
    [ -z "${!each}" ] || [ -d "${!each}" ] || complain 2 "$each=${!each}: there is no such folder"
  done
  for each in $(words_of "$BISECT_RECIPE"); do # a name or a file, with an argument behind the colon
    case "$each" in *.toml | *.toml:*) file="${each%.toml*}.toml" ;; *) file="bisect/${each%%:*}.toml" ;; esac
    [ -f "$file" ] ||
      complain 2 "BISECT_RECIPE: there is no recipe $each; there are: $(cd bisect && echo *.toml | sed 's/\.toml//g')"
  done
  case "${PERFDASH_DB:-}" in
    "" | *://*) ;;
    *)
      if [ -d "$PERFDASH_DB" ]; then complain 2 "PERFDASH_DB=$PERFDASH_DB is a folder: give a file"; fi
      if [ -s "$PERFDASH_DB" ] && [ "$(head -c 13 "$PERFDASH_DB" | tr -d '\0')" != "SQLite format" ]; then
        complain 2 "PERFDASH_DB=$PERFDASH_DB is no history: another kind of file is there"
      fi
      ;;
  esac
}

check_parameters() {
  local each
  check_numbers SHARDS BASE_RUNS CONFIRM_MOST CONFIRM_MINUTES BISECT_MOST BISECT_HOURS PAIRS START_MINUTES STOP_MINUTES
  if [ -n "$CELL_MINUTES" ]; then check_numbers CELL_MINUTES; fi
  [[ "$EVERY" =~ ^([1-9][0-9]{0,4}[mhd])?$ ]] || complain 2 "EVERY=$EVERY: give it as 24h, 7d or 90m"
  [[ "$SHARD" =~ ^([1-9][0-9]*/[1-9][0-9]*)?$ ]] || complain 2 "SHARD=$SHARD: give it as 2/4"
  [ -z "$SHARD" ] || [ "${SHARD%/*}" -le "${SHARD#*/}" ] || complain 2 "SHARD=$SHARD: there is no such part"
  [[ "$(words_of "$DEVICES")" =~ [^\ ] ]] || complain 2 "DEVICES=$DEVICES: give cpu, cuda or both"
  [[ "$(words_of "$THREADS")" =~ [^\ ] ]] || complain 2 "THREADS=$THREADS: give a number of threads, or socket"
  for each in $(words_of "$DEVICES"); do
    [[ "$each" =~ ^(cpu|cuda)$ ]] || complain 2 "DEVICES: '$each' is neither cpu nor cuda"
  done
  for each in $(words_of "$THREADS"); do
    [[ "$each" =~ ^([1-9][0-9]*|socket)$ ]] || complain 2 "THREADS: '$each' is no number of threads, nor socket"
  done
  for each in START_COMMAND STOP_COMMAND; do
    bash -n -c "${!each}" 2>/dev/null || complain 2 "$each is no command of bash: try bash -n -c \"\$$each\""
  done
  check_run_options
  check_options_of_shards
  [[ "$LINE" =~ ^[A-Za-z0-9._+/-]{0,60}$ ]] || complain 2 "LINE=$LINE: give a name of letters, digits and . _ + / -"
  one_of POST yes no dry
  one_of BISECT yes no
  one_of QUICK yes no
  one_of WEBHOOK yes no
  one_of HOST show apply
  [[ "$REPO" =~ ^([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)?$ ]] || complain 2 "REPO=$REPO: give it as OWNER/NAME"
  [[ "$ISSUE" =~ ^([1-9][0-9]*)?$ ]] || complain 2 "ISSUE=$ISSUE: give the number of an issue or pull request"
  [[ "$NEW_ISSUE_ON" =~ ^(regression)?$ ]] ||
    complain 2 "NEW_ISSUE_ON=$NEW_ISSUE_ON: here there is only regression"
  [[ "$FAIL_ON" =~ ^(regression)?$ ]] || complain 2 "FAIL_ON=$FAIL_ON: here there is only regression"
  for each in TORCH TORCH_INDEX TORCH_WITH UNDER_TEST START_COMMAND STOP_COMMAND; do
    if has_address_with_password "${!each}"; then
      complain 2 "$each: an address with a password would be written down: put it into ~/.netrc"
    fi
  done
  check_torch # its message names TORCH
  if [ "$POST" != no ] && { [ -z "$REPO" ] || [ -z "$ISSUE" ]; }; then
    complain 2 "POST=$POST needs REPO=OWNER/NAME and ISSUE=NUMBER"
  fi
  # Under Jenkins only the stage that uses a secret has it; before that its credential must be named.
  if [ "$POST" = yes ] && [ -z "${GITHUB_TOKEN:-}${GITHUB_CREDENTIAL:-}" ]; then
    complain 2 "POST=yes needs a token in the variable GITHUB_TOKEN (docs/posting.md), under Jenkins" \
      "GITHUB_CREDENTIAL (docs/jenkins.md); POST=dry prints the comment"
  fi
  # What would else be found out at the end of the night.
  if [ -n "$MAIL_TO" ] && [ -z "${PERFDASH_SMTP:-}" ]; then
    complain 2 "MAIL_TO needs the mail server in the variable PERFDASH_SMTP (docs/notifying.md)"
  fi
  if [ "$WEBHOOK" = yes ] && [ -z "${PERFDASH_WEBHOOK:-}${WEBHOOK_CREDENTIAL:-}" ]; then
    complain 2 "WEBHOOK=yes needs the chat's address in the variable PERFDASH_WEBHOOK (docs/notifying.md)," \
      "under Jenkins WEBHOOK_CREDENTIAL (docs/jenkins.md)"
  fi
  if [ "$BISECT" = yes ] && [ -z "$BISECT_REPO" ] && [ -n "$UNDER_TEST" ] && [ ! -d "$UNDER_TEST" ] &&
    [[ "${BISECT_RECIPE:-git}" = git ]]; then
    complain 2 "BISECT=yes needs a clone of the library under test: BISECT_REPO=PATH"
  fi
}
