#!/usr/bin/env bash
# Runs all cluster tests. They mostly wait, so three processes run at the same time: the tests of `crash`, which use one cluster, one
# after the other; the modules with the longest tests, which would otherwise come last, alphabetically; and all others, two at a time.
# The output of the first two follows that of the others. Tests of `load` and `scale` keep the whole machine busy: they run alone, at
# the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cluster_tests() { cargo test --locked --features faults --test cluster "$@"; }

crash=(crash::)
longest=(workloads:: rolled:: hook_runs:: soak::)
skipped=()
for module in "${crash[@]}" "${longest[@]}" load:: scale::; do skipped+=(--skip "$module"); done

cluster_tests --no-run
folder=$(mktemp -d)
pids=()
beside() { # NAME MODULE...
  cluster_tests -- --test-threads 1 "${@:2}" >"$folder/$1" 2>&1 &
  pids+=($!)
}
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
beside crash "${crash[@]}"
beside longest "${longest[@]}"
status=0
cluster_tests -- --test-threads 2 "${skipped[@]}" || status=$?
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
cat "$folder"/*
cluster_tests load:: -- --test-threads 1 || status=$?
cluster_tests scale:: -- --test-threads 1 || status=$?
exit "$status"
