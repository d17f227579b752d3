package facts_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/serving"
)

// versions serves one kind of fact of every cluster, the version of a program by its name: a stream is a line for each
// change, with all clusters. All that a new kind needs is below: a Table (Example), what a client is sent of a key
// (load, encode), and how its stream is served.
type versions struct {
	table  *facts.Table[string, string]
	server *serving.Server
}

const line serving.MessageType = "line"

// level is what a line depends on: streams of equal levels share its bytes.
type level struct{ program, text string }

// serve serves a stream until ctx ends.
func (v versions) serve(ctx context.Context, program string, write func(line string)) error {
	stream := v.server.Open(sink{ctx, write}, "versions", program, serving.Client{})
	defer stream.Close()
	watch := v.table.Watch(program)
	defer watch.Close()
	watch.Add(stream.Bell())

	load := func(time.Time, *serving.Frame) (level, bool, error) { return v.load(program), true, nil }
	return serving.Latest[level]{Load: load, Encode: encode, Idle: time.Minute}.Serve(stream)
}

func (v versions) load(program string) level {
	var all []string
	for cluster, version := range v.table.ByKey(program) {
		all = append(all, fmt.Sprintf("%s %s", cluster, version))
	}
	return level{program, strings.Join(all, ", ")}
}

// encode returns the line of a level, which the Cache keeps for others.
func encode(l level) (f *serving.Frame, refers int) {
	text := fmt.Sprintf("%s [%s]", l.program, l.text)
	return serving.NewFrame(line, []byte(text), 1, 0), len(text)
}

// sink writes frames.
type sink struct {
	ctx   context.Context
	write func(line string)
}

func (s sink) Context() context.Context { return s.ctx }
func (s sink) SendMsg(message any) error {
	s.write(string(message.(*serving.Frame).Bytes()))
	return nil
}

// A Table of one kind that every cluster writes, and a stream of it.
func Example() {
	store := federation.NewStore()
	table := facts.NewTable("versions", facts.Options[string, string]{})
	store.AddTable(table) // so that it knows which clusters are linked, and is in checkpoints that have a codec for it
	for _, c := range []federation.Cluster{"east", "west"} {
		store.AddCluster(c, federation.Expectation{})
	}
	server := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	server.AddTypes(line)

	ctx, cancel := context.WithCancel(context.Background())
	lines := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = versions{table, server}.serve(ctx, "proxy", func(text string) { lines <- text })
	})
	fmt.Println(<-lines)
	east, west := table.NewWriter("east"), table.NewWriter("west")
	east.Set("proxy", "2.1")
	fmt.Println(<-lines)
	west.Set("proxy", "2.0")
	fmt.Println(<-lines)

	// New credentials begin a new term. What was written stays until all is written again.
	east = table.NewWriter("east")
	east.Set("injector", "2.1")
	east.MarkSynced()
	fmt.Println(<-lines)
	store.RemoveCluster("west")
	fmt.Println(<-lines)
	cancel()
	wg.Wait()

	// Output:
	// proxy []
	// proxy [east 2.1]
	// proxy [east 2.1, west 2.0]
	// proxy [west 2.0]
	// proxy []
}
