#!/usr/bin/env bash
# Shows what a restart in place preserves, on a real containerd:
#   demo.sh PATH/TO/inplace
# The pod has two containers: `game` holds its state in shared memory, `sidecar` only runs. The script restarts the game five
# times, updates it, then updates it to an image that crashes, which is rolled back. The script checks the results at the runtime
# and does not rely on inplace. If a table has an unexpected value, the exit code is 1. No process, mount or file remains, also
# after an interrupt.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
inplace=$(realpath "${1:?usage: demo.sh PATH/TO/inplace}")
pod=demo/game-0
world='world 4711: 12 players, wave 9'
wrong=0

lab=$(mktemp -d "${TMPDIR:-/tmp}/inplace-demo.XXXXXX")
cleanup() {
  trap '' INT TERM
  bash "$here/lab.sh" down "$lab"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
bash "$here/lab.sh" guard "$lab" $$ # for an end that no trap catches (SIGKILL)
export INPLACE_STATE_DIR=$lab/inplace

ctr() { bash "$here/lab.sh" ctr "$lab" "$@"; }

# --- facts, from the runtime --------------------------------------------------------------------------------------

sandbox() { ctr containers ls -q 'labels."io.cri-containerd.kind"==sandbox'; }

# Prints the IDs of the running containers named $1: there must be exactly one.
running() {
  local ids tasks
  ids=$(ctr containers ls -q "labels.\"io.kubernetes.container.name\"==$1")
  tasks=$(ctr tasks ls)
  awk -v ids="$ids" 'BEGIN { n = split(ids, list, "\n"); for (i = 1; i <= n; i++) want[list[i]] = 1 } $1 in want && $3 == "RUNNING" { print $1 }' <<<"$tasks"
}

process() { ctr tasks ls | awk -v id="$1" '$1 == id { print $2 }'; }

# Prints the start time of the first process of container $1, in clock ticks since boot.
started() { sed -E 's/.*\) //' "/proc/$(process "$1")/stat" | awk '{ print $20 }'; }

# in_container ID COMMAND...
in_container() {
  local id=$1
  shift
  ctr tasks exec --exec-id "demo-$RANDOM-$RANDOM" "$id" "$@" </dev/null
}

pod_ip() { in_container "$1" ip -4 -o addr show eth0 | sed -nE 's/.* inet ([0-9.]+).*/\1/p'; }

version() { in_container "$1" cat /etc/version; }

# --- the tables ---------------------------------------------------------------------------------------------------

# expect WHAT BEFORE NOW: prints a line of the second table.
expect() {
  local verdict=kept
  if [ "$2" != "$3" ] || [ -z "$3" ]; then verdict=LOST && wrong=1; fi
  printf '  %-28s %-32.32s %-32.32s %s\n' "$1" "$2" "$3" "$verdict"
}

# operate LABEL WANTED-PHASE WANTED-VERSION COMMAND...: runs inplace, checks the result at the runtime, and prints a line of the
# first table.
operate() {
  local label=$1 phase=$2 want=$3 result status=0 game now verdict=ok start took
  shift 3
  start=$(date +%s%3N)
  result=$("$inplace" node "$@" -o json 2>"$lab/stderr") || status=$?
  took=$(($(date +%s%3N) - start))
  if ! jq -e . >/dev/null 2>&1 <<<"$result"; then
    echo "  $label: no result (exit code $status): $(cat "$lab/stderr")" >&2
    exit 1
  fi
  game=$(running game)
  now=$([ "$(wc -l <<<"$game")" = 1 ] && [ -n "$game" ] && version "$game") || now=none
  [ "$(jq -r .phase <<<"$result")" = "$phase" ] || verdict=WRONG
  [ "$phase" = Succeeded ] && [ "$status" != 0 ] && verdict=WRONG
  [ "$phase" != Succeeded ] && [ "$status" = 0 ] && verdict=WRONG
  # The downtime is reported by inplace; it cannot be longer than the whole operation.
  jq -e --argjson took "$took" '.containers[0].downtimeMs | numbers | . >= 0 and . <= $took' >/dev/null <<<"$result" || verdict=WRONG
  # Each operation creates a new container, and only one container of the name runs.
  [ "$now" = "$want" ] && [ "$game" != "$last" ] || verdict=WRONG
  [ "$verdict" = ok ] || { wrong=1 && cat "$lab/stderr" >&2 && jq -c . >&2 <<<"$result"; }
  last=$game
  # shellcheck disable=SC2016
  jq -r --arg what "$label" --arg now "$now" --arg verdict "$verdict" '(.containers[0] // {}) as $c
    | [$what, "\($c.from.attempt // "-") -> \($c.to.attempt // "-")", $now, .phase, "\($c.downtimeMs // "-")", $verdict] | @tsv' <<<"$result" |
    while IFS=$'\t' read -r label attempt now phase down verdict; do
      printf '  %-28s %-10s %-8s %-12s %8s ms  %s\n' "$label" "$attempt" "$now" "$phase" "$down" "$verdict"
    done
}

# --- the operations -----------------------------------------------------------------------------------------------

echo "starting a containerd of its own..."
bash "$here/lab.sh" up "$lab"
# shellcheck source=/dev/null
. "$lab/env"
export INPLACE_RUNTIME_ENDPOINT
cat >"$lab/pod.yaml" <<Y
apiVersion: v1
kind: Pod
metadata: {namespace: ${pod%/*}, name: ${pod#*/}}
spec:
  containers:
    - {name: game, image: "$REGISTRY/app:v1"}
    - {name: sidecar, image: "$REGISTRY/app:v1"}
Y
"$inplace" node run -f "$lab/pod.yaml"

last=$(running game)
sidecar=$(running sidecar)
in_container "$last" sh -c "echo '$world' >/dev/shm/world"
before=("$(sandbox)" "$(pod_ip "$sidecar")" "$sidecar" "$(started "$sidecar")" "$world")

printf '\n  %-28s %-10s %-8s %-12s %11s\n' operation attempt runs outcome downtime
for number in 1 2 3 4 5; do operate "restart game ($number)" Succeeded v1 restart --pod "$pod" --container game; done
operate "swap game to app:v2" Succeeded v2 swap --pod "$pod" "game=$REGISTRY/app:v2"
operate "swap game to app:crash" RolledBack v2 swap --pod "$pod" "game=$REGISTRY/app:crash"

sidecar=$(running sidecar)
printf '\n  %-28s %-32s %-32s\n' 'what' before after
expect 'sandbox' "${before[0]}" "$(sandbox)"
expect 'pod IP' "${before[1]}" "$(pod_ip "$sidecar")"
expect 'sidecar container' "${before[2]}" "$sidecar"
expect 'sidecar start (ticks)' "${before[3]}" "$(started "$sidecar")"
expect 'shared memory, as game sees it' "${before[4]}" "$(in_container "$last" cat /dev/shm/world)"

printf '\n'
"$inplace" node rm --pod "$pod"
if [ -n "$(sandbox)" ]; then
  echo "the pod is still there after inplace node rm" >&2
  wrong=1
fi
if [ "$wrong" != 0 ]; then
  echo "NOT as expected, see above" >&2
  exit 1
fi
echo "all as expected"
