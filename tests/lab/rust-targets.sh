#!/usr/bin/env bash
# Prints the path of a rustc that also knows other targets, on a machine that cannot fetch Rust's own libraries for them:
#   rust-targets.sh TARGET ...
#   RUSTC=$(bash tests/lab/rust-targets.sh aarch64-unknown-linux-musl) bash dist/build.sh arm64
# It is this machine's rustc with another folder of libraries, below INPLACE_CACHE (default ~/.cache/inplace). Rust's standard library
# is built from Debian's package of its sources, of the same version, and from the crates in their lock file. Programs can be built
# for arm64: the C library is that of Debian's musl, the rest is of the C compiler (gcc-aarch64-linux-gnu). For other targets they can
# only be checked. The packages are fetched and not installed. The exit code is 3 if there are no such sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset RUSTC
compiler=aarch64-linux-gnu-gcc

die() { echo "rust-targets.sh: $*" >&2; exit "${status:-1}"; }

version=$(rustc --version | cut -d ' ' -f 2)
commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
own=$(rustc --print sysroot)
root=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/rust-$version-${commit:0:9}
mkdir -p "$root/bin" "$root/lib/rustlib"
# Other runs may use the folder now.
exec 9>"$root/lock"
flock 9
for existing in "$own"/lib/rustlib/*; do
  to=$root/lib/rustlib/${existing##*/}
  # A target that is installed meanwhile is Rust's own.
  if [ -d "$to" ] && [ ! -L "$to" ]; then rm -rf "$to"; fi
  ln -sfn "$existing" "$to"
done
printf '#!/bin/sh\nexec "%s/bin/rustc" --sysroot "%s" "$@"\n' "$own" "$root" >"$root/bin/rustc.new"
chmod +x "$root/bin/rustc.new"
mv "$root/bin/rustc.new" "$root/bin/rustc"

work=
trap 'rm -rf "$work"' EXIT
fetch() {
  work=$(mktemp -d "$root/.build.XXXXXX")
  bash tests/lab/debian-packages.sh "$work" "trixie trixie-backports forky" "rust-src=$version*" musl-dev:arm64 ||
    status=3 die "Debian has no sources of Rust $version, or they could not be fetched"
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/debian"; done
}

# The names of these folders are not in the libraries, and the release program is optimized together with them.
compile() { # check|build TARGET
  local sources=("$work"/debian/usr/src/rustc-*)
  CARGO_TARGET_DIR="$work/target" RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zforce-unstable-if-unmarked -Cembed-bitcode=yes \
--remap-path-prefix=${sources[0]}=/rustc/$commit --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    cargo "$1" --quiet --locked --release --manifest-path "${sources[0]}/library/sysroot/Cargo.toml" --target "$2" \
    --features backtrace,panic-unwind >&2
}

# The objects around a program, the C library and the unwinder. That of the C compiler asks the C library for a function that musl
# lacks; here it finds nothing, because a release aborts at a panic and never unwinds.
add_c_library() { # FOLDER
  local musl=$work/debian/usr/lib/aarch64-linux-musl object
  cp "$musl"/{crt1,Scrt1,rcrt1,crti,crtn}.o "$musl/libc.a" "$1/"
  for object in crtbegin.o crtbeginS.o crtend.o crtendS.o; do cp "$("$compiler" -print-file-name=$object)" "$1/"; done
  cp "$("$compiler" -print-file-name=libgcc_eh.a)" "$1/libunwind.a"
  echo 'int _dl_find_object(void *pc, void *found) { (void)pc, (void)found; return -1; }' |
    "$compiler" -O2 -x c -c -o "$work/find.o" -
  aarch64-linux-gnu-ar r "$1/libunwind.a" "$work/find.o"
}

for target in "$@"; do
  if [ -e "$root/lib/rustlib/$target" ]; then continue; fi
  verb=check kind=rmeta
  if [ "$target" = aarch64-unknown-linux-musl ]; then
    command -v "$compiler" >/dev/null || die "$compiler is missing (Debian: gcc-aarch64-linux-gnu)"
    verb=build kind=rlib
  fi
  if [ -z "$work" ]; then fetch; fi
  compile "$verb" "$target"
  libraries=$work/$target/lib
  mkdir -p "$libraries/self-contained"
  find "$work/target/$target/release/deps" -name "*.$kind" -exec cp {} "$libraries/" \;
  # dist/build.sh knows the library by this name.
  if [ -e "$libraries/libstd.$kind" ]; then mv "$libraries/libstd.$kind" "$libraries/libstd-${commit:0:16}.$kind"; fi
  if [ "$verb" = build ]; then add_c_library "$libraries/self-contained"; fi
  mv -T "$work/$target" "$root/lib/rustlib/$target"
done
echo "$root/bin/rustc"
