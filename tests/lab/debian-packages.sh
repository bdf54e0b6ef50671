#!/usr/bin/env bash
# Fetches packages of any release of Debian into a folder, without installing them:
#   debian-packages.sh FOLDER "RELEASE ..." PACKAGE[:ARCHITECTURE][=VERSION] ...
# apt verifies them. This machine's own lists of packages stay as they are.
set -euo pipefail
folder=$1 releases=$2
shift 2
keys=/usr/share/keyrings/debian-archive-keyring.gpg

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
# shellcheck disable=SC2016 # apt's own variables
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 2>/dev/null | grep -v security | head -n 1) || true
for release in $releases; do
  echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} $release main"
done >"$work/list"
: >"$work/status"
options=(-qq -o "Dir::Etc::SourceList=$work/list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::State::Status=$work/status" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
# Lists of another architecture are fetched only for its packages.
case "$*" in *:arm64*) options+=(-o APT::Architectures::=amd64 -o APT::Architectures::=arm64) ;; esac
cd "$folder"
apt-get "${options[@]}" update >&2
apt-get "${options[@]}" download "$@" >&2
