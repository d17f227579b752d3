package repo

import (
	"slices"
	"strings"
	"testing"
)

// imports is the graph of the module: a package imports the packages in its lines, and no others of this
// module. Everything points at federation; the half that reads Kubernetes and the half that serves meet in
// cmd/fingerpost/app only. Tests may import more.
const imports = `
cmd/fingerpost -> cmd/fingerpost/app cmd/fingerpost/check cmd/fingerpost/cli
cmd/fingerpost -> cmd/fingerpost/server
cmd/fingerpost -> cluster/api discovery/linkerd federation federation/rules identity inject internal/logs
cmd/fingerpost -> links serving
cmd/fingerpost/app -> admission cmd/fingerpost/debug cmd/fingerpost/server cmd/fingerpost/webhook
cmd/fingerpost/app -> cluster cluster/apply cluster/checkpoint cluster/endpointslice cluster/api cluster/lease
cmd/fingerpost/app -> cluster/linkerd cluster/podowner inject
cmd/fingerpost/app -> cluster/changes cluster/problem cluster/routestatus cluster/ruleset cluster/tokenreview
cmd/fingerpost/app -> discovery/linkerd discovery/policyapi federation federation/rules federation/watch
cmd/fingerpost/app -> identity identity/certify identity/enroll links links/mirror serving
cmd/fingerpost/check -> cmd/fingerpost/cli cmd/fingerpost/debug inject internal/words
cmd/fingerpost/check -> cluster cluster/api cluster/apply cluster/linkerd cluster/problem federation links
cmd/fingerpost/cli -> cmd/fingerpost/debug internal/words
cmd/fingerpost/cli -> cluster cluster/api cluster/changes cluster/linkerd cluster/problem
cmd/fingerpost/cli -> discovery discovery/proxy federation federation/policy identity identity/ca
cmd/fingerpost/cli -> inject inject/manifests links
cmd/fingerpost/debug -> cmd/fingerpost/server internal/words
cmd/fingerpost/debug -> cluster cluster/changes cluster/problem discovery discovery/linkerd discovery/policyapi
cmd/fingerpost/debug -> federation federation/rules links serving
cmd/fingerpost/server -> cluster/tokenreview federation/watch identity internal/logs serving
cmd/fingerpost/webhook -> cluster/podowner inject
cmd/fingerpost/webhook -> admission cluster/linkerd/serviceprofile cluster/ruleobject federation/rules
cmd/fingerpost/cmdtest ->

links/mirror -> links cluster cluster/apply cluster/apply/object cluster/lease cluster/linkerd cluster/api
links/mirror -> federation federation/policy federation/watch internal/logs internal/words
links -> cluster cluster/apply cluster/apply/status cluster/linkerd cluster/api cluster/problem cluster/view
links -> federation federation/policy federation/watch internal/logs internal/words

cluster/endpointslice -> cluster cluster/apply cluster/apply/object cluster/linkerd cluster/api cluster/view
cluster/endpointslice -> federation federation/policy federation/watch internal/logs
cluster/multicluster -> cluster cluster/api federation/watch
cluster/apply/object -> cluster/apply
cluster/apply/status -> cluster/apply cluster/api federation internal/logs
cluster/apply -> cluster cluster/lease cluster/api federation federation/watch internal/logs
cluster/lease -> cluster/api federation/watch
cluster -> cluster/api cluster/checkpoint cluster/linkerd cluster/problem cluster/view
cluster -> federation federation/policy federation/watch internal/logs internal/words
cluster/changes -> cluster cluster/problem federation
cluster/checkpoint -> cluster/api federation federation/facts federation/profile federation/rules
cluster/view -> cluster/linkerd cluster/linkerd/serviceprofile cluster/api
cluster/view -> federation federation/facts federation/policy federation/profile federation/watch
cluster/view -> internal/words
cluster/linkerd/serviceprofile -> federation federation/profile
cluster/linkerd ->
cluster/ruleobject -> cluster/linkerd federation federation/rules
cluster/ruleset -> cluster/api cluster/linkerd cluster/ruleobject cluster/view
cluster/ruleset -> federation federation/facts federation/rules federation/watch
cluster/routestatus -> cluster cluster/api cluster/apply cluster/apply/status cluster/linkerd
cluster/routestatus -> cluster/ruleobject
cluster/routestatus -> federation federation/facts federation/rules
cluster/podowner -> cluster/api
cluster/problem ->
cluster/tokenreview -> cluster/api federation/watch identity
cluster/api -> federation federation/watch internal/words
cluster/apitest ->

discovery/linkerd -> discovery discovery/proxyapi serving federation federation/profile federation/watch
discovery/policyapi -> discovery/proxyapi federation federation/facts federation/rules federation/watch serving
discovery/policyapi -> internal/logs
discovery -> serving federation federation/policy federation/watch
discovery/proxyapi ->
discovery/proxy -> discovery/proxy/policy
discovery/proxy/policy ->
discovery/streamtest -> discovery/proxy federation

serving -> federation/watch

admission ->

inject ->
inject/manifests -> inject
identity/ca -> identity
identity/certify -> identity
identity/enroll -> identity
identity/identitytest -> identity
identity ->

federation -> federation/facts federation/policy federation/profile federation/watch
federation/facts -> federation/watch
federation/policy ->
federation/policy/policytest ->
federation/profile ->
federation/rules -> federation federation/facts federation/watch
federation/watch ->

internal/repo ->
internal/logs ->
internal/words ->
`

// strangers are the packages of other modules that a package, and what is below it, must not import.
const strangers = `
serving -> k8s.io sigs.k8s.io github.com/linkerd
discovery -> k8s.io sigs.k8s.io
cluster -> google.golang.org/grpc github.com/linkerd
admission -> google.golang.org/grpc github.com/linkerd k8s.io/client-go
inject -> k8s.io/client-go net/http google.golang.org/grpc github.com/linkerd
links -> google.golang.org/grpc github.com/linkerd
cluster/api -> google.golang.org/grpc
identity -> k8s.io sigs.k8s.io
cluster/ruleobject -> k8s.io/client-go
cmd/fingerpost/app -> github.com/spf13
cmd/fingerpost/debug -> github.com/spf13
cmd/fingerpost/server -> github.com/spf13
`

// Imports have one direction. A linter has a part of these rules, and reports earlier.
func TestLayers(t *testing.T) {
	graph, never, have := lists(imports), lists(strangers), packages(t)
	for path, all := range graph {
		for _, i := range all {
			if !slices.Contains(have[path], module+"/"+i) {
				t.Errorf("%s does not import %s: remove the pair from the graph in layers_test.go", path, i)
			}
		}
	}
	for path, all := range have {
		allowed, listed := graph[path]
		if !listed {
			t.Errorf("the graph in layers_test.go does not have the package %s", path)
		}
		for _, i := range all {
			if own, is := strings.CutPrefix(i, module+"/"); is && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s, which the graph in layers_test.go does not allow", path, own)
			}
			if isPure(path) && !within(i, module) && strings.Contains(strings.Split(i, "/")[0], ".") {
				t.Errorf("%s imports %s: it imports the standard library only", path, i)
			}
			for layer, prefixes := range never {
				if within(path, layer) &&
					slices.ContainsFunc(prefixes, func(prefix string) bool { return within(i, prefix) }) {
					t.Errorf("%s imports %s, which %s must not", path, i, layer)
				}
			}
		}
	}
}

// isPure reports whether a package imports the standard library only, and others that do.
func isPure(path string) bool {
	return within(path, "federation") || path == "identity" || path == "identity/ca"
}

// within reports whether a package is that one or below it.
func within(path, above string) bool { return path == above || strings.HasPrefix(path, above+"/") }

// lists reads lines of "package -> packages".
func lists(text string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(text) {
		from, to, found := strings.Cut(strings.TrimSpace(line), "->")
		if from = strings.TrimSpace(from); found {
			all[from] = append(all[from], strings.Fields(to)...)
		}
	}
	return all
}

// packages returns what each package of the module imports, tests left out.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	out := goCommand(t, "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"/...")
	all := map[string][]string{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		all[strings.TrimPrefix(fields[0], module+"/")] = fields[1:]
	}
	return all
}
