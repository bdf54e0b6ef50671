#!/usr/bin/env bash
# Runs suites of tests RUNS times and prints a line for each of them: how many tests passed and failed, and the time it took. The suites of a
# round run at the same time, so that the processors are never idle. What a failed suite printed is kept; it ends with 1 if there is one.
# Usage: repeat.sh RUNS hermetic|node|cluster...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
runs=$1
shift
outputs=${CARGO_TARGET_DIR:-target}/repeat
mkdir -p "$outputs"

run() { # SUITE
    case $1 in
    hermetic | node) make --no-print-directory "$1" ;;
    cluster) bash tests/lab/cluster-tests.sh ;;
    esac
}

round() { # ROUND SUITE
    local output="$outputs/$2-$1.txt" status=0 start=$SECONDS
    run "$2" >"$output" 2>&1 || status=$?
    awk -v name="round $1: $2" -v seconds=$((SECONDS - start)) -v status="$status" '
        /^test result:/ { passed += $4; failed += $6 }
        /^test .* \.\.\. FAILED$/ { names = names " " $2 }
        END { printf "%s: %d passed, %d failed, %d s%s%s\n", name, passed, failed, seconds, status ? ", exit code " status ":" : "", names }' "$output"
    if [ "$status" -eq 0 ]; then rm "$output"; fi
    return "$status"
}

for suite in "$@"; do
    case $suite in
    hermetic | node) ;;
    # Some of its tests install the static binary.
    cluster) make --no-print-directory release ;;
    *) echo "no suite is called $suite: hermetic, node, cluster" >&2; exit 2 ;;
    esac
done
make --no-print-directory build-tests >"$outputs/build.txt" 2>&1 || { tail -n 40 "$outputs/build.txt" >&2; exit 1; }
failed=0
for number in $(seq "$runs"); do
    started=()
    for suite in "$@"; do
        round "$number" "$suite" &
        started+=($!)
    done
    for one in "${started[@]}"; do wait "$one" || failed=$((failed + 1)); done
done
echo "$((runs * $#)) runs, $failed of them failed"
[ "$failed" -eq 0 ]
