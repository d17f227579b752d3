// Package links makes Specs of what people apply to say which clusters belong together.
//
//	Link, labelled Secret, Secret of a Link --by cluster name--> resolve (pure) --> cluster.Spec --> Registry.Apply
//	                                                                  |
//	conditions of the Link, Events <------------ cluster.Status ------'
//
// A cluster is linked by a Link (multicluster.linkerd.io, with the Secret it names) or by a labelled Secret of type
// mirror.linkerd.io/remote-kubeconfig in the controller namespace, which is all that Linkerd's destination reads; `linkerd
// multicluster link-gen` prints both. They may come in any order. One cluster name is one Spec.
//
// Kubeconfigs are untrusted input: see [Credentials]. What is refused is said in a condition of the Link, and what worked before goes
// on. Without Links in the API, or without the right to read them, labelled Secrets are all there is.
package links
