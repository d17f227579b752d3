package discovery

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// bundle is a protocol of which a stream has a Feed for each of several Services. What they add is one message, with a
// nonce of its own.
type bundle struct{ *Engine }

// nonceField is one that clients do not know.
const nonceField = 100

// serve makes all that is due in one turn, and sends it.
func (b bundle) serve(sink serving.Sink, client serving.Client, queries ...Query) error {
	stream := b.server.Open(sink, "bundle", "", client)
	defer stream.Close()
	var all []*Feed
	for _, q := range queries {
		f := b.Feed(stream, q, Protocol{Encoder: plain{q.Port}, Reject: rejection})
		defer f.Close()
		all = append(all, f)
	}
	return stream.Run(func(now time.Time) error { return sendSteps(stream, all, now) })
}

func sendSteps(stream *serving.Stream, all []*Feed, now time.Time) error {
	steps := make([]Step, len(all))
	turn := stream.Turn(now)
	defer turn.Release()
	var adds, frames []*serving.Frame
	for i, f := range all {
		step, err := f.Next(now, &turn)
		if err != nil {
			return err
		}
		steps[i] = step
		for _, frame := range step.Frames {
			if frame.Type() == Add {
				adds = append(adds, frame)
			} else {
				frames = append(frames, frame)
			}
		}
	}

	if len(adds) > 0 {
		nonce := protowire.AppendTag(nil, nonceField, protowire.VarintType)
		nonce = protowire.AppendVarint(nonce, stream.Sent().Messages)
		frames = append(frames, serving.Compose(Add, adds, nonce))
	}
	if err := stream.Send(frames...); err != nil {
		return err
	}
	for i, f := range all {
		f.Sent(steps[i])
	}
	return nil
}

// Several Feeds of one stream share its turn, and each sends what is new of its own Service. People see a stream with
// all that its client holds, and of one Service what it holds of that.
func TestFeedsOfOneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := federation.Service{Namespace: "ns", Name: "shop"}
		cart := federation.Service{Namespace: "ns", Name: "cart"}
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, large)),
			shop:           streamtest.ViewOf(streamtest.SliceOf("a", 2, 2)),
			cart:           streamtest.ViewOf(streamtest.SliceOf("a", 3, 1)),
		})
		config := serving.DefaultConfig()
		config.Admission.Answers = 1
		b := bundle{newToy(store, config).Engine}
		ofWeb, ofShop := Query{Service: streamtest.Web, Port: 80}, Query{Service: shop, Port: 80}
		ofCart := Query{Service: cart, Port: 80}
		client := serving.Client{Namespace: "ns", Pod: "client"}
		ctx, cancel := context.WithCancel(t.Context())
		sink := streamtest.NewOpenSink(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.serve(sink, client, ofShop, ofWeb, ofCart) })
		check := func(messages, web, shop int) {
			t.Helper()
			synctest.Wait()
			all := b.Streams()
			if len(all) != 1 || !slices.Equal(all[0].Queries(), []Query{ofShop, ofWeb, ofCart}) {
				t.Fatalf("streams: %+v", all)
			}
			if n := len(sink.Sent()); n != messages || int(all[0].Messages) != messages {
				t.Errorf("%d messages were sent, and %d are shown; want %d", n, all[0].Messages, messages)
			}
			if n := len(sink.Holds()); n != web+shop+1 || all[0].Addresses != n || all[0].Behind != nil {
				t.Errorf("the client has %d addresses, want %d; shown is %+v", n, web+shop+1, all[0])
			}
			for q, want := range map[Query]int{ofWeb: web, ofShop: shop, ofCart: 1} {
				x := b.Explain(q, client, func(*federation.Answer) string { return "" })
				if len(x.Streams) != 1 || len(x.Streams[0].Holds) != want || x.Streams[0].Addresses != want {
					t.Errorf("%d addresses of %s are shown, want %d", len(x.Streams[0].Holds), q.Name, want)
				}
			}
		}

		check(1, large, 2) // at once: none has waited for the turn of another
		writer.Set(shop, streamtest.ViewOf(streamtest.SliceOf("a", 2, 3)))
		check(2, large, 3)
		writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 1)))
		check(3, 1, 3)

		cancel()
		wg.Wait()
		if streams, feeds := len(b.Streams()), len(b.feeds.list()); streams+feeds+b.selections.len() > 0 {
			t.Errorf("%d streams, %d Feeds and %d selections are left", streams, feeds, b.selections.len())
		}
	})
}
