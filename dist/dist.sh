#!/usr/bin/env bash
# Makes everything that a release has, from a clean clone, in a new folder:
#   dist.sh FOLDER
# ARCHS                  the architectures (default "amd64 arm64"); one that this machine cannot build is left out, and named
# DIST_COMPLETE=1        fails if something is left out
# DIST_URL               the address of the folder from which users download, for the manifest of krew
# SOURCE_DATE_EPOCH      the time of all files (default: that of the commit)
# The same commit gives the same bytes, on machines with the same Rust, C compiler, Python and certificates.
set -euo pipefail
die() { echo "dist.sh: $*" >&2; exit 1; }
[ $# = 1 ] || die "usage: dist.sh FOLDER"
out=$(realpath -m -- "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The folder is made anew: only one that an earlier run has made is removed.
if [ -e "$out" ] && [ ! -f "$out/SHA256SUMS" ] && [ -n "$(ls -A "$out")" ]; then
  die "$out has other files: name a new folder"
fi

problem=$(bash dist/needs.sh cargo python3) || die "$problem"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
revision=
if [ -z "$(git status --porcelain)" ]; then revision=$(git rev-parse HEAD)
else echo "dist.sh: the working tree has changes: the image names no revision" >&2; fi

case $(uname -m) in x86_64) own=amd64 ;; aarch64) own=arm64 ;; *) own= ;; esac
left_out=("macOS and Windows: no linker for them is here; make other-targets only checks the command line tool")
binaries=() native=
for arch in ${ARCHS:-amd64 arm64}; do
  problem=$(bash dist/build.sh --check "$arch")
  if [ -n "$problem" ]; then left_out+=("linux $arch: ${problem//$'\n'/; }"); continue; fi
  binary=$(bash dist/build.sh "$arch")
  binaries+=(--binary "$arch=$binary")
  if [ "$arch" = "$own" ]; then native=$binary; fi
done
[ -n "$native" ] || die "no binary for this machine, which writes the manual pages: $(printf '%s; ' "${left_out[@]}")"

rm -rf -- "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash dist/share.sh "$native" "$work/share"
python3 -B dist/pack.py "$out" --version "$version" --time "$time" --revision "$revision" --share "$work/share" \
  --url "${DIST_URL:-https://downloads.example/inplace/v$version}" "${binaries[@]}"
cat "$out/SHA256SUMS"
# The fixed entry is a property of this release; the others are of this machine.
printf 'left out: %s\n' "${left_out[@]}"
if [ "${DIST_COMPLETE:-0}" = 1 ] && [ "${#left_out[@]}" -gt 1 ]; then exit 1; fi
