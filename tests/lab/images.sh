#!/usr/bin/env bash
# Makes the images of the lab as OCI archives, without a network and with the same digests every time:
#   images.sh OUTDIR
# pause-1.tar    the sandbox, and /inplace, which holds a name for so many seconds as the program of that name does
# app-v1..v3     runs until SIGTERM, /etc/version tells which; httpd on $PORT when that is set
# app-multi      an index with two architectures, this machine's among them
# app-crash      says why on stderr and exits 3 at once      app-late      runs 2 s, then exits 1
# app-noentry    its entrypoint is not there                 app-nocmd     neither entrypoint nor command
# app-stubborn   ignores SIGTERM                             app-alien     made for another architecture
# python, main, canary-hook      stand-ins for the images of the published manifests of workloads
# OUTDIR/digests has a line "name digest" for each.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: images.sh OUTDIR}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pause.c" <<'C'
/* Holds a pod's namespaces: waits, buries orphans, leaves when told to. As `inplace hold SECONDS` also after that. */
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
