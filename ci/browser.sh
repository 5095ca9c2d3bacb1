#!/usr/bin/env bash
# What the tests of pages need, where it is not there yet: Chromium and its driver (Debian, Ubuntu), and axe, which
# looks for what keeps people with a screen reader or a keyboard from using a page.
set -euo pipefail
cd "$(dirname "$0")/.."

# A wheel that brings axe's one script; what else it is for is not needed.
axe="axe-playwright-python==0.1.8"
place="${XDG_CACHE_HOME:-$HOME/.cache}/perfdash/axe"
if [ "$(cat "$place/version" 2>/dev/null)" != "$axe" ]; then
  new="$(mktemp -d)"
  trap 'rm -rf "$new"' EXIT
  python="${PERFDASH_VENV:-.venv}/bin/python"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$new/wheel" "$axe"
  mkdir -p "$place"
  cp "$new/wheel/axe_playwright_python/axe.min.js" "$place/axe.min.js"
  echo "$axe" >"$place/version"
fi

if command -v chromedriver >/dev/null && { command -v chromium || command -v chromium-browser; } >/dev/null; then
  exit 0
fi
command -v apt-get >/dev/null || {
  echo "ci/browser.sh: no Chromium with chromedriver, and no apt-get; install them for the tests." >&2
  exit 3
}
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  chromium chromium-driver fonts-dejavu-core >/dev/null
