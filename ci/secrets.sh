# shellcheck shell=bash
# Keeps secrets from what does not use them. Sourced by ci/setup.sh, ci/torch_build.sh and the stages of a nightly.
# perfdash/child_environment.py does the same for the programs that perfdash starts.

# perfdash's own: the token comments, the others reach the history, the mail server and the chat.
secrets=(GITHUB_TOKEN PERFDASH_DB PERFDASH_SMTP_PASSWORD PERFDASH_WEBHOOK)

# Whether a text has an address with a password: between :// and the next slash. A port, or the commit behind the
# path of git+https://host:8443/me/mylib@1a2b3c4d, is none.
has_address_with_password() { # TEXT
  local authority='://[^/[:space:]]*:[^/[:space:]]*@'
  [[ "$1" =~ $authority ]]
}

# Options of env(1), in `hidden`, that leave these out, but for those that are named.
hide_secrets() { # [NAMES THAT STAY...]
  local name
  hidden=()
  for name in "${secrets[@]}"; do
    [[ " $* " = *" $name "* ]] || hidden+=("--unset=$name")
  done
}

# Takes every secret out of this shell's environment: perfdash's own, and what is named like one or holds a
# password. Variables by which pip and the network are reached stay.
drop_secrets() {
  local name
  local named='token(_|$)|secret|password|passwd|passphrase|pgpass|(api|access|private|signing|encryption)_?key'
  named+='|credential|webhook|authorization|cookie|conn(ection)?_?str(ing)?(_|$)'
  named+='|(^|_)auth(_(config|header|data|json|string|value))?$'
  named+='|^git_config_(count|parameters|(key|value)_[0-9]+)$'
  local tokens='tokens(_|$)' # MAX_TOKENS is a number
  local likely='(^|_)pass(_|$)|_pwd$|(^|_)(pat|keys?)$'
  local setting='^(omp|kmp|gomp|mkl|openblas|dnnl|onednn|torch[a-z0-9]*|pytorch|triton|malloc|cuda|nvidia|ccache|cmake)_'
  local valued='[a-z0-9]://[^/[:space:]:@]*:[^/[:space:]@]+@|https?://[^/[:space:]@]+@|password=|authorization:'
  shopt -s nocasematch
  for name in $(compgen -e); do
    if [[ " ${secrets[*]} " != *" $name "* ]]; then
      if [[ "$name" =~ ^(pip|uv)_|_proxy$ ]]; then continue; fi
      if ! [[ "$name" =~ $named || "${!name}" =~ $valued ]] &&
        ! [[ "$name" =~ $tokens && "${!name}" =~ [^0-9.] ]] &&
        ! { [[ "$name" =~ $likely ]] && ! [[ "$name" =~ $setting ]]; }; then continue; fi
    fi
    unset "$name"
  done
  shopt -u nocasematch
}
