#!/usr/bin/env bash
# Runs all cluster tests, three at a time. Those of `crash` use one cluster, one after the other; they run in a process of their own,
# and after them those of `workloads`, of which one takes minutes. All others run beside them, two at a time. Tests of `load` and
# `scale` keep the whole machine busy: they run alone, at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cluster_tests() { cargo test --locked --features faults --test cluster "$@"; }

cluster_tests --no-run
# The clusters' own processes collect their garbage less often: memory is free, the processors are not.
parallel_tests() { GOGC=400 cluster_tests "$@"; }
# The first process prints a test's name before its result: whole lines only, between those of the second.
parallel_tests -- --test-threads 1 crash:: workloads:: > >(sed -u '') 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null || true' EXIT
status=0
parallel_tests -- --test-threads 2 --skip crash:: --skip workloads:: --skip load:: --skip scale:: || status=$?
wait "$beside" || status=$?
cluster_tests load:: -- --test-threads 1 || status=$?
cluster_tests scale:: -- --test-threads 1 || status=$?
exit "$status"
