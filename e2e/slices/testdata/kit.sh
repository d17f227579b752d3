#!/usr/bin/env bash
# The scenarios of e2e/k3d on bare control planes. TestKit runs this with a directory that has, for each cluster, a kubeconfig, the
# address of its server, the URL and the audit log of its API server; it pauses API servers when it is asked to over descriptor 3, and
# answers over 4.
set -euo pipefail
cd "$(dirname "$0")"
source ../../k3d/scenarios.sh

dir=$1

k() { "$dir/kubectl" --kubeconfig "$dir/$1" "${@:2}"; }
fingerpost() {
  case $2 in
    endpoints) "$dir/fingerpost" "${@:2}" --addr "$(<"$dir/$1.addr")" ;;
    *) "$dir/fingerpost" "${@:2}" --kubeconfig "$dir/$1" ;;
  esac
}
api() { cat "$dir/$1.url"; }
audit() { cat "$dir/$1.audit"; }
pause() { ask pause "$1"; }
resume() { ask resume "$1"; }

ask() {
  local answer
  echo "$*" >&3
  read -r answer <&4
  [ "$answer" = ok ] || die "$*: $answer"
}

for cluster in "${clusters[@]}"; do
  open_shop "$cluster"
done
link_all
scenarios
