#!/usr/bin/env bash
# Makes the files of a release once more and compares them with those that dist.sh has made:
#   again.sh FOLDER
# It builds a clone of the commit, in another folder, with another folder for the build and another home of cargo. The crates are those
# of the first build. ARCHS, DIST_URL and SOURCE_DATE_EPOCH are to be those of the first time. Needs 1 GB in TMPDIR, and frees it.
set -euo pipefail
die() { echo "again.sh: $*" >&2; exit 1; }
[ $# = 1 ] || die "usage: again.sh FOLDER"
made=$(realpath -m -- "$1")
[ -f "$made/SHA256SUMS" ] || die "$made has no SHA256SUMS: make dist"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -z "$(git status --porcelain)" ] || die "the working tree has changes: commit them, and make the files anew"

# The list says what the files are now, not what they once were.
(cd "$made" && sha256sum --check --strict --quiet SHA256SUMS) || die "a file of $made is not the one in its SHA256SUMS"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/another-folder"
home=${CARGO_HOME:-$HOME/.cargo}
mkdir "$work/cargo"
for part in registry git config.toml; do
  if [ -e "$home/$part" ]; then ln -s "$home/$part" "$work/cargo/$part"; fi
done
CARGO_HOME=$work/cargo CARGO_TARGET_DIR=$work/build bash "$work/another-folder/dist/dist.sh" "$work/made" >&2

# A file that only one of the two has is in the output of diff as well.
if diff "$made/SHA256SUMS" "$work/made/SHA256SUMS"; then
  echo "the same $(grep -c . "$made/SHA256SUMS") files, from two folders"
else
  die "the files differ"
fi
