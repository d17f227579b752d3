// Package ruleset makes of the objects of policy of the local cluster what answers about policy follow from, and keeps
// that up to date: [rules.Levels].
//
//	object --informer--> value of rules --+--> Workloads    a Pod's or an ExternalWorkload's
//	                                      +--> Servers      of a namespace, with what is granted and attached there
//	                                      +--> Targets      a Service or EgressNetwork, with the routes that name it
//	                                      +--> Egress       EgressNetworks of a namespace
//	                                      '--> Statuses, Findings
//
// A change of an object leads to what it may change, by an index of names, and no further: a Server to its namespace, a
// route to its parents, a Service to itself and to the routes that send to it if it comes or goes, an authentication
// to the namespaces whose policies require it. What is the same as before keeps its pointer, so that an object that was
// written without a change of its meaning, as its status is, ends there.
package ruleset
