#!/usr/bin/env bash
# A private Kubernetes below one folder: a node of lab.sh, with etcd, a control plane and a kubelet on it.
#   cluster.sh up DIR                  starts it and waits until pods can run; DIR/env has the addresses and paths
#   cluster.sh down DIR                ends all its processes and containers, removes its mounts, links, cgroups and DIR
#   cluster.sh guard DIR PID           returns at once; runs `down` as soon as process PID has ended, for any reason
#   cluster.sh add-node DIR NAME       adds a node: DIR/nodes/NAME is a lab.sh folder with a kubelet and its own env
#   cluster.sh kill DIR WHAT [NODE]    kill -9: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, containerd
#   cluster.sh stop DIR WHAT [NODE]    the same with SIGTERM, and waits for its end
#   cluster.sh start DIR WHAT [NODE]   starts it again and waits until it answers
#   cluster.sh ACTION DIR ...          any other action of lab.sh
# DIR/logs/writes.jsonl has a line, an audit event, for each request to the API server that changes an object.
# The binaries are those of kube.sh (KUBE_BIN, KUBEBUILDER_ASSETS); etcd can be in these folders too. Kubernetes 1.20 and later.
#
# All processes bind to addresses of this lab only, so that no port conflicts. The lab's bridge has 10.201.N.1 (the node, the
# kubelet) and 10.202.N.1 (the first address of the service range, so the address of the Service `kubernetes`). The API server
# listens on port 443 of the latter: pods, pods on the host network and this machine reach it there, without a proxy or address
# translation. Other services have endpoints, but their addresses do not work. There is no DNS. Each cluster has new certificates;
# RBAC, Node authorization and NodeRestriction are enabled. The cgroups of pods are below one with the name of the bridge.
# shellcheck disable=SC2317 # functions called through wait_for
# shellcheck source=tests/lab/lab.sh
. "$(dirname "${BASH_SOURCE[0]}")/lab.sh"

first_node=node-1

# --- paths and addresses ------------------------------------------------------------------------------------------

# $cluster is the cluster's folder; $dir is the folder of the current node, which is $cluster for the first node.
slot() { local bridge && bridge=$(cat "$1/bridge") && echo "${bridge#inpl}"; }
service_ip() { echo "10.202.$(slot "$cluster").1"; }
node_ip() { echo "10.201.$(slot "$dir").1"; }
server() { echo "https://$(service_ip):443"; }
binary() { echo "$cluster/bin/$1"; }
minor() { cat "$cluster/bin/$1.minor"; }

# setting NAME: prints the value of NAME in this node's env.
setting() { sed -n "s/^$1=//p" "$dir/env"; }

# Prints the port WANTED, or the next one above it on which no process listens on all addresses. No process outside this lab
# uses ADDRESS itself.
free_port() { # ADDRESS WANTED
  local port=$2
  while (exec 3<>"/dev/tcp/$1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

# api PATH: GET as the administrator.
api() { curl -sf -m 5 --cacert "$cluster/pki/ca.crt" --cert "$cluster/pki/admin.crt" --key "$cluster/pki/admin.key" "$(server)$1"; }

# --- identities ---------------------------------------------------------------------------------------------------

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$cluster/pki/$1.key"; }

# certificate NAME SUBJECT USAGE [SUBJECT ALTERNATIVE NAMES]
certificate() {
  new_key "$1"
  openssl req -new -key "$cluster/pki/$1.key" -subj "$2" |
    openssl x509 -req -CA "$cluster/pki/ca.crt" -CAkey "$cluster/pki/ca.key" -set_serial "0x$(openssl rand -hex 16)" -days 365 \
      -extfile <(echo "extendedKeyUsage=$3${4:+$'\n'subjectAltName=$4}") -out "$cluster/pki/$1.crt" 2>/dev/null
}

# kubeconfig NAME SUBJECT: writes DIR/NAME.kubeconfig, with certificate and key embedded.
kubeconfig() {
  certificate "$1" "$2" clientAuth
  (umask 077 && cat >"$cluster/$1.kubeconfig") <<T
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "$(server)", certificate-authority-data: $(base64 -w 0 "$cluster/pki/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w 0 "$cluster/pki/$1.crt"), client-key-data: $(base64 -w 0 "$cluster/pki/$1.key")}}]
contexts: [{name: lab, context: {cluster: lab, user: $1}}]
current-context: lab
T
}

make_identities() {
  mkdir -p "$cluster/pki"
  new_key ca
  openssl req -x509 -key "$cluster/pki/ca.key" -days 365 -subj /CN=lab -out "$cluster/pki/ca.crt"
  new_key accounts
  openssl pkey -in "$cluster/pki/accounts.key" -pubout -out "$cluster/pki/accounts.pub"
  certificate server /CN=kube-apiserver serverAuth \
    "IP:$(service_ip),DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  certificate to-kubelet /O=system:masters/CN=kube-apiserver clientAuth
  kubeconfig admin /O=system:masters/CN=admin
  kubeconfig controller-manager /CN=system:kube-controller-manager
  kubeconfig scheduler /CN=system:kube-scheduler
}

# --- the control plane --------------------------------------------------------------------------------------------

start_etcd() {
  local url peer
  url=$(cat "$dir/etcd.url" 2>/dev/null) || url=http://$(service_ip):$(free_port "$(service_ip)" 2379)
  peer=http://$(service_ip):$(free_port "$(service_ip)" 2380)
  echo "$url" >"$dir/etcd.url"
  background etcd "$(binary etcd)" --data-dir "$dir/etcd" --listen-client-urls "$url" --advertise-client-urls "$url" --unsafe-no-fsync \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
}

start_kube-apiserver() {
  cat >"$dir/audit.yaml" <<T
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, verbs: [get, list, watch]}
- {level: None, resources: [{group: coordination.k8s.io}, {group: authentication.k8s.io}, {group: authorization.k8s.io}]}
- {level: Metadata}
T
  background kube-apiserver "$(binary kube-apiserver)" --etcd-servers "$(cat "$dir/etcd.url")" --bind-address "$(service_ip)" --secure-port 443 \
    --service-cluster-ip-range "10.202.$(slot "$dir").0/24" --tls-cert-file "$dir/pki/server.crt" --tls-private-key-file "$dir/pki/server.key" \
    --client-ca-file "$dir/pki/ca.crt" --kubelet-client-certificate "$dir/pki/to-kubelet.crt" --kubelet-client-key "$dir/pki/to-kubelet.key" \
    --kubelet-preferred-address-types InternalIP --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$dir/pki/accounts.pub" --service-account-signing-key-file "$dir/pki/accounts.key" \
    --audit-policy-file "$dir/audit.yaml" --audit-log-path "$dir/logs/writes.jsonl" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction,OwnerReferencesPermissionEnforcement --allow-privileged=true \
    --enable-priority-and-fairness=false `# otherwise a third of its processor time where it does little else` \
    --enable-aggregator-routing # there is no kube-proxy: the API server calls webhooks at the addresses of a Service's pods
}

start_kube-controller-manager() {
  local flags=(--kubeconfig "$dir/controller-manager.kubeconfig" --use-service-account-credentials --leader-elect=false --secure-port 0
    --service-account-private-key-file "$dir/pki/accounts.key" --root-ca-file "$dir/pki/ca.crt" --kube-api-qps 100 --kube-api-burst 200)
  [ "$(minor kube-controller-manager)" -ge 24 ] || flags+=(--port 0)
  background kube-controller-manager "$(binary kube-controller-manager)" "${flags[@]}"
}

start_kube-scheduler() {
  local flags=(--kubeconfig "$dir/scheduler.kubeconfig" --leader-elect=false --secure-port 0)
  [ "$(minor kube-scheduler)" -ge 23 ] || flags+=(--port 0)
  background kube-scheduler "$(binary kube-scheduler)" "${flags[@]}"
}

# --- a node -------------------------------------------------------------------------------------------------------

# A kubelet sets kernel parameters of the machine. Here files are mounted over these parameters, so that only the lab sees the
# kubelet's values.
cover_sysctls() {
  local name
  mkdir -p "$dir/sysctl"
  for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    cat "/proc/sys/$name" >"$dir/sysctl/${name//\//.}"
    inside mount --bind "$dir/sysctl/${name//\//.}" "/proc/sys/$name"
  done
}

# Creates the parent cgroup of the pods: a kubelet does not create its root cgroup, and two kubelets must not share one.
make_cgroups() {
  local name controllers
  name=$(cat "$dir/bridge")
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    controllers=$(sed -E 's/(^| )/ +/g' /sys/fs/cgroup/cgroup.controllers)
    echo "$controllers" >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p "/sys/fs/cgroup/$name"
    echo "$controllers" >"/sys/fs/cgroup/$name/cgroup.subtree_control"
  else
    awk '$3 == "cgroup" { print $2 }' /proc/self/mounts | while read -r controllers; do mkdir -p "$controllers/$name"; done
  fi
}

write_kubelet_config() {
  local address port healthz
  address=$(node_ip)
  port=$(free_port "$address" 10250)
  healthz=$(free_port "$address" 10248)
  echo "http://$address:$healthz/healthz" >"$dir/kubelet.healthz"
  cat >"$dir/kubelet.yaml" <<T
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
port: $port
healthzBindAddress: $address
healthzPort: $healthz
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $cluster/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$(cat "$dir/bridge")
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
clusterDNS: ["10.202.$(slot "$cluster").10"]
clusterDomain: cluster.local
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 5m
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
registryPullQPS: 0
allowedUnsafeSysctls: [net.ipv4.tcp_migrate_req]
kubeAPIQPS: 100
kubeAPIBurst: 200
eventRecordQPS: 0
maxPods: 250
makeIPTablesUtilChains: false
staticPodPath: $dir/manifests
volumePluginDir: $dir/kubelet/volume-plugins
T
  if [ "$(minor kubelet)" -ge 27 ]; then echo "containerRuntimeEndpoint: unix://$dir/containerd.sock" >>"$dir/kubelet.yaml"; fi
  if [ "$(minor kubelet)" -ge 31 ]; then echo "failCgroupV1: false" >>"$dir/kubelet.yaml"; fi
}

start_kubelet() {
  local flags=(--config "$dir/kubelet.yaml" --kubeconfig "$cluster/kubelet-$(setting NODE).kubeconfig" --root-dir /var/lib/kubelet
    --cert-dir "$dir/kubelet/pki" --hostname-override "$(setting NODE)" --node-ip "$(node_ip)" --v 2)
  if [ "$(minor kubelet)" -lt 27 ]; then flags+=(--container-runtime remote --container-runtime-endpoint "unix://$dir/containerd.sock"); fi
  # shellcheck disable=SC2016
  background kubelet bash -c 'cd "$0" && exec "$@"' "$dir/kubelet-folder" "$(binary kubelet)" "${flags[@]}"
}

# Creates the kubelet's working directory, with bait. On most nodes this directory is the root folder, which has links to folders
# and empty folders too: a kubelet that collects a container without a log path deletes them. Every cluster test checks at its end
# that the bait is complete.
lay_bait() {
  mkdir -p "$dir/kubelet-folder/empty" "$dir/kubelet-folder/full" "$dir/linked"
  echo bait | tee "$dir/kubelet-folder/file" "$dir/kubelet-folder/full/file" >"$dir/linked/file"
  ln -sfn ../linked "$dir/kubelet-folder/link"
}

# Adds the lab in $dir to the cluster as node NAME. Starts its kubelet and does not wait until it responds.
join() {
  mkdir -p "$dir/manifests" "$dir/var/lib/kubelet"
  ln -sfn var/lib/kubelet "$dir/kubelet"
  printf 'NODE=%s\nNODE_IP=%s\nKUBECONFIG=%s\nKUBE_SERVER=%s\n' "$1" "$(node_ip)" "$cluster/admin.kubeconfig" "$(server)" >>"$dir/env"
  kubeconfig "kubelet-$1" "/O=system:nodes/CN=system:node:$1"
  cover_sysctls
  make_cgroups
  lay_bait
  write_kubelet_config
  start_kubelet
}

node_ready() {
  api "/api/v1/nodes/$(setting NODE)" | jq -e '(.spec.taints // []) == [] and any(.status.conditions[]; .type == "Ready" and .status == "True")' >/dev/null
}

# Pods cannot be created in a namespace without its service account; up to 1.23 the account has a token once it has a secret.
account_ready() {
  api /api/v1/namespaces/default/serviceaccounts/default | jq -e "$(minor kube-apiserver) >= 24 or (.secrets // []) != []" >/dev/null
}

# --- up and down --------------------------------------------------------------------------------------------------

answers() {
  case $1 in
    etcd) curl -sf -m 2 -o /dev/null "$(cat "$dir/etcd.url")/health" ;;
    kube-apiserver) api /readyz >/dev/null ;;
    kubelet) curl -sf -m 2 -o /dev/null "$(cat "$dir/kubelet.healthz")" ;;
    containerd) cri_answers ;;
    *) pid_of "$1" >/dev/null ;;
  esac
}

# await WHAT [CHECK]: waits until WHAT responds, or the check succeeds; fails if the process has ended.
await() {
  local check=${2:-answers}
  if ! { wait_for 120 pid_of "$1" >/dev/null && wait_for 180 settled "$1" "$check" && "$check" "$1"; }; then
    die "$1 does not come up: $(tail -n 5 "$dir/logs/$1.log")"
  fi
}

settled() { ! pid_of "$1" >/dev/null || "$2" "$1"; }

take_binaries() {
  local folder name assets
  folder=$(bash "$here/kube.sh")
  mkdir -p "$dir/bin"
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
    ln -sfn "$folder/$name" "$dir/bin/$name"
    "$folder/$name" --version | sed -nE 's/.*v1\.([0-9]+).*/\1/p' >"$dir/bin/$name.minor"
  done
  for assets in "${KUBE_BIN:-}" "${KUBEBUILDER_ASSETS:-}" "$(dirname "$(command -v etcd)")"; do
    [ -n "$assets" ] && [ -x "$assets/etcd" ] && ln -sfn "$(realpath "$assets/etcd")" "$dir/bin/etcd" && return
  done
}

cluster_up() {
  local needed
  for needed in etcd openssl jq curl; do tool "$needed"; done
  [ ! -e "$dir/env" ] || die "$dir is up already"
  up
  trap 'trap - EXIT; cluster_down' EXIT
  take_binaries
  ip addr add "$(service_ip)/32" dev "$(cat "$dir/bridge")"
  [ "$(free_port "$(service_ip)" 443)" = 443 ] || die "something on this machine listens on port 443 of every address, where the API server must be"
  make_identities
  start_etcd
  await etcd
  # A kubelet needs the API server late in its start, and older kubelets first search for Docker, for five seconds.
  start_kube-apiserver
  join "$first_node"
  await kube-apiserver
  start_kube-controller-manager
  start_kube-scheduler
  await kube-controller-manager account_ready
  await kubelet node_ready
  trap - EXIT
}

add_node() { # NAME
  dir=$cluster/nodes/$1
  claim
  up
  trap 'trap - EXIT; node_down' EXIT
  join "$1"
  await kubelet node_ready
  trap - EXIT
}

# Ends the kubelet first, because it would restart ended containers. Removes the cgroups before the bridge, which reserves
# their name.
node_down() {
  end KILL kubelet
  kill_everything
  wait_for 5 remove_pod_cgroups || echo "cluster: cgroups of $(cat "$dir/bridge") are left" >&2
  down
}

remove_pod_cgroups() {
  local bridge
  bridge=$(cat "$dir/bridge" 2>/dev/null) || return 0
  find /sys/fs/cgroup -depth -type d \( -path "*/$bridge" -o -path "*/$bridge/*" \) -exec rmdir {} + 2>/dev/null || true
  [ -z "$(find /sys/fs/cgroup -maxdepth 2 -name "$bridge")" ]
}

cluster_down() {
  [ -d "$cluster" ] || return 0
  [ -e "$cluster/lab" ] || die "$cluster is not a lab"
  for dir in "$cluster"/nodes/*/; do
    dir=${dir%/}
    [ ! -d "$dir" ] || node_down
  done
  dir=$cluster
  node_down
}

# --- kill, stop, start --------------------------------------------------------------------------------------------

end() { # SIGNAL WHAT
  local pid
  pid=$(pid_of "$2") || return 0
  kill "-$1" "$pid"
  wait_for 120 gone "$pid" || die "$2 ($pid) does not end"
}

# at_node [NAME]: makes that node the current node.
at_node() {
  [ -z "${1:-}" ] || [ "$1" = "$first_node" ] || dir=$cluster/nodes/$1
  [ -e "$dir/env" ] || die "there is no node $1 in $cluster"
}

start() { # WHAT [NODE]
  at_node "${2:-}"
  declare -F "start_$1" >/dev/null || die "unknown: $1"
  [ -n "$(pid_of "$1")" ] || "start_$1"
  await "$1"
}

cluster_main() {
  [ $# -ge 2 ] || die "usage: see the top of $0"
  local action=$1
  mkdir -p "$(dirname "$2")"
  dir=$(realpath -m "$2")
  cluster=$dir
  case $action in
    up) claim && lock && cluster_up ;;
    down) { [ ! -e "$dir/lab" ] || lock; } && cluster_down ;;
    watch) outlive "${@:3}" && cluster_down ;;
    add-node) lock && add_node "${3:?NAME}" ;;
    kill) at_node "${4:-}" && end KILL "${3:?WHAT}" ;;
    stop) at_node "${4:-}" && end TERM "${3:?WHAT}" ;;
    start) lock && start "${3:?WHAT}" "${4:-}" ;;
    *) main "$@" ;;
  esac
}

cluster_main "$@"
exit
