#!/usr/bin/env bash
# Runs all cluster tests. Those of the module `crash` use one cluster, one after the other, and mostly wait; they run beside the
# others in a process of their own. Its output follows that of the others. Those of `load` and `scale` keep the whole machine busy:
# they run alone, at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cluster_tests() { cargo test --locked --features faults --test cluster "$@"; }

cluster_tests --no-run
output=$(mktemp)
cluster_tests crash:: -- --test-threads 1 >"$output" 2>&1 &
crash=$!
trap 'kill "$crash" 2>/dev/null || true; rm -f "$output"' EXIT
status=0
cluster_tests -- --skip crash:: --skip load:: --skip scale:: || status=$?
wait "$crash" || status=$?
cat "$output"
cluster_tests load:: -- --test-threads 1 || status=$?
cluster_tests scale:: -- --test-threads 1 || status=$?
exit "$status"
