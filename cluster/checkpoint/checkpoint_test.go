package checkpoint

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unique"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drawPublished makes up what a cluster publishes. Few names and templates are shared by many.
func drawPublished(t *rapid.T) federation.Published {
	word := rapid.SampledFrom([]string{"", "a", "b", "shop", "zone-1", strings.Repeat("x", 63)})
	ports := rapid.Custom(func(t *rapid.T) federation.Ports {
		if rapid.Bool().Draw(t, "given") {
			return federation.PortsOf(federation.PortRange{First: rapid.Uint16().Draw(t, "port"), Last: 65535})
		}
		return federation.Ports{}
	})
	template := rapid.Custom(func(t *rapid.T) federation.Template {
		return federation.Template{
			ServiceAccount: word.Draw(t, "account"), ControlPlane: word.Draw(t, "control plane"),
			Opaque: ports.Draw(t, "opaque"), Skip: ports.Draw(t, "skip"),
			InboundPort: rapid.Uint16().Draw(t, "inbound"),
		}
	})
	var workloads []*federation.Workload
	for range rapid.IntRange(0, 5).Draw(t, "workloads") {
		cohort := federation.Cohort{
			Kind: federation.WorkloadKind(rapid.IntRange(0, 1).Draw(t, "kind")), Namespace: word.Draw(t, "namespace"),
			OwnerKind: rapid.SampledFrom([]string{"", "pod", "job"}).Draw(t, "owner"),
			Template:  unique.Make(template.Draw(t, "template")),
		}
		if cohort.OwnerKind != "" {
			cohort.OwnerName = word.Draw(t, "owner name")
		}
		workloads = append(workloads, new(cohort.Workload(word.Draw(t, "name"))))
	}
	pick := func() *federation.Workload {
		if len(workloads) == 0 || rapid.Bool().Draw(t, "bare") {
			return nil
		}
		return rapid.SampledFrom(workloads).Draw(t, "workload")
	}
	addr := func() netip.Addr {
		if rapid.Bool().Draw(t, "IPv6") {
			return netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, "address")})
		}
		return netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "address")})
	}
	p := federation.Published{Holds: map[federation.Service]federation.PublishedHold{}}
	nodes, addresses := map[string]federation.Node{}, map[netip.Addr]*federation.Address{}
	profiles := map[federation.Service]*profile.Profile{}
	externals := map[federation.Service]federation.External{}
	servers := map[federation.Service]federation.OpaqueServer{}
	for i := range rapid.IntRange(0, 4).Draw(t, "Services") {
		v := &federation.View{
			LocalOnly: rapid.Bool().Draw(t, "local"), Malformed: word.Draw(t, "malformed"),
			Opaque: ports.Draw(t, "opaque"), ThroughGateway: federation.Cluster(word.Draw(t, "gateway")),
			Ports: []federation.ServicePort{{
				Number: 80, Name: word.Draw(t, "port"), Target: rapid.Uint16().Draw(t, "target"),
			}},
			Slices: []*federation.Slice{},
		}
		if rapid.Bool().Draw(t, "union") {
			v.Composition = &federation.Composition{Union: true}
			for j := range 2 {
				of := federation.Cluster(fmt.Sprint(rapid.IntRange(0, j).Draw(t, "of")))
				ref := federation.Ref{Cluster: of, Service: federation.Service{Name: "m"}}
				v.Composition.Members = append(v.Composition.Members, federation.MemberRef{Ref: ref, Filtered: j == 0})
			}
		}
		for j := range rapid.IntRange(0, 2).Draw(t, "slices") {
			s := &federation.Slice{
				Name: fmt.Sprint(j), Ports: []federation.Port{{Number: 8080, Name: "http", Protocol: federation.TCP}},
				Endpoints: []*federation.Endpoint{},
			}
			for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
				e := &federation.Endpoint{
					Addr: addr(), Ready: rapid.Bool().Draw(t, "ready"), Serving: rapid.Bool().Draw(t, "serving"),
					Terminating: rapid.Bool().Draw(t, "terminating"), Copied: rapid.Bool().Draw(t, "copied"),
					Node: federation.NameOf(word.Draw(t, "node")), Zone: federation.NameOf(word.Draw(t, "zone")),
					Workload: pick(),
				}
				detail := &federation.Detail{Hostname: word.Draw(t, "hostname")}
				if rapid.Bool().Draw(t, "marked") {
					detail.Mirror = &federation.Mirror{
						Cluster:  word.Draw(t, "cluster"),
						Identity: word.Draw(t, "identity"),
					}
					detail.Hints = []string{word.Draw(t, "hint")}
				}
				e.Detail = detail.OrNone()
				s.Endpoints = append(s.Endpoints, e)
			}
			v.Slices = append(v.Slices, s)
		}
		svc := federation.Service{Namespace: word.Draw(t, "namespace"), Name: fmt.Sprint(i)}
		if n := rapid.IntRange(0, 3).Draw(t, "held"); n > 0 {
			until := []time.Time{{}, time.Unix(1, 2), time.Unix(2e9, 0)}[n-1]
			p.Holds[svc] = federation.PublishedHold{Before: v, Until: until}
			if until.IsZero() && rapid.Bool().Draw(t, "since") {
				p.Holds[svc] = federation.PublishedHold{Before: v, Since: time.Unix(3, 4)}
			}
		}
		if len(p.Holds) == 0 || rapid.Bool().Draw(t, "written") {
			p.Views = p.Views.With(svc, v)
		}
		profiles[federation.Service{Name: fmt.Sprint(i)}] = &profile.Profile{
			Routes: []profile.Route{{
				Name: word.Draw(t, "route"), Timeout: time.Second,
				Condition: &profile.Request{All: []*profile.Request{{Path: "/"}}, Any: []*profile.Request{}},
				Responses: []profile.ResponseClass{{Condition: notAny(rapid.IntRange(0, 19).Draw(t, "depth"))}},
			}},
			RetryBudget: &profile.RetryBudget{Ratio: 0.25, TTL: time.Minute},
		}
		nodes[fmt.Sprint(i)] = federation.Node{Zone: word.Draw(t, "zone")}
		servers[svc] = federation.OpaqueServer{
			Pods: federation.Selector{Text: word.Draw(t, "selector"), Given: rapid.Bool().Draw(t, "selects")},
			Port: rapid.Uint16().Draw(t, "port"), PortName: word.Draw(t, "port name"),
		}
		if w := pick(); w != nil {
			externals[svc] = federation.External{Workload: w, Node: federation.NameOf(word.Draw(t, "node"))}
		}
		a := &federation.Address{
			Services: []federation.Service{{Namespace: "a", Name: "b"}}, Residents: []federation.Resident{},
		}
		if w := pick(); w != nil {
			a.Residents = append(a.Residents, federation.Resident{Workload: w, Port: 80, Running: true})
		}
		addresses[addr()] = a
	}

	p.Facts = map[string]facts.Copy{
		"nodes": {All: nodes}, "addresses": {All: addresses}, "profiles": {All: profiles},
		"externals": {All: externals}, "servers": {All: servers},
	}
	return p
}

// notAny returns a condition as deep as a ServiceProfile that has so many times not, each with two conditions.
func notAny(depth int) *profile.Response {
	r := &profile.Response{Status: &profile.StatusRange{Min: 500}}
	for range depth {
		r = &profile.Response{Not: &profile.Response{Any: []*profile.Response{r, {Status: &profile.StatusRange{}}}}}
	}
	return r
}

func encoded(t rapid.TB, c Checkpoint) []byte {
	var b bytes.Buffer
	if err := encode(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func east(p federation.Published) Checkpoint {
	return Checkpoint{Header: Header{Cluster: "east"}, Published: p}
}

// What was read is what was written, workloads that are shared included.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{Cluster: "east", TrustDomain: "east.test", Released: "2026", Local: rapid.Bool().Draw(t, "local")}
		p := drawPublished(t)
		c, err := decode(encoded(t, Checkpoint{Header: h, Published: p}))
		got := c.Published
		if err != nil || c.Header != h || got.Views.Len() != p.Views.Len() {
			t.Fatalf("%v: header %+v, %d Services of %d", err, c.Header, got.Views.Len(), p.Views.Len())
		}
		for svc, want := range p.Views.All() {
			if view := got.Views.Get(svc); !reflect.DeepEqual(view, want) {
				t.Fatalf("%v is\n%+v\nand was\n%+v", svc, view, want)
			}
		}
		if !reflect.DeepEqual(got.Facts, p.Facts) || !reflect.DeepEqual(got.Holds, p.Holds) {
			t.Fatalf("facts are\n%+v\nand were\n%+v", got, p)
		}
	})
}

// former is a file that was written before facts had Tables: those of the local cluster stood in it as now.
const former = `oQB3ZmluZ2VycG9zdCBjaGVja3BvaW50IDOhAaVnQ2x1c3RlcmVsb2NhbGVMb2NhbPVrVHJ1c3REb21haW5gbUNsdXN0ZXJEb21haW5gaFJl` +
	`bGVhc2VkYKECq25TZXJ2aWNlQWNjb3VudGdkZWZhdWx0bENvbnRyb2xQbGFuZWBkSGFzaGBmT3BhcXVlQGxTZXJ2ZXJPcGFxdWVAZFNraXBAa0lu` +
	`Ym91bmRQb3J0AGlBZG1pblBvcnQAa0NvbnRyb2xQb3J0AGhJZGVudGl0eWBqU2VydmVyTmFtZWChA4YAZHNob3Bld2ViLTFqZGVwbG95bWVudGN3` +
	`ZWIAoQSDomlOYW1lc3BhY2Vkc2hvcGROYW1lY3dlYqtsRXh0ZXJuYWxOYW1l9GlMb2NhbE9ubHn0aU1hbGZvcm1lZGBnTWlzcmVhZGBqVW5leHBv` +
	`cnRlZPRlUG9ydHP2Zk9wYXF1ZUBrQ29tcG9zaXRpb272ZlNsaWNlc/ZuVGhyb3VnaEdhdGV3YXlgZlBvbGljefaBg2Fh9oGLRAoAAAH19PT0YGBg` +
	`9gH2oQWCYW5heqEGg0QKAAABgaJpTmFtZXNwYWNlZHNob3BkTmFtZWN3ZWKBgwEA9aEHgqJpTmFtZXNwYWNlZHNob3BkTmFtZWN3ZWKjZlJvdXRl` +
	`c/ZrUmV0cnlCdWRnZXSjZVJhdGlv+j6AAABzTWluUmV0cmllc1BlclNlY29uZABjVFRMGwAAAA34R1gAaU92ZXJyaWRlc/bf5r8D`

// What a former version has written is read, with its facts, and is written again as it was.
func TestFormerFile(t *testing.T) {
	b, err := base64.StdEncoding.DecodeString(former)
	if err != nil {
		t.Fatal(err)
	}
	c, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}

	store, svc := federation.NewStore(), federation.Service{Namespace: "shop", Name: "web"}
	store.AddCluster("local", federation.Expectation{Local: true})
	store.NewWriter("local").Write(c.Published)
	node, _ := store.Nodes.Get("local", "n")
	address, _ := store.Addresses.Get("local", netip.MustParseAddr("10.0.0.1"))
	of, _ := store.Profiles.Get("local", svc)
	if node.Zone != "z" || of == nil || of.RetryBudget.TTL != time.Minute {
		t.Errorf("node %v, profile %+v", node, of)
	}
	if address == nil || address.Residents[0].Name != "web-1" || address.Services[0] != svc {
		t.Errorf("address %+v", address)
	}
	if again := encoded(t, c); !bytes.Equal(again, b) {
		t.Errorf("it is written again as %s", base64.StdEncoding.EncodeToString(again))
	}
}

// A file of which any part is missing or changed is an error.
func TestTorn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := encoded(t, east(drawPublished(t)))
		if rapid.Bool().Draw(t, "short") {
			b = b[:rapid.IntRange(0, len(b)-1).Draw(t, "length")]
		} else {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		if _, err := decode(b); !errors.Is(err, errTorn) {
			t.Fatalf("it is read: %v", err)
		}
	})
}

// Whatever a file holds, with a right checksum too, ends in an error or in Views that readers can use.
func FuzzDecode(f *testing.F) {
	example := rapid.Custom(drawPublished)
	for seed := range 8 {
		f.Add(encoded(f, east(example.Example(seed))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 {
			return
		}
		c, err := decode(sealed(b[:len(b)-4]))
		if err != nil {
			return
		}
		for _, v := range c.Published.Views.All() {
			for _, s := range v.Slices {
				for _, e := range s.Endpoints {
					checkText(t, e)
				}
			}
		}
		store := federation.NewStore()
		store.AddCluster("east", federation.Expectation{Local: true})
		w := store.NewWriter("east")
		w.Write(c.Published)
		w.MarkSynced()
		for svc, v := range c.Published.Views.All() {
			v.Digest()
			store.Watch(federation.Ref{Cluster: "east", Service: svc}).Close()
		}
	})
}

// checkText fails the test if the labels that clients get for an endpoint are not plain.
func checkText(t *testing.T, e *federation.Endpoint) {
	t.Helper()
	all := []string{e.Zone.String(), e.Node.String(), e.Hostname()}
	if w := e.Workload; w != nil {
		kind, owner := w.Owner()
		if kind != "" && !slices.Contains(federation.OwnerKinds, kind) {
			t.Errorf("an owner of kind %q", kind)
		}
		all = append(all, w.Name, w.Namespace(), owner, w.Template().ServiceAccount, w.Template().Hash)
	}
	for _, text := range all {
		if !federation.IsPlain(text) {
			t.Errorf("text of an endpoint: %q", text)
		}
	}
}

// Owners of other kinds than Linkerd's, as former versions wrote them, are none; the rest of the file is used.
func TestOwnersOfFormerVersions(t *testing.T) {
	template := unique.Make(federation.Template{ServiceAccount: "default"})
	for owner, want := range map[[2]string]string{
		{"statefulset", "db"}: "statefulset/db", {"cluster", "db"}: "pod/db-1",
		{"deployment", "a\"} 1\nb{"}: "pod/db-1", {"a=\"\"} 1\nb", "x"}: "pod/db-1",
	} {
		cohort := federation.Cohort{Namespace: "ns", OwnerKind: owner[0], OwnerName: owner[1], Template: template}
		slice := &federation.Slice{Name: "db", Endpoints: []*federation.Endpoint{
			{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true, Workload: new(cohort.Workload("db-1"))},
		}}
		svc := federation.Service{Namespace: "ns", Name: "db"}
		var p federation.Published
		p.Views = p.Views.With(svc, &federation.View{Slices: []*federation.Slice{slice}})
		c, err := decode(encoded(t, east(p)))
		if err != nil {
			t.Fatal(err)
		}
		kind, name := c.Published.Views.Get(svc).Slices[0].Endpoints[0].Workload.Owner()
		if got := kind + "/" + name; got != want {
			t.Errorf("%q: %s, want %s", owner, got, want)
		}
	}
}

func names(all []Header) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, h := range all {
			if !yield(h.Cluster) {
				return
			}
		}
	}
}

func TestDir(t *testing.T) {
	dir := NewDir(filepath.Join(t.TempDir(), "state"), time.Hour)
	made := func(cluster string, services ...string) Checkpoint {
		c := Checkpoint{Header: Header{Cluster: cluster}}
		for _, n := range services {
			c.Published.Views = c.Published.Views.With(federation.Service{Name: n}, &federation.View{})
		}
		return c
	}
	load := func(cluster string) (int, error) {
		c, err := dir.Load(cluster)
		if err == nil && time.Since(c.AsOf) > time.Minute {
			t.Errorf("it holds as of %v", c.AsOf)
		}
		return c.Published.Views.Len(), err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := load("east"); !errors.Is(err, ErrNone) {
		t.Errorf("a directory that does not exist: %v", err)
	}
	must(dir.Save(made("east", "a")))
	must(dir.Save(made("east", "a", "b")))
	must(dir.Save(made("../../we st", "c")))
	for cluster, want := range map[string]int{"east": 2, "../../we st": 1} {
		if n, err := load(cluster); n != want || err != nil {
			t.Errorf("%s has %d Services: %v", cluster, n, err)
		}
	}
	headers, err := dir.Headers()
	must(err)
	if names := slices.Sorted(names(headers)); !slices.Equal(names, []string{"../../we st", "east"}) {
		t.Errorf("checkpoints of %q", names)
	}

	file, err := dir.file("east")
	must(err)
	past := time.Now().Add(-2 * time.Hour)
	must(os.Chtimes(file, past, past))
	if _, err := load("east"); err == nil || !strings.Contains(err.Error(), "older than 1h") {
		t.Errorf("an old one: %v", err)
	}
	future := time.Now().Add(2 * time.Hour) // the clock was set back
	must(os.Chtimes(file, future, future))
	if c, err := dir.Load("east"); err != nil || c.AsOf.After(time.Now()) {
		t.Errorf("one of the future holds as of %v: %v", c.AsOf, err)
	}
	must(dir.Confirm("east"))
	if n, err := load("east"); n != 2 || err != nil {
		t.Errorf("one that still holds has %d Services: %v", n, err)
	}
	must(dir.Remove("east"))
	must(dir.Remove("east"))
	if _, err := load("east"); !errors.Is(err, ErrNone) {
		t.Errorf("one that was removed: %v", err)
	}
	if err := dir.Save(made(strings.Repeat("e", 300))); err == nil {
		t.Error("a name that no file can have is saved")
	}

	must(os.WriteFile(filepath.Join(dir.path, "file"), nil, 0o600))
	if err := NewDir(filepath.Join(dir.path, "file"), time.Hour).Save(made("east", "a")); err == nil {
		t.Error("a file is a directory")
	}
	f, err := os.CreateTemp(dir.path, unfinished)
	must(err)
	must(f.Close())
	must(dir.Clean())
	entries, err := os.ReadDir(dir.path)
	must(err)
	if len(entries) != 2 { // of the other cluster, and the file
		t.Errorf("%d files are left: %v", len(entries), entries)
	}
}

// sealed returns content with its checksum.
func sealed(content []byte) []byte {
	return binary.BigEndian.AppendUint32(slices.Clone(content), crc32.Checksum(content, castagnoli))
}

// A file of another version is not used, and not an error of the file.
func TestVersion(t *testing.T) {
	b := encoded(t, east(federation.Published{}))
	b = bytes.Replace(b[:len(b)-4], []byte(format), []byte("fingerpost checkpoint 1"), 1)
	if _, err := decode(sealed(b)); !errors.Is(err, errFormat) {
		t.Errorf("it is read: %v", err)
	}
}

// large is a cluster of n endpoints, ten a Service.
func large(n int) federation.Published {
	var p federation.Published
	template := unique.Make(federation.Template{ServiceAccount: "default", ControlPlane: "linkerd", Hash: "5d4f8c7b9"})
	for i := range n / 10 {
		s := &federation.Slice{
			Name:  "slice",
			Ports: []federation.Port{{Number: 8080, Name: "http", Protocol: federation.TCP}},
		}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, &federation.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), Ready: true,
				Node: federation.NameOf(fmt.Sprintf("node-%d", j)), Zone: federation.NameOf("zone-1"),
				Workload: new(federation.Cohort{
					Namespace: "shop", OwnerKind: "deployment", OwnerName: fmt.Sprintf("web-%d", i), Template: template,
				}.Workload(fmt.Sprintf("web-5d4f8c7b9-%d-%d", i, j))),
			})
		}
		v := &federation.View{
			Ports: []federation.ServicePort{{Number: 80, Name: "http"}}, Slices: []*federation.Slice{s},
		}
		p.Views = p.Views.With(federation.Service{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}, v)
	}
	return p
}

func BenchmarkEncode(b *testing.B) {
	p, size := large(50_000), 0
	b.ReportAllocs()
	for b.Loop() {
		size = len(encoded(b, east(p)))
	}
	b.ReportMetric(float64(size)/50_000, "B/endpoint")
}

func BenchmarkDecode(b *testing.B) {
	file := encoded(b, east(large(50_000)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(file); err != nil {
			b.Fatal(err)
		}
	}
}
