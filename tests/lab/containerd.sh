#!/usr/bin/env bash
# Prints the path of Debian's containerd of one release of Debian:
#   containerd.sh bookworm|trixie|forky
# apt verifies the package. It is fetched, not installed, and stored below INPLACE_CACHE (default ~/.cache/inplace): this
# machine's own containerd stays as it is. The shim and `ctr` of the same package are beside it.
set -euo pipefail
release=$1
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/containerd
keys=/usr/share/keyrings/debian-archive-keyring.gpg

die() { echo "containerd.sh: $*" >&2; exit 1; }

case $release in bookworm | trixie | forky) ;; *) die "no release of Debian that is known here: $release" ;; esac
mkdir -p "$store"
work=$(mktemp -d "$store/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# shellcheck disable=SC2016 # apt's own variables
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 2>/dev/null | grep -v security | head -n 1) || true
mkdir -p lists/partial cache/archives/partial
echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} $release main" >list
options=(-qq -o "Dir::Etc::SourceList=$work/list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update >&2 || die "the package list of Debian $release could not be fetched"
apt-get "${options[@]}" download containerd >&2 || die "containerd of Debian $release could not be fetched"
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
