#!/usr/bin/env bash
# Renders a chart with Helm (`make helm` fetches it), without a cluster:
#   chart.sh DIR VALUES...      each VALUES is a file, or JSON or YAML text; a later one has priority over an earlier one
# CHART_KUBERNETES is the release of the cluster, and CHART_API_VERSIONS the API versions that it has beyond those of Helm's own list,
# separated by commas; default: a new release with ValidatingAdmissionPolicy.
set -euo pipefail
helm=$(bash "$(dirname "${BASH_SOURCE[0]}")/helm.sh")
dir=$1
shift
args=(--kube-version "${CHART_KUBERNETES:-1.36.0}")
for version in $(tr , ' ' <<<"${CHART_API_VERSIONS-admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy}"); do
  args+=(--api-versions "$version")
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for values; do
  if [[ ! -f $values ]]; then
    number=${#args[@]}
    echo "$values" >"$work/$number.yaml"
    values=$work/$number.yaml
  fi
  args+=(--values "$values")
done
"$helm" template inplace "$dir" "${args[@]}"
