#!/usr/bin/env bash
# Every check and test.
#
#   ci/test.sh                 lint, types and the tests' own servers at once, and only if these work the tests:
#                              quick ones, slow ones, those that need all cores beside those that measure nothing
#   ci/test.sh --quick         lint, types and the quick tests: minutes
#   ci/test.sh --thorough      all, with ten times as many random examples and simulated trials
#   ci/test.sh WORDS           lint and types, then pytest once with these words: --lf, -k name, tests/stats
#
# At the end it prints how long each part took.
set -euo pipefail
cd "$(dirname "$0")/.."
# Tests start Python thousands of times: what is compiled once is kept, also where the machine says otherwise.
export PYTHONDONTWRITEBYTECODE=

parts=(quick slow machine)
case "${1:-}" in
  --quick) parts=(quick) && shift ;;
  --thorough) export TEST_EFFORT=10 && shift ;;
esac
[ "$#" = 0 ] || parts=(chosen)

ci/setup.sh
ci/postgres.sh
ci/browser.sh
ci/groovy.sh
bin="${PERFDASH_VENV:-.venv}/bin"
# In memory where there is room: on a disk each fsync and each file's end take milliseconds, thousands of times.
memory_kib() { awk '/^MemAvailable/ {print $2}' /proc/meminfo; }
free_kib() { df --output=avail -k "$1" 2>/dev/null | tail -1; }
place="${TMPDIR:-/tmp}"
if [ "${parts[0]}" != chosen ] && [ "$(free_kib /dev/shm || echo 0)" -gt $((6 << 20)) ] &&
  [ "$(memory_kib)" -gt $((14 << 20)) ]; then place=/dev/shm; fi
scratch="$(mktemp -d -p "$place" perfdash-XXXXXX)"
if [ "$place" = /dev/shm ]; then export TMPDIR="$scratch"; fi
export PERFDASH_CACHE="$scratch/cache" # one for all three passes
times=()
servers_pid=
waiting_pid=
summary() {
  if [ -n "$waiting_pid" ]; then kill "$waiting_pid" 2>/dev/null && wait "$waiting_pid" || true; fi
  if [ -n "$servers_pid" ]; then kill "$servers_pid" 2>/dev/null && wait "$servers_pid" || true; fi
  rm -rf "$scratch"
  if [ "${#times[@]}" != 0 ]; then printf 'Time: %s\n' "$(printf '%s, ' "${times[@]}" | sed 's/, $//')"; fi
}
trap summary EXIT
# On Ctrl-C pytest ends with a code of its own, after which bash would run the next part.
trap 'exit 130' INT

# One pair of servers for all parts; a part starts its own where these cannot be started. Their linear algebra has
# one thread, as that of the tests (tests/conftest.py).
OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
  "$bin/python" -m tests.servers >"$scratch/servers" 2>"$scratch/servers.err" &
servers_pid="$!"
while [ ! -s "$scratch/servers" ] && kill -0 "$servers_pid" 2>/dev/null; do sleep 0.1; done
TEST_SERVERS="$(cat "$scratch/servers")"
if [ -n "$TEST_SERVERS" ]; then export TEST_SERVERS; else unset TEST_SERVERS; fi

timed() { # NAME COMMAND...
  local began="$SECONDS" code=0
  "${@:2}" || code="$?"
  times+=("$1 $(((SECONDS - began) / 60)):$(printf '%02d' $(((SECONDS - began) % 60)))")
  return "$code"
}

# All at once; what failed is shown whole. The servers that most slow tests need are tried here, too: where they
# do not start, dozens of tests would fail half an hour later.
servers=tests/test_command_server.py
lint() {
  local checks=("ruff check ." "ruff format --check ." mypy "shellcheck ci/*.sh ci/nightly/*.sh ci/jenkins/*.sh"
    ci/jenkins_lint.sh "python -m pytest -q -p no:cacheprovider $servers")
  local number pids=() failed=0
  for number in "${!checks[@]}"; do
    # mypy takes longest and has one process: the others let it run.
    PATH="$bin:$PATH" nice -n "$([ "${checks[$number]}" = mypy ] && echo 0 || echo 10)" \
      bash -c "${checks[$number]}" >"$scratch/$number" 2>&1 &
    pids+=("$!")
  done
  for number in "${!checks[@]}"; do
    wait "${pids[$number]}" || {
      failed=1
      echo "--- ${checks[$number]}"
      cat "$scratch/$number"
    }
  done
  return "$failed"
}

# The files that have such tests; tests/conftest.py sees to it that the words are there. To collect all others
# takes some ten seconds a process.
marked() { grep -rl --include='test_*.py' "mark\.$1\b" tests | sort; }

# Files whose slow tests wait for a fifth of their time or more, since what they measure sleeps, or a script does.
# They run in one process beside the others, on one of their cores.
waiting=(
  tests/ci/test_three_nights.py tests/cli/test_bisect_worker.py tests/cli/test_confirm_command.py
  tests/ci/test_gpu_day.py tests/ci/test_front_door.py tests/jenkins/test_real.py
)

# Of a shell for measurements nproc says 1: it obeys OpenMP's variables.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

tests() { # PART [WORDS...]
  local files selected code=0
  case "$1" in
    # A file to a process, so that what its tests share is made once.
    quick)
      "$bin/python" -m pytest -m "not cuda and not slow" --ignore "$servers" -n "$(cores)" --dist loadfile \
        --no-loadscope-reorder
      ;;
    # Each process on a physical core of its own, since they measure; tests/conftest.py counts these.
    slow)
      mapfile -t files < <(marked slow | grep -vxF "$(printf '%s\n' "${waiting[@]}")")
      selected="slow and not machine and not unmeasured and not cuda"
      "$bin/python" -m pytest -m "$selected" -n 1 --own-core "${waiting[@]}" >"$scratch/waiting" 2>&1 &
      waiting_pid="$!"
      "$bin/python" -m pytest -m "$selected" -n auto --own-core --dist loadfile --no-loadscope-reorder \
        "${files[@]}" || code="$?"
      wait "$waiting_pid" || code="$?"
      waiting_pid=
      cat "$scratch/waiting"
      return "$code"
      ;;
    # Those that need all cores in one process, which waits for much of its time. In two others those that
    # measure nothing.
    machine)
      mapfile -t files < <(marked slow)
      "$bin/python" -m pytest -m "(machine or slow and unmeasured) and not cuda" -n 3 --dist loadfile \
        --no-loadscope-reorder "${files[@]}"
      ;;
    chosen) "$bin/python" -m pytest -m "not cuda" "${@:2}" ;;
  esac
}

timed "lint and types" lint
# A part that fails does not hide what the next one would say.
worst=0
for part in "${parts[@]}"; do
  timed "$part" tests "$part" "$@" || worst="$?"
done
exit "$worst"
