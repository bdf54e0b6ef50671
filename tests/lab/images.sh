#!/usr/bin/env bash
# Creates the images of the lab as OCI archives, without network access and with the same digests every time:
#   images.sh OUTDIR
# pause-1.tar    the sandbox; also /inplace, which implements what a fence runs: `inplace hold SECONDS` and `inplace sockets`
# app-v1..v3     runs until SIGTERM; /etc/version holds the version; httpd on $PORT if that is set; `serve PORT` shares PORT
# app-multi      an index with two architectures, including that of this machine
# app-crash      writes an error to stderr and exits 3 at once     app-late     runs 2 s, then exits 1
# app-noentry    its entrypoint does not exist                     app-nocmd    has neither entrypoint nor command
# app-stubborn   ignores SIGTERM                                   app-alien    is for another architecture
# app-user       as app-v1, and does not run as root
# python, main, canary-hook      substitutes for the images that the published manifests of workloads name
# python3-v1, v2 the Python of this machine, for the examples
# OUTDIR/digests has a line "name digest" for each image.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: images.sh OUTDIR}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in pause serve; do
  musl-gcc -static -Os -s -Wl,--build-id=none -o "$work/$program" "$here/$program.c"
done
python3 -B "$here/oci.py" pause "$out" "$work/pause" >"$out/digests"
python3 -B "$here/oci.py" apps "$out" "$(command -v busybox)" "$work/serve" >>"$out/digests"
python3 -B "$here/oci.py" python "$out" "$(command -v busybox)" /usr/bin/python3 >>"$out/digests"
