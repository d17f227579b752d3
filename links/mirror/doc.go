// Package mirror writes the Services that Links ask for into the local cluster, as Linkerd's service mirror does.
//
//	Links, Services of linked clusters, local Services --world--> decide (pure) --> a Service, its Endpoints, a verdict for each Link
//	                                                                                    |                   |
//	                                              local API server <--- create, patch, delete       status of the Link
//
// Rules to rely on:
//
//   - One key is one local object. What it should be follows from what is known now, and never from which event arrived.
//   - What is not known changes nothing: a cluster that was not heard, or is out of reach, keeps its mirrors and memberships.
//   - Only what bears Linkerd's mark of a mirror is changed or removed. A Service of somebody else that has the name is left alone.
//   - Only what was written for a Link, or was there while we saw it, goes with it. A Link that we never saw owns nothing.
//   - While Linkerd's service mirror holds the Lease of a Link, nothing of that Link is touched.
//   - Nothing is written, and nothing of linked clusters is watched for it, but while [Mirror.Run] runs.
package mirror
