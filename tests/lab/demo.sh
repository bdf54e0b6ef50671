#!/usr/bin/env bash
# What a restart in place keeps, shown on a real containerd:
#   demo.sh PATH/TO/inplace
# A pod with two containers: `game` keeps its world in shared memory, `sidecar` stands by. The game is restarted five times,
# updated, then updated to an image that crashes, which is rolled back. Facts come from the runtime, not from inplace. A table
# that does not hold ends with exit code 1. Nothing is left behind, also when it is interrupted.
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
bash "$here/lab.sh" guard "$lab" $$ # for the end that no trap sees
export INPLACE_STATE_DIR=$lab/inplace

ctr() { bash "$here/lab.sh" ctr "$lab" "$@"; }

# --- facts, from the runtime --------------------------------------------------------------------------------------

sandbox() { ctr containers ls -q 'labels."io.cri-containerd.kind"==sandbox'; }

# The IDs of the containers named $1 that run: there must be exactly one.
running() {
  local ids tasks
  ids=$(ctr containers ls -q "labels.\"io.kubernetes.container.name\"==$1")
  tasks=$(ctr tasks ls)
  awk -v ids="$ids" 'BEGIN { n = split(ids, list, "\n"); for (i = 1; i <= n; i++) want[list[i]] = 1 } $1 in want && $3 == "RUNNING" { print $1 }' <<<"$tasks"
}

process() { ctr tasks ls | awk -v id="$1" '$1 == id { print $2 }'; }

# When the first process of container $1 was started, in clock ticks since boot.
started() { sed -E 's/.*\) //' "/proc/$(process "$1")/stat" | awk '{ print $20 }'; }

# in_container ID COMMAND...
in_container() {
  local id=$1
  shift
  ctr tasks exec --exec-id "demo-$RANDOM-$RANDOM" "$id" "$@" </dev/null
}

pod_ip() { in_container "$1" ip -4 -o addr show eth0 | sed -nE 's/.* inet ([0-9.]+).*/\1/p'; }

version() { in_container "$1" cat /etc/version; }

# --- the table ----------------------------------------------------------------------------------------------------

# expect WHAT BEFORE NOW: a line of the first table.
expect() {
  local verdict=kept
  if [ "$2" != "$3" ] || [ -z "$3" ]; then verdict=LOST && wrong=1; fi
  printf '  %-28s %-32.32s %-32.32s %s\n' "$1" "$2" "$3" "$verdict"
}

# operate LABEL WANTED-PHASE WANTED-VERSION COMMAND...: runs inplace, prints a line, and looks at the runtime itself.
operate() {
  local label=$1 phase=$2 want=$3 result status=0 game now verdict=ok start took
  shift 3
  start=$(date +%s%3N)
  result=$("$inplace" node "$@" -o json 2>"$lab/told") || status=$?
  took=$(($(date +%s%3N) - start))
  if ! jq -e . >/dev/null 2>&1 <<<"$result"; then
    echo "  $label: no result (exit code $status): $(cat "$lab/told")" >&2
    exit 1
  fi
  game=$(running game)
  now=$([ "$(wc -l <<<"$game")" = 1 ] && [ -n "$game" ] && version "$game") || now=none
  [ "$(jq -r .phase <<<"$result")" = "$phase" ] || verdict=WRONG
  [ "$phase" = Succeeded ] && [ "$status" != 0 ] && verdict=WRONG
  [ "$phase" != Succeeded ] && [ "$status" = 0 ] && verdict=WRONG
  # The downtime is what inplace says; it cannot be longer than the whole operation.
  jq -e --argjson took "$took" '.containers[0].downtimeMs | numbers | . >= 0 and . <= $took' >/dev/null <<<"$result" || verdict=WRONG
  # A new container each time, never the same one touched up; and only one of the name.
  [ "$now" = "$want" ] && [ "$game" != "$last" ] || verdict=WRONG
  [ "$verdict" = ok ] || { wrong=1 && cat "$lab/told" >&2 && jq -c . >&2 <<<"$result"; }
  last=$game
  # shellcheck disable=SC2016
  jq -r --arg what "$label" --arg now "$now" --arg verdict "$verdict" '(.containers[0] // {}) as $c
    | [$what, "\($c.from.attempt // "-") -> \($c.to.attempt // "-")", $now, .phase, "\($c.downtimeMs // "-")", $verdict] | @tsv' <<<"$result" |
    while IFS=$'\t' read -r label attempt now phase down verdict; do
      printf '  %-28s %-10s %-8s %-12s %8s ms  %s\n' "$label" "$attempt" "$now" "$phase" "$down" "$verdict"
    done
}

# --- the play -----------------------------------------------------------------------------------------------------

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
for turn in 1 2 3 4 5; do operate "restart game ($turn)" Succeeded v1 restart --pod "$pod" --container game; done
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
