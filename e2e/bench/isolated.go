package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isolated measures how long a change takes from the API server's answer to its writer until a client has it,
// where nothing else happens: one endpoint of a linked cluster, and a new Service of the local one.
func isolated(ctx context.Context, b *bench) (err error) {
	const rounds, services, remote = 200, 50, "east"
	site, err := b.serveSite(ctx, remote)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.stop()) }()

	arrivals := make(chan arrival, 100)
	received := func(_, _ int, bytes []byte) { arrivals <- arrival{newest(bytes), time.Now()} }
	asked := options{streams: 1, path: pathOf(standsFor(remote)), received: received}
	c, err := open(ctx, site.server.Addr, asked)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "the first answer", func() bool { return c.answered.Load() == 1 }); err != nil {
		return err
	}
	quiet := time.NewTicker(150 * time.Millisecond) // far longer than the window in which changes wait for others
	defer quiet.Stop()
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	plain, err := site.fleets[remote].watch(limited)
	if err != nil {
		return err
	}
	var took, alone []time.Duration
	for round := range rounds + 1 {
		<-quiet.C
		version, err := site.fleets[remote].change(ctx, small, 1)
		if err != nil {
			return err
		}
		written := time.Now()
		note := func(of *[]time.Duration, a arrival) bool {
			if a.version == version && round > 0 { // the first one may meet what starts
				*of = append(*of, max(0, a.at.Sub(written)))
			}
			return a.version >= version
		}
		for seen, watched := false, false; !seen || !watched; {
			select {
			case a := <-arrivals:
				seen = note(&took, a)
			case a := <-plain:
				watched = note(&alone, a)
			case <-limited.Done():
				return fmt.Errorf("change %d of %d: %w", round, rounds, limited.Err())
			case <-quiet.C: // for as long as there is no answer
				if err := c.failed.Load(); err != nil {
					return *err
				}
			}
		}
	}
	b.table.add("an isolated change of one endpoint of a linked cluster, API server to client",
		"p50 2 ms, p99 10 ms", "%s", spread(took))
	b.table.add("  the same change on a watch without a server between", "", "%s", spread(alone))
	return b.newServices(ctx, site.fleets[localCluster], site.server.Addr, services, quiet)
}

// arrival is when a version of an object has come.
type arrival struct {
	version int
	at      time.Time
}

// watch watches the fleet's EndpointSlices as any client does, until ctx ends.
func (f *fleet) watch(ctx context.Context) (<-chan arrival, error) {
	w, err := f.client.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	arrivals := make(chan arrival, 100)
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			at := time.Now()
			es, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok || len(es.Endpoints) == 0 || es.Endpoints[0].Zone == nil {
				continue
			}
			version, err := strconv.Atoi(strings.TrimPrefix(*es.Endpoints[0].Zone, zonePrefix))
			if err != nil {
				continue
			}
			select {
			case arrivals <- arrival{version, at}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return arrivals, nil
}

// newServices creates Services and asks for the profile of each as soon as the API server has answered.
func (b *bench) newServices(ctx context.Context, f *fleet, addr string, services int, quiet *time.Ticker) error {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	client := pb.NewDestinationClient(conn)
	ask := func(path string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		stream, err := client.GetProfile(ctx, &pb.GetDestination{Scheme: "k8s", Path: path})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := ask(pathOf(small)); err != nil { // so that the connection is there
		return err
	}
	var took []time.Duration
	absent := 0
	for i := range services {
		<-quiet.C
		svc := service{name: fmt.Sprintf("new-%d", i)}
		if _, err := f.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: svc.name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		written := time.Now()
		err := ask(pathOf(svc))
		if status.Code(err) == codes.NotFound {
			absent++
		}
		for status.Code(err) == codes.NotFound {
			err = ask(pathOf(svc))
		}
		if err != nil {
			return err
		}
		took = append(took, time.Since(written))
	}
	b.table.add("a new Service, asked for at once: until it is found", "at once",
		"%s; %d of %d first questions were too early", spread(took), absent, services)
	return nil
}

// spread renders the middle and the end of some durations.
func spread(all []time.Duration) string {
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, at most %.1f ms", ms(all[len(all)/2]),
		ms(all[len(all)*99/100]), ms(all[len(all)-1]))
}
