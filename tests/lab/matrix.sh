#!/usr/bin/env bash
# Runs the node tests, and cluster tests, on the containerd of several releases of Debian, and writes one file per containerd:
#   matrix.sh RESULTS RELEASE...
# Settings: MATRIX_CLUSTER has the cluster tests as filters of their names; all of them if it is `all`, none if it is empty.
# A release whose containerd the kubelet cannot use gets no cluster tests: before 1.26 a kubelet speaks CRI v1alpha2, which
# containerd 2 does not.
# The exit status is 1 if a test failed or none ran. The file is written even then: `make reference` makes the table of docs from the
# files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/lab
results=$1
shift
mkdir -p "$results"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
kube=$(bash $here/kube.sh)
kubernetes=$("$kube/kubelet" --version | sed 's/^Kubernetes v//')

# suite NAME [FILTER...]: runs one folder of tests and prints its result as a JSON object.
suite() {
  local name=$1 began
  shift
  began=$(date +%s)
  cargo test --locked --features faults --test "$name" -- "$@" >"$log" 2>&1 || true
  tail -n 200 "$log" >&2
  python3 - "$log" "$(($(date +%s) - began))" "$*" <<'END'
import json, re, sys
text = open(sys.argv[1], encoding="utf-8", errors="replace").read()
count = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed;", text, re.M)
failed = sorted(set(re.findall(r"^test (?!result:)(\S+) .*FAILED", text, re.M)))
passed, number = map(int, count[0]) if len(count) == 1 else (0, 0)
if len(count) != 1 or passed + number == 0:
    failed.append("the tests did not run to their end")
elif number > len(failed):
    failed.append(f"{number - len(failed)} more")
print(json.dumps({"passed": passed, "failed": failed, "seconds": int(sys.argv[2]), "only": sys.argv[3].split()}))
END
}

for release in "$@"; do
  LAB_CONTAINERD=$(bash $here/containerd.sh "$release")
  export LAB_CONTAINERD
  containerd=$("$LAB_CONTAINERD" --version | sed -E 's/^[^ ]+ [^ ]+ v?([0-9.]+).*/\1/')
  echo "matrix.sh: containerd $containerd of Debian $release" >&2
  node=$(suite node)
  cluster=null
  major=${containerd%%.*}
  minor=$(cut -d . -f 2 <<<"$kubernetes")
  if [ -n "${MATRIX_CLUSTER:-}" ] && { [ "$major" -lt 2 ] || [ "$minor" -ge 26 ]; }; then
    filters=$MATRIX_CLUSTER
    [ "$filters" != all ] || filters=
    # shellcheck disable=SC2086 # several filters
    cluster=$(suite cluster $filters)
  fi
  python3 - "$results/containerd-$containerd-kubernetes-$kubernetes.json" "$containerd" "$release" "$kubernetes" "$node" "$cluster" <<'END' || status=1
import datetime, json, platform, subprocess, sys
path, containerd, release, kubernetes, node, cluster = sys.argv[1:]
runc = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
tree = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"], capture_output=True, text=True, check=True).stdout.strip()
result = {
    "date": datetime.date.today().isoformat(), "tree": tree, "kernel": platform.release().split("-")[0], "containerd": containerd,
    "debian": release, "runc": runc, "kubernetes": kubernetes, "node": json.loads(node), "cluster": json.loads(cluster),
}
with open(path, "w", encoding="utf-8") as file:
    file.write(json.dumps(result, indent=1) + "\n")
sys.exit(any(suite and suite["failed"] for suite in (result["node"], result["cluster"])))
END
done
exit "$status"
