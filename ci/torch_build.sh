#!/usr/bin/env bash
# Makes the environment that a night measures, or finds it again, and prints its interpreter:
#
#   TORCH=installed            the torch of .venv
#   TORCH=nightly              the newest of TORCH_INDEX, a folder or the address of an index
#   TORCH=2.14.0               a version, from TORCH_INDEX or where pip is configured to look
#   TORCH='A.whl B.whl'        wheels by path or address; torchvision's beside torch's
#   TORCH=1a2b3c4d...          a commit of TORCH_REPO, a clone of PyTorch, built from source
#   UNDER_TEST=~/mylib         on top of it a library: a repository (its HEAD, not what is uncommitted), an
#                              address (git+https://...), or a requirement (mylib==1.2)
#
# TORCH_WITH: what else the models need beside torch, of the versions in ci/constraints.txt. Environments lie in
# PERFDASH_ENVIRONMENTS (~/.cache/perfdash/environments) by their content, KEEP_ENVIRONMENTS (6) with a torch of
# their own and KEEP_NIGHTS (20) on top of one; those not used for longest go, the last good one never. Each has
# a file `about` with torch's git_version.
#
#   --pin            prints TORCH and UNDER_TEST, a line each: nightly as the version that is the newest now, the
#                    library with its commit or version; a folder stays as it is. Makes nothing
#   --last-good      prints the interpreter of the last good night of JOB and LINE, or nothing
#   --good PYTHON    says that tonight's was good
#   --doubt PYTHON   that something of it is open: for three nights the last good one stays so
set -euo pipefail
shopt -s inherit_errexit
here="$PWD"
cd "$(dirname "$0")/.."
. ci/secrets.sh
. ci/torch_kind.sh

venv="${PERFDASH_VENV:-.venv}"
ours="$(cd "$venv/bin" 2>/dev/null && pwd)/python"
folder="${PERFDASH_ENVIRONMENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/perfdash/environments}"
: "${TORCH:=installed}" "${TORCH_INDEX:=}" "${TORCH_REPO:=}" "${UNDER_TEST:=}" "${JOB:=nightly}" "${LINE:=}"
: "${TORCH_WITH=torchvision timm transformers}" "${KEEP_ENVIRONMENTS:=6}" "${KEEP_NIGHTS:=20}"
# pip, git and builds see neither secrets nor these, which may hold an address with a user's name.
export -n TORCH TORCH_INDEX TORCH_REPO TORCH_WITH UNDER_TEST
drop_secrets
good="$folder/good-${JOB//[^A-Za-z0-9._-]/_}${LINE:+"+${LINE//[^A-Za-z0-9._-]/_}"}"
doubts=3

complain() { # CODE WORDS...
  printf 'ci/torch_build.sh: %s\n' "${*:2}" >&2
  exit "$1"
}
tell() { printf '%s\n' "$*" >&2; }

[ -x "$ours" ] || complain 3 "there is no $venv/bin/python: ci/setup.sh makes it"
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"

case "$#:${1:-}" in
  0: | 1:--pin) ;;
  1:--last-good)
    python="$(sed -n 1p "$good" 2>/dev/null || true)"
    if [ -x "${python:-/nonexistent}" ]; then echo "$python"; fi
    exit 0
    ;;
  2:--good)
    printf '%s\n0\n' "$2" >"$folder/.good.$$" && mv "$folder/.good.$$" "$good"
    exit 0
    ;;
  2:--doubt)
    [ -s "$good" ] || exit 0 # no night was good yet, and this one is none
    { IFS= read -r last && read -r count && IFS= read -r counted || true; } <"$good"
    night="${PERFDASH_NIGHTLY:-}"
    if [ -n "$night" ] && [ "$night" = "${counted:-}" ]; then exit 0; fi # a night gone on with is one night
    [[ "${count:-}" =~ ^[0-9]{1,3}$ ]] || count=0
    if [ "$count" -ge "$doubts" ]; then
      tell "For $doubts nights something was open: tonight's environment counts as good"
      exec "ci/torch_build.sh" --good "$2"
    fi
    printf '%s\n' "$last" "$((count + 1))" "$night" >"$folder/.good.$$"
    mv "$folder/.good.$$" "$good"
    exit 0
    ;;
  *) complain 2 "'$*' is none of its options: --pin, --last-good, --good PYTHON, --doubt PYTHON" ;;
esac

for name in TORCH TORCH_INDEX TORCH_WITH UNDER_TEST; do
  if has_address_with_password "${!name}"; then
    complain 2 "$name: an address with a password is seen by others: put it into ~/.netrc"
  fi
done

exec 8>"$folder/.lock"
# One builds, the others find it built; where the file system has no locks they may build at once.
if [ "${1:-}" != --pin ]; then flock 8 || true; fi

# pip of ours under another interpreter; from TORCH_INDEX where that is said. `pip --python` would start ours only to
# start the other one with this file of pip's.
runner="$("$ours" -c 'import importlib.util as u
print(u.find_spec("pip").origin.replace("__init__.py", "__pip-runner__.py"))' 2>/dev/null || true)"
pip() { # PYTHON WORDS...
  local how=("$ours" -m pip --python "$1")
  if [ -f "$runner" ]; then how=("$1" "$runner"); fi
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONPATH='' "${how[@]}" "${@:2}" 8>&- >&2
}
from_index=()
case "$TORCH_INDEX" in
  "") ;;
  *://*) from_index=(--index-url "$TORCH_INDEX") ;;
  *)
    index="$(cd "$here" && cd "$TORCH_INDEX" 2>/dev/null && pwd)" ||
      complain 2 "TORCH_INDEX=$TORCH_INDEX: no such folder"
    from_index=(--no-index --find-links "$index")
    ;;
esac

# What pip would install of some requirements, a line each: pinned requirement, tab, its content.
resolve() { # PIP-OPTIONS-AND-REQUIREMENTS...
  local report="$folder/.report.$$"
  pip "$ours" install --quiet --dry-run --ignore-installed --no-deps --report "$report" "$@" || {
    rm -f "$report"
    return 1
  }
  "$ours" -c '
import json, sys
for each in json.load(open(sys.argv[1]))["install"]:
    name, version = each["metadata"]["name"], each["metadata"]["version"]
    came = each["download_info"]
    url, vcs, archive = came["url"], came.get("vcs_info"), came.get("archive_info") or {}
    if vcs:
        url = "{}+{}@{}".format(vcs["vcs"], url, vcs["commit_id"])
    print(url if each.get("is_direct") else f"{name}=={version}",
          url if vcs else json.dumps([name, version, archive.get("hashes") or archive.get("hash") or url]),
          sep="\t")' "$report"
  rm -f "$report"
}

key_of() { sha256sum | cut -c1-16; }

lock_file() { cat ci/constraints.txt; }

version_of_ours() { "$ours" -c 'import sys; print(sys.version)'; }

# An environment is whole when it has its `about`; what is half made was interrupted.
is_whole() { [ -s "$1/about" ] && [ -x "$1/bin/python" ]; }

write_about() { # PLACE LINES...
  local said
  said="$(cd / && "$1/bin/python" -c 'import torch
print(f"torch={torch.__version__}\ngit_version={torch.version.git_version or str()}")' 2>"$1/import.log")" || {
    tell "$(tail -1 "$1/import.log")"
    rm -rf "$1"
    complain 3 "torch does not import in the environment of TORCH=$TORCH"
  }
  printf '%s\n' "${@:2}" "$said" >"$1/about.part" && mv "$1/about.part" "$1/about"
}

# A new environment at PLACE that sees the packages of BASE behind its own; empty where no base is given.
empty_environment() { # PLACE [BASE]
  rm -rf "$1"
  "$ours" -m venv --without-pip "$1" >&2
  if [ -n "${2:-}" ]; then
    "$2" -c 'import site, sys
for each in site.getsitepackages():
    print(f"import site; site.addsitedir({each!r})")' >"$(own_packages "$1")/perfdash-base.pth"
  fi
}
own_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

failed() { # PLACE WORDS
  rm -rf "$1"
  complain 3 "${*:2}"
}

from_wheels() { # REQUIREMENTS...: prints the environment's folder
  local found place each torch=() others=() constraints
  found="$(resolve "${from_index[@]}" "$@")" ||
    complain 3 "TORCH=$TORCH: pip finds no such torch${TORCH_INDEX:+ in $TORCH_INDEX}"
  place="$folder/torch-$({ version_of_ours; cut -f2 <<<"$found"; echo "$TORCH_WITH"; lock_file; } | key_of)"
  if ! is_whole "$place"; then
    mapfile -t torch < <(cut -f1 <<<"$found")
    tell "Making the environment of ${torch[*]} ..."
    for each in $TORCH_WITH; do
      case "$each" in
        torchvision*) torch+=("$each") ;; # from the same place, and one that fits
        *) others+=("$each") ;;
      esac
    done
    empty_environment "$place"
    pip "$place/bin/python" install --quiet "${from_index[@]}" "${torch[@]}" ||
      failed "$place" "TORCH=$TORCH cannot be installed: see above"
    if [ "${#others[@]}" != 0 ]; then
      # torch stays as it is; what goes with it is of the versions that perfdash is tested with.
      constraints="$place/constraints.txt"
      lock_file | grep -vE '^(torch|torchvision|triton)==' >"$constraints"
      "$place/bin/python" -c 'from importlib.metadata import distributions
for each in distributions():
    if each.metadata["Name"] in ("torch", "torchvision"):
        print(each.metadata["Name"], each.version, sep="==")' >>"$constraints"
      pip "$place/bin/python" install --quiet --constraint "$constraints" "${others[@]}" ||
        failed "$place" "TORCH_WITH=$TORCH_WITH cannot be installed beside it: see above"
    fi
    write_about "$place" "TORCH=$TORCH" "$(cut -f1 <<<"$found")"
  fi
  touch "$place/about"
  echo "$place"
}

from_source() { # prints the environment's folder
  local commit place
  commit="$(cd "$here" && git -C "$TORCH_REPO" rev-parse --verify --quiet "$TORCH^{commit}")" ||
    complain 2 "TORCH_REPO=$TORCH_REPO has no commit $TORCH (git fetch?)"
  place="$folder/torch-$({ version_of_ours; echo "$commit"; cat bisect/pytorch-source.sh; lock_file; } | key_of)"
  if ! is_whole "$place"; then
    tell "Building torch at $commit (hours, unless ccache knows it) ..."
    empty_environment "$place" "$ours"
    # The clone is only read: its objects are borrowed.
    {
      (cd "$here" && git clone --quiet --shared --no-checkout "$TORCH_REPO" "$place/source") &&
        git -C "$place/source" checkout --quiet --detach "$commit" &&
        git -C "$place/source" submodule --quiet update --init --recursive
    } >&2 || failed "$place" "$commit of $TORCH_REPO cannot be checked out: see above"
    (
      # The same script and variables as in perfdash's recipe pytorch-source.
      cd "$place/source"
      # nproc obeys OpenMP's variables, which a shell for measurements has.
      cores="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"
      export PYTHON="$ours" PREFIX SOURCE="$PWD" REVISION="$commit" RECIPE MAX_JOBS="${MAX_JOBS:-$cores}"
      export USE_CUDA="${USE_CUDA:-0}" BUILD_TEST="${BUILD_TEST:-0}" USE_DISTRIBUTED="${USE_DISTRIBUTED:-1}"
      PREFIX="$(own_packages "$place")" RECIPE="$OLDPWD/bisect"
      PATH="$(dirname "$ours"):$PATH" sh -eu "$RECIPE/pytorch-source.sh"
    ) >&2 8>&- || failed "$place" "torch at $commit cannot be built: see above"
    rm -rf "$place/source"
    write_about "$place" "TORCH=$TORCH" "commit=$commit"
  fi
  touch "$place/about"
  echo "$place"
}

with_library() { # BASE-PYTHON: prints the folder of the environment on top of it
  local spec="$UNDER_TEST" path found place
  path="$(cd "$here" && cd "$UNDER_TEST" 2>/dev/null && pwd)" || path=""
  if [ -n "$path" ]; then
    git -C "$path" rev-parse --verify --quiet HEAD >/dev/null ||
      complain 2 "UNDER_TEST=$UNDER_TEST is a folder, and no git repository with a commit"
    if [ -n "$(git -C "$path" status --porcelain --untracked-files=no)" ]; then
      tell "UNDER_TEST=$UNDER_TEST: what is not committed there is not measured"
    fi
    spec="git+file://$path@$(git -C "$path" rev-parse HEAD)"
  fi
  found="$(resolve "$spec")" || complain 3 "UNDER_TEST=$UNDER_TEST cannot be read by pip: see above"
  place="$folder/night-$({ echo "$1"; cat "${1%/bin/python}/about" 2>/dev/null || true; cut -f2 <<<"$found"; } | key_of)"
  if ! is_whole "$place"; then
    tell "Installing $(cut -f1 <<<"$found") ..."
    empty_environment "$place" "$1"
    pip "$place/bin/python" install --quiet --no-deps "$(cut -f1 <<<"$found")" ||
      failed "$place" "UNDER_TEST=$UNDER_TEST cannot be installed: see above"
    write_about "$place" "TORCH=$TORCH" "base=$1" "UNDER_TEST=$(cut -f1 <<<"$found")"
  fi
  touch "$place/about"
  echo "$place"
}

# Those of a kind not used for longest go, but not the good ones, tonight's, nor what either stands on.
prune() { # KIND MOST TONIGHT
  local place base held count=0
  # Half made by one that was killed: nobody else builds now.
  for place in "$folder/$1"-*; do
    if [ -d "$place" ] && ! is_whole "$place"; then rm -rf "$place"; fi
  done
  held="$(sed -sn 1p "$folder"/good-* 2>/dev/null || true)"$'\n'"$3/bin/python"
  for place in "$folder"/night-*; do
    base="$(sed -n 's/^base=//p' "$place/about" 2>/dev/null || true)"
    if grep -qxF "$place/bin/python" <<<"$held"; then held+=$'\n'"$base"; fi
  done
  while IFS= read -r place; do
    count=$((count + 1))
    if [ "$count" -gt "$2" ] && ! grep -qxF "$place/bin/python" <<<"$held"; then
      tell "Removing $place: KEEP_... is $2"
      rm -rf "$place"
    fi
  done < <(find "$folder" -maxdepth 2 -path "$folder/$1-*/about" -printf '%T@ %h\n' | sort -rn | cut -d' ' -f2-)
}

check_torch
# A nightly build, also if it is named by its version: what goes with it is one, too.
case "$TORCH" in nightly | [0-9]*.dev*) from_index+=(--pre) ;; esac

if [ "${1:-}" = --pin ]; then
  pinned="$TORCH" library="$UNDER_TEST"
  if [ "$TORCH" = nightly ]; then
    found="$(resolve "${from_index[@]}" torch)" || complain 3 "TORCH=nightly: pip finds no torch in $TORCH_INDEX"
    pinned="$(cut -f1 <<<"$found")"
    pinned="${pinned#torch==}"
  fi
  case "$UNDER_TEST" in
    "" | /* | ./* | ../* | "~"*) ;; # each machine's own folder
    *)
      if [ ! -d "$here/$UNDER_TEST" ]; then
        if found="$(resolve "$UNDER_TEST")"; then
          library="$(cut -f1 <<<"$found")"
        else
          tell "UNDER_TEST=$UNDER_TEST cannot be read by pip here: each cell takes its newest when it begins"
        fi
      fi
      ;;
  esac
  printf '%s\n' "TORCH=$pinned" "UNDER_TEST=$library"
  exit 0
fi

case "$(kind_of_torch "$TORCH")" in
  installed) python="$ours" ;;
  nightly) python="$(from_wheels torch)/bin/python" ;;
  wheels)
    read -ra words <<<"$TORCH"
    wheels=()
    for word in "${words[@]}"; do
      case "$word" in
        *://* | /*) wheels+=("$word") ;;
        *) wheels+=("$here/$word") ;;
      esac
      case "$word" in *://*) ;; *) [ -f "${wheels[-1]}" ] || complain 2 "TORCH: there is no file $word" ;; esac
    done
    python="$(from_wheels "${wheels[@]}")/bin/python"
    ;;
  version) python="$(from_wheels "torch==$TORCH")/bin/python" ;;
  commit) python="$(from_source)/bin/python" ;;
esac
place=""
if [ -n "$UNDER_TEST" ]; then
  place="$(with_library "$python")"
  python="$place/bin/python"
fi
prune night "$KEEP_NIGHTS" "${place:-none}"
prune torch "$KEEP_ENVIRONMENTS" "${python%/bin/python}"
echo "$python"
