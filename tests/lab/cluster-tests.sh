#!/usr/bin/env bash
# Runs all cluster tests, four at a time, in three processes that take about as long as each other: those of `crash`, one after the
# other, on one cluster; those of `rolled`, `seeds`, `soak` and `workloads`, which have their own clusters and take minutes, one after
# the other; all others, two at a time. Tests of `load` and `scale` keep the whole machine busy: they run alone, at the end, unless it
# is later than INPLACE_TESTS_UNTIL (seconds since 1970), if that is set: then it is reported that they did not run. A process in
# which no test runs counts as failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

build=(cargo test --locked --features faults --test cluster)
# Prints whole lines only: a process with one thread prints a test's name before its result.
cluster_tests() { # ARGUMENT...
  local ran status=0
  ran=$(mktemp -p "$folder")
  "${build[@]}" -- "$@" 2>&1 | sed -u "/^running [1-9]/w $ran" || status=$?
  if [ ! -s "$ran" ]; then
    echo "cluster-tests.sh: no test ran: $*" >&2
    status=1
  fi
  return "$status"
}
# The clusters' own processes collect their garbage less often: memory is free, the processors are not.
parallel_tests() { GOGC=400 cluster_tests "$@"; }
run_alone() { # MODULE
  if [ "$(date +%s)" -gt "${INPLACE_TESTS_UNTIL:-9999999999}" ]; then
    echo "NOT EXERCISED: the cluster tests of $1: no time is left for them"
  else
    cluster_tests --test-threads 1 "$1::"
  fi
}

"${build[@]}" --no-run
beside=()
own_cluster=(rolled:: seeds:: soak:: workloads::)
trap 'kill "${beside[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
parallel_tests --test-threads 1 crash:: &
beside+=("$!")
parallel_tests --test-threads 1 "${own_cluster[@]}" &
beside+=("$!")
others=(--skip crash:: --skip load:: --skip scale::)
for module in "${own_cluster[@]}"; do others+=(--skip "$module"); done
status=0
parallel_tests --test-threads 2 "${others[@]}" || status=$?
for process in "${beside[@]}"; do
  wait "$process" || status=$?
done
run_alone load || status=$?
run_alone scale || status=$?
exit "$status"
