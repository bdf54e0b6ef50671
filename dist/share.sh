#!/usr/bin/env bash
# Writes the completions and the manual pages of a binary that runs on this machine:
#   share.sh BINARY FOLDER
# The environment is empty, because defaults in the pages must not depend on it.
set -euo pipefail
mkdir -p "$2/completions" "$2/man"
env -i "$1" completion bash >"$2/completions/inplace.bash"
env -i "$1" completion zsh >"$2/completions/_inplace"
env -i "$1" completion fish >"$2/completions/inplace.fish"
env -i "$1" man "$2/man"
