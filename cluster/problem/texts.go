package problem

const (
	clustersCommand = "fingerpost clusters {quoted name}"
	describeCommand = "kubectl -n {quoted namespace} describe link {quoted name}"
	rotateCommand   = "fingerpost link rotate {quoted name}"
	explainCommand  = "fingerpost explain {quoted name}.{quoted namespace}"
	checkCommand    = "fingerpost check"

	rotateRemedy = "'fingerpost link rotate' makes new ones"

	restarts    = "operations.md#state-across-restarts"
	rights      = "operations.md#rights"
	credentials = "operations.md#credentials"
	anchors     = "operations.md#trust-anchors"
	drains      = "operations.md#drains"
	withdrawals = "operations.md#what-a-cluster-withdraws-at-once"
	writers     = "slices.md#who-writes"
	budgets     = "bounds.md#bounds-of-clusters"
	mirrors     = "mirror.md#what-a-link-reports"
	explained   = "policy.md#why-is-this-refused"
)

// classes are all of them, in the order of docs/problems.md.
var classes = []classInfo{
	{
		class: Connecting, group: ofContact, title: "{name} is Connecting", command: clustersCommand,
		means: "The cluster was not listed completely since it was linked, or since the replicas started. It is " +
			"urgent after a minute.",
		affects: "Federated Services are served without its endpoints.",
		advice: "The message has what fails first; `fingerpost troubleshoot` tries each step. With a timeout Pods " +
			"do not reach the address of the API server: see firewalls, the NetworkPolicy of the chart, and " +
			"`--api-server-address` of `fingerpost link gen`.",
		more: "operations.md#states-of-a-cluster",
	},
	{
		class: Suspect, group: ofContact, title: "{name} is Suspect", command: clustersCommand,
		means:   "The cluster is out of contact for more than `-suspect-after` (10 s).",
		affects: "Its last endpoints stay in use, and changes do not arrive.",
		advice: "See the network between the clusters, and the API server. The message is the error of the last " +
			"probe: see [reasons](#reasons).",
		more: "operations.md#states-of-a-cluster",
	},
	{
		class: Stale, group: ofContact, title: "{name} is Stale", command: clustersCommand,
		means: "The cluster is out of contact for more than `-stale-after` (150 s).",
		affects: "Its last endpoints stay in use and grow older. Replicas that started since then have what they " +
			"restored, or none of its endpoints.",
		advice: "As for [Suspect](#suspect). Without restored state restart no more replicas than you must " +
			"([upgrade](upgrade.md#what-happens-to-streams)). If the cluster will not come back, delete its Link.",
		more: restarts,
	},
	{
		class: Waiting, group: ofContact, title: "{name} was not listed completely yet", command: clustersCommand,
		means:   "Services, Pods, EndpointSlices or Endpoints of the cluster were not listed yet.",
		affects: "Its endpoints are unknown until then.",
		advice:  "Nothing by itself: see [Connecting](#connecting).",
	},
	{
		class: NotRestored, group: ofContact, title: "The last state of {name} cannot be restored",
		command: clustersCommand,
		means: "A replica started while the cluster could not be reached, and what a file or another replica has of " +
			"it cannot be used.",
		affects: "Clients of this replica do not have the endpoints that it would have restored.",
		advice:  "The message has why. Repair the contact with the cluster.",
		more:    restarts,
	},
	{
		class: Restored, group: ofContact, title: "{name} was restored", command: clustersCommand,
		means:   "What is known of the cluster is from a file or from another replica.",
		affects: "Changes since then are seen once every required kind was listed.",
		advice:  "Nothing by itself: see the state of the cluster.",
		more:    restarts,
	},

	{
		class: Credentials, group: ofCredentials, title: "New credentials of {name} do not work",
		command: clustersCommand,
		means: "The newest credentials do not work: they expired, were revoked, lack rights, or are for another " +
			"server. The [reason](#reasons) has which; with `Unreachable` and `NotReady` that is not known.",
		affects: "Nothing while earlier ones work: the message names them. When they expire, the cluster is out of " +
			"contact.",
		advice: "As the reason has it. Put credentials that work into the Secret.",
		more:   credentials,
	},
	{
		class: Expired, group: ofCredentials, title: "The credentials of {name} have expired",
		remedy: rotateRemedy, command: rotateCommand,
		means: "The credentials in use have expired, by their own date. An API server accepts a token for a minute " +
			"at most after that.",
		affects: "The cluster is out of contact, or will be.",
		advice:  "Put them into the Secret that the Link names. No stream is cut off.",
		more:    "fleets.md#tokens",
	},
	{
		class: ExpiresSoon, group: ofCredentials, title: "The credentials of {name} expire soon",
		remedy: rotateRemedy, command: rotateCommand,
		means: "The credentials in use expire within the hour. The alert fires earlier: with less than 15% of their " +
			"lifetime left, or less than 14 days, or less than a day where they do not contain when they were " +
			"issued.",
		affects: "Nothing yet.",
		advice: "Find out why they are not rotated: what rotates tokens does so at 80% of their lifetime or before. " +
			"The kubelet renews the token of the local cluster.",
		more: "fleets.md#tokens",
	},
	{
		class: Untried, group: ofCredentials, title: "The credentials of {name} were not tried yet",
		command: clustersCommand,
		means:   "The newest credentials were not tried, because the cluster does not answer.",
		advice:  "Nothing by itself: see the state of the cluster.",
	},

	{
		class: SameCluster, group: ofIdentity, title: "{name} is not as its Link describes it",
		remedy:  "remove one of the Links, or correct the address in its kubeconfig",
		command: clustersCommand,
		means:   "Another name leads to the same cluster: the namespaces `kube-system` have one UID.",
		affects: "Its endpoints exist twice.",
	},
	{
		class: OtherDomain, group: ofIdentity, title: "{name} is not as its Link describes it",
		remedy:  "set the annotation multicluster.linkerd.io/trust-domain of its Secret",
		command: clustersCommand,
		means:   "The mesh there (ConfigMap `linkerd-config`) has another trust domain than clients get.",
		affects: "mTLS fails: proxies reject its workloads.",
	},
	{
		class: OtherAnchors, group: ofIdentity, title: "{name} trusts other anchors than this cluster",
		remedy:  "give both clusters a bundle that has the trust anchors of both",
		command: clustersCommand,
		means: "No trust anchor of its mesh is one of the local cluster's, or one of the two issuers is under an " +
			"anchor that the other cluster does not trust. The message has the subjects, the first 8 digits of the " +
			"SHA-256 fingerprints, and the ends.",
		affects: "mTLS fails: in both directions without an anchor in common, otherwise with leaves of that issuer.",
		advice:  "Then restart what is meshed.",
		more:    anchors,
	},
	{
		class: AnchorsExpire, group: ofIdentity, title: "Trust anchors of {name} expire",
		remedy:  "add a new one to the bundle of every cluster, and then sign with it",
		command: clustersCommand,
		means: "All trust anchors of its mesh have expired, which is urgent, or do so within 30 days. Or one has, " +
			"and others have not.",
		affects: "Once all have expired mTLS fails.",
		advice:  "One that has expired beside others: remove it, if no issuer is signed by it any more.",
		more:    anchors,
	},
	{
		class: IssuerExpires, group: ofIdentity, title: "The issuer of {name} expires",
		remedy:  "make another one under the same anchor: fingerpost certs issuer",
		command: clustersCommand,
		means: "The certificate that its mesh signs identities with has expired, which is urgent, or does so within " +
			"30 days, or a third of its life. It is read from the values of the mesh (ConfigMap `linkerd-config`). " +
			"The issuer of a Secret that others write, as cert-manager, is not known.",
		affects: "Once it has expired, proxies there that start get no certificate, and running ones lose theirs " +
			"within a day.",
		advice: "If the issuer was replaced beside Linkerd's chart, put it into the values as well: the next upgrade " +
			"of the chart brings back the one that is in them.",
		more: anchors,
	},
	{
		class: Overlapping, group: ofIdentity, title: "Pod networks of {name} and this cluster overlap",
		remedy:  "give the clusters Pod networks that do not overlap, or link them through gateways",
		command: clustersCommand,
		means: "A Pod there has the address of a Pod here, and a Service here has members there. It is looked at " +
			"each five minutes.",
		affects: "Requests reach other Pods.",
	},
	{
		class: OutsideNetworks, group: ofIdentity, title: "Endpoints of {name} are outside of the cluster networks",
		remedy: "add the Pod network of the cluster to -cluster-networks", command: clustersCommand,
		means: "An endpoint of the cluster, in which a Service here has members, is in none of the networks of " +
			"`-cluster-networks`. It is looked at each five minutes, where policy is served.",
		affects: "Clients at such addresses are refused by the default policies `cluster-unauthenticated` and " +
			"`cluster-authenticated`, and by ServerAuthorizations without networks. What is sent there by address " +
			"counts as leaving the clusters, and an EgressNetwork may refuse it.",
		more: explained,
	},
	{
		class: ClockSkew, group: ofIdentity, title: "The clock of {name} is off", remedy: "synchronise both (NTP)",
		command: clustersCommand,
		means:   "The clock of the cluster is more than 10 s from the replica's.",
		affects: "Tokens are rejected too early or too late, and Leases change hands without need.",
		advice:  "If all clusters have it, it is the clock of the replica's node.",
	},

	{
		class: Forbidden, group: ofReading, title: "{name} cannot be read completely",
		remedy: "grant get, list and watch", command: clustersCommand,
		means: "The cluster does not permit reading a kind. It is urgent for a kind without which the cluster is " +
			"not synced.",
		affects: "What depends on the kind is left out.",
		advice:  "The message names the kinds. The newest chart fingerpost-link has all that is needed.",
		more:    rights,
	},
	{
		class: NotGranted, group: ofReading, title: "{name} is not read completely", command: clustersCommand,
		means: "The account has no right to a kind that nothing depends on there. That of Linkerd's own " +
			"multicluster chart has none to ExternalWorkloads.",
		affects: "The kind is not read.",
		advice:  "Nothing, or grant it. `fingerpost clusters -o wide` names the clusters.",
		more:    rights,
	},
	{
		class: Requests, group: ofReading, title: "Requests to {name} fail", command: clustersCommand,
		means: "The API server answers probes, and does not do what it is asked for: three requests in a row, over " +
			"half a minute or more, or one that it does not answer. The [reason](#reasons) is why.",
		affects: "What depends on the requests: the message names it. A kind that cannot be watched stays as it was " +
			"read last: new Links and new credentials are not seen.",
		advice: "As the reason has it. The Problem ends within a minute after the cause is gone, with the next " +
			"request that succeeds, or three minutes after the last one was made.",
	},
	{
		class: PolicyUnusable, group: ofReading, title: "Objects of policy in {name} cannot be used completely",
		command: clustersCommand,
		means: "An object of policy cannot be read, or a part of it does not convert: a filter that proxies do not " +
			"know, a regular expression that does not compile, an annotation that is no duration.",
		affects: "An object that cannot be read has no effect: what it would let in is refused. Of a route it is the " +
			"part alone: requests of a rule with such a filter fail, and a match is left out.",
		advice: "The message names three objects, with the part; the log has a line for each one. Routes have the " +
			"condition `PartiallyInvalid`. Correct what is named, or leave it out.",
		more: explained,
	},
	{
		class: OverBudget, group: ofReading, title: "{name} publishes more than its budget", command: clustersCommand,
		means: "The cluster publishes more Services, endpoints or bytes than are held of one, be it with what it " +
			"has withdrawn. Or one of its Services has more endpoints than one may have.",
		affects: "What was accepted is kept and updated. New Services and endpoints are missing; of a Service with " +
			"too many endpoints only the rest.",
		advice: "The message has the numbers. If it is meant to be so large, set " +
			"`federation.fingerpost.io/max-endpoints` or `federation.fingerpost.io/max-services` on its Link, or " +
			"raise the flags, and the memory limit with them. For one Service raise " +
			"`-cluster-max-endpoints-per-service`.",
		more: budgets,
	},

	{
		class: Draining, group: ofTraffic, title: "{name} is drained in part", command: clustersCommand,
		means:  "A part of the cluster's traffic is taken away, or is to be.",
		advice: "Nothing.",
		more:   drains,
	},
	{
		class: StillNeeded, group: ofTraffic, title: "{name} is drained and still needed", command: clustersCommand,
		means: "All traffic is to be taken away, and some Services have ready endpoints nowhere else. The message " +
			"names three of them.",
		affects: "These Services still get the endpoints of this cluster.",
		advice:  "Make them ready elsewhere, or accept that they go with the cluster.",
		more:    drains,
	},
	{
		class: Held, group: ofTraffic, title: "Endpoints that {name} has withdrawn are held",
		remedy:  "'fingerpost release {quoted name}' lets them go",
		command: "fingerpost release {quoted name}",
		means: "The cluster has withdrawn most of its endpoints or Services within a minute, and a new list has " +
			"confirmed that. Its Link has the annotation `federation.fingerpost.io/withdrawal-guard`, so they are " +
			"held.",
		affects: "Requests of Services that have nothing else go to endpoints that the cluster does not have any " +
			"more. The message names three of them. All others let them go at once.",
		advice: "Find out in the cluster what has deleted them: when they are back the hold ends. Otherwise they go " +
			"at the time that the message has.",
		more: withdrawals,
	},
	{
		class: Unconfirmed, group: ofTraffic, title: "{name} has not confirmed a withdrawal",
		command: clustersCommand,
		means: "The cluster has withdrawn most of its endpoints or Services within a minute, and has not listed its " +
			"Services and EndpointSlices for five seconds since. Or a replica that began to write EndpointSlices " +
			"has found that most of what they have of the cluster is gone there.",
		affects: "All Services get the endpoints that the cluster had, beside those that it has. In the second case " +
			"only EndpointSlices do. If they are gone, requests to them fail.",
		advice: "Find out why its API server does not answer lists: it may be overloaded, or answer without an end. " +
			"Once it lists both kinds, what is gone goes. If they are known to be gone and it cannot list, unlink " +
			"the cluster.",
		more: withdrawals,
	},

	{
		class: ReadOnly, group: ofWriting, title: "Nothing is written into {name}", command: clustersCommand,
		means: "The account lacks a right that writing needs. It is urgent for the local cluster, and a warning if " +
			"the Link asks for slices there. Else it is as chart fingerpost-link has it by default.",
		affects: "What is written there stays as it is and grows old. Streams are not affected.",
		advice: "Grant what the message names: in the local cluster a rule of the chart's ClusterRole, in a linked " +
			"one `write.enabled=true` of chart fingerpost-link. Or leave it so.",
		more: writers,
	},
	{
		class: Incomplete, group: ofWriting, title: "Not everything is written into {name}", command: clustersCommand,
		means:   "A right is missing for a part of what is to be written there, or the Lease for it cannot be taken.",
		affects: "That part stays as it is. Streams are not affected.",
		advice:  "Grant what the message names.",
		more:    writers,
	},
	{
		class: NotWritten, group: ofWriting, title: "Objects are not written into {name}", command: clustersCommand,
		means: "Objects were tried four times or more and are not written: EndpointSlices, mirrors or the status of " +
			"Links. The [reason](#reasons) is why the one that fails for longest is refused. It is urgent after a " +
			"minute.",
		affects: "Clients without a proxy may have endpoints of before. All other objects are written.",
		advice: "As the reason has it. The message names the objects, and what refuses them; a Service of the local " +
			"cluster has an Event `SlicesNotWritten`. Each is tried again after a minute at most.",
	},
	{
		class: LeftTo, group: ofWriting, title: "Slices with endpoints of {name} are written by another installation",
		remedy:  "delete that Lease if there is no such installation any more",
		command: clustersCommand,
		means: "EndpointSlices here that have endpoints of the cluster are written by another installation, whose " +
			"Lease is the older one. The message names it.",
		affects: "These slices follow what that installation knows. While it holds its Lease and does not write, " +
			"they grow old. Streams are not affected.",
		advice: "Or take its namespace out of `-installation-namespaces`, if it is none of yours. If it is meant to " +
			"write, as that of a hub, silence the alert for that `target_cluster`.",
		more: writers,
	},
	{
		class: ForeignLease, group: ofWriting, title: "None of the replicas holds a Lease in {name}",
		remedy:  "if it is none that is starting or stopping, delete the Lease",
		command: checkCommand,
		means:   "A process that is none of the replicas holds a Lease that they need.",
		affects: "What the Lease is for is not written. Streams are not affected.",
		more:    "checks.md#a-lease-has-a-holder",
	},
	{
		class: TooManySlices, group: ofWriting, title: "Not all endpoints of {name} are in slices here",
		remedy:  "raise -max-slices-per-source, or let fewer ports and service accounts share a Service",
		command: clustersCommand,
		means:   "The cluster has as many slices in a Service here as it may.",
		affects: "The endpoints beyond that are in no slice. Existing slices are kept up to date.",
		more:    "slices.md#what-is-left-out",
	},

	{
		class: Invalid, group: ofLinks, title: "Link {full}: {class}", command: describeCommand,
		means: "The Link cannot be parsed, or names no cluster.",
		affects: "It links no cluster. What it linked before it was edited stays linked. A replica that has started " +
			"since deletes nothing that was written for a cluster without a Link.",
		advice: "Correct the field that the message names.",
	},
	{
		class: LocalName, group: ofLinks, title: "Link {full}: {class}", command: describeCommand,
		means:   "The Link has the name of this cluster.",
		affects: "As of [Invalid](#invalid).",
		advice:  "Rename it, or set `-cluster-name`.",
	},
	{
		class: Conflict, group: ofLinks, title: "Link {full}: {class}", command: describeCommand,
		means:   "An older Link links the same cluster.",
		affects: "The older one counts.",
		advice:  "Delete one of the two.",
	},
	{
		class: Refused, group: ofLinks, title: "The credentials of Link {full} may not be used",
		command: describeCommand,
		means: "The Secret is missing, or its kubeconfig has a field that is not allowed: a program, a file, a " +
			"loopback address, more than 128 KiB. Or a field cannot be decoded: base64 that was cut, a value " +
			"without its quotes, a name that stands twice.",
		affects: "Earlier credentials stay in use, if there are any.",
		advice: "Correct the field that the message names; it never has its content. `fingerpost link gen` makes a " +
			"Secret that is accepted.",
	},
	{
		class: InvalidAnnotation, group: ofLinks, title: "Annotations of {kind} {full} are invalid",
		command: describeCommand,
		means: "An annotation of a Link or a Service under `federation.fingerpost.io/` is not known, or its value " +
			"is not, such as `endpoint-slices: \"true\"` instead of `enabled`. Or a Service has a policy and is not " +
			"federated.",
		affects: "What was in force stays: slices that exist are kept up to date, and none are created.",
		advice: "Correct the annotation that the message names. Move a policy to the federated Service in this " +
			"cluster, such as `web-federated` for `web`. A Service has a Warning Event, too, at most one of a reason " +
			"in ten minutes.",
	},
	{
		class: LinkDeleted, group: ofLinks, title: "Link {full} was deleted",
		remedy:  "install the CRD (crds.links of the chart) and apply the Links again",
		command: checkCommand,
		means: "The CRD of Links was deleted, or most Links at once, before a replica started or since. A single " +
			"Link that is deleted unlinks its cluster at once.",
		affects: "The clusters stay linked for five minutes, with their endpoints, mirrors and slices, and are " +
			"unlinked then.",
		advice: "Nothing else is needed. If it was meant, wait. `fingerpost_links_held` counts the Links.",
	},
	{
		class: SecretAlone, group: ofLinks, title: "{name} is linked by a Secret only",
		remedy:  "if the Link was deleted to unlink the cluster, delete the Secret as well",
		command: "kubectl get links -A",
		means: "A labelled Secret in the controller namespace links the cluster, and no Link does, although other " +
			"clusters have one.",
		affects: "The cluster stays linked.",
		advice:  "Otherwise apply the Link again.",
	},
	{
		class: Mirroring, group: ofLinks, title: "Services are not mirrored as Link {full} asks",
		command: describeCommand,
		means:   "The condition `Mirroring` of the Link is False; its reason is why.",
		affects: "Existing mirrors stay as they are.",
		advice:  "As the reason has it. `Forbidden`: the chart's rights to mirror are not installed (`mirror.mode`).",
		more:    mirrors,
	},
	{
		class: Gateway, group: ofLinks, title: "The gateway is not usable as Link {full} names it",
		command: describeCommand,
		means: "`GatewayUnresolved`: a name in `gatewayAddress` leads nowhere, or the gateway has no address of " +
			"use. `GatewayNotProbed`: there is no way to probe it.",
		affects: "Mirrors through the gateway keep their last addresses, or have none. A gateway that is not probed " +
			"counts as it did before.",
		advice: "Correct `gatewayAddress`, or DNS; for the probe as the message states.",
		more:   mirrors,
	},
	{
		class: NotMirrored, group: ofLinks, title: "Not every exported Service is mirrored by Link {full}",
		command: checkCommand,
		means: "A Service that the Link selects is not mirrored: its name is taken, its namespace does not exist " +
			"here, there are more than `-max-mirrors-per-link`, a right is missing, or this cluster does not take " +
			"it as the other one has it. Or a Service there has the label `mirror.linkerd.io/exported` or " +
			"`mirror.linkerd.io/federated`, and no selector of the Link matches its value.",
		affects: "These Services cannot be reached through mirrors, or their mirrors stay as they are.",
		advice: "The message and the status of the Link name them, with the reason. Create the namespace or set " +
			"`mirror.createNamespaces`; raise the limit; correct the label, or the selector.",
		more: mirrors,
	},

	{
		class: Malformed, group: ofServices, title: "Service {full} is malformed", command: explainCommand,
		means: "A mirrored or federated Service lacks what the message names: its writer was interrupted, or it was " +
			"edited.",
		affects: "Clients keep the addresses that they have, and new ones are rejected.",
		advice:  "Correct what the message names.",
	},
	{
		class: NoneReady, group: ofServices, title: "Service {full} has no ready endpoint", command: explainCommand,
		means: "A mirrored or federated Service has endpoints or clients, and none of its endpoints is ready in any " +
			"cluster. It is urgent if it has clients, and not reported while a member's cluster was never synced. " +
			"Of a mirror through a gateway it is the gateway's addresses that are not ready.",
		affects: "Requests to the Service fail.",
		advice: "The message has the ready endpoints of each cluster: are the Pods there scaled to zero, or do " +
			"readiness probes fail? Of a mirror see the condition `Mirroring` of the Link, and `gateway_alive`. A " +
			"Service that is meant to be empty has the Problem until its clients close their streams.",
	},
	{
		class: NoneReadyHere, group: ofServices, title: "Service {full} has no ready endpoint",
		command: explainCommand,
		means:   "A Service that is neither mirrored nor federated has clients, and none of its endpoints is ready.",
		affects: "Requests to the Service fail.",
		advice:  "See its Pods.",
	},
	{
		class: NotLinked, group: ofServices, title: "Service {full} has a member in a cluster that is not linked",
		command: explainCommand,
		means: "A federated Service names a member in a cluster that is not linked: the Link was deleted, or the " +
			"name is wrong.",
		affects: "The member contributes nothing.",
		advice: "Link the cluster, or correct the annotation with the members, such as " +
			"`multicluster.linkerd.io/remote-discovery`. A member is written `service@cluster`, without blanks.",
	},
	{
		class: NoService, group: ofServices, title: "Service {full} has a member that does not exist",
		command: explainCommand,
		means:   "The cluster of a member has no such Service, or one of type ExternalName.",
		affects: "The member contributes nothing.",
		advice:  "Create the Service there, or remove the member.",
	},
	{
		class: NoPort, group: ofServices, title: "Service {full} has a member without its port",
		command: explainCommand,
		means: "The Service of a member does not declare a port of the federated Service, or has a `targetPort` " +
			"whose name no container has.",
		affects: "The member contributes nothing to the port.",
		advice:  "Declare the port in the member's Service, or correct its `targetPort`.",
	},
	{
		class: UnknownCluster, group: ofServices,
		title:   "Service {full} has a policy that names a cluster that is not linked",
		command: explainCommand,
		means:   "The [policy](traffic.md#annotations) of the Service names a cluster that is not linked.",
		affects: "The name counts for nothing.",
		advice:  "Link the cluster, or correct the name. A Warning Event on the Service has the same message.",
	},
	{
		class: UnknownRegion, group: ofServices,
		title:   "Service {full} has a policy that names the region, which no other cluster is known to share",
		command: explainCommand,
		means: "The policy prefers the `region`, and that of this cluster or of every other member is not known, or " +
			"is another one.",
		affects: "That tier counts for nothing.",
		advice:  "Set the annotation `region` of the Links, or the label of the nodes.",
		more:    "traffic.md#the-region-first",
	},

	{
		class: NotSaved, group: ofProcesses, title: "The state of clusters cannot be saved", command: checkCommand,
		means: "A replica cannot write into its `-state-dir`: the directory is full, read-only or gone.",
		affects: "Nothing while it runs. If it restarts while a cluster is unreachable, it has that cluster's " +
			"endpoints from other replicas only, or not at all.",
		advice: "Make the directory writable, with room for about 100 B an endpoint.",
		more:   restarts,
	},
	{
		class: PeersRefuse, group: ofProcesses, title: "Other replicas do not hand over what they know",
		remedy:  "all replicas need one ServiceAccount, and certificates of one authority if they have any",
		command: checkCommand,
		means: "Other replicas do not hand over what they know of clusters. They are asked for the names of these " +
			"each five minutes, so that it shows before it is needed.",
		affects: "Nothing yet. A replica that starts while a cluster is unreachable will not have its endpoints.",
		advice:  "See the network between them as well.",
		more:    restarts,
	},
	{
		class: Unreadable, group: ofProcesses, title: "{name} cannot be read",
		remedy:  "put valid content into it: it is read again within a second",
		command: checkCommand,
		means:   "A file of a certificate, a key or authorities of clients was replaced by one that cannot be used.",
		affects: "Nothing yet: what was read before stays in use, until the certificate expires.",
		advice:  "Most often it is a Secret: no restart is needed. Of the webhook's files the log has which, and why.",
	},
	{
		class: SlowClients, group: ofProcesses, title: "Clients have an unread message",
		command: "fingerpost streams --slow",
		means:   "Clients have left a message unread for 30 s.",
		affects: "What they hold is out of date. The other streams are not affected.",
		advice:  "See what keeps these Pods busy, or the network to them.",
		more:    "bounds.md#bounds-of-clients",
	},
	{
		class: TooLarge, group: ofProcesses, title: "The policy of {kind} {full} does not fit into a message",
		remedy:  "write less of it, or attach it to several Services or Servers",
		command: checkCommand,
		means: "All policy of a Service, of an EgressNetwork or of a Server goes to clients in one " +
			"message of 4 MiB at most. Each object fits into an API server, and all of them together do not.",
		affects: "Clients keep the policy that they have: changes do not reach them. One that starts now gets none " +
			"(ResourceExhausted), and asks again. Other Services and Servers are not affected.",
		advice: "`fingerpost explain route` and `fingerpost explain policy` name the objects and the size.",
		more:   explained,
	},
}
