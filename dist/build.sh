#!/usr/bin/env bash
# Builds the static binary for amd64 or arm64, and prints its path:
#   build.sh ARCH
#   build.sh --check ARCH    builds nothing; prints what is missing for that architecture, if something is
# The C code of the dependencies (ring, psm) needs a C compiler for the architecture: CC_x86_64_unknown_linux_musl, default musl-gcc,
# and CC_aarch64_unknown_linux_musl, default aarch64-linux-gnu-gcc, which also links. The C library is that of the Rust target.
# No path of this machine is in the binary: clones in different folders give the same binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { echo "build.sh: $*" >&2; exit 1; }

check=0
if [ "${1:-}" = --check ]; then check=1; shift; fi
case ${1:-} in
  amd64) target=x86_64-unknown-linux-musl compiler=musl-gcc ;;
  arm64) target=aarch64-unknown-linux-musl compiler=aarch64-linux-gnu-gcc ;;
  *) die "usage: build.sh [--check] amd64|arm64" ;;
esac
if [ -z "${RUSTC:-}" ]; then unset RUSTC; fi
rustc=${RUSTC:-rustc}
cc=CC_${target//-/_}
export "$cc=${!cc:-$compiler}"

# Installs nothing, so that a build changes no toolchain that others use.
missing() {
  bash dist/needs.sh cargo python3 "${!cc}" || true
  command -v "$rustc" >/dev/null || { echo "missing: $rustc"; return 0; }
  compgen -G "$("$rustc" --print target-libdir --target "$target")/libstd-*.rlib" >/dev/null ||
    echo "missing: Rust's standard library for $target, of $("$rustc" --version) (rustup target add $target)"
}
problem=$(missing)
if [ "$check" = 1 ]; then printf '%s' "$problem"; exit 0; fi
[ -z "$problem" ] || die "$problem"

# These would replace the flags below.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
commit=$("$rustc" -vV | sed -n 's/^commit-hash: //p')
folder=${CARGO_TARGET_DIR:-target}
variable=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$target")
# The last prefix that fits is used: the folder of the build may be in that of the sources, and those in the home of cargo.
export "${variable}_RUSTFLAGS=--remap-path-prefix=$("$rustc" --print sysroot)/lib/rustlib/src/rust=/rustc/$commit\
 --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$PWD=/inplace --remap-path-prefix=$(realpath -m "$folder")=/target"
if [ "$target" = aarch64-unknown-linux-musl ]; then export "${variable}_LINKER=${!cc}"; fi
"${CARGO:-cargo}" build --locked --release --bin inplace --target "$target" >&2

binary=$folder/$target/release/inplace
if ldd "$binary" 2>/dev/null | grep -q '=>'; then die "$binary is not static"; fi
if grep -q INPLACE_FAULT_AT "$binary"; then die "$binary has fault points"; fi
stat -c '%n: static, no fault points, %s bytes' "$binary" >&2
echo "$binary"
