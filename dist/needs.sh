#!/usr/bin/env bash
# Checks that this machine has what a release needs, and names what is missing:
#   needs.sh TOOL...
# A TOOL is the name of a command. Installs nothing.
set -euo pipefail

declare -A packages=([skopeo]=skopeo [musl-gcc]=musl-tools [aarch64-linux-gnu-gcc]=gcc-aarch64-linux-gnu [python3]=python3)
status=0
for tool in "$@"; do
  command -v "$tool" >/dev/null && continue
  status=1
  if [ "$tool" = cargo ]; then
    echo "missing: cargo, of a Rust toolchain"
  else
    echo "missing: $tool (Debian's package ${packages[$tool]:-$tool})"
  fi
done
exit "$status"
