package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// texts are at the edges of what values of some kind may be: names, domains, durations, ports, addresses, quantities.
var texts = []string{
	"", "a", "A", "0", "a.b", "a..b", "a.-b", "-a", "a-", ".a", "a.", "a b", "a: b", "#a", "*",
	"*.a", "{a", "[a", "a,b",
	"a@b",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 62) + "a", strings.Repeat("a.", 63) + "a",
	"0s", "0ms", "1ms", "1s", "5s", "5001ms", "6s", "0.1h", "1h1m1s1ms", "999999h", "9999999h", "999999h999999h999999h",
	"06s", "999999s", "99999999999s", "1.2.3s", ".s",
	"1", "08", "025", "65535", "65536", "99999999999999999999", "1-65535", "1-65536", "30-20", "0-1", "25,", "25,0",
	"25,26-27",
	"10.0.0.1", "10.0.0.0/8", "10.0.0.0/33", "10.0.0/8", "10.0.0.0.0/8", "10.0.0.0./8", "256.0.0.0/8", "010.0.0.0/8",
	"10.0.0.0/08", "10.0.0.0/", "/8", "10.0.0.0/8/8", "::1", "::/0", "fd00::/8", "fd00::/129", "1::2::3/8", ":::/8",
	"1:2:3:4:5:6:7:8/64", "1:2:3:4:5:6:7/64", "1:2:3:4:5:6:7:8:9/64", "1:2:3:4::5:6:7:8/64", "12345::/64", "a/b",
	"512Mi", "1", "0Mi", "0.0", "0.1k", "1.5Gi", "999999999T", "99999999999999999999", "99999999999999999999Ti",
	"1.5.5Gi",
}

// candidates are values at the edges of a schema.
func candidates(schema map[string]any) (all []any) {
	if enum, ok := schema["enum"].([]any); ok {
		return enum
	}
	is := func(kind string) bool { return strings.Contains(fmt.Sprint(schema["type"]), kind) }
	if is("string") {
		for _, text := range texts {
			all = append(all, text)
		}
	}
	if is("boolean") {
		all = append(all, true, false)
	}
	if is("integer") || is("number") {
		least, _ := schema["minimum"].(int)
		most, bounded := schema["maximum"].(int)
		all = append(all, least-1, least, least+1, 1_000_000)
		if bounded {
			all = append(all, most, most+1)
		} else {
			all = append(all, math.MaxInt32, int64(1)<<53)
		}
	}
	if is("array") {
		items, _ := schema["items"].(map[string]any)
		for _, item := range candidates(items) {
			all = append(all, []any{item}, []any{item, item})
		}
	}
	return all
}

// A started process has arguments and a limit of memory, and is asked whether it would begin to serve.
type started struct {
	binary, memLimit string
	args             []string
}

// refusal returns why the process does not start. It has no cluster, and reports that when all else is right.
func (s started) refusal(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), s.binary, s.args...)
	cmd.Env = []string{"HOSTNAME=test", "GOMEMLIMIT=" + s.memLimit}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "this is no Pod of a cluster") {
		return fmt.Sprintf("%v: %s", err, out.String())
	}
	return ""
}

// process returns what the Deployment of a release starts, or why the values are refused.
func process(t *testing.T, binary string, set any) (started, error) {
	t.Helper()
	text, err := sigsyaml.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	manifests, _, err := release{name: "fingerpost", namespace: "fingerpost", set: string(text)}.render(server)
	if err != nil {
		return started{}, err
	}
	d := deployment(t, manifests)
	return processOf(binary, &d), nil
}

// processOf returns what a Deployment starts.
func processOf(binary string, d *appsv1.Deployment) started {
	c := d.Spec.Template.Spec.Containers[0]
	s := started{binary: binary, args: c.Args}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			s.memLimit = e.Value
		}
	}
	return s
}

func buildServer(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "fingerpost")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", binary, "./cmd/fingerpost")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("go build: %v", err)
	}
	return binary
}

// with returns values, of which the one of a path has another value.
func with(values any, path string, v any) map[string]any {
	all := map[string]any{}
	if members, ok := values.(map[string]any); ok {
		maps.Copy(all, members)
	}
	name, rest, nested := strings.Cut(path, ".")
	if nested {
		v = with(all[name], rest, v)
	}
	all[name] = v
	return all
}

// What the chart takes the server takes: each value is set to what is at the edges of its kind, and the process is
// started with what is rendered.
func TestFlagsStart(t *testing.T) {
	binary := buildServer(t)
	base := map[string]any{
		"tls":    map[string]any{"secretName": "own", "clientCA": map[string]any{"configMapName": "roots"}},
		"policy": map[string]any{"enabled": true},
	}
	asked := map[string]bool{}
	taken := 0
	s := settingsOf(t, server)
	for _, path := range s.paths {
		schema, _ := s.at(path)
		leaf := compileValue(t, schema)
		seen := map[string]bool{}
		for i, v := range candidates(schema) {
			if leaf.Validate(jsonOf(t, v)) != nil ||
				i > 3 && len(seen) == 1 { // no argument of the process follows from it
				continue
			}
			have, err := process(t, binary, with(base, path, v))
			if err != nil {
				continue
			}
			key := strings.Join(have.args, " ") + have.memLimit
			seen[key] = true
			if asked[key] {
				continue
			}
			asked[key] = true
			taken++
			if reason := have.refusal(t); reason != "" {
				t.Errorf("%s: %q is taken, and does not start: %s", path, v, reason)
			}
		}
	}
	if taken < 100 {
		t.Errorf("%d sets of arguments were tried, want more", taken)
	}
}

// Of values that must fit each other the chart refuses what the server refuses, and nothing else, by their names.
func TestValuesThatMustFit(t *testing.T) {
	binary := buildServer(t)
	byDefault, err := process(t, binary, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		paths, flags []string
		sets         [][]string
	}{
		{
			[]string{"links.suspectAfter", "links.staleAfter"},
			[]string{"suspect-after", "stale-after"},
			[][]string{{"1s", "5s", "5001ms", "10s", "0.1m", "2m30s"}, {"5s", "10s", "10.001s", "150s", "2m30s"}},
		},
		{
			[]string{"write.lease.renewInterval", "write.lease.fence", "write.lease.duration"},
			[]string{"lease-renew-interval", "lease-fence", "lease-duration"},
			[][]string{{"0s", "1ms", "2s", "4.5s"}, {"0s", "2s", "4500ms", "6s", "0.1m"}, {"1s", "4s", "6s"}},
		},
		{
			[]string{"extraArgs", "links.suspectAfter"},
			[]string{"probe-interval", "suspect-after"},
			[][]string{{"1s", "5s", "30s"}, {"2s", "5s", "6s", "31s"}},
		},
	} {
		for _, chosen := range product(c.sets) {
			var values any
			args := slices.Clone(byDefault.args)
			for i, v := range chosen {
				if arg := "-" + c.flags[i] + "=" + v; c.paths[i] == "extraArgs" {
					values, args = with(values, c.paths[i], []any{arg}), append(args, arg)
				} else {
					values, args = with(values, c.paths[i], v), append(args, arg)
				}
			}
			_, err := process(t, binary, values)
			reason := started{binary, byDefault.memLimit, args}.refusal(t)
			if (err == nil) != (reason == "") {
				t.Errorf("%q: the chart says %v, the server %s", values, err, reason)
			}
			if err != nil && !strings.Contains(err.Error(), " must be shorter than ") {
				t.Errorf("%q: %v", values, err)
			}
		}
	}
}

// product returns every choice of one text of each list.
func product(lists [][]string) [][]string {
	if len(lists) == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for _, first := range lists[0] {
		for _, others := range product(lists[1:]) {
			all = append(all, append([]string{first}, others...))
		}
	}
	return all
}

// compileValue makes a JSON schema of the schema of one value.
func compileValue(t *testing.T, schema map[string]any) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", jsonOf(t, schema)); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// jsonOf returns a value as a decoder of JSON would.
func jsonOf(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}
