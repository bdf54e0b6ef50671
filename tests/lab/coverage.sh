#!/usr/bin/env bash
# Runs suites of tests with counters in the product, and prints how many of its lines were executed, by folder of src:
#   coverage.sh TARGET_DIR hermetic|node|cluster...
# Unit tests belong to `hermetic`. Lines of tests are not counted. Each line is listed in TARGET_DIR/coverage/lines.txt. A process that
# is ended with SIGKILL writes no counters, so that what only such a process executed counts as not executed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=$(realpath -m "$1")/coverage
shift
bash tests/lab/install.sh coverage
rm -rf "$target/counters"
mkdir -p "$target/counters"
export CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0 RUSTFLAGS=-Cinstrument-coverage
# Processes of one binary add to the same few files.
export LLVM_PROFILE_FILE=$target/counters/%8m.profraw
tests=(--locked --features faults --lib --bins --test hermetic --test node --test cluster)
# Build scripts are instrumented too; their counters are of no interest.
mapfile -t binaries < <(LLVM_PROFILE_FILE=/dev/null cargo test "${tests[@]}" --no-run --message-format=json | jq -r 'select(.executable != null) | .executable' | sort -u)

status=0
for suite in "$@"; do
  case $suite in
    hermetic | node) make --no-print-directory "$suite" || status=$? ;;
    cluster) bash tests/lab/cluster-tests.sh || status=$? ;;
    *) echo "no suite is called $suite: hermetic, node, cluster" >&2; exit 2 ;;
  esac
done

llvm-profdata-19 merge --sparse --failure-mode=warn "$target"/counters/*.profraw -o "$target/counters/all.profdata"
objects=()
for binary in "${binaries[@]}"; do objects+=(--object "$binary"); done
llvm-cov-19 export --format=lcov --instr-profile="$target/counters/all.profdata" "${objects[@]}" --sources "$PWD/src" |
  python3 tests/lab/coverage.py "$PWD/src" "$target/lines.txt"
exit "$status"
