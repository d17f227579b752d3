package discovery_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// lines is a protocol: a stream of lines of JSON, one for each message. All that the engine needs of it
// is below: how a request becomes a Query and a Client (serve), when a stream ends with an error
// (reject), and how an Answer becomes messages (encoder).
type lines struct{ engine *discovery.Engine }

// message is one line.
type message struct {
	Add    []address        `json:"add,omitempty"`
	Remove []netip.AddrPort `json:"remove,omitempty"`
	Exists *bool            `json:"exists,omitempty"` // whether the Service does, where it has no addresses
}

type address struct {
	Addr   netip.AddrPort `json:"addr"`
	Weight uint32         `json:"weight"`
}

// serve serves a stream until ctx ends. A server of a real protocol does it in the handler of a gRPC
// method, and has the options of [serving.Server.Options], which bound what clients can make it hold.
func (l lines) serve(ctx context.Context, service, node string, port uint16, write func(line []byte)) error {
	namespace, name, _ := strings.Cut(service, "/")
	query := discovery.Query{Service: federation.Service{Namespace: namespace, Name: name}, Port: port}
	stream := l.engine.Serving().Open(sink{ctx, write}, "lines", service, serving.Client{Node: node})
	defer stream.Close()
	return l.engine.Serve(stream, query, discovery.Protocol{Encoder: encoder{port}, Reject: reject})
}

// reject ends streams that begin with a Service that there is not, or that cannot be served.
func reject(a *federation.Answer, first bool) error {
	if first && (a.State == federation.Absent || a.State == federation.Rejected) {
		return fmt.Errorf("Service %s/%s is %s", a.Snapshot.Namespace, a.Snapshot.Name, a.State)
	}
	return nil
}

// encoder is comparable: streams of one port share what it returns, as bytes.
type encoder struct{ port uint16 }

// Update returns at most one line. One that is larger than [serving.MaxFrame] would have to be several.
func (e encoder) Update(from, to *federation.Answer) (frames []*serving.Frame, leftOut int) {
	var held *federation.Set // by the client
	if from != nil {
		held = from.Set
	}
	add, remove := federation.DiffAt(held, to.Set, e.port)
	m := message{Remove: remove}
	for _, c := range add {
		m.Add = append(m.Add, address{c.At(e.port), c.Weight})
	}
	kind := discovery.Add
	if exists := to.State == federation.Empty; exists || to.State == federation.Absent {
		m.Exists, kind = &exists, discovery.NoEntries
	}
	if len(add)+len(remove) == 0 && m.Exists == nil {
		return nil, 0
	}
	line, err := json.Marshal(m)
	if err != nil {
		return nil, len(add)
	}
	return []*serving.Frame{serving.NewFrame(kind, line, len(add), len(remove))}, 0
}

// sink writes frames. That of gRPC takes them as they are, by [serving.Codec].
type sink struct {
	ctx   context.Context
	write func(line []byte)
}

func (s sink) Context() context.Context { return s.ctx }
func (s sink) SendMsg(message any) error {
	s.write(message.(*serving.Frame).Bytes())
	return nil
}

// A protocol on the engine: this one is lines of JSON.
func Example() {
	view := func(n int) *federation.View { return streamtest.ViewOf(streamtest.SliceOf("pods", 0, n)) }
	store, writer := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: view(2)})
	server := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	protocol := lines{discovery.NewEngine(server, store, discovery.DefaultConfig())}

	ctx, cancel := context.WithCancel(context.Background())
	written := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = protocol.serve(ctx, "ns/web", "node-0", 80, func(line []byte) { written <- string(line) })
	})
	fmt.Println(<-written)
	writer.Set(streamtest.Web, view(1))
	fmt.Println(<-written)
	writer.Set(streamtest.Web, view(0))
	fmt.Println(<-written)
	cancel()
	wg.Wait()
	fmt.Println(protocol.serve(context.Background(), "ns/nothing", "node-0", 80, nil))

	// Output:
	// {"add":[{"addr":"10.0.0.0:8080","weight":10000},{"addr":"10.0.0.1:8080","weight":10000}]}
	// {"remove":["10.0.0.1:8080"]}
	// {"remove":["10.0.0.0:8080"],"exists":true}
	// Service ns/nothing is Absent
}
