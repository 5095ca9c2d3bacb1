# shellcheck shell=bash
# The forms of TORCH, and what each needs. Sourced by ci/torch_build.sh and the check of a nightly's parameters.

# Prints installed, nightly, wheels, version or commit; nothing for another word.
kind_of_torch() { # TORCH
  if [[ "$1" =~ ^(installed|nightly)$ ]]; then
    echo "$1"
  elif [[ "$1" = *.whl ]]; then
    echo wheels
  elif [[ "$1" =~ ^[0-9]+(\.[0-9A-Za-z]+)+(\+[0-9A-Za-z.]+)?$ ]]; then
    echo version
  elif [[ "$1" =~ ^[0-9a-f]{7,40}$ ]]; then
    echo commit
  fi
}

# Refuses a TORCH of no form, or without TORCH_INDEX or TORCH_REPO where it needs one.
check_torch() {
  case "$(kind_of_torch "$TORCH")" in
    nightly)
      [ -n "$TORCH_INDEX" ] ||
        complain 2 "TORCH=nightly: give the index of nightly wheels, TORCH_INDEX=ADDRESS or a folder"
      ;;
    commit) [ -n "$TORCH_REPO" ] || complain 2 "TORCH=$TORCH is a commit: of which clone? TORCH_REPO=PATH" ;;
    "") complain 2 "TORCH=$TORCH is none of installed, nightly, a version, a wheel, a commit" ;;
  esac
}
