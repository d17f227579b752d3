package problem

import (
	"maps"
	"slices"
)

// A Class is one kind of Problem: it has one title, one remedy and one page of the docs. Conditions of Links have it as
// their reason.
type Class string

// Classes of a cluster.
const (
	Connecting    Class = "Connecting"      // it was never synced
	Suspect       Class = "Suspect"         // it is out of contact
	Stale         Class = "Stale"           // likewise, and for long
	Waiting       Class = "Waiting"         // not all of it was listed yet
	NotRestored   Class = "NotRestored"     // nor its last state, although others may have it
	Restored      Class = "Restored"        // likewise, and its last state is known
	Untried       Class = "Untried"         // its credentials were not tried yet
	Credentials   Class = "CredentialsFail" // the newest do not work
	Expired       Class = "Expired"         // the credentials in use have
	ExpiresSoon   Class = "ExpiresSoon"     // they will
	SameCluster   Class = "SameCluster"     // another name leads to the same cluster
	OtherDomain   Class = "OtherTrustDomain"
	OtherAnchors  Class = "OtherTrustAnchors"   // it shares none with the local cluster
	AnchorsExpire Class = "TrustAnchorsExpire"  // soon, or they have
	Overlapping   Class = "OverlappingNetworks" // Pods of it have addresses of the local cluster's
	ClockSkew     Class = "ClockSkew"
	OverBudget    Class = "OverBudget"
	LeftTo        Class = "LeftToInstallation"
	TooManySlices Class = "TooManySlices"
	Draining      Class = "Draining"    // a part of its traffic is taken away, or is to be
	StillNeeded   Class = "StillNeeded" // all is, and some Services have nothing else
	Unconfirmed   Class = "WithdrawalUnconfirmed"
	Held          Class = "WithdrawalHeld"
	Forbidden     Class = "Forbidden"  // it refuses kinds that are needed
	NotGranted    Class = "NotGranted" // it refuses kinds that nothing depends on
	ReadOnly      Class = "ReadOnly"
	Incomplete    Class = "WritesIncomplete"
	NotWritten    Class = "NotWritten"   // objects, though they were tried
	Requests      Class = "RequestsFail" // others, again and again
	SecretAlone   Class = "SecretAlone"  // a labelled Secret links it, and no Link
	ForeignLease  Class = "ForeignLease" // another process holds a Lease that this installation needs
)

// Classes of a Link. Those of a Link that is not accepted are in package links.
const (
	Refused           Class = "Refused"           // its kubeconfig may not be used, or there is none
	InvalidAnnotation Class = "InvalidAnnotation" // of a Link or a Service
	LinkDeleted       Class = "LinkDeleted"       // and its cluster stays linked for a grace
	Mirroring         Class = "Mirroring"         // is not as the Link asks for it
	Gateway           Class = "Gateway"           // is not usable as the Link names it
	NotMirrored       Class = "NotMirrored"
	ConditionFalse    Class = "ConditionFalse" // any other
)

// Classes of a Service of the local cluster.
const (
	Malformed     Class = "Malformed"     // it cannot be served
	NoneReady     Class = "NoneReady"     // it has endpoints or clients, and no endpoint is ready
	NoneReadyHere Class = "NoneReadyHere" // likewise, of a Service that is neither mirrored nor federated
	NotLinked     Class = "NotLinked"     // the cluster of a member is not linked
	NoService     Class = "NoService"     // the cluster of a member has no such Service
	NoPort        Class = "NoPort"        // a member does not have a port of the Service

	UnknownCluster Class = "PolicyUnknownCluster" // its policy names a cluster that is not linked
	UnknownRegion  Class = "PolicyUnknownRegion"  // it names the region, and no other cluster is known there
)

// Classes of a process.
const (
	NotSaved    Class = "NotSaved"       // what is known of clusters cannot be
	PeersRefuse Class = "PeersRefuse"    // other replicas hand over nothing
	Unreadable  Class = "FileUnreadable" // and it could be before
	SlowClients Class = "SlowClients"
)

// classInfo is what all Problems of a Class have in common. {name} and {full} stand for the object, the latter with its
// namespace, {kind} for its kind and {class} for the Class.
type classInfo struct {
	title   string
	remedy  string // empty if it depends
	command string
	runbook string // page and heading, in docs
}

const (
	clustersCommand = "fingerpost clusters {quoted name}"
	describeCommand = "kubectl -n {quoted namespace} describe link {quoted name}"
	rotateCommand   = "fingerpost link rotate {quoted name}"
	explainCommand  = "fingerpost explain {quoted name}.{quoted namespace}"
	checkCommand    = "fingerpost check"

	rotateRemedy = "'fingerpost link rotate' makes new ones"

	conditions  = "operations.md#conditions-of-a-link"
	drains      = "operations.md#drains"
	neverSynced = "operations.md#fingerpostclusterneversynced"
	expire      = "operations.md#fingerpostcredentialsexpire"
	forbidden   = "operations.md#fingerpostforbidden"
	noWriter    = "operations.md#fingerpostnowriter"
	notWritten  = "operations.md#fingerpostwritesfail"
	budget      = "operations.md#bounds-of-clusters"
	anchors     = "operations.md#trust-anchors"
	questions   = "operations.md#questions"
)

var classes = map[Class]classInfo{
	Connecting: {"{name} is Connecting", "", clustersCommand, neverSynced},
	Suspect:    {"{name} is Suspect", "", clustersCommand, "operations.md#states-of-a-cluster"},
	Stale:      {"{name} is Stale", "", clustersCommand, "operations.md#fingerpostclusterstale"},
	Waiting:    {"{name} was not listed completely yet", "", clustersCommand, neverSynced},
	NotRestored: {
		"The last state of {name} cannot be restored", "", clustersCommand, "operations.md#state-across-restarts",
	},
	Restored: {"{name} was restored", "", clustersCommand, "operations.md#state-across-restarts"},
	Untried:  {"The credentials of {name} were not tried yet", "", clustersCommand, conditions},
	Credentials: {
		"New credentials of {name} do not work", "", clustersCommand, "operations.md#fingerpostcredentialsfail",
	},
	Expired:     {"The credentials of {name} have expired", rotateRemedy, rotateCommand, expire},
	ExpiresSoon: {"The credentials of {name} expire soon", rotateRemedy, rotateCommand, expire},
	SameCluster: {
		"{name} is not as its Link describes it",
		"remove one of the Links, or correct the address in its kubeconfig", clustersCommand, conditions,
	},
	OtherDomain: {
		"{name} is not as its Link describes it",
		"set the annotation multicluster.linkerd.io/trust-domain of its Secret", clustersCommand, conditions,
	},
	OtherAnchors: {
		"{name} trusts other anchors than this cluster",
		"give both clusters a bundle that has the trust anchors of both", clustersCommand, anchors,
	},
	AnchorsExpire: {
		"Trust anchors of {name} expire", "add a new one to the bundle of every cluster, and then sign with it",
		clustersCommand, anchors,
	},
	Overlapping: {
		"Pod networks of {name} and this cluster overlap",
		"give the clusters Pod networks that do not overlap, or link them through gateways", clustersCommand,
		conditions,
	},
	ClockSkew:  {"The clock of {name} is off", "synchronise both (NTP)", clustersCommand, conditions},
	OverBudget: {"{name} publishes more than its budget", "", clustersCommand, budget},
	LeftTo: {
		"Slices with endpoints of {name} are written by another installation",
		"delete that Lease if there is no such installation any more", clustersCommand,
		"operations.md#fingerpostlefttoanotherinstallation",
	},
	TooManySlices: {
		"Not all endpoints of {name} are in slices here",
		"raise -max-slices-per-source, or let fewer ports and service accounts share a Service", clustersCommand,
		"slices.md#what-is-left-out",
	},
	Draining:    {"{name} is drained in part", "", clustersCommand, drains},
	StillNeeded: {"{name} is drained and still needed", "", clustersCommand, drains},
	Unconfirmed: {
		"{name} has not confirmed a withdrawal", "", clustersCommand, "operations.md#fingerpostwithdrawalunconfirmed",
	},
	Held: {
		"Endpoints that {name} has withdrawn are held", "'fingerpost release {quoted name}' lets them go",
		"fingerpost release {quoted name}", "operations.md#fingerpostwithdrawalheld",
	},
	Forbidden:  {"{name} cannot be read completely", "grant get, list and watch", clustersCommand, forbidden},
	NotGranted: {"{name} is not read completely", "", clustersCommand, forbidden},
	ReadOnly:   {"Nothing is written into {name}", "", clustersCommand, noWriter},
	Incomplete: {"Not everything is written into {name}", "", clustersCommand, noWriter},
	NotWritten: {"Objects are not written into {name}", "", clustersCommand, notWritten},
	Requests:   {"Requests to {name} fail", "", clustersCommand, "operations.md#fingerpostrequestsfail"},
	SecretAlone: {
		"{name} is linked by a Secret only",
		"if the Link was deleted to unlink the cluster, delete the Secret as well", "kubectl get links -A",
		"checks.md#every-cluster-has-its-link",
	},
	ForeignLease: {
		"None of the replicas holds a Lease in {name}", "if it is none that is starting or stopping, delete the Lease",
		checkCommand, "checks.md#a-lease-has-a-holder",
	},

	Refused:           {"The credentials of Link {full} may not be used", "", describeCommand, conditions},
	InvalidAnnotation: {"Annotations of {kind} {full} are invalid", "", describeCommand, conditions},
	LinkDeleted: {
		"Link {full} was deleted", "install the CRD (crds.links of the chart) and apply the Links again", checkCommand,
		"checks.md#no-link-is-held",
	},
	Mirroring: {
		"Services are not mirrored as Link {full} asks", "", describeCommand, "mirror.md#what-a-link-reports",
	},
	Gateway: {
		"The gateway is not usable as Link {full} names it", "", describeCommand, "mirror.md#what-a-link-reports",
	},
	NotMirrored: {
		"Not every exported Service is mirrored by Link {full}", "", checkCommand, "checks.md#services-are-mirrored",
	},
	ConditionFalse: {"Link {full}: {class}", "", describeCommand, conditions},

	Malformed:     {"Service {full} is malformed", "", explainCommand, "checks.md#no-service-is-malformed"},
	NoneReady:     {"Service {full} has no ready endpoint", "", explainCommand, questions},
	NoneReadyHere: {"Service {full} has no ready endpoint", "", explainCommand, questions},
	NotLinked:     {"Service {full} has a member in a cluster that is not linked", "", explainCommand, questions},
	NoService:     {"Service {full} has a member that does not exist", "", explainCommand, questions},
	NoPort:        {"Service {full} has a member without its port", "", explainCommand, questions},
	UnknownCluster: {
		"Service {full} has a policy that names a cluster that is not linked", "", explainCommand, questions,
	},
	UnknownRegion: {
		"Service {full} has a policy that names the region, which no other cluster is known to share", "",
		explainCommand, questions,
	},

	NotSaved: {
		"The state of clusters cannot be saved", "", checkCommand, "operations.md#state-across-restarts",
	},
	PeersRefuse: {
		"Other replicas do not hand over what they know",
		"all replicas need one ServiceAccount, and certificates of one authority if they have any", checkCommand,
		"operations.md#state-across-restarts",
	},
	Unreadable: {
		"{name} cannot be read", "put valid content into it: it is read again within a second", checkCommand,
		"checks.md#files-can-be-read",
	},
	SlowClients: {
		"Clients have an unread message", "", "fingerpost streams --slow", "operations.md#bounds-of-clients",
	},
}

// Runbooks returns the pages and headings that Problems lead to, sorted.
func Runbooks() []string {
	all := map[string]bool{}
	for _, info := range classes {
		all[info.runbook] = true
	}
	return slices.Sorted(maps.Keys(all))
}
