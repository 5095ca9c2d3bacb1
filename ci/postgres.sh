#!/usr/bin/env bash
# Installs a PostgreSQL server for the tests where there is none (Debian, Ubuntu). Starts nothing.
set -euo pipefail

if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
  exit 0
fi
command -v apt-get >/dev/null || {
  echo "ci/postgres.sh: no PostgreSQL server and no apt-get; install one (initdb, postgres) for the tests." >&2
  exit 3
}
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
# The package would start a server of its own; the tests start theirs.
$sudo mkdir -p /etc/postgresql-common
grep -qs '^create_main_cluster' /etc/postgresql-common/createcluster.conf ||
  echo 'create_main_cluster = false' | $sudo tee -a /etc/postgresql-common/createcluster.conf >/dev/null
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 apt-get install -y -qq --no-install-recommends \
  -o Dpkg::Options::=--force-confold postgresql >/dev/null
