#!/usr/bin/env bash
# Prints the path of Debian's containerd of one release of Debian:
#   containerd.sh bookworm|trixie|forky
# apt verifies the package. It is fetched, not installed, and stored below INPLACE_CACHE (default ~/.cache/inplace): this
# machine's own containerd stays as it is. The shim and `ctr` of the same package are beside it.
set -euo pipefail
release=$1
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/containerd

die() { echo "containerd.sh: $*" >&2; exit 1; }

case $release in bookworm | trixie | forky) ;; *) die "no release of Debian that is known here: $release" ;; esac
mkdir -p "$store"
work=$(mktemp -d "$store/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
bash "$(dirname "${BASH_SOURCE[0]}")/debian-packages.sh" "$work" "$release" containerd ||
  die "containerd of Debian $release could not be fetched"
cd "$work"
version=$(dpkg-deb -f containerd_*.deb Version)
target=$store/$release-$version
if [ ! -x "$target/usr/bin/containerd" ]; then
  dpkg-deb -x containerd_*.deb package
  # A program of a newer Debian can need a newer C library than this machine has.
  package/usr/bin/containerd --version >/dev/null || die "containerd $version does not run on this machine"
  rm -rf "$target"
  mv -T package "$target"
fi
echo "$target/usr/bin/containerd"
