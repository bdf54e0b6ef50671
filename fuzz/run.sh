#!/usr/bin/env bash
# Builds the fuzz targets on the stable toolchain and runs each of them, or those that are named, for SECONDS:
#   run.sh TARGET_DIR SECONDS [TARGET...]
# cargo-fuzz needs nightly only for the sanitizers; the coverage is a pass of LLVM, which every rustc has. New inputs are stored in
# TARGET_DIR/fuzz/corpus, failing inputs in TARGET_DIR/fuzz/found.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)/fuzz
seconds=$2
targets=("${@:3}")
if [ ${#targets[@]} -eq 0 ]; then mapfile -t targets < <(ls "$here/seeds"); fi
host=$(rustc -vV | sed -n 's/^host: //p')
flags=(-Cpasses=sancov-module --cfg fuzzing)
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
  flags+=("-Cllvm-args=-sanitizer-coverage-$argument")
done
# A short run only checks that the targets work: optimizing the whole product would take most of its time.
if [ "$seconds" -lt 60 ]; then export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_DEBUG=false; fi
# With --target, RUSTFLAGS do not apply to build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --manifest-path "$here/Cargo.toml" --locked --release --target "$host" --target-dir "$dir"
# In memory where that is possible: the journal is written durably.
TMPDIR=$(mktemp -d /dev/shm/inplace-fuzz.XXXXXX 2>/dev/null || mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
for target in "${targets[@]}"; do
  corpus=$dir/corpus/$target
  mkdir -p "$corpus" "$dir/found"
  log=$dir/$target.log
  # No input may take 5 s or need half a gibibyte.
  if FUZZ_TARGET=$target "$dir/$host/release/fuzz" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -max_len=4096 -print_final_stats=1 \
    -artifact_prefix="$dir/found/$target-" "$corpus" "$here/seeds/$target" >"$log" 2>&1; then
    # Without the pass of LLVM all inputs would be random. The product and its libraries have several hundred thousand counters.
    counters=$(sed -n 's/^INFO: Loaded 1 modules *(\([0-9]*\) inline 8-bit counters).*/\1/p' "$log")
    if [ "${counters:-0}" -lt 50000 ]; then
      echo "fuzz $target: the program is not instrumented: ${counters:-0} counters" >&2
      exit 1
    fi
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in ${seconds} s, nothing found"
  else
    tail -n 40 "$log" >&2
    echo "fuzz $target: found something; the input is below $dir/found" >&2
    exit 1
  fi
done
