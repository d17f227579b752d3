// Package node plays the one node of a cluster without nodes, for tests that need Pods which do what they are for.
//
//	kube-apiserver ──── Pods ───▶ Node ─┬─ a Pod of chart fingerpost: the program, as a process
//	       │                            └─ any other Pod: nothing but an address
//	       └─ exec, port-forward ─▶ its server
//
// What is as on a node: a Pod is bound, gets an address, and is Ready once its program answers at /ready. The program
// has the arguments of the container, the token of its ServiceAccount, and its Secrets and ConfigMaps as files.
// `kubectl exec` and `kubectl port-forward` reach it through the API server. A Pod that is deleted gets SIGTERM, and is
// gone once its program has ended.
//
// What is not:
//
//   - There is no network of Pods. The ports of a Pod are ports of loopback that the kernel has chosen, and what is
//     executed in it has them for those of its 127.0.0.1. Replicas do not ask each other: flags -peer* are left out.
//   - There is no image: `fingerpost` is the program that the test was built with. Nothing else runs.
//   - API servers are on loopback, so kubeconfigs of Links may name 127.0.0.1 (-allow-kubeconfig-hosts).
//   - Readiness is asked until it is there, and not again. There are no other probes, no limits and no preStop.
//
// Files: node.go finds Pods, pod.go runs one, server.go is what the API server asks for commands and ports.
package node
