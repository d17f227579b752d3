package problem

import "strings"

// A Class is one kind of Problem: it has one title, one remedy and one section of docs/problems.md, which is generated
// from what texts.go has of it. Conditions of Links have it as their reason.
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
	IssuerExpires Class = "IssuerExpires"       // soon, or it has
	Overlapping   Class = "OverlappingNetworks" // Pods of it have addresses of the local cluster's
	ClockSkew     Class = "ClockSkew"

	OutsideNetworks Class = "OutsideClusterNetworks" // endpoints that clients here may get
	PolicyUnusable  Class = "PolicyUnusable"         // objects of it, or parts of them

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

// Classes of a Link.
const (
	Invalid           Class = "Invalid"           // it names no cluster
	LocalName         Class = "LocalName"         // it names the local one
	Conflict          Class = "Conflict"          // an older Link names its cluster
	Refused           Class = "Refused"           // its kubeconfig may not be used, or there is none
	InvalidAnnotation Class = "InvalidAnnotation" // of a Link or a Service
	LinkDeleted       Class = "LinkDeleted"       // and its cluster stays linked for a grace
	Mirroring         Class = "Mirroring"         // is not as the Link asks for it
	Gateway           Class = "Gateway"           // is not usable as the Link names it
	NotMirrored       Class = "NotMirrored"
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
	TooLarge    Class = "PolicyTooLarge" // for a message to clients
)

// page has a section for each Class.
const page = "problems.md"

// Runbook returns the page and heading, in docs, that have what to do. A Class that is not known has none of its own.
func (c Class) Runbook() string {
	if infoOf(c).class != c {
		return page
	}
	return page + "#" + strings.ToLower(string(c))
}

// A Group is what has Problems, and of what kind they are. The name is a heading of docs/problems.md.
type Group string

// The groups, in the order of the page.
const (
	ofContact     Group = "Contact with a cluster"
	ofCredentials Group = "Credentials of a cluster"
	ofIdentity    Group = "Identity of a cluster"
	ofReading     Group = "What is read of a cluster"
	ofTraffic     Group = "Traffic of a cluster"
	ofWriting     Group = "What is written into a cluster"
	ofLinks       Group = "Links"
	ofServices    Group = "Services"
	ofProcesses   Group = "Replicas"
)

// classInfo is what all Problems of a Class have in common. {name} and {full} stand for the object, the latter with its
// namespace, {kind} for its kind and {class} for the Class.
type classInfo struct {
	class   Class
	group   Group
	title   string
	remedy  string // a part of each Problem; empty if it depends
	command string

	// What only docs/problems.md has, as Markdown.
	means   string
	affects string // empty if nothing follows
	advice  string // besides the remedy, or in its place
	more    string // page and heading that have the subject; empty if the section has all
}

// infoOf returns what Problems of a Class have in common; of one that is not known little is.
func infoOf(c Class) classInfo {
	for _, info := range classes {
		if info.class == c {
			return info
		}
	}
	return classInfo{title: "{kind} {full}: {class}", command: checkCommand}
}

// A Description is what the docs have of a Class, as Markdown but for Remedy. In Command objects have names in
// capitals, such as CLUSTER.
type Description struct {
	Class          Class
	Group          Group
	Means, Affects string
	Remedy, Advice string
	Command, More  string
}

// Descriptions returns those of all Classes, in the order of the page.
func Descriptions() (all []Description) {
	for _, info := range classes {
		object := Object{Kind: "Cluster", Name: "CLUSTER"}
		switch info.group {
		case ofLinks:
			object = Object{Kind: "Link", Namespace: "NAMESPACE", Name: "LINK"}
		case ofServices:
			object = Object{Kind: "Service", Namespace: "NAMESPACE", Name: "SERVICE"}
		case ofProcesses:
			object = Object{Kind: "File", Name: "FILE"}
		default:
		}

		p := New(object, info.class, Information, "")
		all = append(all, Description{
			Class: info.class, Group: info.group, Means: info.means, Affects: info.affects,
			Remedy: p.Remedy, Advice: info.advice, Command: p.Command, More: info.more,
		})
	}
	return all
}
