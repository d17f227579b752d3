#!/usr/bin/env bash
# Three k3d clusters with Fingerpost in each, linked to each other: `run.sh` makes them, plays the scenarios and removes them again.
# `run.sh up`, `run.sh scenarios` and `run.sh down` do one of these.
set -euo pipefail
cd "$(dirname "$0")"

root=../..
clusters=(east west north)
state=$PWD/../../bin/k3d # kubeconfigs
image=ghcr.io/fingerpost/fingerpost
service=web-federated.shop.svc.cluster.local:8080
export KUBECONFIG=$state/east:$state/west:$state/north

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'run.sh: %s\n' "$*" >&2; exit 1; }
k() { kubectl --context "k3d-$1" "${@:2}"; }
fingerpost() { "$root/bin/fingerpost" "$@"; }

# eventually SECONDS COMMAND... tries the command each second until it succeeds.
eventually() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || die "this never came true: $*"
    sleep 1
  done
}

# others CLUSTER prints the clusters that it links.
others() { printf '%s\n' "${clusters[@]}" | grep -vx "$1"; }

nodes() { k "$1" get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'; }

# addresses prints the IPs that a proxy in east is told.
addresses() { fingerpost endpoints "$service" --context k3d-east -n fingerpost | grep -oE '^10\.[0-9.]+' | sort; }

told() { [ "$(addresses | wc -l)" -eq "$1" ]; }

# contact CLUSTER STATUS: what the Link of east says about it.
contact() { [ "$(k east -n fingerpost get link "$1" -o jsonpath='{.status.conditions[?(@.type=="Connected")].status}')" = "$2" ]; }

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
    k "$c" create namespace linkerd # where the Secrets of links and the Leases are, as beside a Linkerd
    helm --kube-context "k3d-$c" install fingerpost "$root/charts/fingerpost" --namespace fingerpost --create-namespace \
      --set cluster.name="$c" --set image.repository="$image" --set image.tag=k3d --set image.pullPolicy=Never --set crds.links=true
    helm --kube-context "k3d-$c" install fingerpost-link "$root/charts/fingerpost-link" --namespace fingerpost
    k "$c" create namespace shop
    sed 's/[$]NAMESPACE/shop/; s/[$]REPLICAS/2/' ../mesh/shop.yaml | k "$c" apply -f -
    k "$c" apply -f - <<SERVICE
apiVersion: v1
kind: Service
metadata:
  name: web-federated
  namespace: shop
  annotations:
    multicluster.linkerd.io/remote-discovery: $(others "$c" | sed 's/^/web@/' | paste -sd,)
    multicluster.linkerd.io/local-discovery: web
    federation.fingerpost.io/endpoint-slices: enabled
spec: {ports: [{name: http, port: 8080}]}
SERVICE
  done
  for c in "${clusters[@]}"; do
    k "$c" -n fingerpost rollout status deployment/fingerpost --timeout=180s
    k "$c" -n shop rollout status deployment/web --timeout=180s
  done

  for c in "${clusters[@]}"; do
    for other in $(others "$c"); do
      link "$c" "$other"
    done
  done
}

# link CLUSTER OTHER lets CLUSTER see OTHER.
link() {
  local address
  address=$(nodes "$2" | awk -v name="k3d-$2-server-0" '$1 == name {print $3}')
  fingerpost link gen "$2" --context "k3d-$2" --api-server-address "https://$address:6443" --gateway=false \
    --service-account-namespace fingerpost --service-account-name fingerpost-link --link-namespace fingerpost \
    --trust-domain cluster.local --cluster-domain cluster.local | k "$1" apply -f -
}

scenarios() {
  local c address
  say "every cluster hears the others"
  for c in "${clusters[@]}"; do
    others "$c" | sed 's,^,link/,' | xargs kubectl --context "k3d-$c" -n fingerpost wait --for=condition=Synced --timeout=60s
  done

  say "a federated Service is the union of its members"
  eventually 30 told 6

  say "the network is flat: a Pod of east reaches each of them"
  for address in $(addresses); do
    eventually 30 k east -n shop exec deployment/web -c web -- wget -T 3 -qO- "http://$address:8080/hostname"
  done

  say "clients without a mesh see it as EndpointSlices"
  eventually 30 written 6

  say "west is cut off: its API server is paused, its Pods go on, and nothing is withdrawn"
  docker pause k3d-west-server-0
  eventually 60 contact west False
  told 6 || die "endpoints were withdrawn because a cluster could not be seen"
  docker unpause k3d-west-server-0
  eventually 60 contact west True
  told 6 || die "endpoints were withdrawn when contact was back"

  say "west is unlinked: its endpoints go"
  k east -n fingerpost delete link/west
  k east -n linkerd delete secret/cluster-credentials-west
  eventually 30 told 4
  eventually 30 written 4
  link east west
  eventually 30 told 6

  say "what the others have asked the API server of west for"
  docker exec k3d-west-server-0 cat /var/log/fingerpost-audit.log |
    sed -nE '/serviceaccount:fingerpost:fingerpost-link"/ s/.*"verb":"([a-z]+)".*"objectRef":\{"resource":"([a-z]+)".*/\1 \2/p' | sort | uniq -c | tee "$state/requests"
  grep -q ' watch endpointslices$' "$state/requests" || die "nobody watches the EndpointSlices of west"
  ! grep -q ' secrets$' "$state/requests" || die "somebody asks for the Secrets of west"
}

written() {
  [ "$(k east -n shop get endpointslices -l kubernetes.io/service-name=web-federated -o jsonpath='{.items[*].endpoints[*].addresses[*]}' | wc -w)" -eq "$1" ]
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
    ;;
  up | scenarios | down) "$1" ;;
  *) die "up, scenarios or down?" ;;
esac
