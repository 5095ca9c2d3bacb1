# shellcheck shell=bash
# What each stage of a nightly begins with: its parameters with their defaults, its folder. Sourced by
# ci/nightly.sh and the stages. docs/nightly.md says what each parameter means.
set -Eeuo pipefail
# Says, in brackets, which line of the script failed, since the command may have said nothing. 1 is a gate's code,
# and this is none, also where its words go to a full disk.
unforeseen() { # CODE
  local line="${BASH_LINENO[-2]}" command
  command="$(sed -n "${line}s/^ *//p" "$0" 2>/dev/null || true)"
  printf '[%s, line %s: exit code %s: %s]\n' "${0#"$PWD"/}" "$line" "$1" "$command" >&2 || true
  if [ "$1" = 1 ]; then exit 3; fi
}
trap 'unforeseen "$?"' ERR
# A script whose exit code 1 is a gate's says gate=yes. Of any other it is a failure.
gate=no
trap 'code=$?; if [ "$code" = 1 ] && [ "$gate" = no ]; then exit 3; fi' EXIT
cd "${BASH_SOURCE[0]%/*}/../.."
. ci/secrets.sh
if [ -z "${HOME+is set}" ]; then HOME=~; fi # a service of the system has none
export HOME

# Kept in the settings file of a night. What is secret (GITHUB_TOKEN, PERFDASH_SMTP_PASSWORD, PERFDASH_WEBHOOK,
# PERFDASH_DB) is not among them: it is read from the environment each time.
# shellcheck disable=SC2034 # read by ci/nightly.sh
nightly_parameters=(
  TORCH TORCH_INDEX TORCH_REPO TORCH_WITH UNDER_TEST
  SUITES MODELS CONFIGURATIONS DTYPES DEVICES THREADS SHARDS SHARD QUICK BASE_RUNS RUN_ARGUMENTS
  BASELINE FAIL_ON CONFIRM_MOST CONFIRM_MINUTES BISECT BISECT_RECIPE BISECT_REPO BISECT_MOST BISECT_HOURS
  POST REPO ISSUE GITHUB_API NEW_ISSUE_ON SITE_DIR SITE_URL MAIL_TO WEBHOOK
  HOST START_COMMAND START_MINUTES STOP_COMMAND STOP_MINUTES CELL_MINUTES JOB LINE EVERY OUT
)

: "${TORCH:=installed}" "${TORCH_INDEX:=}" "${TORCH_REPO:=}" "${UNDER_TEST:=}"
: "${TORCH_WITH=torchvision timm transformers}"
default_suites=torchbench,huggingface,timm
: "${SUITES:=${PERFDASH_SUITE:-$default_suites}}" "${MODELS:=}" "${DTYPES:=}" "${CONFIGURATIONS:=}"
: "${DEVICES:=cpu}" "${THREADS:=1}" "${SHARDS:=1}" "${SHARD:=}" "${QUICK:=no}" "${BASE_RUNS:=1}"
: "${RUN_ARGUMENTS:=}" "${BASELINE:=}" "${FAIL_ON:=}" "${CONFIRM_MOST:=20}" "${CONFIRM_MINUTES:=45}"
: "${BISECT:=no}" "${BISECT_RECIPE:=}" "${BISECT_REPO:=}" "${BISECT_MOST:=3}" "${BISECT_HOURS:=4}"
: "${POST:=no}" "${REPO:=}" "${ISSUE:=}" "${GITHUB_API:=}" "${NEW_ISSUE_ON:=}"
: "${SITE_DIR:=}" "${SITE_URL:=}" "${MAIL_TO:=}" "${WEBHOOK:=no}"
: "${HOST:=show}" "${JOB:=nightly}" "${LINE:=}" "${EVERY:=}" "${OUT:=${PERFDASH_OUT:-runs}}"
: "${START_COMMAND:=}" "${START_MINUTES:=15}" "${STOP_COMMAND:=}" "${STOP_MINUTES:=10}"
: "${CELL_MINUTES:=}" # without it a cell of Jenkins has 600, one at a desk no limit
: "${PAIRS:=8}" "${COMPARE_MINUTES:=}" # of ci/compare.sh
: "${RESUME_ARGUMENTS:=}" # options of perfdash run that were given with --resume

if [ "$QUICK" = yes ]; then SHARDS=1; fi # a suite may have fewer quick models than there are shards
# Lists may be separated by spaces, too; perfdash takes commas.
with_commas() { # TEXT
  local words
  read -ra words <<<"${1//,/ }"
  local IFS=,
  echo "${words[*]}"
}
SUITES="$(with_commas "$SUITES")" CONFIGURATIONS="$(with_commas "$CONFIGURATIONS")" DTYPES="$(with_commas "$DTYPES")"

venv="${PERFDASH_VENV:-.venv}"

say() { printf '%s\n' "$*" || true; } # a full disk, where its output goes, ends no night

has_password() { # THE ADDRESS OF A HISTORY
  case "$1" in *://*:*@* | *password=*) ;; *) return 1 ;; esac
}

complain() { # CODE WORDS...
  printf '%s: %s\n' "${0#"$PWD"/}" "${*:2}" >&2 || true
  exit "$1"
}

# Refuses a parameter that is not a number. Arithmetic in bash runs commands in brackets: a[$(command)].
check_numbers() { # NAMES...
  local name
  for name in "$@"; do
    case "$name" in
      BISECT_HOURS)
        [[ "${!name}" =~ ^[0-9]{1,4}(\.[0-9]+)?$ ]] || complain 2 "$name=${!name} is no number of hours"
        ;;
      CONFIRM_MINUTES | COMPARE_MINUTES | START_MINUTES | STOP_MINUTES)
        [[ "${!name}" =~ ^[0-9]{1,4}(\.[0-9]+)?$ && "${!name}" =~ [1-9] ]] ||
          complain 2 "$name=${!name} is no number of minutes: give a number above 0"
        ;;
      PAIRS)
        [[ "${!name}" =~ ^([4-9]|[1-5][0-9]|60)$ ]] ||
          complain 2 "$name=${!name}: give a number from 4 to 60; fewer pairs cannot tell change from noise"
        ;;
      *) [[ "${!name}" =~ ^[1-9][0-9]{0,5}$ ]] || complain 2 "$name=${!name}: give a number from 1" ;;
    esac
  done
}

# Runs a script of ci/nightly that needs only the standard library, also before perfdash is set up.
plain_python() { # SCRIPT ARGUMENTS...
  local python="$venv/bin/python"
  [ -x "$python" ] || python="${PYTHON:-python3}"
  "$python" -B "$@"
}

perfdash() { "$venv/bin/perfdash" "$@"; }

# In German it would print 1,5, which no option takes.
awk() { LC_ALL=C command awk "$@"; }

# Takes a lock; fails only where another has it. A file system without locks has none: there nobody does.
lock() { # DESCRIPTOR
  local code=0
  flock --nonblock --conflict-exit-code 99 "$1" || code="$?"
  [ "$code" != 99 ]
}

# Of a stage: the folder of the night, which must be there.
need_night() {
  : "${PERFDASH_NIGHTLY:?is the folder of the night; ci/nightly.sh sets it}"
  mkdir -p "$PERFDASH_NIGHTLY"
  PERFDASH_NIGHTLY="$(cd "$PERFDASH_NIGHTLY" && pwd)"
}

# The interpreter that is measured: the stage torch has left it.
measured_python() {
  if [ -s "$PERFDASH_NIGHTLY/python" ]; then cat "$PERFDASH_NIGHTLY/python"; else
    echo "$PWD/$venv/bin/python" | sed "s|^$PWD//|/|"
  fi
}

# The interpreter that measured a run, where ci/nightly/gather.sh has listed it: `missing` is on another machine.
python_of() { # RUN
  local listed
  listed="$(grep -sF "$1"$'\t' "$PERFDASH_NIGHTLY/pythons" | tail -1 | cut -f2 || true)"
  echo "${listed:-$(measured_python)}"
}

# The runs to report and post, a folder a line: merged ones in place of their shards. Another agent of Jenkins may have
# made the list: what lies in its folder of the night lies in that of this one, too.
told_runs() {
  local run night="${PERFDASH_NIGHTLY##*/}"
  { cat "$PERFDASH_NIGHTLY/run" 2>/dev/null || cat "$PERFDASH_NIGHTLY/runs" 2>/dev/null || true; } |
    while IFS= read -r run; do
      case "$run" in *"/$night/"*) run="$PERFDASH_NIGHTLY/${run##*/"$night"/}" ;; esac
      printf '%s\n' "$run"
    done
}

# The name of a file of a run: bare for the night's only run, else with the run's name.
of_run() { # RUN NAME EXTENSION
  if [ "$(told_runs | wc -l)" -le 1 ]; then echo "$PERFDASH_NIGHTLY/$2$3"; else
    echo "$PERFDASH_NIGHTLY/$2-$(basename "$1")$3"
  fi
}

words_of() { tr ',' ' ' <<<"$1"; }

# What is measured in a run of its own, a line each: device and threads. On a GPU the threads say little, so only
# their first number counts there.
cells() {
  local device threads
  for device in $(words_of "$DEVICES"); do
    for threads in $(words_of "$THREADS"); do
      echo "$device $threads"
      if [ "$device" = cuda ]; then break; fi
    done
  done
}

# The words of a text into `more`, with quotes as in a shell. Whoever may start a nightly says this text, so
# nothing in it is run.
arguments_of() { # TEXT
  more=()
  if [ -z "$1" ]; then return; fi
  xargs printf '%s' <<<"$1" >/dev/null 2>&1 || 
    complain 2 "the quotes do not match in RUN_ARGUMENTS or BISECT_ARGUMENTS: close each that is opened"
  mapfile -d '' -t more < <(xargs -r printf '%s\0' <<<"$1")
}

quoted() { # WORDS...: a text of which arguments_of makes the same words
  local each
  for each in "$@"; do
    # shellcheck disable=SC2001 # quotes in a replacement mean something else in each version of bash
    printf "'%s' " "$(sed "s/'/'\\\\''/g" <<<"$each")"
  done
}

# Whether the options in `more` have this one.
has_option() { # NAME
  local each
  for each in "${more[@]}"; do
    case "$each" in "$1" | "$1="*) return 0 ;; esac
  done
  return 1
}

# The suites of the night, by name: perfdash.toml may name others. --model replaces the default suites: then none. So
# does --torchbench, by its checkout, which is measured beside perfdash's other suites, too; a file may be of it.
measured_suites() {
  local checkout=""
  if has_option --torchbench; then checkout=torchbench-checkout; fi
  if [ "$SUITES" = "$default_suites" ]; then
    if has_option --model; then return; fi
    if [ -n "$checkout" ]; then echo "$checkout"; return; fi
  fi
  case " $(words_of "$SUITES") " in *" torchbench-checkout "* | *.toml* | */*) checkout="" ;; esac
  echo "$SUITES${checkout:+,$checkout}"
}

# What is measured, for `perfdash run`: in `plan`; the user's own options in `more`.
plan_words() {
  local suites how=()
  arguments_of "$RUN_ARGUMENTS"
  suites="$(measured_suites)"
  # Without DTYPES as the suites and configurations say, else float32.
  if [ -n "$DTYPES" ]; then how+=(--dtype "$DTYPES"); fi
  if [ -n "$CONFIGURATIONS" ]; then how+=(--configuration "$CONFIGURATIONS"); fi
  plan=(${suites:+--suite "$suites"} "${how[@]}" --out "$OUT")
  if [ -n "$MODELS" ]; then plan+=(--models "$MODELS"); fi
  if [ "$QUICK" = yes ]; then plan+=(--quick); fi
}

# Runs a command for each run that is told of, all of them whatever fails; the worst code.
for_each_run() { # FUNCTION
  local run code worst=0
  while IFS= read -r run <&3; do
    code=0
    "$1" "$run" || code=$?
    [ "$code" -le "$worst" ] || worst="$code"
    [ "$code" != 130 ] || break
  done 3< <(told_runs)
  return "$worst"
}
