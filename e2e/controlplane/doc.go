// Package controlplane runs real Kubernetes control planes on this machine,
// without containers and without root, for tests and for the demo.
//
//	Start ─┬─ etcd
//	       ├─ kube-apiserver ◀── Proxy ◀── the client under test
//	       ├─ kube-controller-manager
//	       ├─ kube-scheduler
//	       └─ kwok: plays the kubelets, so pods become Running and Ready
//
// Every cluster is a set of child processes on loopback, with ports chosen by
// the kernel and a certificate authority, service range and pod range of its
// own. Pods exist in the API only: their addresses are in EndpointSlices but
// nothing listens there.
//
// What callers may rely on:
//
//   - A cluster that Start returned is ready: a Deployment applied to it gets
//     pods, and a Service in front of it gets ready endpoints.
//   - No process outlives the one that started it, however that one ends.
//     State directories it leaves are removed by the next Start on the machine.
//   - Faults are plain calls that have happened when they return: Pause, Kill,
//     Restart, Move, ReplaceCA, Revoke, Expire and Deny on a Cluster; Refuse,
//     Silence, Delay, CutConnections and Pass on a Proxy.
//   - Methods of Cluster and Proxy may be called from several goroutines.
//
// Files: binaries.go builds the programs; options.go, start.go, cluster.go,
// components.go, stages.go and process.go run them; state.go,
// port.go, ranges.go and authority.go give each cluster what is its own;
// proxy.go, link.go, faults.go, identity.go, certificate.go and rights.go are
// for what goes wrong; apply.go, endpoints.go, kubectl.go, audit.go and
// fortest.go are for what tests do with a cluster.
package controlplane
