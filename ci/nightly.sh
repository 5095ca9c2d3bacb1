#!/usr/bin/env bash
# A night from the torch build to the posted comment, or a first look: `ci/nightly.sh --quick` sets up what is
# missing, measures ten models and prints the summary. docs/nightly.md has the parameters; each is a variable
# (TORCH=nightly) or an option of that name (--torch nightly). Other options go to `perfdash run`.
#
#   ci/nightly.sh [--PARAMETER VALUE ...] [--quick] [options of perfdash run]
#   ci/nightly.sh --dry-run ...                   what would be measured, in how many hours; measures nothing
#   ci/nightly.sh --resume last|FOLDER            the stages that are left, and those that failed
#   ci/nightly.sh --resume ... --from STAGE       from this stage on, once more
#   ci/nightly.sh --resume ... --only STAGE       this stage alone, once more
#   ci/nightly.sh --resume ... --retry timeout    the cases that ended so, once more; --timeout 7200 and what else
#                                                 perfdash run --resume may change go with it
#
# Exit codes: 0 all went well; 1 a gate (FAIL_ON) failed; 2 wrong usage; 3 a stage failed; 130 interrupted.
here="$PWD"
. "$(dirname "${BASH_SOURCE[0]}")/nightly/common.sh"
. ci/nightly/parameters.sh

# The report follows the re-measurement of suspected changes, and is written again after a bisection.
stages=(setup torch host measure merge detect confirm report post bisect report2 post2 publish notify)
resume="" from="" only="" dry=no
given=() passed=()
declare -A lists=() # of options that may be repeated

usage() {
  sed -n '2,/^here=/{/^here=/d;s/^# \{0,1\}//;p}' ci/nightly.sh
  echo "Stages: ${stages[*]}"
}

parameter_of() { # --OPTION: the parameter that it sets, or nothing
  local name
  case "$1" in
    --db) echo PERFDASH_DB && return ;;
    --suite | --dtype | --device | --configuration) name="${1#--}s" ;;
    *) name="${1#--}" ;;
  esac
  name="$(tr 'a-z-' 'A-Z_' <<<"$name")"
  # --fail-on is an option of perfdash run: there it takes more than what the night as a whole is asked for.
  case "$name" in QUICK | FAIL_ON | RUN_ARGUMENTS) return ;; esac
  for known in "${nightly_parameters[@]}"; do
    if [ "$known" = "$name" ]; then echo "$name"; fi
  done
}

# The value of an option of perfdash run: a file is meant where the command was typed.
value_of_run() { # OPTION VALUE
  local each all=()
  case "$1" in
    --model | --torchbench | --data | --junit) absolute "$2" ;;
    --weights | --costs) # also a name
      if [[ "$2" = "~"/* ]] || [ -e "$here/$2" ]; then absolute "$2"; else printf '%s\n' "$2"; fi
      ;;
    --backend) # names and files, by commas
      IFS=, read -ra all <<<"$2"
      for each in "${all[@]}"; do
        case "$each" in *.py) absolute "$each" ;; *) printf '%s\n' "$each" ;; esac
      done | paste -sd,
      ;;
    *) printf '%s\n' "$2" ;;
  esac
}

before="" # the last word that was passed on
while [ "$#" -gt 0 ]; do
  word="$1" value="" joined=no
  shift
  case "$word" in
    -h | --help) usage && exit 0 ;;
    --dry-run) dry=yes && continue ;;
    --quick) given+=("QUICK=yes") && continue ;;
    --*=*) value="${word#*=}" word="${word%%=*}" joined=yes ;;
  esac
  name=""
  case "$word" in --resume | --from | --only) name=own ;; --*) name="$(parameter_of "$word")" ;; esac
  if [ -z "$name" ]; then
    if [ "$joined" = yes ]; then
      word+="=$(value_of_run "$word" "$value")"
    else
      word="$(value_of_run "$before" "$word")"
    fi
    passed+=("$word")
    before="$word"
    continue
  fi
  if [ "$joined" = no ]; then
    [ "$#" -gt 0 ] || complain 2 "$word needs a value"
    value="$1" && shift
  fi
  case "$word" in
    --resume) resume="$value" ;;
    --from) from="$value" ;;
    --only) only="$value" ;;
    *)
      if [ "$name" = PERFDASH_DB ] && has_password "$value"; then
        complain 2 "--db: a password is seen there by others; put the address into PERFDASH_DB, or the" \
          "password into PGPASSWORD or ~/.pgpass"
      fi
      case "$name" in
        SUITES | MODELS | CONFIGURATIONS | DTYPES | DEVICES | THREADS)
          value="${lists[$name]:+${lists[$name]},}$value"
          lists[$name]="$value"
          ;;
      esac
      given+=("$name=$value")
      ;;
  esac
done
for stage in $from $only; do
  [[ " ${stages[*]} " = *" $stage "* ]] || complain 2 "there is no stage $stage; there are: ${stages[*]}"
done
if [ -n "$from$only" ] && [ -z "$resume" ]; then resume=last; fi

# Parameters: an option before a resumed night's settings, those before the environment, that before the default.
for pair in "${given[@]}"; do declare "$pair"; done
RESUME_ARGUMENTS="" new_arguments=""
if [ "${#passed[@]}" != 0 ]; then
  case "$resume:$from:$only" in
    :* | *:setup: | *:torch: | *:host: | *:measure: | *::measure) # all is measured in new runs
      new_arguments="$(quoted "${passed[@]}")"
      ;;
    *::) RESUME_ARGUMENTS="$(quoted "${passed[@]}")" ;;
    *) complain 2 "${passed[0]} is for what is measured, and $from$only measures nothing: leave one of them out" ;;
  esac
fi
# A stage that is done keeps its parameters: another value would change nothing but the night's settings.
keep_parameters() { # STAGE NAMES...
  local pair name option again="repeat the stage"
  case "$1" in torch | measure) again="measure all again" ;; esac
  for pair in "${kept[@]}"; do
    name="${pair%%=*}"
    if [[ " ${*:2} " = *" $name "* ]] && [ "${pair#*=}" != "${!name}" ]; then
      option="$(tr 'A-Z_' 'a-z-' <<<"$name")"
      complain 2 "--$option: a resumed night keeps it; leave it out, or $again by --from $1"
    fi
  done
}
# Whether the stages after this one are done once more.
renews() { # STAGE
  case "$1" in torch | measure | merge | detect | confirm | bisect) ;; *) return 1 ;; esac
}
# Whether this resumed night does a stage.
will_run() { # STAGE
  local each renewed=no
  if [ -n "$only" ]; then
    [ "$only" = "$1" ]
    return
  fi
  for each in "${stages[@]}"; do
    if [ "$each" = "$from" ]; then return 0; fi
    if [ -z "$from" ] && { [ ! -e "$night/$each.done" ] || [[ "$each:$RESUME_ARGUMENTS" = measure:*"'--retry"* ]]; }; then
      if [ "$each" = "$1" ] || renews "$each"; then renewed=yes; fi
    fi
    if [ "$each" = "$1" ]; then break; fi
  done
  # The report of a bisection is for what was bisected.
  if [[ "$1" = *2 ]] && [ -z "$from" ] && [ ! -s "$night/bisected" ]; then return 1; fi
  [ "$renewed" = yes ]
}
keep_parameters_of() { # STAGES NAMES...: unless one of these stages will run
  local each
  for each in $1; do
    if will_run "$each"; then return 0; fi
  done
  keep_parameters "${1%% *}" "${@:2}"
}
resolve_paths
if [ -n "$resume" ]; then
  nights="$OUT/nightly"
  case "$resume" in
    last)
      night="$(find "$nights" -mindepth 2 -maxdepth 2 -name settings 2>/dev/null | sort | tail -1 || true)"
      night="${night%/settings}"
      ;;
    *) night="$(absolute "$resume")" && [ -d "$night" ] || night="$nights/$resume" ;;
  esac
  [ -f "$night/settings" ] || complain 2 "--resume $resume: no nightly there (of a run: perfdash run --resume)"
  night="$(cd "$night" && pwd)"
  kept=()
  for pair in "${given[@]}"; do name="${pair%%=*}" && kept+=("$name=${!name}"); done
  # shellcheck disable=SC1091
  . "$night/settings"
  case "$from:$only" in
    setup: | torch: | :torch) ;;
    *) if [ -e "$night/torch.done" ]; then keep_parameters torch TORCH TORCH_REPO TORCH_WITH UNDER_TEST; fi ;;
  esac
  case "$from:$only" in
    setup: | torch: | host: | measure: | :measure) ;;
    *)
      if [ -e "$night/measure.log" ]; then
        keep_parameters measure SUITES MODELS CONFIGURATIONS DTYPES DEVICES THREADS SHARDS SHARD QUICK BASE_RUNS LINE
      fi
      ;;
  esac
  keep_parameters_of confirm CONFIRM_MOST CONFIRM_MINUTES
  keep_parameters_of "report post report2 post2 notify" BASELINE SITE_URL
  keep_parameters_of "post post2" POST REPO ISSUE NEW_ISSUE_ON GITHUB_API
  keep_parameters_of bisect BISECT BISECT_RECIPE BISECT_REPO BISECT_MOST BISECT_HOURS
  keep_parameters_of publish SITE_DIR
  keep_parameters_of notify MAIL_TO WEBHOOK
  for pair in "${kept[@]}"; do declare "$pair"; done
  # The command of the night once more.
  if [[ " $RUN_ARGUMENTS" = *" $RESUME_ARGUMENTS" ]]; then RESUME_ARGUMENTS=""; fi
fi
# The options of a night stay when it is measured again; of an option that is given twice the later one counts.
if [ -n "$new_arguments" ] && [[ " $RUN_ARGUMENTS" != *" $new_arguments" ]]; then
  RUN_ARGUMENTS+="${RUN_ARGUMENTS:+ }$new_arguments"
fi
check_parameters
if [ -n "$RESUME_ARGUMENTS" ] && [[ "$RESUME_ARGUMENTS" != *"'--retry"* ]] && [ -e "$night/measure.done" ]; then
  complain 2 "all cases of $night have a result: with these options give --retry STATUS, or leave them out"
fi
check_paths
nightly_environment() {
  # shellcheck disable=SC2163 # the names in it
  export "${nightly_parameters[@]}" RESUME_ARGUMENTS
  if [ -n "${PERFDASH_DB:-}" ]; then export PERFDASH_DB; fi
}
if [ "$dry" = yes ]; then
  hide_secrets PERFDASH_DB
  nightly_environment
  exec env "${hidden[@]}" ci/nightly/outlook.sh
fi

OUT="$(mkdir -p "$OUT" && cd "$OUT" && pwd)" || complain 3 "OUT=$OUT: this folder cannot be made"
nights="$OUT/nightly"
if [ -n "$resume" ]; then nights="$(dirname "$night")"; fi
nightly_environment
if [ -n "${PERFDASH_DB:-}" ] && ! has_password "$PERFDASH_DB"; then # else it must be set again to resume
  nightly_parameters+=(PERFDASH_DB)
fi

mkdir -p "$nights"
exec 9>>"$nights/.lock"
lock 9 || complain 3 "another nightly is running in $OUT; wait for it, or end it"
if [ -z "$resume" ]; then
  night="$nights/$(date -u +%Y-%m-%dT%H-%M-%SZ)"
  while [ -e "$night" ]; do sleep 1 && night="$nights/$(date -u +%Y-%m-%dT%H-%M-%SZ)"; done
  mkdir "$night"
fi
rm -f "$night/.settings"
( # options of perfdash run are in it, and a password may be among them
  umask 077
  for name in "${nightly_parameters[@]}"; do printf '%s=%q\n' "$name" "${!name}"; done >"$night/.settings"
)
mv "$night/.settings" "$night/settings"
export PERFDASH_NIGHTLY="$night"
say "Nightly $(basename "$night") in $night"
if [[ "$RESUME_ARGUMENTS" = *"'--retry"* ]]; then rm -f "$night/measure.done" "$night/cells/"*.done; fi

job=""
interrupted=no
stopping=no # the stop of a machine is not interrupted: it has a limit of its own
interrupt() {
  interrupted=yes
  if [ -n "$job" ] && [ "$stopping" = no ]; then kill -INT -- "-$job" 2>/dev/null || true; fi
}
trap interrupt INT TERM HUP
trap : PIPE # `| head` ends what is shown, not the night; what it starts dies of it as ever
export HOST_HOLDER="$$"
# However it ends; also after a night that was killed.
restore() {
  local log="$night/host.log"
  if [ "$HOST" != apply ]; then return 0; fi
  { : >>"$log"; } 2>/dev/null || log=/dev/null # also where the disk has become read-only
  (drop_secrets && ci/prepare_host.sh --restore) >>"$log" 2>&1 ||
    say "The host was not restored: see $night/host.log, then ci/prepare_host.sh --restore" >&2
}
trap 'stop_machine || true; dismiss_guard; restore' EXIT

# Of perfdash's secrets a stage gets those that it uses.
hide_secrets_from() { # STAGE
  case "$1" in
    torch | host | start | stop) hide_secrets ;;
    post*) hide_secrets PERFDASH_DB GITHUB_TOKEN ;;
    notify) hide_secrets PERFDASH_DB PERFDASH_SMTP_PASSWORD PERFDASH_WEBHOOK ;;
    *) hide_secrets PERFDASH_DB ;;
  esac
}

# A stage in a process group of its own, its output into its log and shown; the exit code.
# Where the log cannot be written (a disk that has become read-only) it is only shown.
run_stage() { # STAGE ARGUMENTS...
  local code=0 watcher="" words out log="$night/$1.log"
  hide_secrets_from "$1"
  if { exec {out}>>"$log"; } 2>/dev/null; then
    from_line="$(($(wc -l <"$log") + 1))"
  else
    say "$log cannot be written" >&2
    from_line=""
    exec {out}>&1
    log=""
  fi
  set -m # else what is in the background would not hear of Ctrl-C
  # What a script started in the background ignores Ctrl-C, and so would what it starts: it must end by a signal.
  case "$1" in start | stop) words=(ci/nightly/machine.sh "$1") ;; *) words=("ci/nightly/${1%2}.sh" "${@:2}") ;; esac
  env --default-signal=INT "${hidden[@]}" "${words[@]}" >&"$out" 2>&1 </dev/null {out}>&- &
  job="$!"
  set +m
  exec {out}>&-
  if [ -n "$log" ]; then
    tail --silent --lines="+$from_line" --follow --sleep-interval=0.3 --pid="$job" "$log" 2>/dev/null 9>&- &
    watcher="$!"
  fi
  while :; do
    code=0
    wait "$job" || code="$?"
    kill -0 "$job" 2>/dev/null || break # else a signal ended the wait, not the stage
  done
  job=""
  [ -z "$watcher" ] || wait "$watcher" || true
  return "$code"
}

# Why a stage cannot do its work tonight; nothing where it can.
lacks() { # STAGE
  case "$1" in
    setup | notify) return ;;
  esac
  if [ ! -e "$night/ready" ]; then echo "perfdash is not set up" && return; fi
  case "$1" in
    measure) if [ -e "$night/torch.failed" ]; then echo "there is no torch to measure"; fi ;;
    merge | detect | report* | post* | confirm | bisect)
      if [ ! -s "$night/runs" ]; then echo "nothing was measured"; fi
      ;;
  esac
}

# The last error that a stage printed this time, else its last line; where it failed, if it printed nothing else.
from_line=1 # in its log; empty where that cannot be written
last_words() { # STAGE
  local printed words
  if [ -z "$from_line" ]; then echo "$night/$1.log cannot be written" && return; fi
  printed="$(tail --lines="+$from_line" "$night/$1.log" | grep -av '^ *$' || true)"
  words="$(grep -a '^perfdash: ' <<<"$printed" | tail -1 || true)" # what to do may stand after it
  words="${words#perfdash: }"
  if [ -z "$words" ]; then words="$(grep -av '^\[.*\]$' <<<"$printed" | tail -1 || true)"; fi
  if [ -z "$words" ]; then words="$(head -1 <<<"$printed")"; fi
  cut -c1-1000 <<<"${words:-it printed nothing}" # perfdash cuts it further, once no secret is in it
}
said_failures() { printf '%s\n' "${failures[@]}" | paste -sd';' | sed 's/;/; /g'; }

worst=0
gates=() # no failures: the night is complete, and its news says what is worse
failures=()
excerpts=() # stage and first line of each log to show
fail() { # STAGE CODE [WHEN]
  if [[ "$2:$1" = 1:measure || "$2:$1" = 1:report* ]]; then # the scripts with a gate
    if [ "$worst" = 0 ]; then worst=1; fi
    gates+=("$1: a gate failed${3:-}")
  else
    worst=3
    failures+=("$1 failed with exit code $2${3:-}: $(last_words "$1")")
    if [ -n "$from_line" ]; then excerpts+=("$1 $from_line"); fi
  fi
}

do_stage() { # STAGE
  local began took code=0 words=()
  if [ "$1" = notify ] && [ "${#failures[@]}" != 0 ]; then words=("$(said_failures)"); fi
  say "--- $1"
  printf -v began '%(%s)T' -1 # as date +%s, and without a process
  run_stage "$1" "${words[@]}" || code="$?"
  printf -v took '%(%s)T' -1
  took="$((took - began))"
  if [ "$1" != stop ] && { [ "$interrupted" = yes ] || [ "$code" = 130 ]; }; then
    interrupted=yes code=130
  elif [ "$code" != 0 ]; then fail "$1" "$code"; fi
  # A disk that is full must not end the night before somebody is told.
  if [ "$code" = 0 ]; then printf '0 %s\n' "$took" >"$night/$1.done" || fail "$1" 3; else
    printf '%s %s\n' "$code" "$took" >"$night/$1.failed" || true
  fi
}

show_failures() {
  local each stage first
  for each in "${gates[@]}" "${failures[@]}"; do say "$each"; done
  for each in "${excerpts[@]}"; do
    read -r stage first <<<"$each"
    say "Last lines of $stage ($night/$stage.log has all):"
    plain_python ci/nightly/last_lines.py "$night/$stage.log" "$first" 20 2>/dev/null || true
  done
}

# A machine that comes and goes. Where this nightly is killed, its guard stops it. The file `machine` is there from its start until its stop has succeeded, so that
# a resumed night stops it, too.
machine=unknown
guard=""
dismiss_guard() { if [ -n "$guard" ]; then kill -TERM -- "-$guard" 2>/dev/null || true; fi; }
start_machine() { # its failure leaves out what needs the machine
  if [ "$machine" != unknown ]; then return 0; fi
  machine=started
  if [ -n "$STOP_COMMAND" ]; then
    if ! touch "$night/machine"; then # as on a disk that has become read-only: nothing would stop it
      machine=missing worst=3
      failures+=("start failed: $night/machine cannot be written")
      return 0
    fi
    hide_secrets_from stop
    setsid env "${hidden[@]}" ci/nightly/machine.sh guard "$$" >>"$night/stop.log" 2>&1 </dev/null 9>&- &
    guard="$!"
  fi
  if [ -z "$START_COMMAND" ]; then return 0; fi
  rm -f "$night/start.done" "$night/start.failed"
  do_stage start
  if [ -e "$night/start.failed" ]; then machine=missing; fi
}
stop_machine() { # once
  if [ -z "$STOP_COMMAND" ] || [ ! -e "$night/machine" ] || [ "$machine" = stopped ]; then return 0; fi
  machine=stopped stopping=yes
  restore
  rm -f "$night/stop.done" "$night/stop.failed"
  do_stage stop
  stopping=no
  if [ -e "$night/stop.done" ]; then rm -f "$night/machine"; elif [ "$interrupted" = yes ]; then show_failures >&2; fi
}

again=no
quiet=no
for stage in "${stages[@]}"; do
  if [ "$interrupted" = yes ]; then break; fi
  if [ -n "$only" ] && [ "$stage" != "$only" ]; then continue; fi
  if [ "$stage" = "$from" ] || [ "$stage" = "$only" ]; then again=yes; fi
  if [ -n "$from" ] && [ "$again" = no ]; then
    from_line=1
    if [ -e "$night/$stage.failed" ]; then fail "$stage" "$(cut -d' ' -f1 "$night/$stage.failed")" ", before"; fi
    continue
  fi
  # Once more what was done, where something before it was done anew.
  if [ -e "$night/$stage.done" ] && [ "$again" = no ]; then continue; fi
  rm -f "$night/$stage.done" "$night/$stage.failed"
  case "$stage" in
    report2) stop_machine ;; # no later stage needs it
  esac
  if [[ "$stage" = *2 ]] && [ -z "$from$only" ] && [ ! -s "$night/bisected" ]; then continue; fi
  why="$(lacks "$stage")"
  if [ -n "$why" ]; then
    say "--- $stage: left out, $why"
    worst=3
    continue
  fi
  case "$stage" in
    host | measure | confirm | bisect)
      if [ "$stage" != host ] || [ ! -e "$night/torch.failed" ]; then start_machine; fi
      if [ "$interrupted" = yes ]; then break; fi
      if [ "$machine" = missing ]; then
        say "--- $stage: left out, the machine was not started"
        continue
      fi
      ;;
  esac
  case "$stage" in
    host) quiet=yes ;;
    measure | confirm | bisect)
      # Whatever was set by the night that is gone on with: it was restored, or forgotten by a restart.
      if [ "$HOST" = apply ] && [ "$quiet" = no ]; then quiet=yes && do_stage host; fi
      if [ "$interrupted" = yes ]; then break; fi
      ;;
  esac
  if [ "$stage" = measure ] && [ -n "$from$only" ] && [ "$again" = yes ]; then
    rm -rf "$night/cells" "$night/runs" "$night/run" "$night/base" "$night/merged"
    echo "$(($(cat "$night/anew" 2>/dev/null || echo 0) + 1))" >"$night/anew" # so that measure.sh resumes none of them
  fi
  do_stage "$stage"
  if [ -z "$only" ] && renews "$stage"; then again=yes; fi
done

stop_machine
if [ "$interrupted" = yes ]; then
  say "Interrupted. To continue: ci/nightly.sh --resume $(printf %q "$night")" >&2
  exit 130
fi
if [ -z "$only" ]; then
  state=ok
  if [ "$worst" = 3 ]; then state=partial; fi
  if [ ! -s "$night/runs" ]; then state=failed; fi
  hide_secrets_from heartbeat
  env "${hidden[@]}" ci/nightly/heartbeat.sh end "$state" "$(said_failures)" 2>&1 || worst=3
fi
say ""
show_failures
while IFS= read -r run; do say "Measured: $run"; done < <(told_runs)
if [ -e "$(told_runs | head -1)/run.json" ]; then say "Report: $night"; fi
if [ "$worst" = 3 ]; then say "To try what failed again: ci/nightly.sh --resume $(printf %q "$night")"; fi
exit "$worst"
