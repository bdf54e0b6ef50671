#!/usr/bin/env bash
# Builds the program for arm64, and checks the command line tool for macOS and Windows:
#   other-targets.sh REPORT
# If Rust's libraries for these targets cannot be had on this machine, the file REPORT says that nothing of it was done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
report=$1
# A folder of its own: what is in that of a release is optimized.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/other-targets
tools=(aarch64-apple-darwin x86_64-pc-windows-gnu)

mkdir -p "$(dirname "$report")"
rm -f "$report"
status=0
rustc=$(bash tests/lab/rust-targets.sh aarch64-unknown-linux-musl "${tools[@]}") || status=$?
if [ "$status" = 3 ]; then
  echo "arm64, macOS, Windows: NOT EXERCISED, Rust's libraries for them cannot be had here" | tee "$report"
  exit 0
fi
[ "$status" = 0 ] || exit "$status"
# Not optimized, which takes a fraction of the time: what is tested is the target.
CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=0 \
  RUSTC=$rustc bash dist/build.sh arm64
for target in "${tools[@]}"; do
  # Nothing is linked, so the C code of the dependencies is not compiled.
  variable=${target//-/_}
  env "CC_$variable=true" "AR_$variable=true" "CARGO_TARGET_$(tr a-z A-Z <<<"$variable")_RUSTFLAGS=-Dwarnings" \
    "RUSTC=$rustc" cargo check --quiet --locked --bin inplace --target "$target"
  echo "$target: the command line tool is checked"
done
