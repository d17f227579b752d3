package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

// clusterAPI is as much of an API server as is checked: objects by path, and what is not allowed or out of
// order.
type clusterAPI struct {
	objects map[string]any
	codes   map[string]int  // of the answers to paths
	denied  map[string]bool // rights, as "create deployments"
}

func (a *clusterAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := func(code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).
			Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure, Reason: reason, Message: string(reason), Code: int32(code),
			})
	}
	if code := a.codes[r.URL.Path]; code != 0 {
		status(
			code,
			map[int]metav1.StatusReason{
				http.StatusForbidden:           metav1.StatusReasonForbidden,
				http.StatusInternalServerError: metav1.StatusReasonInternalError,
			}[code],
		)
		return
	}
	object, found := a.objects[r.URL.Path]
	if selected, is := a.objects[r.URL.Path+"?"+r.URL.Query().Get("labelSelector")]; is {
		object, found = selected, true
	}
	switch {
	case found:
		encode(w, object)
	case r.URL.Path == "/version":
		encode(w, version.Info{GitVersion: "v1.36.0+here"})
	case r.URL.Path == "/api/v1", r.URL.Path == strings.TrimSuffix(linksPath, "/links"):
		encode(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}})
	case r.URL.Path == "/api":
		encode(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		version := metav1.GroupVersionForDiscovery{
			GroupVersion: links.Group + "/" + cli.LinkVersion,
			Version:      cli.LinkVersion,
		}
		encode(
			w,
			metav1.APIGroupList{
				TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
				Groups: []metav1.APIGroup{{
					Name: links.Group, Versions: []metav1.GroupVersionForDiscovery{version},
					PreferredVersion: version,
				}},
			},
		)
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		body, _ := io.ReadAll(r.Body)
		asked, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		what := asked.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes
		encode(w, authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: !a.denied[what.Verb+" "+what.Resource]},
		})
	default:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func encode(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

const linksPath = "/apis/" + links.Group + "/" + cli.LinkVersion + "/links"

// addLink adds a Link.
func (a *clusterAPI) addLink(namespace, name string) {
	list, _ := a.objects[linksPath].(map[string]any)
	if list == nil {
		list = map[string]any{
			"apiVersion": links.Group + "/" + cli.LinkVersion,
			"kind":       "LinkList",
			"items":      []any{},
		}
	}
	list["items"] = append(list["items"].([]any), map[string]any{
		"apiVersion": links.Group + "/" + cli.LinkVersion, "kind": "Link",
		"metadata": map[string]any{"namespace": namespace, "name": name},
	})
	a.objects[linksPath] = list
}

// A checkWorld is a cluster and two linked ones, west and north, and what replicas report of them.
type checkWorld struct {
	api      *clusterAPI
	pages    []debug.ClustersPage
	digests  []debug.DigestsPage // of the replicas
	problems debug.ProblemsPage
	versions []string
	older    bool // the replicas are of a version that has no list of problems
	args     []string
}

// lines returns "result category/description: error" of each check that did not succeed.
func (w *checkWorld) lines(t *testing.T, kubeconfig string) (lines []string) {
	t.Helper()
	var addrs []string
	for i, page := range w.pages {
		if !w.older {
			page.FindProblems(time.Now())
		}
		pages := map[string]any{
			"/debug/clusters": page, "/debug/problems": w.problems, "/debug/digests": w.digests[i],
		}
		if w.versions != nil {
			pages["/debug/version"] = debug.VersionPage{Version: w.versions[i]}
		}
		addrs = append(addrs, cmdtest.DebugServer(t, pages))
	}
	args := []string{"check", "--kubeconfig", kubeconfig, "--wait", "0s", "-o", "json"}
	if len(addrs) > 0 {
		args = append(args, "--debug-addr", strings.Join(addrs, ","))
	}
	out, _ := fingerpostCheck(t, append(args, w.args...)...)
	for _, category := range cmdtest.DecodeJSON[checkReport](t, out).Categories {
		for _, c := range category.Checks {
			if c.Result == resultSuccess {
				continue
			}
			line := fmt.Sprintf(
				"%s %s/%s: %s",
				c.Result,
				strings.TrimPrefix(category.Name, "fingerpost-"),
				c.Description,
				c.Error,
			)
			for i, addr := range addrs {
				line = strings.ReplaceAll(line, addr, fmt.Sprintf("replica %d", i))
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// Each fault is reported where it is, in any replica, and nothing else is.
func TestChecks(t *testing.T) {
	west := func(p *debug.ClustersPage) *debug.ClusterEntry { return &p.Clusters[1] }
	for name, c := range map[string]struct {
		change func(w *checkWorld)
		want   []string // prefixes of lines
	}{
		"all is right": {func(*checkWorld) {}, nil},
		"a Lease that is wanted is not there": {func(w *checkWorld) {
			w.pages[0].Clusters[0].Writing = cluster.Writing{State: cluster.Standby, Wanted: []string{"fingerpost-uid"}}
			west(&w.pages[1]).Writing = cluster.Writing{State: cluster.Holding, Wanted: []string{"other"}}
		}, []string{
			"warning writers/the Lease fingerpost-uid in this cluster has a holder: there is no such Lease",
		}},
		"replicas of an older version": {func(w *checkWorld) {
			w.older = true
			west(&w.pages[0]).SameAs = "north"
		}, []string{
			"warning replicas/replica 0 answers: its version reports no problems",
			"warning replicas/replica 1 answers: its version reports no problems",
		}},
		"Links that are not read": {func(w *checkWorld) {
			w.api.addLink("elsewhere", "south")
			w.api.addLink("elsewhere", "west")
		}, []string{"warning links/every Link is read: elsewhere/south, elsewhere/west: not in the namespace"}},
		"one cluster under two names": {func(w *checkWorld) {
			west(&w.pages[1]).SameAs = "north"
			west(&w.pages[1]).ClockSkew = "5m0s ahead"
		}, []string{
			"error clusters/west has the expected identity: it is the same cluster as north: their namespaces " +
				"kube-system have one UID in replica 1; remove one of the Links, or correct the address in its kubeconfig; " +
				"its clock is 5m0s ahead",
		}},
		"policy that cannot be used": {func(w *checkWorld) {
			w.pages[1].Policy = true
			local := &w.pages[1].Clusters[0]
			local.Unusable = cluster.Unusable{Count: 2, Examples: "HTTPRoute shop/web (rule 2: filter: no)"}
			west(&w.pages[0]).Outside = "192.0.2.7 and 3 more"
		}, []string{
			"warning clusters/all objects of policy can be used: 2 objects of policy cannot be used completely: " +
				"HTTPRoute shop/web (rule 2: filter: no) in replica 1",
			"warning clusters/endpoints of west are inside of -cluster-networks: endpoints are in none of the networks " +
				"of -cluster-networks: 192.0.2.7 and 3 more in replica 0",
		}},
		"another trust domain": {func(w *checkWorld) {
			west(&w.pages[0]).ClockSkew = "1m0s behind"
			west(&w.pages[1]).TrustDomain, west(&w.pages[1]).Identity.TrustDomain = "a", "b"
		}, []string{
			"error clusters/west has the expected identity: identities there end in b, and clients get a",
		}},
		"other trust anchors": {func(w *checkWorld) {
			west(&w.pages[1]).OtherAnchors = "CN=ours"
			theirs := linkerd.Anchor{Subject: "CN=theirs", NotAfter: time.Now().AddDate(1, 0, 0)}
			west(&w.pages[1]).Identity.Anchors = []linkerd.Anchor{theirs}
		}, []string{
			"error clusters/west has the expected identity: proxies there trust CN=theirs (",
		}},
		"trust anchors that have expired": {func(w *checkWorld) {
			for i := range w.pages {
				w.pages[i].Clusters[0].Identity.Anchors = []linkerd.Anchor{{Subject: "CN=root", NotAfter: time.Now()}}
			}
		}, []string{
			"error clusters/east has the expected identity: all trust anchors have expired, so that mTLS fails",
		}},
		"a clock that is off": {
			func(w *checkWorld) { west(&w.pages[0]).ClockSkew = "1m0s behind" },
			[]string{
				"warning clusters/west has the expected identity: its clock is 1m0s behind",
			},
		},
		"credentials with an end": {func(w *checkWorld) {
			w.pages[0].Clusters[0].Expires = time.Now().Add(time.Minute) // of the local cluster
			west(&w.pages[0]).Expires = time.Now().Add(10 * time.Hour)
			west(&w.pages[1]).Expires = time.Now().Add(30*time.Minute + 20*time.Second)
			w.pages[1].Clusters[2].Expires = time.Now().Add(-2 * time.Hour)
		}, []string{
			"error clusters/the newest credentials of north work: the token or certificate has expired at",
			"warning clusters/the newest credentials of west work: the token or certificate expires at",
		}},
		"replicas with other Services": {func(w *checkWorld) {
			w.digests[0] = debug.DigestsPage{"west": {"shop/web": "1", "shop/api": "1"}}
			w.digests[1] = debug.DigestsPage{"west": {"shop/web": "2"}}
		}, []string{
			"warning replicas/replica 1 agrees with replica 0: they differ in 2 places, such as west shop/api: " +
				"only in replica 0",
		}},
		"Stale in the second replica": {func(w *checkWorld) {
			west(&w.pages[0]).State, west(&w.pages[1]).State = "Suspect", "Stale"
			west(&w.pages[1]).Status.Contact = errors.New("timeout")
		}, []string{
			// This is no error, although it takes longer than --timeout.
			"warning replicas/replica 1 agrees with replica 0: they differ in 1 place",
			"error clusters/west is in contact: it is Stale in replica 1, last contact never: timeout",
		}},
		"of the second replica's own": {func(w *checkWorld) {
			west(&w.pages[1]).Status.Credentials = &api.ProbeError{Reason: api.Unauthorized, Err: errors.New("refused")}
			west(&w.pages[1]).Source = ""
			west(&w.pages[1]).Kinds = []cluster.KindStatus{{
				Kind:   "pods",
				Health: api.Health{Refused: metav1.StatusReasonForbidden},
			}}
			w.pages[1].Clusters[2].LeftOut.Excess = 3
			w.pages[1].Links[0].Own = []problem.Problem{problem.New(
				problem.Object{Kind: "Link", Namespace: "mesh", Name: "west"}, "No", problem.Urgent, "no")}
		}, []string{
			"error clusters/the newest credentials of west work: refused in replica 1; no credentials are in use; " +
				"put new credentials into the Secret, as 'fingerpost link rotate' prints them",
			"error clusters/all required resources in west are readable: the API server refuses to list or watch pods (Forbidden) " +
				"in replica 1; grant get, list and watch",
			"warning links/all conditions of Link mesh/north are True: TooManySlices: 3 endpoints are in no EndpointSlice",
			"error links/all conditions of Link mesh/west are True: No: no",
		}},
		"one replica is not named": {func(w *checkWorld) {
			w.pages = w.pages[:1]
			west(&w.pages[0]).State = "Stale"
		}, []string{"error clusters/west is in contact: it is Stale, last contact"}},
		"malformed": {
			func(w *checkWorld) {
				w.problems = debug.ProblemsPage{{Service: "shop/web", Reason: problem.Malformed, Message: "no port"}}
			},
			[]string{"error services/no mirrored or federated Service is malformed: shop/web: no port"},
		},
		"Links may not be listed": {
			func(w *checkWorld) { w.api.codes[linksPath] = http.StatusForbidden },
			[]string{"warning links/every Link is read: Links cannot be listed with your permissions"},
		},
		"Links cannot be listed": {
			func(w *checkWorld) { w.api.codes[linksPath] = http.StatusInternalServerError },
			[]string{"error links/every Link is read: "},
		},
		"no replica responds": {func(w *checkWorld) {
			w.pages = nil
			w.args = []string{"--debug-addr", "127.0.0.1:1"}
		}, []string{"error replicas/127.0.0.1:1 answers: no response"}},
		"the local cluster is read-only": {func(w *checkWorld) {
			w.pages[1].Clusters[0].Writing = cluster.Writing{State: cluster.ReadOnly, Problem: "grant it"}
			west(&w.pages[0]).Writing = cluster.Writing{State: cluster.ReadOnly, Problem: "which is normal"}
			w.pages[0].Clusters[2].Writing = cluster.Writing{State: cluster.ReadOnly, Problem: "grant that"}
			w.pages[0].Clusters[2].Slices = true
		}, []string{
			"error writers/Fingerpost can write to east: grant it in replica 1; what Fingerpost writes " +
				"into the local cluster is not kept up to date",
			"warning writers/Fingerpost can write to north: grant that in replica 0; the Link asks for slices",
		}},
		"no namespace for Leases": {func(w *checkWorld) {
			delete(w.api.objects, "/api/v1/namespaces/linkerd")
		}, []string{
			"error kubernetes/there is a namespace linkerd for Leases: no Lease can be created",
		}},
		"another process holds our Lease": {func(w *checkWorld) {
			const path = "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/fingerpost-uid"
			w.api.objects[path] = coordinationv1.Lease{
				TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: new("another-process"), LeaseDurationSeconds: new(int32(3600)),
					RenewTime: &metav1.MicroTime{Time: time.Now()},
				},
			}
			w.pages[0].Clusters[0].Writing = cluster.Writing{State: cluster.Standby, Wanted: []string{"fingerpost-uid"}}
		}, []string{
			"warning writers/the Lease fingerpost-uid in this cluster has a holder: another-process holds it, which none of",
		}},
		"permissions that are not reviewed yet": {func(w *checkWorld) {
			west(&w.pages[1]).Writing = cluster.Writing{State: cluster.Reviewing}
		}, []string{"warning writers/Fingerpost can write to west: the permissions are not known yet"}},
		"credentials that are rejected have no other remedy": {func(w *checkWorld) {
			west(&w.pages[0]).State = "Suspect"
			west(&w.pages[0]).Status.Contact = &api.ProbeError{Reason: api.Unauthorized, Err: errors.New("401")}
			west(&w.pages[1]).State = "Suspect"
			west(&w.pages[0]).Expires = time.Now().Add(-time.Minute)
			west(&w.pages[0]).Kinds = []cluster.KindStatus{{
				Kind: "services", Health: api.Health{Refused: metav1.StatusReasonUnauthorized},
			}}
			west(&w.pages[0]).Writing = cluster.Writing{State: cluster.Standby, Problem: "review permissions: 401"}
		}, []string{
			"warning clusters/west is in contact: it is Suspect in replica 0, last contact never: 401",
			"error clusters/the newest credentials of west work: 401 in replica 0; the token or certificate has expired at",
		}},
		"conditions that no replica writes": {func(w *checkWorld) {
			live := []metav1.Condition{{Type: links.Connected, Status: metav1.ConditionTrue}}
			w.pages[0].Links[0].Conditions, w.pages[1].Links[0].Conditions = live, live
			w.pages[0].Links[1].Conditions = live // the replicas do not agree
			w.pages[1].Links[1].Conditions = []metav1.Condition{{Type: links.Connected, Status: metav1.ConditionFalse}}
		}, []string{
			"warning links/Links show what replicas report: Link mesh/west shows no condition Connected, and replicas " +
				"report True; the holder",
		}},
		"deleted with the CRD": {func(w *checkWorld) {
			w.pages[0].Links[0].Deleted, w.pages[0].Links[0].Held = time.Now(), "the CRD of Links was deleted"
		}, []string{
			"error links/no Link was deleted with many others: mesh/west: deleted 0s ago: the CRD of Links was deleted; " +
				"the cluster stays linked for 5m0s from then on",
		}},
		"a Secret without its Link": {func(w *checkWorld) {
			west(&w.pages[0]).Source, west(&w.pages[0]).Link = "Secret mesh/west", ""
		}, []string{
			"warning links/every cluster has its Link: west is linked by Secret mesh/west only, without a Link; if",
		}},
		"Services that are not mirrored": {func(w *checkWorld) {
			w.pages[1].Links[0].Mirror = &links.MirrorReport{
				Condition:   metav1.Condition{Type: links.Mirrors, Status: metav1.ConditionTrue},
				NotMirrored: []string{"shop/api: MissingNamespace: there is no namespace shop in the local cluster"},
			}
			w.pages[1].Links[1].Mirror = &links.MirrorReport{
				Condition: metav1.Condition{
					Type: links.Mirrors, Status: metav1.ConditionFalse, Reason: links.LeftToLinkerd,
				},
				Unmatched: []string{"shop/web (mirror.linkerd.io/federated=members)"},
			}
		}, []string{
			"warning links/the Services that Link mesh/north selects are mirrored: no selector of the Link matches the " +
				"label of shop/web (mirror.linkerd.io/federated=members)",
			"warning links/the Services that Link mesh/west selects are mirrored: shop/api: MissingNamespace",
		}},
		"Services that do not work": {func(w *checkWorld) {
			w.problems = debug.ProblemsPage{
				{Service: "shop/all", Reason: problem.NoneReady, Message: "none of its endpoints is ready", Streams: 2},
				{Service: "shop/all", Reason: problem.NotLinked, Message: "cluster south is not linked"},
				{Service: "shop/old", Reason: problem.NoPort, Message: "port 80"},
				{Service: "shop/web", Reason: problem.InvalidAnnotation, Message: "true"},
			}
		}, []string{
			"error services/every mirrored and federated Service has a ready endpoint: shop/all (4 streams): none of",
			"error services/the clusters of all members are linked: shop/all: cluster south",
			"warning services/every member exists and has the ports of its Service: shop/old: port 80",
			"warning services/annotations of Services are valid: shop/web: true",
		}},
		"replicas of two versions": {func(w *checkWorld) { w.versions = []string{"test", "v1"} }, []string{
			"warning replicas/replicas have one version: test in replica 0, v1 in replica 1: if no rollout",
		}},
		"a command of another version": {func(w *checkWorld) { w.versions = []string{"v1", "v1"} }, []string{
			"warning replicas/replicas have one version: they have v1, and this command test: one of their version",
		}},
		"one version": {func(w *checkWorld) { w.versions = []string{"test", "test"} }, nil},
		"the API server does not answer": {func(w *checkWorld) {
			w.api.codes["/version"] = http.StatusInternalServerError
			delete(w.api.objects, "/api/v1/namespaces/linkerd")
			west(&w.pages[0]).OverBudget = "too much"
			west(&w.pages[0]).Kinds = []cluster.KindStatus{{
				Kind: "services", Health: api.Health{Refused: metav1.StatusReasonForbidden},
			}}
		}, []string{
			"error kubernetes/the API server answers: InternalError; what it would be asked is not checked",
			"error clusters/all required resources in west are readable: ",
			"error links/all conditions of Link mesh/west are True: ",
		}},
		"the API server does not answer before an installation": {func(w *checkWorld) {
			w.api.codes["/version"] = http.StatusInternalServerError
			w.args = []string{"--pre"}
		}, []string{"error kubernetes/the API server answers: InternalError"}},
		"an installation without the namespace of Leases": {func(w *checkWorld) {
			delete(w.api.objects, "/api/v1/namespaces/linkerd")
			w.args = []string{"--pre"}
		}, []string{
			"warning kubernetes/there is a namespace linkerd for Leases: the chart is not installed without it",
			"warning install/the kinds of Linkerd are defined: not served: serviceprofiles.linkerd.io, ",
			"warning install/the kinds of the Gateway API are defined: not served: httproutes.gateway.networking.k8s.io, ",
			"warning install/the mesh has a trust anchor and an issuer: the trust anchors: NotFound: 'fingerpost certs new'",
		}},
		"an installation": {func(w *checkWorld) {
			w.args = []string{"--pre"}
			w.api.denied["create customresourcedefinitions"], w.api.denied["create roles"] = true, true
		}, []string{
			"warning install/the kinds of Linkerd are defined: not served: serviceprofiles.linkerd.io, ",
			"warning install/the kinds of the Gateway API are defined: not served: httproutes.gateway.networking.k8s.io, ",
			"warning install/the mesh has a trust anchor and an issuer: the trust anchors: NotFound: 'fingerpost certs new'",
			"error install/you may create roles.rbac.authorization.k8s.io: " +
				"create roles.rbac.authorization.k8s.io is not allowed",
			"warning install/you may create customresourcedefinitions.apiextensions.k8s.io: create cust",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			api := &clusterAPI{objects: map[string]any{}, codes: map[string]int{}, denied: map[string]bool{}}
			server := httptest.NewServer(api)
			defer server.Close()
			w := &checkWorld{api: api, args: []string{"--timeout", "1s"}, digests: make([]debug.DigestsPage, 2)}
			for range 2 {
				w.pages = append(w.pages, debug.ClustersPage{
					Clusters: []debug.ClusterEntry{
						{Status: cluster.Status{Name: "east", Local: true, State: "Live", Synced: true}},
						{Status: cluster.Status{Name: "west", State: "Live", Synced: true}, Link: "mesh/west"},
						{Status: cluster.Status{Name: "north", State: "Live", Synced: true}, Link: "mesh/north"},
					},
					Links: []links.LinkStatus{
						{Namespace: "mesh", Name: "west", Cluster: "west"},
						{Namespace: "mesh", Name: "north", Cluster: "north"},
					},
				})
			}
			api.addLink("mesh", "west")
			api.addLink("mesh", "north")
			api.objects["/api/v1/namespaces/linkerd"] = corev1.Namespace{
				TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"},
			}
			c.change(w)
			got := w.lines(t, cmdtest.WriteKubeconfig(t, server.URL))
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
