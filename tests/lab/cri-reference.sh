#!/usr/bin/env bash
# Fetches an independent copy of the CRI interface for tests/hermetic/cri_proto.rs
# and prints its path. Usage: cri-reference.sh DIR
#
# The copy comes from Debian unstable, from the mirror that this machine already
# uses, with its signature checked. The script uses a separate apt configuration
# in a temporary folder: the machine's sources, lists, cache and preferences are
# neither used for the download nor changed. Nothing is installed.
set -euo pipefail

readonly package=golang-k8s-cri-api-dev
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

if [[ $# -ne 1 || -z $1 ]]; then
    echo "usage: ${0##*/} DIR" >&2
    exit 2
fi
mkdir -p "$1"
target=$(cd "$1" && pwd)/api.proto
if [[ -s $target ]]; then
    echo "$target"
    exit 0
fi
if [[ ! -r $keyring ]]; then
    echo "${0##*/}: $keyring is missing (package debian-archive-keyring)" >&2
    exit 1
fi

# The first repository of this machine that is a Debian archive.
# shellcheck disable=SC2016 # apt's own placeholders
mirror=$(apt-get indextargets --format '$(REPO_URI)' |
    awk '!found && /\/debian\/?$/ { print; found = 1 }')
if [[ -z $mirror ]]; then
    echo "${0##*/}: this machine's apt sources name no Debian mirror" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,empty,unpacked}
touch "$work/status"
echo "deb [signed-by=$keyring] $mirror sid main" >"$work/sources.list"

# A file and not -o options, because only a file can clear apt's hooks: those of
# the machine may run commands after an update.
cat >"$work/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Update::Error-Mode "any";
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Cache::archives "$work/cache/archives";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/empty";
Dir::Etc::preferences "$work/empty/none";
Dir::Etc::preferencesparts "$work/empty";
Dir::Etc::trusted "$work/empty/none";
Dir::Etc::trustedparts "$work/empty";
END

# apt's output goes to standard error: standard output has only the path.
apt-get -c "$work/apt.conf" -qq update >&2
(cd "$work" && apt-get -c "$work/apt.conf" -qq download "$package") >&2
dpkg-deb -x "$work/$package"_*.deb "$work/unpacked"

found=$(find "$work/unpacked" -path '*/apis/runtime/v1/api.proto' -type f)
if [[ -z $found || $found == *$'\n'* ]]; then
    echo "${0##*/}: $package holds no single apis/runtime/v1/api.proto" >&2
    exit 1
fi
# The rename is atomic: without it, the next run could accept an incomplete copy.
cp "$found" "$target.part"
mv "$target.part" "$target"
echo "$target"
