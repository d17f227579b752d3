package app_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// The matrix of reports.
//
// Whatever Fingerpost asks an API server for may be answered in any of few ways, and none of them may go unseen. So
// this plays each call with each class of answer, in a whole installation: two replicas, a linked cluster, mirrors,
// federated slices and slices of machines, in which Services come and go all the time. In each cell, within
// reportedWithin:
//
//   - 'fingerpost check' is not √, and the page has a problem: of the class, or of one that other calls get for it;
//   - a metric that an alert reads has it, and a condition of the Link where the call goes to the linked cluster;
//   - nothing is withdrawn from a client.
//
// A minute after the API server does what it is asked for, nothing is left of any of that.
//
// The calls are those that a life of the installation makes (TestMatrixHasAllCalls), and the classes those that package
// api knows (TestMatrixHasAllClasses): a new one that is in neither list fails a test.
//
// Each run plays a part of the cells, which the seed decides: all of them with -matrix=1.
var matrixPart = flag.Uint64("matrix", 4, "TestMatrix plays one of so many cells")

const (
	reportedWithin = 2 * time.Minute
	matrixRound    = 15 * time.Second
)

// matrixCalls are all calls by the cluster that they go to.
var matrixCalls = map[string][]string{
	home: {
		"create endpointslices.discovery.k8s.io", "update endpointslices.discovery.k8s.io",
		"delete endpointslices.discovery.k8s.io",
		"create services", "get services", "patch services", "delete services",
		"create selfsubjectaccessreviews.authorization.k8s.io", "create events.events.k8s.io",
		"update leases.coordination.k8s.io",
		"patch links.multicluster.linkerd.io", "get configmaps", "get namespaces",
		"watch endpoints", "watch endpointslices.discovery.k8s.io", "watch externalworkloads.workload.linkerd.io",
		"watch jobs.batch", "watch leases.coordination.k8s.io", "watch links.multicluster.linkerd.io",
		"watch namespaces", "watch nodes", "watch pods", "watch replicasets.apps", "watch secrets",
		"watch servers.policy.linkerd.io", "watch serviceprofiles.linkerd.io", "watch services",
	},
	"west": {
		"update endpointslices.discovery.k8s.io", "create selfsubjectaccessreviews.authorization.k8s.io",
		"get configmaps", "get namespaces",
		"update leases.coordination.k8s.io", "list nodes",
		"watch endpointslices.discovery.k8s.io", "watch externalworkloads.workload.linkerd.io", "watch jobs.batch",
		"watch leases.coordination.k8s.io", "watch namespaces", "watch pods", "watch replicasets.apps",
		"watch servers.policy.linkerd.io", "watch services",
	},
}

// callsElsewhere are those that are made at the start, or where a cluster cannot be reached: scenarios play what comes
// of them (kinds-unlisted, peers-not-reviewed).
var callsElsewhere = []string{
	"local create tokenreviews.authentication.k8s.io", "local get leases.coordination.k8s.io",
	"local list externalworkloads.workload.linkerd.io",
	"west get leases.coordination.k8s.io", "west list endpointslices.discovery.k8s.io",
	"west list externalworkloads.workload.linkerd.io", "west list pods", "west list services",
}

// A matrixClass is one way to answer.
type matrixClass struct {
	reason api.Reason
	words  string   // of the other side, in what is reported
	only   []string // verbs that can be answered so; nil for all
	answer http.HandlerFunc
}

var writes = []string{"create", "update", "patch", "delete"}

// matrixClasses are all classes that a response can have. Some have two forms.
var matrixClasses = map[string]matrixClass{
	"Unauthorized": {
		api.Unauthorized, "Unauthorized", nil, statusAnswer(401, metav1.StatusReasonUnauthorized, "Unauthorized"),
	},
	"Forbidden": {
		api.Forbidden, "forbidden", nil,
		statusAnswer(403, metav1.StatusReasonForbidden, `it is forbidden: User "fingerpost" cannot`),
	},
	"NotReady": {
		api.NotReady, "unavailable", nil,
		statusAnswer(503, metav1.StatusReasonServiceUnavailable, "the server is unavailable"),
	},
	"Overloaded": {
		api.Overloaded, "too many requests", nil,
		statusAnswer(429, metav1.StatusReasonTooManyRequests, "too many requests, please try again"),
	},
	"StorageFails": {
		api.StorageFails, "space exceeded", nil,
		statusAnswer(500, metav1.StatusReasonInternalError, "etcdserver: mvcc: database space exceeded"),
	},
	"LoginPage": {api.Malformed, "text/html", nil, loginPage},
	"Redirect": {api.Malformed, "sso.corp.example", nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://sso.corp.example/", http.StatusFound)
	}},
	"LoadBalancer": {api.NotReady, "awselb", nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Server", "awselb/2.0")
		http.Error(w, "<html>", http.StatusBadGateway)
	}},
	"HangsUp": {api.Unreachable, "EOF", nil, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	"Refused": {api.Refused, "teapot", nil, statusAnswer(418, metav1.StatusReasonUnknown, "it is a teapot")},
	"Slow":    {api.Slow, "within", nil, nil}, // see answerIn

	"DeniedByPolicy": {
		api.DeniedByPolicy, "objects.corp.example", writes, statusAnswer(403, metav1.StatusReasonForbidden,
			`x "y" is forbidden: ValidatingAdmissionPolicy 'objects.corp.example' with binding 'all' denied request: no`),
	},
	"DeniedByWebhook": {
		api.DeniedByWebhook, "deny.corp.example", writes, statusAnswer(403, metav1.StatusReasonForbidden,
			`admission webhook "deny.corp.example" denied the request: no`),
	},
	"WebhookFails": {api.WebhookFails, "slow.corp.example", writes, statusAnswer(500, metav1.StatusReasonInternalError,
		`Internal error occurred: failed calling webhook "slow.corp.example": context deadline exceeded`)},
	"Conflicting": {
		api.Conflicting, "has been modified", writes,
		statusAnswer(409, metav1.StatusReasonConflict, "the object has been modified"),
	},
	"Invalid": {
		api.Invalid, "Invalid value", writes, statusAnswer(422, metav1.StatusReasonInvalid, "spec.x: Invalid value"),
	},
	"QuotaExceeded": {
		api.QuotaExceeded, "quota small", []string{"create"}, statusAnswer(403, metav1.StatusReasonForbidden,
			`x "y" is forbidden: exceeded quota: small, requested: count/x=1, used: 5, limited: 5`),
	},
	"NamespaceEnds": {
		api.NamespaceEnds, "being terminated", []string{"create"}, statusAnswer(403, metav1.StatusReasonForbidden,
			`x "y" is forbidden: unable to create new content in namespace shop because it is being terminated`,
			metav1.StatusCause{Type: corev1.NamespaceTerminatingCause, Message: "it is being terminated"}),
	},
}

// reasonsOfClusters are those that a call does not get: whatever is asked for, the cluster is out of reach.
var reasonsOfClusters = []api.Reason{api.Untrusted, api.OverBudget}

func statusAnswer(
	code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause,
) http.HandlerFunc {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, //nolint:gosec // a status of HTTP
	}
	if causes != nil {
		status.Details = &metav1.StatusDetails{Causes: causes}
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(status)
	}
}

// answerIn returns what answers in a class until repaired is closed.
func (c matrixClass) answerIn(repaired <-chan struct{}) http.HandlerFunc {
	if c.answer != nil {
		return c.answer
	}
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until it was read net/http does not notice that the client is gone
		select {
		case <-repaired:
			http.Error(w, "too late", http.StatusGatewayTimeout)
		case <-r.Context().Done():
		}
	}
}

// inMatrix runs a test in the installation of the matrix.
func inMatrix(t *testing.T, test func(m *matrix)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		archive, err := txtar.ParseFile("testdata/fixtures/matrix.txtar")
		if err != nil {
			t.Fatal(err)
		}

		s := newScenario(t, archive)
		s.flags = strings.Fields(serveDefaults + " -state-dir=on -peers=on")
		defer s.end()
		s.start("replica-1")
		elapse(settle)

		s.do("mirror-endpoints", []string{home})
		s.do("apply", []string{home, "shop.yaml"})
		s.do("apply", []string{"west", "west.yaml"})
		m := &matrix{scenario: s}
		m.live()
		s.do("apply", []string{home, "link.yaml"})
		s.start("replica-2")
		elapse(30 * time.Second)
		s.do("get", []string{"client", "web-federated.shop.svc.mycluster.local:80"})
		test(m)
	})
}

// matrix is an installation in which something happens all the time.
type matrix struct {
	*scenario
	round int
}

// live changes what each writer follows, and lets some time pass.
func (m *matrix) live() {
	i := m.round
	m.round++
	numbers := []string{"1", "2", "3"}[:2+i%2]
	m.do("endpoints", append([]string{"west", "shop/web"}, numbers...))
	m.do("endpoints", append([]string{"west", "shop/api"}, numbers...))
	m.do("endpoints", append([]string{home, "shop/web"}, numbers...))

	ports := func(name string, port int) string {
		return fmt.Sprintf(`{"spec":{"ports":[{"name":%q,"port":%d,"protocol":"TCP"}]}}`, name, port+i%2)
	}
	m.do("patch", []string{"west", "Service", "shop/api", ports("http", 80)})
	m.do("patch", []string{home, "Service", "shop/db", ports("sql", 5432)})

	const member = `{"metadata":{"labels":{"mirror.linkerd.io/federated":"member"}}}`
	switch i % 4 { // mirrors are created and deleted at a pace
	case 0:
		m.do("publish", []string{"west", "shop/new", "http:80/TCP", "slice", "http:80/TCP", "1:r"})
		m.do("patch", []string{"west", "Service", "shop/new", member})
	case 2:
		m.do("delete", []string{"west", "Service", "shop/new"})
	}
	elapse(matrixRound)
}

const eventResource = "events.events.k8s.io"

// causeEvent makes something happen of which there is an Event, and that is over then.
func (m *matrix) causeEvent() {
	name := fmt.Sprint("odd-", m.round)
	m.do("publish", []string{home, "shop/" + name, "http:80/TCP", "slice", "http:80/TCP", "1:r"})
	m.do("annotate", []string{home, "Service", "shop/" + name, "weights=nosuch=1"})
	elapse(matrixRound)
	m.do("delete", []string{home, "Service", "shop/" + name})
	elapse(settle)
}

// lines returns what a verb prints.
func (m *matrix) lines(show func()) string {
	before := m.out.Len()
	show()
	text := string(m.out.Bytes()[before:])
	m.out.Truncate(before)
	return text
}

// problems returns what the pages of both replicas have.
func (m *matrix) problems() (all []problem.Problem) {
	m.t.Helper()
	for _, replica := range m.replicas {
		all = append(all, m.problemsOf(replica)...)
	}
	return all
}

func (m *matrix) problemsOf(replica *replica) []problem.Problem {
	m.t.Helper()
	var page debug.ClustersPage
	if err := json.Unmarshal(m.fetch(m.t.Context(), replica.name, "/debug/clusters"), &page); err != nil {
		m.t.Fatal(err)
	}
	return page.Problems
}

// isSeenByAll reports whether each replica has a problem of a cluster: one of them writes the conditions of its Link.
func (m *matrix) isSeenByAll(cluster string) bool {
	lacksIt := func(replica *replica) bool {
		all := problem.ToLook(m.problemsOf(replica))
		return !slices.ContainsFunc(all, func(p problem.Problem) bool { return p.Cluster == cluster })
	}
	return !slices.ContainsFunc(m.replicas, lacksIt)
}

func texts(all []problem.Problem) string {
	var lines []string
	for _, p := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", p.Severity, p.Class, p.Reason, p.Message()))
	}
	return strings.Join(lines, "\n")
}

// badMetrics are those of which alerts want that they are 0.
var badMetrics = []string{
	"fingerpost_requests_failing", "fingerpost_objects_not_written", "fingerpost_local_writer_problem",
}

// isSampled reports whether a metric that an alert reads has a problem of a cluster.
func (m *matrix) isSampled(cluster string) bool {
	for _, replica := range m.replicas {
		for series, value := range m.samples(replica) {
			name, labels, _ := strings.Cut(series, "{")
			of := strings.Contains(labels, strconv.Quote(cluster)) ||
				cluster == home && name == "fingerpost_local_writer_problem"
			isBad := slices.Contains(badMetrics, name) ||
				name == "fingerpost_cluster_state" && !strings.Contains(labels, `state="Live"`)
			if of && isBad && value > 0 {
				return true
			}
		}
	}
	return false
}

// isCounted reports whether a counter that an alert reads has refusals of a cluster.
func (m *matrix) isCounted(cluster string) bool {
	for _, replica := range m.replicas {
		for series, value := range m.samples(replica) {
			if strings.HasPrefix(series, "fingerpost_api_errors_total{") && value > 0 &&
				strings.Contains(series, `reason="Forbidden"`) && strings.Contains(series, strconv.Quote(cluster)) {
				return true
			}
		}
	}
	return false
}

// pages returns the status pages of all replicas.
func (m *matrix) pages() (all string) {
	for _, replica := range m.replicas {
		all += string(m.fetch(m.t.Context(), replica.name, "/"))
	}
	return all
}

var badItem = regexp.MustCompile(`<li class="(bad|warn)">`)

// unmet returns the conditions of the Link that are not True.
func (m *matrix) unmet() (all []string) {
	conditions, _, _ := unstructured.NestedSlice(m.linkObject("mc/west").Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["status"] != "True" {
			all = append(all, fmt.Sprint(c["type"], " ", c["reason"]))
		}
	}
	return all
}

// A life of the installation makes the calls that the matrix has, and no others.
func TestMatrixHasAllCalls(t *testing.T) {
	inMatrix(t, func(m *matrix) {
		var mu sync.Mutex
		calls := map[string]bool{}
		for cluster := range matrixCalls {
			m.network.Server(cluster).Audit(func(_, verb, resource string) {
				mu.Lock()
				defer mu.Unlock()
				calls[cluster+" "+verb+" "+resource] = true
			})
		}

		m.stop("replica-1")
		m.stop("replica-2")
		m.start("replica-1")
		elapse(time.Minute)
		for range 10 {
			m.live()
		}
		m.causeEvent()
		m.do("rotate", []string{"west"})
		elapse(2 * time.Hour)

		want := slices.Clone(callsElsewhere)
		for cluster, all := range matrixCalls {
			for _, call := range all {
				want = append(want, cluster+" "+call)
			}
		}
		slices.Sort(want)
		mu.Lock()
		defer mu.Unlock()
		if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, want) {
			t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Every Reason of package api is one that a cell has, or one of clusters.
func TestMatrixHasAllClasses(t *testing.T) {
	played := slices.Clone(reasonsOfClusters)
	for _, class := range matrixClasses {
		played = append(played, class.reason)
	}
	files, err := filepath.Glob("../../../cluster/api/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err, "no files")
	}

	found := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, is := node.(*ast.ValueSpec)
			if !is {
				return true
			}
			if kind, named := spec.Type.(*ast.Ident); named && kind.Name == "Reason" {
				found++
				if !slices.Contains(played, api.Reason(spec.Names[0].Name)) {
					t.Errorf("no cell of the matrix plays %s", spec.Names[0].Name)
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("%d reasons were found", found)
	}
}

func TestMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	cell := uint64(0)
	for _, cluster := range slices.Sorted(maps.Keys(matrixCalls)) {
		for _, call := range matrixCalls[cluster] {
			for _, name := range slices.Sorted(maps.Keys(matrixClasses)) {
				class := matrixClasses[name]
				verb, resource, _ := strings.Cut(call, " ")
				if class.only != nil && !slices.Contains(class.only, verb) {
					continue
				}
				if cell++; (cell+*simSeed/60)%*matrixPart != 0 {
					continue
				}
				t.Run(strings.Join([]string{cluster, verb, resource, name}, "/"), func(t *testing.T) {
					t.Parallel()
					inMatrix(t, func(m *matrix) { m.play(cluster, verb, resource, class) })
				})
			}
		}
	}
}

// A Lease that is denied again and again is reported without a break, and the history has it once: attempts fail one
// after the other, and between two of them nothing is better.
func TestDeniedLeaseIsReportedWithoutABreak(t *testing.T) {
	inMatrix(t, func(m *matrix) {
		m.network.Server("west").AnswerVerb("update", leaseResource, matrixClasses["DeniedByPolicy"].answer)
		elapse(time.Minute)
		m.lines(func() { m.printChanges([]string{"west"}) })
		for range 120 {
			elapse(time.Second)
			if got := m.lines(func() { m.check([]string{"writers"}) }); !strings.Contains(got, "objects.corp.example") {
				t.Fatalf("check: %s", got)
			}
		}
		if got := m.lines(func() { m.printChanges([]string{"west"}) }); strings.Count(got, "\n") > 2 {
			t.Errorf("within two minutes:\n%s", got)
		}
	})
}

// play plays one cell.
func (m *matrix) play(cluster, verb, resource string, class matrixClass) {
	wantsWell := func(when string) {
		m.t.Helper()
		if got := m.lines(func() { m.check(nil) }) + strings.Join(m.unmet(), ", "); got != "√\n" {
			m.t.Errorf("%s: %s", when, got)
		}
		if m.isSampled(cluster) {
			m.t.Errorf("%s: a metric has a problem", when)
		}
	}
	wantsWell("before")

	server, repaired := m.network.Server(cluster), make(chan struct{})
	asked := server.Requests(verb, resource)
	server.AnswerVerb(verb, resource, class.answerIn(repaired))
	first, longest := time.Time{}, time.Now().Add(90*time.Minute)
	if strings.HasPrefix(resource, "selfsubjectaccessreviews.") {
		m.do("depose", []string{cluster}) // rights are reviewed before a Lease is taken
	}
	for first.IsZero() || time.Since(first) < reportedWithin {
		m.live()
		if resource == eventResource {
			m.causeEvent()
		}
		if time.Now().After(longest.Add(-80 * time.Minute)) {
			elapse(5 * time.Minute) // it is rarely asked for
		}
		if first.IsZero() && server.Requests(verb, resource) > asked {
			first = time.Now()
		}
		if time.Now().After(longest) {
			m.t.Fatal("nothing asks for it")
		}
	}
	m.t.Logf("asked %d times within %s", server.Requests(verb, resource)-asked, time.Since(first))
	m.wantsReported(cluster, verb, class)

	close(repaired)
	server.AnswerVerb(verb, resource, nil)
	for range time.Minute / matrixRound {
		m.live()
	}
	if resource == eventResource {
		m.causeEvent()
	}
	wantsWell("a minute after the repair")
}

// wantsReported checks that what fails is reported everywhere. A linked cluster need not grant to read all that can be
// made use of.
func (m *matrix) wantsReported(cluster, verb string, class matrixClass) {
	m.t.Helper()
	all := m.problems()
	isNotGranted := cluster != home && class.reason == api.Forbidden && !slices.Contains(writes, verb)
	if isNotGranted && len(problem.ToLook(all)) == 0 {
		return
	}

	if !slices.ContainsFunc(all, func(p problem.Problem) bool {
		isWorded := strings.Contains(strings.ToLower(p.Text), strings.ToLower(class.words))
		return p.Cluster == cluster && isWorded && (p.Reason == string(class.reason) || p.Reason == string(p.Class))
	}) {
		m.t.Errorf("no problem of %s is %s, in the words %q: %s", cluster, class.reason, class.words, texts(all))
	}
	if got := m.lines(func() { m.check(nil) }); !strings.Contains(got, cluster) {
		m.t.Errorf("check: %s", got)
	}
	if !badItem.MatchString(m.pages()) {
		m.t.Error("all pages are green")
	}
	if !m.isSampled(cluster) && (class.reason != api.Forbidden || !m.isCounted(cluster)) {
		m.t.Error("no metric that an alert reads has it")
	}
	if cluster != home && m.isSeenByAll(cluster) && len(m.unmet()) == 0 {
		m.t.Error("all conditions of the Link are True")
	}
	m.wantsKept()
}

// wantsKept checks that a client has what it had.
func (m *matrix) wantsKept() {
	m.t.Helper()
	if got := m.lines(func() { m.do("set", []string{"client"}); m.flush() }); !strings.Contains(got, "10.") {
		m.t.Errorf("the client has %q", got)
	}
}
