#!/usr/bin/env bash
# Installs Groovy (2.4, what Jenkins' pipelines run on) for the tests where there is none (Debian, Ubuntu).
set -euo pipefail

if command -v groovy >/dev/null && command -v java >/dev/null; then
  exit 0
fi
command -v apt-get >/dev/null || {
  echo "ci/groovy.sh: no groovy and no apt-get; install Groovy 2.4 and a Java for the tests." >&2
  exit 3
}
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  groovy default-jre-headless >/dev/null
