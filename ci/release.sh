#!/usr/bin/env bash
# Builds the wheel and the sdist, checks both, and tries each in a new environment. Publishes nothing.
#
#   ci/release.sh [FOLDER]      (default: dist)
#
# Tried are: the wheel without torch (list, check of the message, reports), and the wheel and the sdist with
# the torch of PERFDASH_VENV (default: .venv), whose packages the new environment sees after its own.
set -euo pipefail
unset PYTHONPATH PYTHONHOME # what is tried is what was installed, not this checkout
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
folder="$(realpath -m "${1:-dist}")"
python="$(realpath -s "${PERFDASH_VENV:-.venv}")/bin/python"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

say() { echo "== $*"; }
fail() { echo "ci/release.sh: $*" >&2; exit 1; }

version="$("$python" - <<'PY'
import re
from pathlib import Path
print(re.search(r'__version__ = "([^"]+)"', Path("perfdash/__init__.py").read_text())[1])
PY
)"
grep -q "^## $version\$" CHANGELOG.md || fail "CHANGELOG.md has no section for version $version"

say "Building $version"
rm -rf "$work/dist"
"$python" -m build --quiet --outdir "$work/dist" .
wheel="$(echo "$work"/dist/*.whl)"
sdist="$(echo "$work"/dist/*.tar.gz)"

say "Contents"
"$python" - "$wheel" "$sdist" <<'PY'
import sys, tarfile, zipfile
wheel, sdist = sys.argv[1:]
names = zipfile.ZipFile(wheel).namelist()
for part in ("perfdash/cli/__init__.py", "perfdash/_bundled/suites/timm.toml", "perfdash/_bundled/configurations/",
             "perfdash/_bundled/bisect/", "perfdash/site/assets/site.css", "perfdash/history/migrations/",
             "entry_points.txt", "METADATA"):
    assert any(part in name for name in names), f"the wheel has no {part}"
assert not any(name.startswith(("tests/", "docs/")) for name in names), "the wheel has tests or docs"
inside = [name.partition("/")[2] for name in tarfile.open(sdist).getnames()]
for part in ("README.md", "LICENSE", "CHANGELOG.md", "docs/tutorial.md", "tests/conftest.py", "ci/nightly.sh",
             "mkdocs.yml"):
    assert part in inside, f"the sdist has no {part}"
print(f"{len(names)} files in the wheel, {len(inside)} in the sdist")
PY

mkdir "$work/away dir" # a path with a space
cat >"$work/away dir/net.py" <<'PY'
import torch
def make(batch_size):
    return torch.nn.Linear(64, 64), (torch.randn(batch_size, 64),)
PY

# The new environment, with the packages of PERFDASH_VENV behind its own.
environment() { # NAME DISTRIBUTION
  "$python" -m venv "$work/$1"
  "$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$work/behind"
  cp "$work/behind" "$("$work/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/behind.pth"
  "$work/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$2"
}

tried() { # NAME: the installed perfdash measures a model and shows it
  local bin="$work/$1/bin"
  (
    cd "$work/away dir"
    [ "$("$bin/perfdash" --version)" = "perfdash $version" ] || fail "$1: perfdash --version is another one"
    where="$("$bin/python" -c 'import perfdash; print(perfdash.__file__)')"
    case "$where" in "$work/$1/"*) ;; *) fail "$1: perfdash is imported from $where" ;; esac
    "$bin/perfdash" list timm >/dev/null
    "$bin/perfdash" run --model net.py:make --backend aot-eager --processes 1 --out "runs $1" >log.txt 2>&1 ||
      { cat log.txt; fail "$1: perfdash run failed"; }
    "$bin/perfdash" show --out "runs $1" | grep -q net.make || fail "$1: perfdash show does not show the run"
    "$bin/perfdash" report --format html --to night.html --out "runs $1"
    "$bin/perfdash" site --to "site $1" --out "runs $1" >/dev/null
  )
}

say "The wheel with torch"
environment wheel "$wheel"
tried wheel
say "The sdist with torch"
environment sdist "$sdist"
tried sdist

say "The wheel without torch"
"$python" -m venv "$work/bare"
"$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check -c ci/constraints.txt "$wheel"
(
  cd "$work/away dir"
  "$work/bare/bin/python" -c 'import torch' 2>/dev/null && fail "bare: torch is installed"
  "$work/bare/bin/perfdash" list timm >/dev/null
  "$work/bare/bin/perfdash" show --out "runs wheel" >/dev/null
  code=0
  message="$("$work/bare/bin/perfdash" run --model net.py:make 2>&1)" || code=$?
  if [ "$code" != 3 ] || ! grep -q "torch does not import" <<<"$message"; then
    fail "bare: exit code $code without torch, not 3 with a message: $message"
  fi
  "$work/bare/bin/perfdash" run --model net.py:make --python "$python" --backend aot-eager --processes 1 \
    --out "runs bare" >log.txt 2>&1 || { cat log.txt; fail "bare: --python with torch failed"; }
)

mkdir -p "$folder"
cp "$wheel" "$sdist" "$folder/"
say "Done: $folder/$(basename "$wheel"), $folder/$(basename "$sdist")"
echo "Tried under $("$python" --version) alone; for other versions run it with another PERFDASH_VENV."
