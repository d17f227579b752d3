// Package inject adds a linkerd2-proxy to Pods: a Pod and what a mesh was installed with go in, operations of a JSON
// patch come out.
//
//	linkerd-config --ParseValues--> Values --New--> Injector
//	                                                   |
//	Namespace, owner, Pod ----- Workload ----------> Inject --> Outcome: operations, or reasons why there are none
//
// All of it is a function of its arguments: nothing is looked up, and equal arguments give equal bytes. An [Injector]
// is not changed by its use, so that any number of goroutines share one.
//
// Operations of an injection only add: containers, volumes, labels and annotations; what the Pod has of its own is
// never changed or removed. A Pod that has a proxy gets nothing, so that two injections are as good as one.
// [Uninject] is the way back.
//
// Names of containers, volumes and variables, and their order, are those that linkerd2-proxy and Linkerd's own tools
// expect. Pods are hostile. An annotation that cannot be honoured is ignored with a warning, and neither keeps a Pod
// from its proxy nor the proxy from its other settings.
package inject
