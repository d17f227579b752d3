// Package debug shows what a replica knows: as a page for people, and as JSON, in types that the commands
// decode.
package debug

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// Sources is what the pages are made of.
type Sources struct {
	Store     *federation.Store
	Registry  *cluster.Registry
	Links     *links.Reconciler
	Discovery *linkerd.Server
	Policy    *policyapi.Server // nil: none is served
	Changes   *changes.Recent
	Cluster   string // name of the local cluster
	Namespace string // of the control plane
	// Installations are the other namespaces in which Leases of installations count.
	Installations []string
	Replica       string
	Version       string // of the binary
	ReadOnly      bool   // this replica writes into no cluster
	// Unreadable returns why files cannot be read, by path; nil if none are.
	Unreadable func() map[string]string
}

// Handler serves the pages. It changes nothing; only /debug/troubleshoot sends requests, to the API server of a
// cluster. Pages about everything are computed at most once a second.
func Handler(sources Sources) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", &statusPageHandler{Sources: sources})
	mux.HandleFunc("GET /debug/clusters", serveCached(sources.newClustersPage))
	mux.HandleFunc("GET /debug/version", serveCached(func() VersionPage { return VersionPage{sources.Version} }))
	mux.HandleFunc("GET /debug/problems", serveCached(func() ProblemsPage {
		return newProblemsPage(problemsInput{
			store: sources.Store, local: federation.Cluster(sources.Cluster), links: sources.Links.Links(),
			streams: countStreams(sources.Discovery.Streams()),
		})
	}))

	mux.HandleFunc("GET /debug/changes", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, sources.changesAbout(r.URL.Query()))
	})
	mux.HandleFunc("GET /debug/troubleshoot/{cluster}", sources.serveDiagnoses)
	mux.HandleFunc("GET /debug/streams", serveCached(sources.Discovery.Streams))
	mux.HandleFunc("GET /debug/digests", serveCached(sources.newDigestsPage))
	mux.HandleFunc("GET /debug/services/{namespace}/{name}", sources.serveService)
	mux.HandleFunc("GET /debug/streams/{id}", sources.serveStream)
	mux.HandleFunc("GET /debug/explain", sources.serveExplanation)
	sources.addPolicy(mux)
	return mux
}

// serveService shows one Service of the local cluster, resolved to members.
func (s *Sources) serveService(writer http.ResponseWriter, request *http.Request) {
	ref := federation.Ref{
		Cluster: federation.Cluster(s.Cluster),
		Service: federation.Service{Namespace: request.PathValue("namespace"), Name: request.PathValue("name")},
	}
	watch := s.Store.Watch(ref)
	defer watch.Close()

	snapshot, _ := watch.Load()
	if snapshot.View == nil && len(snapshot.Unknown()) == 0 {
		text := fmt.Sprintf("no Service %s/%s in cluster %s", ref.Namespace, ref.Name, s.Cluster)
		http.Error(writer, text, http.StatusNotFound)
		return
	}
	writeJSON(writer, newServicePage(snapshot, s.Store.State))
}

func (s *Sources) serveStream(writer http.ResponseWriter, request *http.Request) {
	id, err := strconv.ParseUint(request.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(writer, "the id of a stream is a number, see /debug/streams", http.StatusBadRequest)
		return
	}
	stream, found := s.Discovery.Stream(id)
	if !found {
		http.Error(writer, fmt.Sprintf("stream %d is not open", id), http.StatusNotFound)
		return
	}
	writeJSON(writer, stream)
}

// serveExplanation explains what a client gets: ?authority=&ns=&pod=&node=.
func (s *Sources) serveExplanation(writer http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	client := serving.Client{Namespace: query.Get("ns"), Pod: query.Get("pod"), Node: query.Get("node")}
	explanation, err := s.Discovery.Explain(query.Get("authority"), client)
	if err != nil {
		http.Error(writer, status.Convert(err).Message(), http.StatusBadRequest)
		return
	}

	statuses, _ := s.Registry.Statuses()
	explanation.Notes = budgetNotes(explanation.Traffic, statuses)
	recent := s.changesAbout(url.Values{aboutService: {explanation.Service}}).Changes
	for _, change := range recent[:min(len(recent), explainedChanges)] {
		explanation.Changes = append(explanation.Changes, change.At.UTC().Format(time.RFC3339)+" "+change.Text)
	}
	writeJSON(writer, explanation)
}

// serveDiagnoses goes the way to a cluster step by step.
func (s *Sources) serveDiagnoses(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("cluster")
	diagnoses, err := s.Registry.Diagnose(r.Context(), name)
	switch {
	case errors.Is(err, cluster.ErrUnknownCluster):
		text := fmt.Sprintf("no cluster %s is linked, so there is nothing to try: see its Link", name)
		http.Error(w, text, http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	default:
		writeJSON(w, diagnoses)
	}
}

// explainedChanges is how many an explanation has at most.
const explainedChanges = 5

// budgetNotes returns a line for each cluster of which something is left out at the border, where it has no address to
// be explained.
func budgetNotes(traffic []discovery.ClusterShare, statuses map[string]cluster.Status) (notes []string) {
	for _, share := range traffic {
		all := statuses[share.Cluster].Problems(nil, time.Now())
		for _, over := range problem.Of(all, problem.OverBudget) {
			notes = append(notes, fmt.Sprintf("over budget: not all that cluster %s publishes is taken: %s",
				share.Cluster, over.Text))
		}
	}
	return notes
}

func writeJSON(w http.ResponseWriter, page any) { renderJSON(page).WriteTo(w, "application/json") }
