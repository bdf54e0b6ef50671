#!/usr/bin/env bash
# Builds the image from a static binary and pushes it, without a Docker engine:
#   IMAGE=HOST/REPOSITORY:TAG image.sh BINARY VERSION
# ARCH=arm64            the binary is for arm64 (default amd64)
# INSECURE_REGISTRY=1   allows plain HTTP or an unknown certificate; only for a registry on this machine's loopback
# Credentials are those of skopeo: `skopeo login HOST`. Prints the pushed image with its digest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "image.sh: $*" >&2; exit 1; }

[ $# = 2 ] || die "usage: IMAGE=HOST/REPOSITORY:TAG image.sh BINARY VERSION"
[[ ${IMAGE:-} == */*:* ]] || die "IMAGE=${IMAGE:-} is to be HOST/REPOSITORY:TAG"
options=()
if [ "${INSECURE_REGISTRY:-0}" = 1 ]; then
  [[ $IMAGE =~ ^(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?/ ]] || die "INSECURE_REGISTRY=1 is for registries on loopback, and $IMAGE is not on one"
  options=(--dest-tls-verify=false)
fi
command -v skopeo >/dev/null || die "skopeo is missing (Debian's package skopeo)"

revision=
# The revision is set only if the working tree has no changes: otherwise the commit does not describe the input.
if [ -z "$(git -C "$here" status --porcelain 2>/dev/null)" ]; then revision=$(git -C "$here" rev-parse HEAD 2>/dev/null) || revision=; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case ${ARCH:-amd64} in amd64) target=x86_64-unknown-linux-musl ;; *) target=aarch64-unknown-linux-musl ;; esac
python3 -B "$here/sbom.py" --target "$target" > "$work/sbom.cdx.json"
digest=$(python3 -B "$here/image.py" "$work/image.tar" "$1" --version "$2" --arch "${ARCH:-amd64}" --revision "$revision" --sbom "$work/sbom.cdx.json")
# --insecure-policy disables the check of signatures on the source, which was created above. --preserve-digests keeps the bytes,
# and so the digest.
skopeo --insecure-policy copy --quiet --preserve-digests "${options[@]}" "oci-archive:$work/image.tar" "docker://$IMAGE"
echo "$IMAGE@$digest"
