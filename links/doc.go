// Package links turns Links and Secrets into the Specs that the Registry of clusters applies, and reports in
// each Link what became of it.
//
//	Link, labelled Secret, Secret of a Link
//	      |  by cluster name
//	      '--> resolve (pure) --> cluster.Spec --> Registry.Apply
//	                  |
//	               outcome    cluster.Status, from the Registry
//	                  |             |
//	                  '------.------'
//	                         |
//	metrics, debug pages <-- conditionsFor (pure)
//	                         |
//	status, Events <-- holder of the local cluster's Lease <-- MirrorStatus, from package mirror
//
// A cluster is linked by a Link (multicluster.linkerd.io) and the Secret that it names, or by a labelled
// Secret of type mirror.linkerd.io/remote-kubeconfig in the controller namespace, which is all that
// Linkerd's destination controller reads. `linkerd multicluster link-gen` prints both. They may arrive in
// any order. One cluster name is one Spec: if several Links name it, the oldest counts.
//
// Kubeconfigs are untrusted input: [Credentials] defines what is accepted. Rejected credentials are reported
// in a condition of the Link, and those in use stay in use. If Links cannot be listed, because their kind
// is not served or we lack the permission, labelled Secrets alone link clusters.
package links
