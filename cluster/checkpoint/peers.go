package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// How peers are asked.
//
// An Inquiry asks for one cluster, again and again, and takes the state of the peer that was in contact with it last,
// if that is newer than what it has. Every peer is asked as of when its state holds (HEAD), and one of them for the
// state (GET). What it has by its ETag is not transferred again: it is confirmed as of a later time.
//
// Two peers of the same clusters have different tags. What one sends and what another has sent is compared by its
// bytes: encoded, equal states are equal. So in a partition where nothing changes each peer's state is transferred
// once, whichever of them was in contact last.
//
// Where clusters change all the time, each question would transfer them. So what takes the place of a state that is
// there has a pace, for all clusters together and in turn: 100,000 endpoints in ten clusters are 10 MB, or 1.2 MB
// compressed, and are as new again every 40 s. A first state does not wait.
//
// When a state holds is by the peer's clock. By how much that is off is measured by the Date of its response. An
// error makes a state older than it is, never newer: it would seem to be new each time that it is handed on.
const (
	peersPath    = "/clusters/"
	peerTimeout  = time.Second / 2  // until a peer reports how new its state is
	peersTimeout = 20 * time.Second // until the newest one was read
	maxPeers     = 16
	maxTransfer  = 1 << 28 // bytes, decompressed
	maxList      = 1 << 18 // bytes: those of about 2,000 clusters
	renewRate    = 1 << 18 // bytes a second, decompressed: of states that replace others
)

// Peers are the other replicas, which may have seen a cluster that this one cannot reach.
type Peers struct {
	Addr   string // host and port; the host resolves to the addresses of all replicas
	Lookup func(ctx context.Context, host string) ([]string, error)
	Client func() (*http.Client, error) // for one question; its URLs have the scheme http, unless Secure
	Secure bool
	MaxAge time.Duration // of what is used

	transfer turn      // one at a time: a peer has one turn
	renewal  turn      // of those that have a state, to get another one
	renewed  time.Time // when the next one may begin; guarded by renewal
}

// A turn is a lock that can be waited for until a context ends.
type turn struct {
	once sync.Once
	free chan struct{}
}

func (t *turn) take(ctx context.Context) (release func(), err error) {
	t.once.Do(func() { t.free = make(chan struct{}, 1) })
	select {
	case t.free <- struct{}{}:
		return func() { <-t.free }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// An Inquiry asks peers about one cluster, from one goroutine. It remembers what it has got.
type Inquiry struct {
	peers   *Peers
	cluster string
	after   time.Time         // as of when what is there holds
	content [sha256.Size]byte // of what was taken over last
	tags    map[string]string // of that content, by the URL of the peer that has it
}

// About returns an Inquiry about a cluster, of which a state as of a time is there; zero for none.
func (p *Peers) About(cluster string, after time.Time) *Inquiry {
	return &Inquiry{peers: p, cluster: cluster, after: after, tags: map[string]string{}}
}

var (
	// ErrBusy is returned if a peer is to be asked again: it serves others now, or was reached and did not answer in
	// time, or its API server does not report to it who asks.
	ErrBusy = errors.New("another replica cannot hand it over now")
	// errTooLong is returned for a state that is longer than what is taken over.
	errTooLong = errors.New("it is too long")
)

// An Answer is what peers have of a cluster.
type Answer struct {
	Checkpoint
	Same bool // as in the Answer before, but for AsOf: Published is empty
}

// Ask returns what the peer that was in contact with the cluster last has of it, if that is newer than what was
// returned before. A peer whose state cannot be read is passed over: in a rollout it may be of another version than
// this replica. ErrNone: no peer has something newer, and none that was reached has refused.
func (q *Inquiry) Ask(ctx context.Context) (Answer, error) {
	client, err := q.peers.Client()
	if err != nil {
		return Answer{}, err
	}
	defer client.CloseIdleConnections()
	offers, err := q.peers.ask(ctx, client, http.MethodHead, q.cluster, q.tags)
	if err != nil {
		return Answer{}, err
	}

	slices.SortFunc(offers, func(a, b offer) int { return b.at.Compare(a.at) })
	reason := ErrNone // why nothing is returned

	for _, o := range offers {
		if o.err != nil && !errors.Is(reason, ErrBusy) {
			reason = o.err
		}
		if !o.at.After(q.after.Truncate(time.Second)) || time.Since(o.at) > q.peers.MaxAge {
			continue
		}

		answer, err := q.take(ctx, client, o)
		if err == nil {
			q.after = answer.AsOf
			return answer, nil
		}
		if ctx.Err() != nil {
			return Answer{}, ctx.Err()
		}

		if !errors.Is(err, ErrNone) && !errors.Is(reason, ErrBusy) {
			reason = err
		}
	}

	return Answer{}, reason // of the last one, as another might have had it, or of one that is to be asked again
}

// take takes over what one peer offers.
func (q *Inquiry) take(ctx context.Context, client *http.Client, from offer) (Answer, error) {
	if from.tag != "" && from.tag == q.tags[from.url] {
		return Answer{Checkpoint{AsOf: from.at}, true}, nil
	}

	got, err := q.transfer(ctx, client, from.url)
	if err != nil {
		return Answer{}, err
	}

	content := sha256.Sum256(got.content)
	if content == q.content {
		q.tags[from.url] = got.tag
		return Answer{Checkpoint{AsOf: got.at}, true}, nil
	}

	c, err := decode(got.content)
	if err != nil || c.Cluster != q.cluster {
		return Answer{}, fmt.Errorf("%s: %w", from.url, cmp.Or(err, errFormat))
	}
	c.AsOf, q.content, q.tags = got.at, content, map[string]string{from.url: got.tag}
	return Answer{c, false}, nil
}

// transfer returns the state that a peer has. If there was one before, it waits for its turn and for the pace.
func (q *Inquiry) transfer(ctx context.Context, client *http.Client, from string) (got offer, err error) {
	peers := q.peers
	if len(q.tags) > 0 {
		release, err := peers.renewal.take(ctx)
		if err != nil {
			return offer{}, err
		}
		defer release()

		pace, cancel := context.WithDeadline(ctx, peers.renewed)
		<-pace.Done()
		cancel()
		if ctx.Err() != nil {
			return offer{}, ctx.Err()
		}

		defer func() {
			peers.renewed = time.Now().Add(time.Duration(len(got.content)) * time.Second / renewRate)
		}()
	}

	release, err := peers.transfer.take(ctx)
	if err != nil {
		return offer{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	return fetch(ctx, client, http.MethodGet, from, "", maxTransfer)
}

// Clusters returns the clusters that peers have the state of, sorted by name. A peer that does not list them in time is
// passed over, and so is one of a version that cannot. The error names those that refuse, or list something else; if
// there are none, it is ErrBusy for those that are to be asked again.
func (p *Peers) Clusters(ctx context.Context) ([]Header, error) {
	client, err := p.Client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	answers, err := p.ask(ctx, client, http.MethodGet, "", nil)
	if err != nil {
		return nil, err
	}

	known := map[string]Header{}
	var failed []error
	busy := false

	for _, answer := range answers {
		if errors.Is(answer.err, ErrBusy) {
			busy = true
			continue
		}
		if answer.err != nil || answer.url == "" {
			failed = append(failed, answer.err)
			continue
		}

		var headers []Header
		if json.Unmarshal(answer.content, &headers) != nil {
			failed = append(failed, fmt.Errorf("%s: it is not a list of clusters", answer.url))
			continue
		}
		for _, h := range headers {
			known[h.Cluster] = h
		}
	}

	err = errors.Join(failed...)
	if busy {
		err = cmp.Or(err, ErrBusy)
	}
	return slices.SortedFunc(maps.Values(known), func(a, b Header) int {
		return strings.Compare(a.Cluster, b.Cluster)
	}), err
}

// offer is what one peer has.
type offer struct {
	url     string    // empty: it has none
	at      time.Time // by our clock
	tag     string    // of the version; empty if the peer has no tags
	content []byte
	err     error // of a peer that was reached, such as about a certificate
}

// ask asks every peer for its state of a cluster, or for the list of clusters if that is "". The offer of a peer that
// has none, or is not reached in time, is the zero offer. tags are those that need no other answer, by URL.
func (p *Peers) ask(
	ctx context.Context, client *http.Client, method, cluster string, tags map[string]string,
) ([]offer, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(p.Addr)
	if err != nil {
		return nil, err
	}

	addresses, err := p.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}

	scheme := "http"
	if p.Secure {
		scheme = "https"
	}

	all := make([]offer, min(len(addresses), maxPeers))
	var wg sync.WaitGroup

	for index := range all {
		at := url.URL{Scheme: scheme, Host: net.JoinHostPort(addresses[index], port), Path: peersPath + cluster}
		wg.Go(func() {
			var reached atomic.Bool
			traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				ConnectDone: func(_, _ string, err error) { reached.Store(err == nil) },
			})
			o, err := fetch(traced, client, method, at.String(), tags[at.String()], maxList)

			switch refused, is := errors.AsType[*net.OpError](err); {
			case err == nil:
				all[index] = o
			case errors.Is(err, ErrBusy), ctx.Err() != nil && reached.Load(): // what it has is not known
				all[index].err = ErrBusy
			case errors.Is(err, ErrNone), ctx.Err() != nil, is && refused.Op == "dial": // it may be starting
			default:
				if about, is := errors.AsType[*url.Error](err); is {
					err = about.Err // without the address, so that it is the same for all
				}
				all[index].err = fmt.Errorf("another replica does not hand it over: %w", err)
			}
		})
	}

	wg.Wait()
	return all, nil
}

// fetch returns what is offered at a URL, up to so many bytes; nothing but its time if it has a tag.
func fetch(ctx context.Context, client *http.Client, method, from, tag string, most int64) (offer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, from, http.NoBody)
	if err != nil {
		return offer{}, err
	}

	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	sent := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return offer{}, err
	}
	received := time.Now()
	defer func() { _ = response.Body.Close() }()

	switch response.StatusCode {
	case http.StatusOK, http.StatusNotModified:
	case http.StatusNotFound:
		return offer{}, ErrNone
	case http.StatusServiceUnavailable:
		return offer{}, ErrBusy
	default:
		return offer{}, errors.New(response.Status)
	}

	at, err := asOf(sent, received, response.Header)
	if err != nil {
		return offer{}, err
	}
	content, err := readSteadily(response.Body, most, cancel)
	return offer{url: from, at: at, tag: response.Header.Get("ETag"), content: content}, err
}

// asOf returns as of when what a peer has sent holds, by our clock. It is not later than it was by the peer's.
func asOf(sent, received time.Time, header http.Header) (time.Time, error) {
	at, err := http.ParseTime(header.Get("Last-Modified"))
	if err != nil {
		return time.Time{}, err
	}

	ahead := api.MeasureSkew(sent, received, header)
	at = at.Add(-ahead)
	if ahead > 0 { // what is measured is too little, by as much at most
		at = at.Add(-time.Second - received.Sub(sent))
	}
	if at.After(received) { // there was no date
		at = received
	}
	return at, nil
}

// readSteadily reads all of a body, up to so many bytes, as long as something comes all the time.
func readSteadily(body io.Reader, most int64, cancel context.CancelFunc) ([]byte, error) {
	stalled := time.AfterFunc(stall, cancel)
	defer stalled.Stop()
	steady := readerFunc(func(b []byte) (int, error) {
		stalled.Reset(stall)
		return body.Read(b)
	})
	content, err := io.ReadAll(io.LimitReader(steady, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%w: at most %d bytes are taken over", errTooLong, most)
	}
	return content, err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
