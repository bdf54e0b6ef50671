#!/usr/bin/env bash
# Makes OUTDIR/big-v1.tar: the app image with a layer of MB megabytes that do not compress:
#   big-image.sh OUTDIR MB
# Put it into a lab's registry with: lab.sh push DIR OUTDIR/big-v1.tar big:v1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 -B "$here/oci.py" big "${1:?usage: big-image.sh OUTDIR MB}" "$(command -v busybox)" "${2:?usage: big-image.sh OUTDIR MB}"
