#!/usr/bin/env bash
# Every check and test.
#
#   ci/test.sh                 lint, types and the tests' own servers at once, and only if these work the tests:
#                              quick ones, slow ones, those that need all cores; those that measure nothing run
#                              beside these two, in the time that they leave
#   ci/test.sh --quick         lint, types and the quick tests: minutes
#   ci/test.sh --thorough      all, with ten times as many random examples and simulated trials
#   ci/test.sh WORDS           lint and types, then pytest once with these words: --lf, -k name, tests/stats
#
# At the end it prints how long each part took.
set -euo pipefail
cd "$(dirname "$0")/.."
# Tests start Python thousands of times: what is compiled once is kept, also where the machine says otherwise.
export PYTHONDONTWRITEBYTECODE=

parts=(quick slow machine background)
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
background_pid=
summary() {
  if [ -n "$background_pid" ]; then
    kill -INT "$background_pid" 2>/dev/null && wait "$background_pid" || true
    end_background
  fi
  if [ -n "$servers_pid" ]; then kill "$servers_pid" 2>/dev/null && wait "$servers_pid" || true; fi
  rm -rf "$scratch"
  if [ "${#times[@]}" != 0 ]; then printf 'Time: %s\n' "$(printf '%s, ' "${times[@]}" | sed 's/, $//')"; fi
}
trap summary EXIT

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
    PATH="$bin:$PATH" bash -c "${checks[$number]}" >"$scratch/$number" 2>&1 &
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

tests() { # PART [WORDS...]
  local files
  case "$1" in
    # A file to a process, so that what its tests share is made once.
    quick)
      "$bin/python" -m pytest -m "not cuda and not slow" --ignore "$servers" -n "$(nproc)" --dist loadfile \
        --no-loadscope-reorder
      ;;
    # Each process on a physical core of its own, since they measure; tests/conftest.py counts these.
    slow)
      mapfile -t files < <(marked slow)
      "$bin/python" -m pytest -m "slow and not machine and not background and not cuda" -n auto --own-core \
        --dist loadfile --no-loadscope-reorder "${files[@]}"
      ;;
    # The kernel runs these only while nothing else wants their core. They disturb no measurement, and may take long.
    background)
      mapfile -t files < <(marked slow)
      exec chrt --idle 0 "$bin/python" -m pytest -m "background and not cuda" -n auto --own-core \
        --dist loadfile --no-loadscope-reorder --timeout 1800 -o cache_dir="$scratch/background-cache" "${files[@]}"
      ;;
    machine)
      mapfile -t files < <(marked machine)
      "$bin/python" -m pytest -m "machine and not cuda" "${files[@]}"
      ;;
    chosen) "$bin/python" -m pytest -m "not cuda" "${@:2}" ;;
  esac
}

# It begins with what is known to have failed, so that it says what of this does not fail any more.
begin_background() {
  local cache="$scratch/background-cache/v/cache"
  mkdir -p "$cache"
  cp .pytest_cache/v/cache/lastfailed "$cache" 2>/dev/null || echo "{}" >"$cache/lastfailed"
  cp "$cache/lastfailed" "$scratch/known"
  tests background >"$scratch/background" 2>&1 &
  background_pid="$!"
}

end_background() { # what it printed; and what failed there is among what --lf runs
  background_pid=
  cat "$scratch/background"
  mkdir -p .pytest_cache/v/cache
  "$bin/python" - "$scratch/known" "$scratch/background-cache/v/cache/lastfailed" .pytest_cache/v/cache/lastfailed <<'EOF'
import json, pathlib, sys
paths = [pathlib.Path(name) for name in sys.argv[1:]]
known, there, here = (json.loads(path.read_text()) if path.exists() else {} for path in paths)
new = {test: True for test in there if test not in known}
paths[2].write_text(json.dumps(new | {test: True for test in here if test in there or test not in known}))
EOF
}

timed "lint and types" lint
# A part that fails does not hide what the next one would say.
worst=0
for part in "${parts[@]}"; do
  case "$part" in
    slow) begin_background ;;
    background)
      timed "rest of the background" wait "$background_pid" || worst="$?"
      end_background
      continue
      ;;
  esac
  timed "$part" tests "$part" "$@" || worst="$?"
done
exit "$worst"
