#!/usr/bin/env bash
# Makes a machine quiet enough to measure on: governor, turbo, SMT siblings, huge pages, NUMA balancing; and
# says which libraries could be preloaded. It prints what it would do, and does it only with --apply.
# What was before is remembered until --restore (or a restart of the machine, which forgets both). It is not
# restored while another night measures: HOST_HOLDER is the process that --apply and --restore are for.
#
#   ci/prepare_host.sh                 what it would do
#   ci/prepare_host.sh --apply         does it (as root)
#   ci/prepare_host.sh --restore       back to what was before --apply
#
# HOST_GOVERNOR=performance, HOST_TURBO=off, HOST_SMT=off, HOST_THP=madvise, HOST_NUMA_BALANCING=0: another
# value, or keep, which leaves it alone. HOST_ROOT: the root of /sys, /proc, /run, for tests. Exit codes:
# 0 done, also where this machine has no such switch; 2 wrong usage; 3 where it has one that may not be changed.
set -euo pipefail

root="${HOST_ROOT:-}"
state="$root/run/perfdash/host-state" # of the machine, and gone with a restart, as the settings are
holders="$root/run/perfdash/host-holders" # of each night that measures so: process id, time of its start
cpu="$root/sys/devices/system/cpu"
mode="show"
refused=0

usage() {
  echo "ci/prepare_host.sh: $1; give --apply, --restore, or nothing to see what it would do." >&2
  exit 2
}

case "$#:${1:-}" in
  0:) ;;
  1:--apply) mode="apply" ;;
  1:--restore) mode="restore" ;;
  1:-h | 1:--help)
    sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  *) usage "'$*' is none of its options" ;;
esac

one_of() { # NAME VALUE ALLOWED...
  local name="$1" value="$2" allowed
  for allowed in "${@:3}"; do
    [ "$value" != "$allowed" ] || return 0
  done
  usage "$name=$value is none of ${*:3}"
}

governor="${HOST_GOVERNOR:-performance}"
turbo="${HOST_TURBO:-off}"
smt="${HOST_SMT:-off}"
pages="${HOST_THP:-madvise}"
numa="${HOST_NUMA_BALANCING:-0}"
one_of HOST_TURBO "$turbo" off on keep
one_of HOST_SMT "$smt" off on keep
one_of HOST_THP "$pages" always madvise never keep
one_of HOST_NUMA_BALANCING "$numa" 0 1 keep
[[ "$governor" =~ ^[a-z_]+$ ]] || usage "HOST_GOVERNOR=$governor is no governor"

[[ "${HOST_HOLDER:=}" =~ ^[0-9]*$ ]] || usage "HOST_HOLDER=$HOST_HOLDER is no process id"

say() { printf '%-22s %s\n' "$1" "$2" || true; } # also into a log on a full disk it restores all

started() { # PROCESS ID: when it was started, in clock ticks since boot; nothing where it has ended
  local fields
  fields="$(cat "/proc/$1/stat" 2>/dev/null)" || return 0
  read -ra fields <<<"${fields##*) }" # the name of a program may hold spaces
  echo "${fields[19]}"
}

# Keeps the holders that live, with the one of this call (--apply) or without it (--restore).
update_holders() {
  local pid since living=()
  exec 7>>"$holders"
  flock 7
  while read -r pid since; do
    if [ "$pid" != "$HOST_HOLDER" ] && [ "$(started "$pid")" = "$since" ]; then living+=("$pid $since"); fi
  done <"$holders"
  if [ "$mode" = apply ] && [ -n "$HOST_HOLDER" ]; then living+=("$HOST_HOLDER $(started "$HOST_HOLDER")"); fi
  printf '%s\n' "${living[@]}" | grep . >"$holders" || true
}

# Huge pages are listed with the one in force in brackets; everything else is its value.
current() {
  local text
  text="$(cat "$1" 2>/dev/null)" || return 1
  [[ "$text" =~ \[([a-z]+)\] ]] && text="${BASH_REMATCH[1]}"
  echo "$text"
}

why_not() {
  if [ "$(id -u)" != 0 ] && [ -z "$root" ]; then
    echo "only root may"
  elif in_container; then
    echo "this container does not let it be changed: do it on its host, or run it there privileged"
  else
    echo "the kernel refuses"
  fi
}

in_container() {
  [ -e "$root/.dockerenv" ] || [ -e "$root/run/.containerenv" ] ||
    grep -qsE 'docker|kubepods|containerd|lxc|libpod' "$root/proc/1/cgroup" ||
    tr '\0' '\n' 2>/dev/null <"$root/proc/1/environ" | grep -qs '^container='
}

in_vm() { grep -qsE '^flags.*\bhypervisor\b' "$root/proc/cpuinfo"; }

# The first remembered value of a file is the one to go back to.
is_remembered() { grep -qsF "$1"$'\t' "$state"; }

forget() {
  local rest
  rest="$(grep -vF "$1"$'\t' "$state" || true)"
  printf '%s' "${rest:+$rest$'\n'}" >"$state"
}

put() { # WHAT FILE VALUE
  local what="$1" file="$2" value="$3" was known=yes
  was="$(current "$file")" || {
    say "$what" "${file#"$root"} cannot be read"
    return 0
  }
  if [ "$was" = "$value" ]; then
    say "$what" "$value already"
  elif [ "$mode" = show ]; then
    if [ -w "$file" ]; then say "$what" "$was -> $value"; else
      say "$what" "$was -> $value: not possible here, $(why_not)"
    fi
  else
    # Before it is changed, so that a kill in between loses nothing.
    is_remembered "$file" || { known=no && printf '%s\t%s\n' "$file" "$was" >>"$state"; }
    if { printf '%s' "$value" >"$file"; } 2>/dev/null && [ "$(current "$file")" = "$value" ]; then
      say "$what" "$was -> $value, done"
    else
      say "$what" "$was, and stays so: $(why_not)"
      if [ "$known" = no ]; then forget "$file"; fi
      refused=1
    fi
  fi
}

absent() { # WHAT
  if in_vm; then
    say "$1" "not to be set here: the host of this virtual machine decides"
  elif in_container; then
    say "$1" "not to be seen in this container: the host decides"
  else
    say "$1" "this kernel has no such switch"
  fi
}

set_governor() {
  local file was core files=() differ=0
  if [ "$governor" = keep ]; then return; fi
  for file in "$cpu"/cpu[0-9]*/cpufreq/scaling_governor; do
    [ ! -e "$file" ] || files+=("$file")
  done
  if [ "${#files[@]}" = 0 ]; then
    absent governor
    return
  fi
  if ! grep -qsw "$governor" "${files[0]%governor}available_governors"; then
    was="$(cat "${files[0]%governor}available_governors" 2>/dev/null || true)"
    say governor "$governor is none of those here: $was"
    refused=1
    return
  fi
  for file in "${files[@]}"; do
    was="$(current "$file")"
    [ "$was" = "$governor" ] || {
      differ=$((differ + 1))
      core="${file#"$cpu"/}"
      put "governor ${core%%/*}" "$file" "$governor"
    }
  done
  [ "$differ" != 0 ] || say governor "$governor already, on ${#files[@]} cores"
}

set_turbo() {
  if [ "$turbo" = keep ]; then return; fi
  if [ -e "$cpu/intel_pstate/no_turbo" ]; then
    if [ "$turbo" = off ]; then put "turbo (no_turbo)" "$cpu/intel_pstate/no_turbo" 1; else
      put "turbo (no_turbo)" "$cpu/intel_pstate/no_turbo" 0
    fi
  elif [ -e "$cpu/cpufreq/boost" ]; then
    if [ "$turbo" = off ]; then put "turbo (boost)" "$cpu/cpufreq/boost" 0; else
      put "turbo (boost)" "$cpu/cpufreq/boost" 1
    fi
  else
    absent turbo
  fi
}

set_smt() {
  local now
  if [ "$smt" = keep ]; then return; fi
  now="$(current "$cpu/smt/control")" || {
    absent "SMT siblings"
    return
  }
  case "$now" in
    notsupported | notimplemented) say "SMT siblings" "there are none" ;;
    forceoff) say "SMT siblings" "off already, by the firmware or the kernel's command line" ;;
    *) put "SMT siblings" "$cpu/smt/control" "$smt" ;;
  esac
}

set_pages() {
  local file="$root/sys/kernel/mm/transparent_hugepage/enabled"
  if [ "$pages" = keep ]; then return; fi
  if [ -e "$file" ]; then put "huge pages" "$file" "$pages"; else absent "huge pages"; fi
}

set_numa() {
  local file="$root/proc/sys/kernel/numa_balancing" nodes
  nodes="$(find "$root/sys/devices/system/node" -maxdepth 1 -name 'node[0-9]*' 2>/dev/null | wc -l || true)"
  if [ "$nodes" -le 1 ]; then
    say NUMA "one node"
  elif [ "$numa" != keep ]; then
    if [ -e "$file" ]; then put "NUMA balancing" "$file" "$numa"; else absent "NUMA balancing"; fi
    say NUMA "$nodes nodes: perfdash keeps the cores of a case within one; numactl --membind its memory"
  fi
}

# Preloads belong to what is measured, not to the host: said, never set.
tell_preloads() {
  local name folder library found
  for name in jemalloc tcmalloc iomp5; do
    found=""
    for folder in "$root"/usr/lib{,64,/*-linux-gnu} "$root"/usr/local/lib \
      "$root"/opt/intel/oneapi/compiler/latest/lib; do
      for library in "$folder/lib$name".so* "$folder/lib${name}_minimal".so*; do
        [ ! -e "$library" ] || found="${library#"$root"}"
      done
    done
    case "$name:$found" in
      *:) say "preload $name" "not installed" ;;
      iomp5:*) say "preload $name" "perfdash run --env LD_PRELOAD=$found --env KMP_BLOCKTIME=1" ;;
      *) say "preload $name" "perfdash run --allocator $name" ;;
    esac
  done
}

restore() {
  local file was now
  if [ ! -s "$state" ]; then
    echo "Nothing to restore: no --apply is in force."
    return 0
  fi
  if [ -w "${state%/*}" ]; then update_holders; fi
  if [ -s "$holders" ]; then
    echo "Not restored: process $(cut -d' ' -f1 "$holders" | paste -sd' ') still measures with these settings." \
      "It restores them when it ends."
    return 0
  fi
  # The other way round: while siblings are off, files of theirs are not there.
  while IFS=$'\t' read -r file was; do
    now="$(current "$file")" || now="not there"
    if [ "$now" = "$was" ]; then
      say "${file#"$root"}" "$was already"
    elif { printf '%s' "$was" >"$file"; } 2>/dev/null && [ "$(current "$file")" = "$was" ]; then
      say "${file#"$root"}" "$now -> $was, restored"
    else
      say "${file#"$root"}" "$now, was $was: $(why_not)"
      refused=1
    fi
  done < <(tac "$state")
  [ "$refused" != 0 ] || rm -f "$state"
}

if [ "$mode" = restore ]; then
  restore
  exit $((refused * 3))
fi
if [ "$mode" = apply ]; then
  if ! { mkdir -p "${state%/*}" && touch "$state"; } 2>/dev/null; then
    echo "ci/prepare_host.sh: ${state%/*}, where it keeps what was before, cannot be written: $(why_not)" >&2
    exit 3
  fi
  update_holders
  if [ -s "$state" ]; then
    echo "An earlier --apply was not restored: --restore goes back to what was before that one."
  fi
fi
set_governor
set_turbo
set_pages
set_numa
set_smt # last: it takes cores away
tell_preloads
if [ "$mode" = show ]; then
  if in_container; then echo "This is a container: what it may not change has to be set on its host."; fi
  echo "Nothing was changed; --apply does it, --restore undoes it."
else
  [ -s "$state" ] || rm -f "$state"
fi
exit $((refused * 3))
