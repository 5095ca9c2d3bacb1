#!/usr/bin/env bash
# Builds the documentation as a site with MkDocs, and fails on a broken link.
#
#   ci/docs.sh [FOLDER]      (default: docs-site)
#
# MkDocs comes from the environment PERFDASH_DOCS_VENV (default: .venv-docs), made here if it is missing.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
folder="$(realpath -m "${1:-docs-site}")"
venv="${PERFDASH_DOCS_VENV:-.venv-docs}"
if [ ! -x "$venv/bin/mkdocs" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install --quiet 'mkdocs>=1.6,<2'
fi
# The pages link to files all over the repository, by the same relative paths as on a code host. So the site
# is made of a copy of the tracked files that the pages link to.
source="$(mktemp -d)"
trap 'rm -rf "$source"' EXIT
mkdir "$source/docs"
git ls-files -z -- '*.md' '*.png' '*.svg' '*.toml' '*.csv' '*.py' '*.sh' '*.ipynb' 'Jenkinsfile*' 'ci/*' LICENSE \
  ':!tests/*' ':!perfdash/*' | xargs -0 cp --parents -t "$source/docs"
cp mkdocs.yml "$source/"
# Without --quiet, which would hide the warnings from --strict as well.
"$venv/bin/mkdocs" build --strict --config-file "$source/mkdocs.yml" --site-dir "$folder" 2>"$source/log" || {
  grep -v '^INFO\|^  - ' "$source/log" >&2
  exit 1
}
echo "$folder/index.html"
