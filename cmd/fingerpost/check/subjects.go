package check

import (
	"context"
	"slices"
	"strings"

	"github.com/fingerpost/fingerpost/cluster/problem"
)

// A subject is what checks are about, in words. There may be a check of it for each cluster, Link or replica.
type subject string

// The subjects.
const (
	apiAnswers     subject = "The API server answers"
	clocksAgree    subject = "Clocks agree"
	linksServed    subject = "Links are served"
	leaseNamespace subject = "There is a namespace for Leases"
	mayInstall     subject = "You may install"

	versionTaken       subject = "Kubernetes is new enough"
	kindsDefined       subject = "Kinds are defined"
	certificatesUsable subject = "Certificates can be used"
	planeKnown         subject = "The control plane is known"

	certificatesLast subject = "Certificates last"
	webhooksServed   subject = "Webhooks are served"
	podsInjected     subject = "Pods have their proxies"
	proxiesCurrent   subject = "Proxies are as new ones"

	replicasReady   subject = "Replicas are ready"
	versionsAgree   subject = "Versions agree"
	answerProxies   subject = "Replicas answer proxies"
	replicasAgree   subject = "Replicas agree"
	stateSaved      subject = "State can be saved"
	handOver        subject = "Replicas hand over"
	filesRead       subject = "Files can be read"
	policyFits      subject = "Policy fits into messages"
	inContact       subject = "A cluster is in contact"
	credentialsWork subject = "Credentials work"
	kindsReadable   subject = "Required resources are readable"
	requestsServed  subject = "Requests are served"
	hasIdentity     subject = "A cluster has the expected identity"
	policyUsable    subject = "Objects of policy can be used"
	insideNetworks  subject = "Endpoints are inside of the cluster networks"

	canWrite      subject = "Fingerpost can write"
	noSourceLeft  subject = "No source is left to another"
	leasesCount   subject = "Every Lease counts"
	leaseHeld     subject = "A Lease has a holder"
	noLinkHeld    subject = "No Link is held"
	hasLink       subject = "Every cluster has its Link"
	linksRead     subject = "Every Link is read"
	linksShown    subject = "Links show what replicas report"
	linkAsIs      subject = "Conditions of a Link are True"
	areMirrored   subject = "Services are mirrored"
	fleetName     subject = "A cluster has its name in the fleet"
	fleetReads    subject = "All that a cluster reads is linked"
	notMalformed  subject = "No Service is malformed"
	hasReady      subject = "A Service has a ready endpoint"
	membersLinked subject = "The clusters of members are linked"
	membersExist  subject = "A member has the ports"
	annotations   subject = "Annotations are valid"
)

// subjectInfo is what all checks of a subject have in common.
type subjectInfo struct {
	subject  subject
	category category
	passes   string // what holds if it passes

	// classes are those of the Problems that fail it. Each has a section in docs/problems.md, and a subject without any
	// has one in docs/checks.md.
	classes []problem.Class
}

// subjectInfos are all subjects, in the order of docs/checks.md.
var subjectInfos = []subjectInfo{
	{apiAnswers, localCategory, "the API server of the cluster that Fingerpost runs in answers", nil},
	{clocksAgree, localCategory, "its clock is at most 10 s from the one here", nil},
	{linksServed, localCategory, "Links are served at the version that Fingerpost reads", nil},
	{leaseNamespace, localCategory, "the namespace of the control plane exists", nil},
	{versionTaken, installCategory, "with `--pre`: the charts take the version of Kubernetes", nil},
	{kindsDefined, installCategory, "with `--pre`: kinds of Linkerd and of the Gateway API are served", nil},
	{
		certificatesUsable, installCategory,
		"with `--pre`: the issuer of the mesh verifies against its trust anchors, and none of them ends soon", nil,
	},
	{planeKnown, installCategory, "with `--pre`: it names what there is of a control plane of Linkerd", nil},
	{mayInstall, installCategory, "with `--pre`: you may create what an installation consists of", nil},

	{
		certificatesLast, meshCategory,
		"where there is a mesh: its issuer verifies against its trust anchors, and none of them ends soon", nil,
	},
	{
		webhooksServed, meshCategory,
		"each webhook of the control plane has ready endpoints and a certificate that API servers trust", nil,
	},
	{podsInjected, meshCategory, "Pods that ask for a proxy get one, and those that run have one", nil},
	{
		proxiesCurrent, meshCategory,
		"proxies have the version that new Pods get, and the trust anchors of the mesh", nil,
	},

	{replicasReady, replicaCategory, "all Pods are ready and respond on the debug port", nil},
	{versionsAgree, replicaCategory, "all have one version, which is that of the command", nil},
	{answerProxies, replicaCategory, "each replica answers a stream, and a Service leads to it", nil},
	{stateSaved, replicaCategory, "the last state of each cluster can be saved", []problem.Class{problem.NotSaved}},
	{handOver, replicaCategory, "replicas hand over what they know", []problem.Class{problem.PeersRefuse}},
	{filesRead, replicaCategory, "certificates, keys and authorities can be read", []problem.Class{problem.Unreadable}},
	{
		policyFits, replicaCategory, "where policy is served: what clients ask for fits into a message",
		[]problem.Class{problem.TooLarge},
	},
	{replicasAgree, replicaCategory, "replicas have the same clusters and endpoints", nil},

	{
		inContact, clusterCategory, "the cluster is Live in every replica; the worst one counts, and is named",
		[]problem.Class{problem.Connecting, problem.Suspect, problem.Stale, problem.NotRestored},
	},
	{
		credentialsWork, clusterCategory, "the newest credentials are in use, for an hour at least",
		[]problem.Class{problem.Credentials, problem.Expired, problem.ExpiresSoon},
	},
	{
		kindsReadable, clusterCategory, "the kinds that are needed may be listed and watched",
		[]problem.Class{problem.Forbidden},
	},
	{
		requestsServed, clusterCategory, "the API server does what it is asked for",
		[]problem.Class{problem.Requests},
	},
	{
		hasIdentity, clusterCategory,
		"UID, trust domain, trust anchors, Pod network and clock are as expected, where replicas may read them",
		[]problem.Class{
			problem.SameCluster, problem.OtherDomain, problem.OtherAnchors, problem.AnchorsExpire,
			problem.IssuerExpires,
			problem.Overlapping, problem.ClockSkew,
		},
	},
	{
		policyUsable, clusterCategory,
		"where policy is served: every object of it in the local cluster can be read, and all of its parts convert",
		[]problem.Class{problem.PolicyUnusable},
	},
	{
		insideNetworks, clusterCategory,
		"where policy is served: each endpoint that is known of the cluster is in one of `-cluster-networks`",
		[]problem.Class{problem.OutsideNetworks},
	},

	{
		canWrite, writerCategory,
		"replicas may write what they are to write, and it is written; a cluster out of contact is left to that check",
		[]problem.Class{problem.ReadOnly, problem.Incomplete, problem.NotWritten},
	},
	{
		noSourceLeft, writerCategory, "no other installation writes slices here with endpoints of linked clusters",
		[]problem.Class{problem.LeftTo},
	},
	{leasesCount, writerCategory, "no Lease of an installation is in a namespace that does not count", nil},
	{leaseHeld, writerCategory, "each Lease in the local cluster that elects a writer has a holder", nil},

	{noLinkHeld, linkCategory, "no Link was deleted with many others", []problem.Class{problem.LinkDeleted}},
	{hasLink, linkCategory, "no cluster is linked by a Secret alone", []problem.Class{problem.SecretAlone}},
	{linksRead, linkCategory, "no Link is outside of the namespace that replicas read", nil},
	{linksShown, linkCategory, "the status of each Link is what replicas report", nil},
	{
		linkAsIs, linkCategory, "no condition of the Link has a problem that no other check has",
		[]problem.Class{
			problem.Invalid, problem.LocalName, problem.Conflict, problem.Refused, problem.InvalidAnnotation,
			problem.Mirroring, problem.Gateway, problem.OverBudget, problem.TooManySlices, problem.StillNeeded,
			problem.Unconfirmed, problem.Held,
		},
	},
	{areMirrored, linkCategory, "each Service that the Link selects is mirrored", []problem.Class{problem.NotMirrored}},
	{fleetName, linkCategory, "with `--fleet`: the cluster has the name that the file has for it", nil},
	{fleetReads, linkCategory, "with `--fleet`: each cluster that the file lets it read is linked there", nil},

	{notMalformed, serviceCategory, "mirrored and federated Services are complete", []problem.Class{problem.Malformed}},
	{hasReady, serviceCategory, "each of them has a ready endpoint", []problem.Class{problem.NoneReady}},
	{membersLinked, serviceCategory, "the clusters of all members are linked", []problem.Class{problem.NotLinked}},
	{
		membersExist, serviceCategory, "each member exists and has the ports of its Service",
		[]problem.Class{problem.NoService, problem.NoPort},
	},
	{
		annotations, serviceCategory, "annotations of Services are valid, and policies have an effect",
		[]problem.Class{problem.InvalidAnnotation, problem.UnknownCluster, problem.UnknownRegion},
	},
}

// info returns what all checks of a subject have in common.
func (s subject) info() subjectInfo {
	i := slices.IndexFunc(subjectInfos, func(info subjectInfo) bool { return info.subject == s })
	return subjectInfos[i]
}

// tableAnchor is that of the heading above the table of subjects in docs/checks.md.
const tableAnchor = "the-checks"

// anchor returns that of the heading in docs/checks.md that has a subject.
func (s subject) anchor() string {
	if len(s.info().classes) > 0 {
		return tableAnchor
	}
	return strings.ReplaceAll(strings.ToLower(string(s)), " ", "-")
}

// has reports whether a Problem fails checks of a subject.
func (s subject) has(p problem.Problem) bool { return slices.Contains(s.info().classes, p.Class) }

// decided returns a check whose first result counts.
func (s subject) decided(description string, run func(context.Context) error) check {
	return check{category: s.info().category, description: description, anchor: s.anchor(), run: run}
}

// retried returns a check that may pass later by itself.
func (s subject) retried(description string, run func(context.Context) error) check {
	c := s.decided(description, run)
	c.retry = true
	return c
}

// A Subject is what the docs have of a subject.
type Subject struct {
	Title, Anchor, Category string
	Passes                  string
	Classes                 []problem.Class
}

// Subjects returns all of them, in their order.
func Subjects() (all []Subject) {
	for _, info := range subjectInfos {
		all = append(all, Subject{
			Title: string(info.subject), Anchor: info.subject.anchor(), Category: string(info.category),
			Passes: info.passes, Classes: slices.Clone(info.classes),
		})
	}
	return all
}
