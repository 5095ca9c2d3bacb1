#!/usr/bin/env bash
# Installs Chromium and its driver for the tests where there is none (Debian, Ubuntu).
set -euo pipefail

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
