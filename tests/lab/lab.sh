#!/usr/bin/env bash
# A private node below one folder: containerd, a registry on loopback, a separate network.
#   lab.sh up DIR                  creates DIR and starts everything; DIR/env has the addresses
#   lab.sh down DIR                ends all its processes and containers, removes its mounts, links and DIR
#   lab.sh guard DIR PID           returns at once; runs `down` as soon as process PID has ended, for any reason
#   lab.sh kill-containerd DIR     kill -9, containerd only: shims and containers continue to run
#   lab.sh stop-containerd DIR     the same with SIGTERM, and waits for its end
#   lab.sh start-containerd DIR    starts it again and waits until CRI answers
#   lab.sh push DIR TAR NAME:TAG   puts an OCI archive into the registry
#   lab.sh ctr DIR ARGS...         ctr on that containerd, in its mount namespace
# Settings: LAB_ROOT_SIZE=64m puts containerd's root on a tmpfs of that size; LAB_CONTAINERD=/path/containerd selects
# another containerd (1.6, 1.7, 2.x); INPLACE_CACHE (default ~/.cache/inplace) is the folder of files that all labs share.
#
# containerd, its shims and the registry run in a separate mount namespace, which an anchor process holds open. In it,
# /run/containerd, /var/lib and /var/log are DIR's run, var/lib and var/log. Mounts disappear with the last process, and the
# processes of the lab are exactly those in the namespace. cluster.sh sources this file and makes the lab a Kubernetes node.
# shellcheck disable=SC2317 # functions called through wait_for
set -euo pipefail
shopt -s inherit_errexit
export PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() { echo "lab: $*" >&2; exit 1; }

# wait_for SECONDS COMMAND...: repeats the command until it succeeds; fails after SECONDS.
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep .1
  done
}

# Accepts only a folder that is new, empty or a lab's: `down` removes the folder, so it must not hold other data.
claim() {
  mkdir -p "$dir"
  [ -e "$dir/lab" ] || [ -z "$(ls -A "$dir")" ] || die "$dir is not empty and not a lab"
  touch "$dir/lab"
}

# Allows one command at a time on one lab. Background processes must not inherit the lock (9>&-). The lock is not on DIR
# itself, because an inplace agent locks that folder.
lock() { exec 9<"$dir/lab" && flock 9; }

# inside COMMAND...: runs it in the lab's mount namespace.
inside() { nsenter --mount --target "$(cat "$dir/pids/anchor")" --wd="$dir" "$@"; }

# background NAME COMMAND...: starts a process that does not receive signals of the terminal (Ctrl-C) or the caller.
background() {
  local name=$1
  shift
  # The shell writes its PID, then execs the command, which has the same PID.
  # shellcheck disable=SC2016
  nsenter --mount --target "$(cat "$dir/pids/anchor")" --wd="$dir" \
    setsid bash -c 'echo $$ >"pids/$0"; exec "$@"' "$name" "$@" </dev/null >>"$dir/logs/$name.log" 2>&1 9>&- &
  disown
}

# Prints the PID of NAME, if it runs and was started by this lab.
pid_of() {
  local pid
  pid=$(cat "$dir/pids/$1" 2>/dev/null) && grep -qsaF -- "$dir/" "/proc/$pid/cmdline" && echo "$pid"
}

tool() { command -v "$1" >/dev/null || [ -x "$1" ] || die "$1 is missing; run: make setup"; }

# --- files that all labs share ------------------------------------------------------------------------------------

make_cache() { # into $1
  bash "$here/images.sh" "$1"
  local name at registry_pid
  registry_config "$1"
  OTEL_TRACES_EXPORTER=none docker-registry serve "$1/registry.yml" </dev/null >"$1/registry.log" 2>&1 9>&- &
  registry_pid=$!
  at=$(registry_address "$1/registry.log") || die "the registry does not start: $(cat "$1/registry.log")"
  while read -r name _; do
    [ "${name%%:*}" != pause ] || continue
    push "$1/${name/:/-}.tar" "$at/$name"
    rm "$1/${name/:/-}.tar"
  done <"$1/digests"
  kill "$registry_pid"
  wait "$registry_pid" 2>/dev/null || true
  rm -f "$1"/registry.{yml,log}
}

push() { skopeo --insecure-policy copy -q --all --preserve-digests --dest-tls-verify=false "oci-archive:$1" "docker://$2"; }

registry_config() {
  printf '%s\n' 'version: 0.1' 'log: {level: info}' 'http: {addr: "127.0.0.1:0"}' \
    "storage: {filesystem: {rootdirectory: \"$1/registry\"}, delete: {enabled: true}}" >"$1/registry.yml"
}

registry_address() { # of the registry that logs to $1
  wait_for 120 grep -qs 'listening on 127' "$1" || return 1
  sed -nE 's/.*listening on (127\.0\.0\.1:[0-9]+).*/\1/p' "$1" | head -n 1
}

# Prints the path of a folder with digests, pause-1.tar and registry/: from the cache, or newly created.
cached() {
  local store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/images key work
  key=$(cat "$here/oci.py" "$here/images.sh" "$here/lab.sh" "$here/pause.c" "$here/serve.c" "$(command -v busybox)" /usr/bin/python3 | sha256sum | cut -c 1-16)
  if [ ! -d "$store/$key" ]; then
    mkdir -p "$store" 2>/dev/null && work=$(mktemp -d "$store/.new.XXXXXX" 2>/dev/null) || work=$(mktemp -d "$dir/cache.XXXXXX")
    make_cache "$work" >&2
    case $work in "$dir"/*) echo "$work" && return ;; esac
    # If another lab was faster, its folder has the same content.
    mv -T "$work" "$store/$key" 2>/dev/null || rm -rf "$work"
  fi
  echo "$store/$key"
}

# --- up -----------------------------------------------------------------------------------------------------------

# Only one lab can create a bridge of a given name, so the name reserves the subnet.
take_slot() {
  local slot
  for slot in $(shuf -i 1-254); do
    # The second network is the service range of a cluster.
    ! { ip -4 route show to match "10.201.$slot.1" && ip -4 route show to match "10.202.$slot.1"; } | grep -qv ^default || continue
    # The hardware address is set explicitly. Otherwise it is the lowest address of the ports, and changes when that pod is
    # removed: packets that pods send at that moment are lost.
    ip link add "inpl$slot" address "$(printf '0a:00:0a:c9:%02x:01' "$slot")" type bridge 2>/dev/null || continue
    echo "inpl$slot" >"$dir/bridge"
    ip addr add "10.201.$slot.1/24" dev "inpl$slot"
    ip link set "inpl$slot" up
    return
  done
  die "no free subnet, or no right to make a bridge (root is needed)"
}

write_config() {
  local plugins=/usr/lib/cni bridge
  bridge=$(cat "$dir/bridge")
  [ -x "$plugins/bridge" ] || plugins=/opt/cni/bin
  tool "$plugins/bridge"
  cat >"$dir/containerd.toml" <<T
version = 2
root = "$dir/root"
state = "$dir/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "$dir/run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$plugins"
    conf_dir = "$dir/cni"
T
  # The bridge has its address already: with isGateway the plugin would switch on forwarding for the whole machine.
  cat >"$dir/cni/10-lab.conflist" <<T
{"cniVersion": "0.4.0", "name": "$bridge", "plugins": [{"type": "bridge", "bridge": "$bridge", "isGateway": false, "ipMasq": false,
  "ipam": {"type": "host-local", "dataDir": "$dir/ipam", "ranges": [[{"subnet": "10.201.${bridge#inpl}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
T
}

start_anchor() {
  mkdir -p /run/containerd # the mount point: an empty folder, which is not removed later
  # shellcheck disable=SC2016
  setsid unshare --mount --propagation slave bash -c '
    mount --make-rshared / && mount --bind "$0/run" /run/containerd && mount --bind "$0/var/lib" /var/lib &&
      mount --bind "$0/var/log" /var/log || exit 1
    readlink /proc/self/ns/mnt >"$0/pids/mntns"
    echo $$ >"$0/pids/anchor"
    exec -a "$0/anchor" sleep infinity' "$dir" </dev/null >"$dir/logs/anchor.log" 2>&1 9>&- &
  disown
  wait_for 120 pid_of anchor >/dev/null || die "no mount namespace: $(cat "$dir/logs/anchor.log")"
}

# Calls CRI's Version with curl: sends an empty gRPC message, expects grpc-status 0.
cri_answers() {
  local status
  status=$(printf '\0\0\0\0\0' | curl -s -m 2 --http2-prior-knowledge --unix-socket "$dir/containerd.sock" -H 'content-type: application/grpc' \
    -H 'te: trailers' --data-binary @- -o /dev/null -D - http://cri/runtime.v1.RuntimeService/Version 2>/dev/null) || return 1
  grep -qi '^grpc-status: *0' <<<"$status"
}

start_containerd() {
  [ -z "$(pid_of containerd)" ] || return 0
  ln -sfn run/containerd.sock "$dir/containerd.sock"
  # containerd looks for its shim in PATH first: the one of the same package must come before that of the machine.
  background containerd env PATH="$(dirname "$(cat "$dir/binary")"):$PATH" "$(cat "$dir/binary")" -c "$dir/containerd.toml"
  wait_for 120 cri_answers || die "containerd does not answer: $(tail -n 5 "$dir/logs/containerd.log")"
}

up() {
  local ready address needed
  for needed in ctr runc docker-registry skopeo curl ip nsenter; do tool "$needed"; done
  tool "${LAB_CONTAINERD:-containerd}"
  case $dir in /run/containerd | /run/containerd/* | /var/lib | /var/lib/* | /var/log | /var/log/*) die "$dir is where a lab has its own folders" ;; esac
  [ "${#dir}" -le 80 ] || die "$dir is too long a name: unix sockets allow 108 bytes"
  trap 'trap - EXIT; down' EXIT
  mkdir -p "$dir"/{root,state,cni,ipam,pids,logs,opt,run,var/lib,var/log}
  command -v "${LAB_CONTAINERD:-containerd}" >"$dir/binary"
  ready=$(cached)
  cp -a "$ready/digests" "$dir/digests"
  cp -a "$ready/registry" "$dir/registry"
  [ -z "${LAB_ROOT_SIZE:-}" ] || mount -t tmpfs -o "size=$LAB_ROOT_SIZE" lab "$dir/root"
  take_slot
  write_config
  start_anchor
  registry_config "$dir"
  background registry env OTEL_TRACES_EXPORTER=none docker-registry serve "$dir/registry.yml"
  start_containerd
  inside ctr -a "$dir/containerd.sock" -n k8s.io image import --no-unpack "$ready/pause-1.tar" >/dev/null 2>&1 ||
    inside ctr -a "$dir/containerd.sock" -n k8s.io image import "$ready/pause-1.tar" >/dev/null
  address=$(registry_address "$dir/logs/registry.log") || die "the registry does not start: $(cat "$dir/logs/registry.log")"
  printf 'INPLACE_RUNTIME_ENDPOINT=unix://%s\nREGISTRY=%s\n' "$dir/containerd.sock" "$address" >"$dir/env"
  trap - EXIT
}

# --- down ---------------------------------------------------------------------------------------------------------

# Prints the PIDs in the lab's mount namespace: containerd, shims, the registry, the anchor, and their child processes. The stored
# number of the namespace is valid only while a process with the lab's folder in its command line runs in that namespace.
servants() {
  local namespace pid
  namespace=$(cat "$dir/pids/mntns" 2>/dev/null) || return 0
  grep -lsaF -- "$dir/" /proc/[0-9]*/cmdline | cut -d / -f 3 | while read -r pid; do
    if [ "$(readlink "/proc/$pid/ns/mnt")" = "$namespace" ]; then
      # -lname takes a pattern, and the link target is like mnt:[4026532201]
      find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/mnt' -lname "${namespace//[\[\]]/?}" 2>/dev/null | cut -d / -f 3
      break
    fi
  done || true
}

# Prints the PIDs in the containers' cgroups.
contained() {
  # The IDs of containers that have a task now, or had one at an earlier call.
  ls "$dir/state/io.containerd.runtime.v2.task/k8s.io" >>"$dir/containers" 2>/dev/null || true
  [ ! -s "$dir/containers" ] || grep -lsF -f "$dir/containers" /proc/[0-9]*/cgroup | cut -d / -f 3 || true
}

# kill_all WHICH: kills the processes that the function WHICH prints; true if there are none.
kill_all() {
  local left
  left=$("$1")
  [ -n "$left" ] || return 0
  # shellcheck disable=SC2086
  kill -9 $left 2>/dev/null
  return 1
}

# Kills the shims after their containers, because the shims reap the containers' processes: the machine's init can take seconds.
kill_everything() {
  end_containerd KILL || true
  wait_for 2 kill_all contained || true
  wait_for 10 kill_all servants || echo "lab: processes are left: $(servants)" >&2
  wait_for 10 kill_all contained || echo "lab: processes of containers are left: $(contained)" >&2
}

remove_network() {
  local bridge link
  bridge=$(cat "$dir/bridge" 2>/dev/null) || return 0
  ip link show "$bridge" >/dev/null 2>&1 || return 0
  for link in $(ip -o link show master "$bridge" | sed -E 's/^[0-9]+: ([^@:]+).*/\1/'); do
    ip link del "$link" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
}

# Removes the cgroups of the containers, then their empty parents. The parents are not removed while another lab is up, because
# it may be about to use them.
remove_cgroups() {
  local paths others
  paths=$(find /sys/fs/cgroup -mindepth 2 -depth -type d 2>/dev/null | grep -sF -f "$dir/containers") || true
  # shellcheck disable=SC2086
  [ -z "$paths" ] || wait_for 3 rmdir_all $paths || echo "lab: cgroups are left: $paths" >&2
  others=$(ip -o link show type bridge | sed -nE 's/^[0-9]+: (inpl[0-9]+):.*/\1/p' | grep -cvxF -- "$(cat "$dir/bridge" 2>/dev/null)") || true
  [ "$others" = 0 ] || return 0
  paths+=$(printf '\n%s' /sys/fs/cgroup/{,*/}k8s.io/x) # where a runtime puts containers without a cgroup parent
  # shellcheck disable=SC2001
  while paths=$(sed 's,/[^/]*$,,' <<<"$paths" | grep '^/sys/fs/cgroup/' | grep -vxFf <(awk '{ print $2 }' /proc/self/mounts) | sort -u); do
    # shellcheck disable=SC2086
    rmdir $paths 2>/dev/null || true
  done
}

rmdir_all() {
  rmdir "$@" 2>/dev/null || true
  [ -z "$(ls -d "$@" 2>/dev/null)" ]
}

down() {
  [ -d "$dir" ] || return 0
  [ -e "$dir/lab" ] || die "$dir is not a lab"
  kill_everything
  remove_cgroups
  remove_network
  awk -v below="$dir/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r path; do umount -l "$path"; done
  wait_for 5 rm -rf "$dir" 2>/dev/null || rm -rf "$dir"
}

# --- the rest -----------------------------------------------------------------------------------------------------

end_containerd() { # SIGNAL
  local pid
  pid=$(pid_of containerd) || return 0
  kill "-$1" "$pid"
  wait_for 120 gone "$pid" || die "containerd ($pid) does not end"
}

# Prints the start time of process $1 in clock ticks; nothing if the process has ended (a zombie has).
start_time() {
  local stat fields
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
  # The name of the process, in parentheses, can have any characters.
  read -ra fields <<<"${stat##*) }"
  case ${fields[0]} in Z | X) ;; *) echo "${fields[19]}" ;; esac
}

gone() { [ -z "$(start_time "$1")" ]; }

guard() { # PID
  [ -n "$(start_time "$1")" ] || die "there is no process $1"
  claim
  setsid bash "$0" watch "$dir" "$1" "$(start_time "$1")" </dev/null >/dev/null 2>&1 &
}

outlive() { # PID START_TIME: waits until the process has ended, then locks the lab, if it still exists
  while [ -d "$dir" ] && [ "$(start_time "$1")" = "$2" ]; do sleep 1; done
  [ ! -d "$dir" ] || lock
}

main() {
  [ $# -ge 2 ] || die "usage: see the top of $0"
  local action=$1
  mkdir -p "$(dirname "$2")"
  dir=$(realpath -m "$2")
  shift 2
  case $action in
    up) claim && lock && up ;;
    down) { [ ! -e "$dir/lab" ] || lock; } && down ;;
    guard) guard "${1:?PID}" ;;
    watch) outlive "$@" && down ;;
    kill-containerd) end_containerd KILL ;;
    stop-containerd) end_containerd TERM ;;
    start-containerd) lock && start_containerd ;;
    push)
      # shellcheck source=/dev/null
      push "$1" "$(. "$dir/env" && echo "$REGISTRY")/$2"
      ;;
    ctr) inside ctr -a "$dir/containerd.sock" -n k8s.io "$@" ;;
    *) die "unknown: $action" ;;
  esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  main "$@"
  exit
fi
