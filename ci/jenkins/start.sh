#!/usr/bin/env bash
# Starts a Jenkins controller on loopback with the plugins and the jobs nightly, bisect and compare. Needs docker
# or podman with its compose. docs/jenkins.md says what comes after it.
#
#   PERFDASH_REPOSITORY=ADDRESS ci/jenkins/start.sh          builds it and starts it; again after each change
#   PERFDASH_REPOSITORY=ADDRESS ci/jenkins/start.sh down     any command of compose
#
# Secrets are files in PERFDASH_SECRETS (~/.config/perfdash/jenkins): admin_password, which is made where there is
# none; github_token, db, smtp_password, webhook, which may be empty.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=ci/secrets.sh
source ../secrets.sh
export PERFDASH_SECRETS="${PERFDASH_SECRETS:-${XDG_CONFIG_HOME:-$HOME/.config}/perfdash/jenkins}"
export JENKINS_URL="${JENKINS_URL:-http://127.0.0.1:${JENKINS_PORT:-8080}/}"
complain() { # CODE WORDS...
  printf 'ci/jenkins/start.sh: %s\n' "${*:2}" >&2
  exit "$1"
}

if [ -z "${PERFDASH_REPOSITORY:-}" ]; then
  complain 2 "give the address of your clone of perfdash, which the jobs check out: PERFDASH_REPOSITORY=ADDRESS"
elif has_address_with_password "$PERFDASH_REPOSITORY"; then
  complain 2 "PERFDASH_REPOSITORY: an address with a password would be shown in the jobs; leave it out"
fi
engine=""
for each in docker podman; do
  if [ -z "$engine" ] && "$each" compose version >/dev/null 2>&1; then engine="$each"; fi
done
if [ -z "$engine" ]; then complain 3 "there is neither 'docker compose' nor 'podman compose' here; install one"; fi

# Nobody else enters the folder; the user within the container must be able to read the files.
mkdir -p "$PERFDASH_SECRETS"
chmod 700 "$PERFDASH_SECRETS"
for each in admin_password github_token db smtp_password webhook; do
  [ -e "$PERFDASH_SECRETS/$each" ] || : >"$PERFDASH_SECRETS/$each"
  chmod 644 "$PERFDASH_SECRETS/$each"
done
if [ ! -s "$PERFDASH_SECRETS/admin_password" ]; then
  head -c 24 /dev/urandom | base64 | tr -d '\n' >"$PERFDASH_SECRETS/admin_password"
fi

if [ "$#" != 0 ]; then exec "$engine" compose -f compose.yaml "$@"; fi
"$engine" compose -f compose.yaml up --build --detach
echo "Jenkins begins at $JENKINS_URL, user ${JENKINS_ADMIN:-admin}," \
  "password in $PERFDASH_SECRETS/admin_password"
