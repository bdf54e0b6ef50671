#!/usr/bin/env bash
# Pushes the image index, its lists of components and the chart from a folder of dist.sh to registries:
#   IMAGE=HOST/REPOSITORY CHART=HOST/FOLDER push.sh FOLDER
# The tag is the version. The chart is HOST/FOLDER/inplace. Without CHART, no chart is pushed.
# INSECURE_REGISTRY=1   allows plain HTTP or an unknown certificate; only for a registry on this machine's loopback
# Credentials are those of skopeo: `skopeo login HOST`. Prints what is pushed, with digests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "push.sh: $*" >&2; exit 1; }

[ $# = 1 ] || die "usage: IMAGE=HOST/REPOSITORY CHART=HOST/FOLDER push.sh FOLDER"
[[ ${IMAGE:-} == */* ]] || die "IMAGE=${IMAGE:-} is to be HOST/REPOSITORY"
insecure=()
if [ "${INSECURE_REGISTRY:-0}" = 1 ]; then
  for name in "$IMAGE" ${CHART:-}; do
    [[ $name =~ ^(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?/ ]] || die "INSECURE_REGISTRY=1 is for registries on loopback, and $name is not on one"
  done
  insecure=(--dest-tls-verify=false)
fi
problem=$(bash "$here/needs.sh" skopeo python3) || die "$problem"
(cd "$1" && sha256sum --check --quiet --strict SHA256SUMS) || die "$1 is not as dist.sh made it"

# Prints "TAG DIGEST" for each entry point of an archive.
entries() {
  tar -xOf "$1" index.json | python3 -c 'import json, sys
for entry in json.load(sys.stdin)["manifests"]:
    print(entry["annotations"]["org.opencontainers.image.ref.name"], entry["digest"])'
}
# --insecure-policy disables the check of signatures on the source, whose checksum is right. --preserve-digests keeps the bytes.
copy() { skopeo --insecure-policy copy --quiet --all "${insecure[@]}" "${@:3}" "oci-archive:$1" "docker://$2" </dev/null; }
exists() { skopeo inspect --raw "${insecure[@]/dest-/}" "docker://$1" >/dev/null 2>&1 </dev/null; }

push() { # every entry point of the archive $1 to the repository $2
  local tag digest
  while read -r tag digest; do
    case $tag in
      sha256-*)
        # The list of attachments, for registries without the referrers API. One that exists may have others, as signatures. skopeo
        # 1.9 cannot keep its bytes: it leaves out the field artifactType of the entries. The attachments are unchanged.
        if exists "$2:$tag"; then
          echo "$2:$tag exists, and is not changed"
        else
          copy "$1:$tag" "$2:$tag"
          echo "$2:$tag"
        fi ;;
      *)
        copy "$1:$tag" "$2:$tag" --preserve-digests
        echo "$2:$tag@$digest" ;;
    esac
  done < <(entries "$1")
}
push "$1"/inplace-*-image.tar "$IMAGE"
if [ -n "${CHART:-}" ]; then push "$1"/inplace-*-chart.tar "$CHART/inplace"; fi
