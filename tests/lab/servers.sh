#!/usr/bin/env bash
# Creates images with the nginx and the HAProxy of Debian 12 as OCI archives, for the benchmark of `order: StartFirst`:
#   servers.sh                prints the folder of the archives: nginx-v1.tar, nginx-v2.tar, haproxy-v1.tar, haproxy-v2.tar
# v1 and v2 differ in the answer only: the page of nginx, the variable HAPROXY_VERSION of HAProxy. Folders, command, stop signal and
# variables are those of the images on Docker Hub, so that a manifest fits both. `digests` in the folder has a line "name digest" for
# each image, `versions` a line "name version" for each server.
# The packages and their libraries are fetched with apt-get (no root needed while apt's lists are not empty), checked by it, and
# unpacked but not installed. The result is stored below INPLACE_CACHE (default ~/.cache/inplace); the same packages give the same
# digests. There is no download if the folder exists.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/servers
packages="nginx nginx-common haproxy libc6 libcrypt1 libpcre2-8-0 libssl3 zlib1g liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
libsystemd0 libcap2 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 libzstd1 libgcc-s1 libstdc++6"

die() { echo "servers.sh: $*" >&2; exit 1; }

# Downloads the packages into the folder $1, with new lists if the present ones are too old.
download() {
  command -v apt-get >/dev/null || die "there is no apt-get here"
  echo "servers.sh: fetches nginx and HAProxy" >&2
  # As the user _apt apt-get cannot write into this folder.
  local get=(apt-get -o "APT::Sandbox::User=$(id -un)")
  # shellcheck disable=SC2086
  (cd "$1" && { "${get[@]}" download -qq $packages || { "${get[@]}" update -qq && "${get[@]}" download -qq $packages; }; }) >"$1/log" 2>&1 ||
    die "cannot fetch the packages: $(tail -n 5 "$1/log")"
}

# Runs a program of the unpacked packages, or with --list prints its libraries, with the loader and the libraries of the packages.
loaded() { # ROOT [--list] PROGRAM ARGUMENTS...
  local loader libraries
  loader=$(find "$1/lib" "$1/lib64" -name 'ld-linux*.so.*' 2>/dev/null | head -n 1)
  libraries=$(find "$1/lib" "$1/usr/lib" -maxdepth 1 -name '*-linux-gnu' | tr '\n' ':')
  "$loader" --library-path "$libraries" "${@:2}"
}

make_images() { # in the folder $1
  local package root=$1/root server
  mkdir "$1/packages" "$root"
  download "$1/packages"
  for package in "$1"/packages/*.deb; do dpkg-deb -x "$package" "$root"; done
  for server in nginx haproxy; do
    loaded "$root" --list "$root/usr/sbin/$server" >"$1/list"
    ! grep 'not found' "$1/list" >&2 || die "$server needs a library that is in no package"
    sed -nE "s,.*=> ($root/[^ ]+) .*,\\1,p" "$1/list" >"$root/$server.libraries"
    echo "$server $(loaded "$root" "$root/usr/sbin/$server" -v 2>&1 | sed -nE '1s,.*version:? (nginx/)?([0-9.]+[0-9]).*,\2,p')" >>"$1/versions"
  done
  python3 -B "$here/oci.py" servers "$1" "$(command -v busybox)" "$root" >"$1/digests"
  rm -rf "$1/packages" "$1/list" "$root"
}

key=$(cat "$here/oci.py" "$here/servers.sh" "$(command -v busybox)" | sha256sum | cut -c 1-16)
if [ ! -d "$store/$key" ]; then
  mkdir -p "$store"
  work=$(mktemp -d "$store/.new.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  make_images "$work"
  # If another process was faster, its folder has the same content.
  mv -T "$work" "$store/$key" 2>/dev/null || true
fi
echo "$store/$key"
