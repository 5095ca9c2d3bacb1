#!/usr/bin/env bash
# Makes the environment .venv once (Python 3.11 or later, torch, the model libraries, perfdash with its test tools)
# and reuses it while its inputs stay the same. PERFDASH_VENV puts it elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="${PERFDASH_VENV:-.venv}"
python="${PYTHON:-python3}"
stamp="$venv/.perfdash-setup"
inputs="$( (cat pyproject.toml ci/constraints.txt ci/setup.sh; "$python" --version) | sha256sum | cut -d' ' -f1)"

if [ "$(cat "$stamp" 2>/dev/null)" = "$inputs" ]; then
  exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "ci/setup.sh: perfdash needs Python 3.11 or later; $python is $("$python" --version 2>&1). Set PYTHON." >&2
  exit 3
}
command -v "${CXX:-g++}" >/dev/null || {
  echo "ci/setup.sh: no C++ compiler (${CXX:-g++}); torch.compile needs one on the CPU. Install g++." >&2
  exit 3
}

echo "Setting up $venv (the first time takes some minutes) ..."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# torch and torchvision come together, from one place: a mismatch does not import.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --constraint ci/constraints.txt --editable '.[torchbench,cluster,parquet,postgres,serve,test]'
echo "$inputs" > "$stamp"
