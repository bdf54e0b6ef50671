#!/usr/bin/env bash
# Installs the packages that the build, the tests and the demo need on Debian 12, and only those that are missing:
#   install.sh
#   install.sh build-kube     only the packages that kube.sh needs to build Kubernetes
#   install.sh coverage       only the package that coverage.sh needs
# No service is started: during the installation a temporary policy-rc.d makes Debian's maintainer scripts start no services (an
# existing policy-rc.d is not replaced), and new services are disabled.
# If a package cannot be installed, the script names it and the exit code is 1.
set -euo pipefail

# A package, and the command or file by which the package (or an equivalent from another source) is detected.
needs="
containerd                  containerd
containerd                  ctr
runc                        runc
containernetworking-plugins /usr/lib/cni/bridge
containernetworking-plugins /usr/lib/cni/host-local
busybox-static              static:busybox
docker-registry             docker-registry
skopeo                      skopeo
jq                          jq
gcc                         gcc
g++                         g++
libc6-dev                   /usr/include/stdlib.h
make                        make
musl-tools                  musl-gcc
gcc-aarch64-linux-gnu       aarch64-linux-gnu-gcc
libc6-dev-arm64-cross       /usr/aarch64-linux-gnu/include/stdlib.h
qemu-user-static            qemu-aarch64-static
iproute2                    ip
util-linux                  nsenter
systemd                     systemd-analyze
python3                     python3
python3                     /usr/bin/python3
curl                        curl
ca-certificates             /etc/ssl/certs/ca-certificates.crt
etcd-server                 etcd
kubernetes-client           kubectl
openssl                     openssl
prometheus                  prometheus
prometheus                  promtool
python3-pip                 pip:python3
lua5.1                      lua5.1
chromium                    chromium
"
if [ "${1:-}" = build-kube ]; then
  needs="
golang-go                   go
rsync                       rsync
make                        make
gcc                         gcc
g++                         g++
dpkg-dev                    dpkg-source
debian-archive-keyring      /usr/share/keyrings/debian-archive-keyring.gpg
"
elif [ "${1:-}" = coverage ]; then
  needs="
llvm-19                     llvm-cov-19
"
fi
policy=/usr/sbin/policy-rc.d

there() {
  case $1 in
    /*) [ -e "$1" ] ;;
    pip:*) "${1#*:}" -m pip --version >/dev/null 2>&1 ;;
    static:*) there "${1#*:}" && ! ldd "$(command -v "${1#*:}")" >/dev/null 2>&1 ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
  esac
}

# Prints, once, each package of which a command or file is missing.
missing() {
  while read -r package probe; do
    [ -z "$package" ] || there "$probe" || echo "$package"
  done <<<"$needs" | sort -u
}

fail() { echo "install.sh: $*" >&2; exit 1; }

install_packages() {
  local wanted=("$@")
  [ "$(id -u)" = 0 ] || fail "missing: ${wanted[*]} (run as root, or install them by hand)"
  command -v apt-get >/dev/null || fail "missing: ${wanted[*]} (there is no apt-get here: install them by hand)"
  echo "installing ${wanted[*]}"
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  local log
  log=$(mktemp)
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
  fi
  rm -f "$log"
  if command -v systemctl >/dev/null; then
    for service in containerd docker-registry etcd prometheus; do
      case " ${wanted[*]} " in *" $service "* | *" $service-server "*) systemctl disable --quiet "$service" 2>/dev/null || true ;; esac
    done
  fi
}

mapfile -t wanted < <(missing)
if [ "${#wanted[@]}" -gt 0 ]; then
  install_packages "${wanted[@]}"
  mapfile -t wanted < <(missing)
  [ "${#wanted[@]}" -eq 0 ] || fail "could not install: ${wanted[*]}"
fi

[ "${1:-}" != build-kube ] || exit 0
command -v cargo >/dev/null || fail "missing: a Rust toolchain (cargo is not in PATH; see https://rustup.rs)"
for tool in fmt clippy; do
  cargo "$tool" --version >/dev/null 2>&1 && continue
  component=${tool/#fmt/rustfmt}
  rustup component add "$component" >/dev/null 2>&1 || fail "could not install: $component"
done
if command -v rustup >/dev/null && ! rustup target list --installed | grep -q '^x86_64-unknown-linux-musl$'; then
  # Only the static release build needs the target: the tests must not fail without it.
  rustup target add x86_64-unknown-linux-musl >/dev/null 2>&1 ||
    echo "install.sh: could not install: Rust target x86_64-unknown-linux-musl (only 'make release' needs it)" >&2
fi
