package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	peersPath    = "/clusters/"
	peerTimeout  = time.Second / 2  // until a peer reports how new its state is
	peersTimeout = 20 * time.Second // until the newest one was read
	busyPause    = time.Second / 4  // until peers that serve others are asked again
	busyPatience = 3 * time.Second  // how long they are: the API server of the cluster may respond meanwhile
	maxPeers     = 16
	maxTransfers = 2       // at a time, from one replica
	maxTransfer  = 1 << 28 // bytes
	maxList      = 1 << 18 // bytes: those of about 2,000 clusters
)

// Peers are the other replicas, which may have seen a cluster that this one cannot reach.
type Peers struct {
	Addr   string // host and port; the host resolves to the addresses of all replicas
	Lookup func(ctx context.Context, host string) ([]string, error)
	Client func() (*http.Client, error) // for one Load; its URLs have the scheme http, unless Secure
	Secure bool
	MaxAge time.Duration // of what is used
}

// Load returns what the peer that was in contact with a cluster last holds of it, if that is newer than another
// time. A peer whose state cannot be read is passed over: in a rollout it may be of another version than this
// replica. It takes 20 s at most. ErrNone: no peer has something newer, and none that was reached has refused.
func (p *Peers) Load(ctx context.Context, cluster string, after time.Time) (Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	client, err := p.Client()
	if err != nil {
		return Checkpoint{}, err
	}
	defer client.CloseIdleConnections()
	offers, err := p.ask(ctx, client, http.MethodHead, cluster)
	if err != nil {
		return Checkpoint{}, err
	}
	slices.SortFunc(offers, func(a, b offer) int { return b.at.Compare(a.at) })
	pause := time.NewTicker(busyPause)
	defer pause.Stop()
	for end := time.Now().Add(busyPatience); ; {
		c, err := p.newest(ctx, client, cluster, after, offers)
		if !errors.Is(err, errBusy) || !time.Now().Before(end) {
			return c, err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return c, err
		}
	}
}

// newest returns the first offer that can be read of those that are newer than another time.
func (p *Peers) newest(
	ctx context.Context, client *http.Client, cluster string, after time.Time, offers []offer,
) (Checkpoint, error) {
	reason := ErrNone // why nothing is returned
	for _, o := range offers {
		if o.err != nil {
			reason = o.err
		}
		if !o.at.After(after.Truncate(time.Second)) || time.Since(o.at) > p.MaxAge {
			continue
		}
		b, err := fetch(ctx, client, http.MethodGet, o.url, maxTransfer)
		if err != nil {
			if errors.Is(err, errBusy) || errors.Is(err, errTooLong) {
				reason = err
			}
			continue // another may have it, too
		}
		c, err := decode(b.content)
		if err != nil || c.Cluster != cluster {
			reason = fmt.Errorf("%s: %w", o.url, cmp.Or(err, errFormat))
			continue
		}
		c.AsOf = b.at
		return c, nil
	}
	return Checkpoint{}, reason
}

var (
	errBusy    = errors.New("another replica has it, and is handing over those of others")
	errTooLong = errors.New("it is too long")
)

// Clusters returns the clusters that peers have the state of, sorted by name. A peer that does not list them in time is
// passed over, and so is one of a version that cannot. The error names those that refuse, or list something else.
func (p *Peers) Clusters(ctx context.Context) ([]Header, error) {
	client, err := p.Client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	answers, err := p.ask(ctx, client, http.MethodGet, "")
	if err != nil {
		return nil, err
	}
	known := map[string]Header{}
	var failed []error
	for _, a := range answers {
		if a.err != nil || a.url == "" {
			failed = append(failed, a.err)
			continue
		}
		var headers []Header
		if json.Unmarshal(a.content, &headers) != nil {
			failed = append(failed, fmt.Errorf("%s: it is not a list of clusters", a.url))
			continue
		}
		for _, h := range headers {
			known[h.Cluster] = h
		}
	}
	return slices.SortedFunc(maps.Values(known), func(a, b Header) int {
		return strings.Compare(a.Cluster, b.Cluster)
	}), errors.Join(failed...)
}

// offer is what one peer has.
type offer struct {
	url     string // empty: it has none
	at      time.Time
	content []byte
	err     error // of a peer that was reached, such as about a certificate
}

// ask asks every peer for its state of a cluster, or for the list of clusters if that is "". The offer of a peer that
// has none, or does not answer in time, is the zero offer.
func (p *Peers) ask(ctx context.Context, client *http.Client, method, cluster string) ([]offer, error) {
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
	for i := range all {
		at := url.URL{Scheme: scheme, Host: net.JoinHostPort(addresses[i], port), Path: peersPath + cluster}
		wg.Go(func() {
			o, err := fetch(ctx, client, method, at.String(), maxList)
			switch refused, is := errors.AsType[*net.OpError](err); {
			case err == nil:
				all[i] = o
			case errors.Is(err, ErrNone), ctx.Err() != nil, is && refused.Op == "dial": // it may be starting
			default:
				if about, is := errors.AsType[*url.Error](err); is {
					err = about.Err // without the address, so that it is the same for all
				}
				all[i].err = fmt.Errorf("another replica does not hand it over: %w", err)
			}
		})
	}
	wg.Wait()
	return all, nil
}

// fetch returns what is offered at a URL, up to so many bytes.
func fetch(ctx context.Context, client *http.Client, method, from string, most int64) (offer, error) {
	request, err := http.NewRequestWithContext(ctx, method, from, http.NoBody)
	if err != nil {
		return offer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return offer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return offer{}, ErrNone
	case http.StatusServiceUnavailable:
		return offer{}, errBusy
	default:
		return offer{}, errors.New(response.Status)
	}
	at, err := http.ParseTime(response.Header.Get("Last-Modified"))
	if err != nil {
		return offer{}, err
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%w: at most %d bytes are taken over", errTooLong, most)
	}
	return offer{url: from, at: at, content: content}, err
}

// A Finder returns as of when the state of a cluster holds that this replica has, and what reads it; nil for none.
type Finder func(cluster string) (asOf time.Time, read func() Checkpoint)

// Handler serves to peers what this replica has of a cluster, few at a time, and the list of those clusters.
func Handler(find Finder, list func() []Header) http.Handler {
	turns := make(chan struct{}, maxTransfers)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+peersPath+"{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(list()) // the peer sees that it is torn
	})
	mux.HandleFunc("GET "+peersPath+"{cluster...}", func(w http.ResponseWriter, r *http.Request) {
		at, read := find(r.PathValue("cluster"))
		if read == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/cbor-seq")
		w.Header().Set("Last-Modified", at.UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		default:
			http.Error(w, "others are being served", http.StatusServiceUnavailable)
			return
		}
		var b bytes.Buffer
		if err := encode(&b, read()); err != nil {
			http.Error(w, "it cannot be encoded", http.StatusInternalServerError)
			return
		}
		_, _ = b.WriteTo(w) // the peer sees that it is torn
	})
	return mux
}
