#!/usr/bin/env bash
# Makes the environment .venv once (Python 3.11 or later, torch, the model libraries, perfdash with its test tools)
# and reuses it while its inputs stay the same. PERFDASH_VENV puts it elsewhere, PYTHON names the interpreter.
# --system: instead, the packages of Debian or Ubuntu that all this needs, as root or by sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
. ci/secrets.sh
drop_secrets # apt-get, pip and the build scripts of packages run code of others

# Compiler and headers for torch.compile; git for bisecting; cmake, ninja and ccache for torch from source;
# allocators that a measurement may preload; numactl; what ci/prepare_host.sh and ci/nightly.sh call.
packages=(
  ca-certificates g++ git python3 python3-dev python3-venv
  cmake ninja-build ccache
  libgomp1 libjemalloc2 libtcmalloc-minimal4 numactl
  mawk procps util-linux
)

system() {
  local missing=() package sudo=""
  command -v apt-get >/dev/null || {
    echo "ci/setup.sh --system: no apt-get here; install what it would by hand: ${packages[*]}" >&2
    exit 3
  }
  for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  if [ "${#missing[@]}" = 0 ]; then return; fi
  echo "Installing ${missing[*]} ..."
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

case "$#:${1:-}" in
  0:) ;;
  1:--system)
    system
    exit 0
    ;;
  *)
    echo "ci/setup.sh: '$*' is none of its options; there is --system." >&2
    exit 2
    ;;
esac

venv="${PERFDASH_VENV:-.venv}"
python="${PYTHON:-python3}"
command -v "$python" >/dev/null || {
  echo "ci/setup.sh: there is no $python; perfdash needs Python 3.11 or later. Set PYTHON." >&2
  exit 3
}
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
# Without pip it was half made, or the machine has another Python since, and the packages are those of the old one.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || {
  if [ -e "$venv/pyvenv.cfg" ]; then rm -f "$venv"/bin/python*; fi # links to what may be gone
  hash -r # where it is activated, bash remembers python3 as one of them
  "$python" -m venv "$venv"
}
# torch and torchvision come together, from one place: a mismatch does not import.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --constraint ci/constraints.txt --editable '.[torchbench,techniques,gpu,cluster,parquet,postgres,serve,test]'
echo "$inputs" > "$stamp"
