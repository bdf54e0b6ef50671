#!/usr/bin/env bash
# Creates the images of the lab as OCI archives, without network access and with the same digests every time:
#   images.sh OUTDIR
# pause-1.tar    the sandbox; also /inplace, which implements `inplace hold SECONDS`, the program of a fence
# app-v1..v3     runs until SIGTERM; /etc/version holds the version; httpd on $PORT if that is set
# app-multi      an index with two architectures, including that of this machine
# app-crash      writes an error to stderr and exits 3 at once     app-late     runs 2 s, then exits 1
# app-noentry    its entrypoint does not exist                     app-nocmd    has neither entrypoint nor command
# app-stubborn   ignores SIGTERM                                   app-alien    is for another architecture
# python, main, canary-hook      substitutes for the images that the published manifests of workloads name
# OUTDIR/digests has a line "name digest" for each image.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: images.sh OUTDIR}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pause.c" <<'C'
/* Holds a pod's namespaces: waits, reaps orphans, exits on SIGTERM or SIGINT. As `inplace hold SECONDS` also after that time. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
  sigset_t all;
  int got;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, 0);
  if (count == 3) alarm(atoi(words[2]));
  while (!sigwait(&all, &got) && got != SIGTERM && got != SIGINT && got != SIGALRM)
    while (waitpid(-1, 0, WNOHANG) > 0) continue;
  return 0;
}
C
(cd "$work" && musl-gcc -static -Os -s -Wl,--build-id=none -o pause pause.c)
python3 -B "$here/oci.py" pause "$out" "$work/pause" >"$out/digests"
python3 -B "$here/oci.py" apps "$out" "$(command -v busybox)" >>"$out/digests"
