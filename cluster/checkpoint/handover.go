package checkpoint

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// How states are handed over to peers.
//
// A peer asks for the state of a cluster by HTTP: HEAD for as of when it holds, GET for all of it. A version of a
// state has an ETag, and changes only when something that is encoded does: of a cluster where nothing happens
// Last-Modified goes on, and a peer that names the ETag in If-None-Match is answered 304.
//
//   - A version is encoded and compressed once, when the first peer asks for it, and its bytes go to all. They are
//     dropped when the next version is, when they are too many (the one that was not asked for for the longest time
//     first), and a minute after the last request. What is longer than all that may be kept is encoded for each
//     request, straight into the connection.
//   - A peer has one turn, and few have one at a time: another one is answered 503, and asks again. A turn ends when
//     nothing was read for some seconds, and after half a minute in any case. So one that does not read holds up
//     no other for long, and who is no peer does not get that far (see [Handler]).
//
// Example: ten clusters of 10,000 endpoints are 1.2 MB, compressed. Three replicas that start together while they are
// away take the same bytes, and one that asks again for all of them, when nothing has changed, is sent 1.5 kB.
const (
	maxTransfers = 4                // at a time, from one replica
	stall        = 5 * time.Second  // without progress
	maxTurn      = 30 * time.Second // of one peer
	maxKept      = 32 << 20         // bytes, of all versions
	keptFor      = time.Minute      // after the last request
	chunk        = 64 << 10         // bytes of a write
)

// A Finder returns what this replica has of a cluster, as of when, and whether it is the same as what it returned
// before but for the time. Nothing is as of no time.
type Finder func(cluster string, before Checkpoint) (now Checkpoint, same bool)

// Handler serves to peers what this replica has of a cluster, few at a time, and the list of those clusters. Who may
// ask was decided before; peerOf returns who it is.
func Handler(find Finder, list func() []Header, peerOf func(*http.Request) string) http.Handler {
	handover := &handover{
		find: find, peerOf: peerOf, process: rand.Text(), most: maxKept,
		versions: map[string]*version{}, turns: map[string]bool{},
	}
	handover.idle = time.AfterFunc(keptFor, handover.forget)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+peersPath+"{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(list()) // the peer sees that it is torn
	})

	mux.HandleFunc("GET "+peersPath+"{cluster...}", handover.serve)
	return mux
}

type handover struct {
	find    Finder
	peerOf  func(*http.Request) string
	process string // of which the tags are
	most    int    // bytes that are kept

	mu       sync.Mutex // guards all below, and what versions name so
	versions map[string]*version
	last     int             // number of the last version
	idle     *time.Timer     // drops what no peer asks for
	turns    map[string]bool // peers that have one
}

// A version is one state of a cluster.
type version struct {
	of  Checkpoint
	tag string

	encoding sync.Mutex
	body     []byte // compressed; nil while it was not asked for. Guarded by encoding
	tooLong  bool   // to be kept. Guarded by encoding

	used time.Time // guarded by handover.mu
	kept int       // bytes of body, guarded by handover.mu
}

func (h *handover) serve(writer http.ResponseWriter, request *http.Request) {
	asOf, version := h.current(request.PathValue("cluster"))
	if version == nil {
		http.NotFound(writer, request)
		return
	}

	writer.Header().Set("Content-Type", "application/cbor-seq")
	writer.Header().Set("Last-Modified", asOf.UTC().Format(http.TimeFormat))
	writer.Header().Set("ETag", version.tag)
	switch {
	case strings.Contains(request.Header.Get("If-None-Match"), version.tag):
		writer.WriteHeader(http.StatusNotModified)
		return
	case request.Method == http.MethodHead:
		return
	}

	peer := h.peerOf(request)
	if !h.takeTurn(peer) {
		http.Error(writer, "others are being served", http.StatusServiceUnavailable)
		return
	}

	defer h.endTurn(peer)
	to := &steadyWriter{writer, http.NewResponseController(writer), time.Now().Add(maxTurn)}
	if !strings.Contains(request.Header.Get("Accept-Encoding"), "gzip") {
		_ = encode(to, version.of) // the peer sees that it is torn
		return
	}
	writer.Header().Set("Content-Encoding", "gzip")
	_ = h.write(to, version) // likewise
}

// current returns the version of the state that this replica has of a cluster, and as of when it holds; nil for none.
func (h *handover) current(cluster string) (time.Time, *version) {
	h.mu.Lock()
	current := h.versions[cluster]
	h.mu.Unlock()
	before := Checkpoint{}
	if current != nil {
		before = current.of
	}

	now, same := h.find(cluster, before)
	if now.AsOf.IsZero() {
		return time.Time{}, nil
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	if current == nil || !same {
		h.last++
		current = &version{of: now, tag: fmt.Sprintf(`W/"%s-%d"`, h.process, h.last)}
	}
	current.used = time.Now()
	h.versions[cluster] = current
	h.dropUnused()
	h.idle.Reset(keptFor)
	return now.AsOf, current
}

// forget drops the versions that are not asked for any more. The next request makes others, with other tags.
func (h *handover) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropUnused()
}

// dropUnused needs h.mu.
func (h *handover) dropUnused() {
	maps.DeleteFunc(h.versions, func(_ string, v *version) bool { return time.Since(v.used) >= keptFor })
}

// write writes a version, compressed.
func (h *handover) write(to io.Writer, v *version) error {
	body, err := v.encoded(h.most)
	if errors.Is(err, errFull) {
		return compress(to, v.of)
	}
	h.keep(v, len(body))
	for part := range slices.Chunk(body, chunk) {
		if _, err := to.Write(part); err != nil {
			return err
		}
	}
	return err
}

// encoded returns the bytes of a version, which are made once; errFull if they are more than that.
func (v *version) encoded(most int) ([]byte, error) {
	v.encoding.Lock()
	defer v.encoding.Unlock()

	if v.tooLong {
		return nil, errFull
	}
	if v.body != nil {
		return v.body, nil
	}

	b := &boundedBuffer{most: most}
	if err := compress(b, v.of); err != nil {
		v.tooLong = errors.Is(err, errFull)
		return nil, err
	}
	v.body = bytes.Clone(b.Bytes())
	return v.body, nil
}

func compress(to io.Writer, c Checkpoint) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(encode(z, c), z.Close())
}

// keep counts the bytes of a version, and drops those of others while all are too many.
func (h *handover) keep(one *version, size int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one.kept = size
	oldestFirst := slices.SortedFunc(maps.Values(h.versions), func(a, b *version) int { return a.used.Compare(b.used) })
	sum := 0
	for _, other := range oldestFirst {
		sum += other.kept
	}

	for _, other := range oldestFirst {
		if sum <= h.most {
			return
		}
		if other != one && other.kept > 0 {
			sum -= other.kept
			delete(h.versions, other.of.Cluster)
		}
	}
}

// takeTurn returns whether a peer may be served now.
func (h *handover) takeTurn(peer string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns[peer] || len(h.turns) >= maxTransfers {
		return false
	}
	h.turns[peer] = true
	return true
}

func (h *handover) endTurn(peer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.turns, peer)
}

// A steadyWriter writes to a client that has to read something all the time, and everything until end.
type steadyWriter struct {
	io.Writer
	conn *http.ResponseController
	end  time.Time
}

func (w *steadyWriter) Write(b []byte) (int, error) {
	deadline := time.Now().Add(stall)
	if w.end.Before(deadline) {
		deadline = w.end
	}
	_ = w.conn.SetWriteDeadline(deadline) // net/http's own writers support it
	return w.Writer.Write(b)
}

var errFull = errors.New("it is too long to be kept")

// A boundedBuffer takes so many bytes.
type boundedBuffer struct {
	bytes.Buffer
	most int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errFull
	}
	return b.Buffer.Write(p)
}
