#!/usr/bin/env bash
# Three k3d clusters with Fingerpost in each, linked to each other: `run.sh` makes them, plays the scenarios and removes them again.
# `run.sh up`, `run.sh scenarios` and `run.sh down` do one of these.
set -euo pipefail
cd "$(dirname "$0")"
source ./scenarios.sh

root=../..
state=$PWD/../../bin/k3d # kubeconfigs
image=ghcr.io/fingerpost/fingerpost
export KUBECONFIG=$state/east:$state/west:$state/north

k() { kubectl --context "k3d-$1" "${@:2}"; }
fingerpost() { "$root/bin/fingerpost" "${@:2}" --context "k3d-$1"; }
pause() { docker pause "k3d-$1-server-0"; }
resume() { docker unpause "k3d-$1-server-0"; }
audit() { docker exec "k3d-$1-server-0" cat /var/log/fingerpost-audit.log; }
api() { nodes "$1" | awk -v name="k3d-$1-server-0" '$1 == name {print "https://" $3 ":6443"}'; }

nodes() { k "$1" get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'; }

up() {
  local c other name range address
  make -C "$root" build image VERSION=k3d IMAGE="$image"
  mkdir -p "$state"
  docker network inspect fingerpost >/dev/null 2>&1 || docker network create fingerpost >/dev/null

  for c in "${clusters[@]}"; do
    say "cluster $c"
    k3d cluster create --config "$c.yaml"
    k3d kubeconfig get "$c" >"$state/$c"
    k3d image import "$image:k3d" --cluster "$c"
  done

  say "routes between the networks of Pods"
  for c in "${clusters[@]}"; do
    for other in $(others "$c"); do
      while read -r _ range address; do
        for name in $(nodes "$c" | cut -d' ' -f1); do
          docker exec "$name" ip route replace "$range" via "$address"
        done
      done < <(nodes "$other")
    done
  done

  for c in "${clusters[@]}"; do
    say "Fingerpost and a shop in $c"
    helm --kube-context "k3d-$c" install fingerpost "$root/charts/fingerpost" --namespace fingerpost --create-namespace \
      --set cluster.name="$c" --set controllerNamespace=fingerpost --set image.repository="$image" --set image.tag=k3d --set image.pullPolicy=Never --set crds.links=true
    helm --kube-context "k3d-$c" install fingerpost-link "$root/charts/fingerpost-link" --namespace fingerpost
    open_shop "$c"
  done
  for c in "${clusters[@]}"; do
    k "$c" -n fingerpost rollout status deployment/fingerpost --timeout=180s
    k "$c" -n shop rollout status deployment/web --timeout=180s
  done
  link_all
}

# flat: what bare control planes do not have, networks.
flat() {
  local address
  say "the network is flat: a Pod of east reaches each Pod of the others"
  for address in $(addresses); do
    eventually 30 k east -n shop exec deployment/web -c web -- wget -T 3 -qO- "http://$address:8080/hostname"
  done
}

down() {
  k3d cluster delete "${clusters[@]}"
  docker network rm fingerpost >/dev/null
  rm -rf "$state"
}

for tool in docker k3d kubectl helm make go; do
  command -v "$tool" >/dev/null || die "$tool is not installed"
done
case ${1-all} in
  all)
    trap down EXIT
    up
    scenarios
    flat
    ;;
  scenarios)
    scenarios
    flat
    ;;
  up | down) "$1" ;;
  *) die "up, scenarios or down?" ;;
esac
