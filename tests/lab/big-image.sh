#!/usr/bin/env bash
# Creates OUTDIR/big-v1.tar: the app image with an additional layer of MB megabytes of incompressible data:
#   big-image.sh OUTDIR MB
# Push it to a lab's registry with: lab.sh push DIR OUTDIR/big-v1.tar big:v1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 -B "$here/oci.py" big "${1:?usage: big-image.sh OUTDIR MB}" "$(command -v busybox)" "${2:?usage: big-image.sh OUTDIR MB}"
