#!/usr/bin/env bash
# Prints the path of a folder with kube-apiserver, kube-controller-manager, kube-scheduler and kubelet:
#   kube.sh
# KUBE_BIN, if set, is that folder. KUBEBUILDER_ASSETS, if set, is used for the binaries that it has. The other binaries are built
# once, in about four minutes, from Debian 12's source package of Kubernetes 1.20.2, which includes all dependencies. They are
# stored below INPLACE_CACHE (default ~/.cache/inplace). The build needs root, to install the package of the Go compiler.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
store=${INPLACE_CACHE:-${HOME:-/root}/.cache/inplace}/kube
version=1.20.2
names="kube-apiserver kube-controller-manager kube-scheduler kubelet"

# Prints a message for the user; the log goes to standard output.
progress() { echo "kube.sh: $*" >&3; }

die() { echo "kube.sh: $*" >&2; exit 1; }

# has DIR: true if DIR has all four binaries.
has() {
  local name
  for name in $names; do [ -x "$1/$name" ] || return 1; done
}

# Fetches Debian's source package, verified by apt, without a change to this machine's list of sources. Its library reflect2 is
# older than Go 1.18, and programs that use it with that Go panic occasionally: Debian's own reflect2 replaces it.
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
  # The code generators need the version, which they cannot get from a source archive.
  export KUBE_GIT_VERSION=v$version KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_TREE_STATE=archive KUBE_GIT_COMMIT=archive
  progress "generates code"
  make generated_files
  for name in $names; do
    progress "compiles $name"
    go build -ldflags "$stamp" -o "$1/$name" "k8s.io/kubernetes/cmd/$name"
  done
}

build() { # into $1, atomically
  mkdir -p "$store"
  exec 9>"$store/.lock"
  flock 9 # a process that waited here finds the result
  has "$1" && return
  echo "kube.sh: building Kubernetes $version, once, about four minutes" >&2
  bash "$here/install.sh" build-kube >&2
  work=$(mktemp -d "$store/.build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/bin"
  # In the background, because `set -e` has no effect in a command before `||`: the first step that fails must end the build.
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

# Creates a folder of links: to the binaries that KUBEBUILDER_ASSETS has, and for the others to those of $1.
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
