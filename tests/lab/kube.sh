#!/usr/bin/env bash
# Prints a folder that has kube-apiserver, kube-controller-manager, kube-scheduler and kubelet:
#   kube.sh
# KUBE_BIN, if set, is that folder. KUBEBUILDER_ASSETS, if set, gives those that it has. Otherwise, and for the rest, they are
# built once, from the source package that Debian 12 has of Kubernetes 1.20.2 and that carries all it is built from; about
# four minutes, kept below INPLACE_CACHE (default ~/.cache/inplace). Building needs root, for the Go compiler's package.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/kube
version=1.20.2
names="kube-apiserver kube-controller-manager kube-scheduler kubelet"

# For a person; the log goes to standard output.
progress() { echo "kube.sh: $*" >&3; }

die() { echo "kube.sh: $*" >&2; exit 1; }

# has DIR: are all four there?
has() {
  local name
  for name in $names; do [ -x "$1/$name" ] || return 1; done
}

# The source as Debian has it, checked by apt, without a change to this machine's list of sources. The library reflect2 in it
# is older than Go 1.18, with which its users panic now and then: the one that Debian has takes its place.
fetch_source() { # into the current folder
  progress "fetches the source"
  local mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC2016 # apt's own variables
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 2>/dev/null | grep -v security | head -n 1) || true
  mkdir -p apt/lists/partial apt/cache/archives/partial
  printf '%s\n' {deb,deb-src}" [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} bookworm main" >apt/list
  local options=(-qq -o "Dir::Etc::SourceList=$PWD/apt/list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$PWD/apt/lists"
    -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" source --download-only kubernetes
  apt-get "${options[@]}" download golang-github-modern-go-reflect2-dev
  tar -xf kubernetes_*.orig.tar.*
  dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb library
  rm -r "kubernetes-$version/vendor/github.com/modern-go/reflect2"
  cp -a library/usr/share/gocode/src/github.com/modern-go/reflect2 "kubernetes-$version/vendor/github.com/modern-go/"
}

compile() { # from the current folder, into $1
  export GOPATH=$PWD/go GOCACHE=$PWD/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS='' GOTOOLCHAIN=local
  local name from=k8s.io/kubernetes/vendor/k8s.io/component-base/version stamp
  stamp="-s -w -X $from.gitVersion=v$version -X $from.gitMajor=1 -X $from.gitMinor=20 -X $from.gitTreeState=archive"
  mkdir -p go/src/k8s.io
  mv "kubernetes-$version" go/src/k8s.io/kubernetes
  cd go/src/k8s.io/kubernetes
  # What generates code asks for the version, which an archive does not know by itself.
  export KUBE_GIT_VERSION=v$version KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_TREE_STATE=archive KUBE_GIT_COMMIT=archive
  progress "generates code"
  make generated_files
  for name in $names; do
    progress "compiles $name"
    go build -ldflags "$stamp" -o "$1/$name" "k8s.io/kubernetes/cmd/$name"
  done
}

build() { # into $1, whole or not at all
  mkdir -p "$store"
  exec 9>"$store/.lock"
  flock 9 # whoever waited here finds it built
  has "$1" && return
  echo "kube.sh: building Kubernetes $version, once, about four minutes" >&2
  bash "$here/install.sh" build-kube >&2
  work=$(mktemp -d "$store/.build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/bin"
  # In the background, because `set -e` does not hold in what stands before `||`: the first step that fails ends it.
  (
    cd "$work"
    fetch_source
    compile "$work/bin"
  ) 3>&2 >"$work/log" 2>&1 9>&- &
  wait $! && has "$work/bin" || {
    tail -n 20 "$work/log" >&2
    die "Kubernetes could not be built"
  }
  rm -rf "$1"
  mv -T "$work/bin" "$1"
}

# A folder of links: the four of KUBEBUILDER_ASSETS as far as it has them, the others of $1.
mix() {
  local name folder
  folder=$store/mixed-$(sha256sum <<<"$KUBEBUILDER_ASSETS $1" | cut -c 1-16)
  mkdir -p "$folder"
  for name in $names; do
    if [ -x "$KUBEBUILDER_ASSETS/$name" ]; then ln -sfn "$KUBEBUILDER_ASSETS/$name" "$folder/$name"; else ln -sfn "$1/$name" "$folder/$name"; fi
  done
  echo "$folder"
}

if [ -n "${KUBE_BIN:-}" ]; then
  has "$KUBE_BIN" || die "KUBE_BIN=$KUBE_BIN lacks one of: $names"
  realpath "$KUBE_BIN"
  exit
fi
if [ -n "${KUBEBUILDER_ASSETS:-}" ] && has "$KUBEBUILDER_ASSETS"; then
  realpath "$KUBEBUILDER_ASSETS"
  exit
fi
built=$store/v$version
has "$built" || build "$built"
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then mix "$built"; else echo "$built"; fi
