// Package debug shows what a replica knows: a page for people, and the same as JSON, whose types the commands share.
package debug

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// debugSources is what the pages are made of.
type Sources struct {
	Store     *federation.Store
	Registry  *cluster.Registry
	Links     *links.Reconciler
	Discovery *discovery.Server
	Cluster   string // name of the local cluster
	Replica   string
	Version   string // of the binary
}

// debugHandler shows people what the process knows: at / a page, and all else as JSON. What is about everything is computed at most
// once a second.
func Handler(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", &statusPageHandler{Sources: s})
	mux.HandleFunc("GET /debug/clusters", serveCached(func() ClustersPage {
		return ClustersPage{Clusters: clusterPages(s.Registry), Links: s.Links.Links()}
	}))
	mux.HandleFunc("GET /debug/services/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		watch := s.Store.Watch(refOf(r, s.Cluster))
		defer watch.Close()
		snapshot, _ := watch.Load()
		if snapshot.View == nil && len(snapshot.Unknown()) == 0 {
			http.Error(w, fmt.Sprintf("no Service %s/%s in cluster %s", r.PathValue("namespace"), r.PathValue("name"), s.Cluster), http.StatusNotFound)
			return
		}
		writeJSON(w, servicePageOf(snapshot, s.Store.Standing))
	})
	mux.HandleFunc("GET /debug/streams", serveCached(s.Discovery.Streams))
	mux.HandleFunc("GET /debug/streams/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
		if err != nil {
			http.Error(w, "the id of a stream is a number, see /debug/streams", http.StatusBadRequest)
			return
		}
		stream, found := s.Discovery.Stream(id)
		if !found {
			http.Error(w, fmt.Sprintf("stream %d is not open", id), http.StatusNotFound)
			return
		}
		writeJSON(w, stream)
	})
	mux.HandleFunc("GET /debug/malformed", serveCached(func() MalformedPage { return malformedPageOf(s.Store, s.Cluster) }))
	mux.HandleFunc("GET /debug/digests", serveCached(func() DigestsPage { return digestsPageOf(s.Store) }))
	mux.HandleFunc("GET /debug/claims/{cluster}/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		v := s.Store.View(refOf(r, r.PathValue("cluster")))
		if v == nil {
			http.Error(w, fmt.Sprintf("cluster %s says nothing about a Service %s/%s", r.PathValue("cluster"), r.PathValue("namespace"), r.PathValue("name")), http.StatusNotFound)
			return
		}
		writeJSON(w, viewPageOf(v))
	})
	mux.HandleFunc("GET /debug/explain", func(w http.ResponseWriter, r *http.Request) { serveExplanation(w, r, s.Discovery) })
	return mux
}

// refOf returns the Service that a path names, in a cluster.
func refOf(r *http.Request, cluster string) federation.Ref {
	return federation.Ref{
		Cluster: federation.Cluster(cluster),
		Service: federation.Service{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
	}
}

// explain answers /debug/explain?authority=&ns=&pod=&node=.
func serveExplanation(w http.ResponseWriter, r *http.Request, server *discovery.Server) {
	query := r.URL.Query()
	x, err := server.Explain(query.Get("authority"), discovery.Place{Namespace: query.Get("ns"), Pod: query.Get("pod"), Node: query.Get("node")})
	if err != nil {
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
		return
	}
	writeJSON(w, x)
}

func writeJSON(w http.ResponseWriter, page any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(page) // it fails where nobody reads any more
}
