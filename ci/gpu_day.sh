#!/usr/bin/env bash
# A first day on a GPU: whether perfdash measures right there, then numbers to publish, in a few minutes.
#
#   ci/gpu_day.sh [--minutes 25] [--device cuda|cpu] [--out gpu-day]
#   ci/gpu_day.sh --piece ...            one piece of at most 8 minutes (--piece-minutes), then stop; called again
#                                        it goes on. A piece that is killed loses nothing but the case under way.
#   ci/gpu_day.sh --plan ...             what would be done in the minutes, and what is left out; measures nothing
#   ci/gpu_day.sh --wheels DIR ...       where pip reaches no index: install the wheels of a folder first
#   ci/gpu_day.sh --archive FILE.tar.gz  also pack OUT into a file; where OUT is missing, go on from that file
#
# Steps: doctor; the tests marked `cuda`; models of known time, memory and kernels; models of each suite in
# float32, bfloat16 and float16, with inductor and with CUDA graphs; techniques on ResNet-50 and ViT-B/16 by
# batch size; generation of a 1.3B decoder until memory ends; training of variants. Where the minutes do not
# suffice the least important cases are left out, and it says which. --device cpu rehearses it all with small
# stand-ins. OUT holds README.md, day.json, runs/, tables/, plots/ and logs/, to publish in results/.
#
# Needs Python 3.11 and a torch for the GPU ($PERFDASH_PYTHON, else .venv, else python3). Beside torch:
#   to run:     numpy scipy pydantic pydantic-core annotated-types typing-inspection typing-extensions typer click
#               rich shellingham packaging prettytable wcwidth sqlalchemy greenlet alembic mako ruptures jinja2
#               markdown-it-py pandas requests pyyaml, and nvidia-ml-py for what the GPU does meanwhile
#   for tables and plots: matplotlib; for the tests: pytest pytest-timeout hypothesis
#   for models: torchvision timm transformers safetensors, each of the build that goes with torch
# `pip download -d DIR --only-binary=:all: NAME ...` on another machine fetches the missing ones for --wheels.
#
# Exit codes: 0 done, or done for this piece; 1 a known value was missed, or a step failed; 2 wrong usage;
# 3 nothing could be measured; 130 interrupted.
set -Eeuo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. ci/secrets.sh
drop_secrets

wheels="" given=()
while [ "$#" -gt 0 ]; do
  case "$1" in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
  case "$1" in
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' ci/gpu_day.sh && exit 0 ;;
    --wheels | --out | --archive)
      [ "$#" -gt 1 ] || { echo "ci/gpu_day.sh: $1 needs a value" >&2 && exit 2; }
      path="$2"
      case "$path" in /*) ;; *) path="$here/$path" ;; esac
      if [ "$1" = --wheels ]; then wheels="$path"; else given+=("$1" "$path"); fi
      shift
      ;;
    *) given+=("$1") ;;
  esac
  shift
done

python="${PERFDASH_PYTHON:-}"
if [ -z "$python" ]; then
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
fi
if [ -n "$wheels" ]; then
  compgen -G "$wheels/*.whl" >/dev/null || { echo "ci/gpu_day.sh: no wheels in $wheels" >&2 && exit 2; }
  site="${TMPDIR:-/tmp}/perfdash-gpu-day-$UID"
  if [ ! -e "$site/installed" ] || [ "$wheels" -nt "$site/installed" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl ||
      exit 3
    touch "$site/installed"
  fi
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" ci/gpu_day/day.py ${given[@]+"${given[@]}"}
