# shellcheck shell=bash
# What is played on three clusters that each have Fingerpost: run.sh plays it in Docker, and TestKit in e2e/slices on bare control planes.
# Whoever sources this says how to get at them:
#
#   k CLUSTER ...           kubectl
#   fingerpost CLUSTER ...  the command line, which asks the server of the cluster
#   api CLUSTER             where the others reach its API server
#   pause, resume CLUSTER   stop its API server, and let it go on
#   audit CLUSTER           what its API server was asked for, as it logs it

clusters=(east west north)
service=web-federated.shop.svc.cluster.local:8080

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

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

# open_shop CLUSTER puts a shop into it, and a Service that is the union of all shops, and asks for slices.
open_shop() {
  k "$1" create namespace shop
  sed 's/[$]NAMESPACE/shop/; s/[$]REPLICAS/2/' "$(dirname "${BASH_SOURCE[0]}")/../mesh/shop.yaml" | k "$1" apply -f -
  k "$1" apply -f - <<SERVICE
apiVersion: v1
kind: Service
metadata:
  name: web-federated
  namespace: shop
  annotations:
    multicluster.linkerd.io/remote-discovery: $(others "$1" | sed 's/^/web@/' | paste -sd,)
    multicluster.linkerd.io/local-discovery: web
    federation.fingerpost.io/endpoint-slices: enabled
spec: {ports: [{name: http, port: 8080}]}
SERVICE
}

# link CLUSTER OTHER lets CLUSTER see OTHER.
link() {
  fingerpost "$2" link gen "$2" --api-server-address "$(api "$2")" | k "$1" apply -f -
}

# link_all links each cluster to the others.
link_all() {
  local c other
  for c in "${clusters[@]}"; do
    for other in $(others "$c"); do
      link "$c" "$other"
    done
  done
}

# addresses prints the IPs that a proxy in east is told.
addresses() { fingerpost east endpoints "$service" -n fingerpost | grep -oE '^[0-9]+\.[0-9.]+' | sort; }

told() { [ "$(addresses | wc -l)" -eq "$1" ]; }

written() {
  [ "$(k east -n shop get endpointslices -l kubernetes.io/service-name=web-federated -o jsonpath='{.items[*].endpoints[*].addresses[*]}' | wc -w)" -eq "$1" ]
}

# contact CLUSTER STATUS: what the Link of east says about it.
contact() { [ "$(k east -n fingerpost get link "$1" -o jsonpath='{.status.conditions[?(@.type=="Connected")].status}')" = "$2" ]; }

scenarios() {
  local c requests
  say "every cluster hears the others"
  for c in "${clusters[@]}"; do
    others "$c" | sed 's,^,link/,' | while read -r link; do
      k "$c" -n fingerpost wait --for=condition=Synced --timeout=60s "$link"
    done
  done

  say "a federated Service is the union of its members"
  eventually 30 told 6

  say "clients without a mesh see it as EndpointSlices"
  eventually 30 written 6

  say "west is cut off: its API server is paused, its Pods go on, and nothing is withdrawn"
  pause west
  eventually 60 contact west False
  told 6 || die "endpoints were withdrawn because a cluster could not be seen"
  resume west
  eventually 60 contact west True
  told 6 || die "endpoints were withdrawn when contact was back"

  say "west is unlinked: its endpoints go"
  k east -n fingerpost delete link/west
  k east -n fingerpost delete secret/cluster-credentials-west
  eventually 30 told 4
  eventually 30 written 4
  link east west
  eventually 30 told 6

  say "what the others have asked the API server of west for"
  requests=$(audit west |
    sed -nE '/serviceaccount:fingerpost:fingerpost-link"/ s/.*"verb":"([a-z]+)".*"objectRef":\{"resource":"([a-z]+)".*/\1 \2/p' | sort | uniq -c)
  printf '%s\n' "$requests"
  grep -q ' watch endpointslices$' <<<"$requests" || die "nobody watches the EndpointSlices of west"
  ! grep -q ' secrets$' <<<"$requests" || die "somebody asks for the Secrets of west"
}
