#!/usr/bin/env bash
# Runs Perennial on kind. Needs Docker, kind, kubectl and helm. CI does not run this.
#   packaging/kind.sh up|down
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
    up)
        docker build --file packaging/Dockerfile --tag perennial:0.1.0 .
        kind get clusters | grep -qx perennial || kind create cluster --config packaging/kind/cluster.yaml
        kind load docker-image perennial:0.1.0 --name perennial
        helm upgrade --install perennial charts/perennial --kube-context kind-perennial \
            --namespace perennial-system --create-namespace --wait
        ;;
    down) kind delete cluster --name perennial ;;
    *) echo "usage: $0 up|down" >&2; exit 1 ;;
esac
