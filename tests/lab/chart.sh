#!/usr/bin/env bash
# Renders a Helm chart without Helm:
#   chart.sh DIR [VALUES]      VALUES is JSON or YAML, merged over the chart's values.yaml
# The renderer is built once with Debian's Go and Debian's sprig, without network access, and stored below INPLACE_CACHE.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/bin
go=$(command -v go) || { echo "chart.sh: go is missing; run: make setup" >&2; exit 1; }
tool=$store/chart-$(sha256sum "$here/chart.go" | cut -c 1-16)
if [ ! -x "$tool" ]; then
  mkdir -p "$store"
  fresh=$(mktemp "$store/.chart.XXXXXX")
  trap 'rm -f "$fresh"' EXIT
  GO111MODULE=off GOPATH=/usr/share/gocode GOFLAGS='' CGO_ENABLED=0 "$go" build -o "$fresh" "$here/chart.go"
  chmod 755 "$fresh"
  mv -T "$fresh" "$tool"
fi
exec "$tool" "$@"
