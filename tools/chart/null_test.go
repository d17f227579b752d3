package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// settings are the values of a chart: their defaults, its schema with every reference resolved, and all paths to a
// value or a heading, parents first.
type settings struct {
	defaults, schema map[string]any
	paths            []string
}

func settingsOf(t *testing.T, dir string) (s settings) {
	t.Helper()
	read(t, filepath.Join(dir, "values.yaml"), &s.defaults)
	read(t, filepath.Join(dir, "values.schema.json"), &s.schema)
	definitions, _ := s.schema["definitions"].(map[string]any)
	s.schema = resolved(s.schema, definitions).(map[string]any)
	s.walk("", s.schema)
	return s
}

// resolved returns a schema with definitions in the place of references to them.
func resolved(schema any, definitions map[string]any) any {
	switch s := schema.(type) {
	case map[string]any:
		if ref, ok := s["$ref"].(string); ok {
			return resolved(definitions[strings.TrimPrefix(ref, "#/definitions/")], definitions)
		}
		all := map[string]any{}
		for key, member := range s {
			if key != "definitions" {
				all[key] = resolved(member, definitions)
			}
		}
		return all
	case []any:
		all := make([]any, len(s))
		for i, member := range s {
			all[i] = resolved(member, definitions)
		}
		return all
	}
	return schema
}

func (s *settings) walk(prefix string, schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		s.paths = append(s.paths, prefix+name)
		s.walk(prefix+name+".", properties[name].(map[string]any))
	}
}

// at returns the schema of a path, and its default, nil if there is none.
func (s *settings) at(path string) (schema map[string]any, byDefault any) {
	schema, byDefault = s.schema, s.defaults
	for name := range strings.SplitSeq(path, ".") {
		schema = schema["properties"].(map[string]any)[name].(map[string]any)
		members, _ := byDefault.(map[string]any)
		byDefault = members[name]
	}
	return schema, byDefault
}

// unsets reports whether null means nothing for a value: for maps of users, lists that may be empty, and what has a
// schema that takes null. Of all others the default counts.
func unsets(schema map[string]any) bool {
	switch kind := schema["type"].(type) {
	case []any:
		return slices.Contains(kind, any("null"))
	case string:
		isList, isMap := kind == "array", kind == "object" && schema["properties"] == nil
		return isMap || isList && schema["minItems"] == nil
	}
	return false
}

// What the templates take for a value that is null is in a file of the chart, as they can read neither values.yaml nor
// the schema.
func TestDefaults(t *testing.T) {
	for _, dir := range []string{server, linked} {
		s := settingsOf(t, dir)
		unset := []string{}
		for _, path := range s.paths {
			schema, byDefault := s.at(path)
			if byDefault != nil && unsets(schema) && !s.isBelowUnset(path) {
				unset = append(unset, path)
			}
		}
		text, err := sigsyaml.Marshal(map[string]any{"values": s.defaults, "unset": unset})
		if err != nil {
			t.Fatal(err)
		}
		const head = "# Generated from values.yaml and its schema by make generate: what counts where a value is null.\n" +
			"# A value of unset is then empty or left out; of the others the default counts.\n"
		golden(t, filepath.Join(dir, "files", "defaults.yaml"), head+string(text))
	}
}

// Null for a value or a heading is rendered like a value that is not given, so that the chart's default counts, or like
// nothing where that can be. A value that is required is refused by its name. What is refused for another reason is
// refused in both cases: null is no way around a check.
func TestNull(t *testing.T) {
	bases := map[string]struct{ dir, set string }{
		"client authority": {server, "{tls: {secretName: own, clientCA: {configMapName: roots}}}"},
		"own account":      {server, "{serviceAccount: {create: false, name: own}}"},
		"Endpoints":        {server, `{mesh: {endpointSlices: false, ipv6: false}, mirror: {mode: "off"}}`},
		"validator":        {server, `{spValidator: {enabled: true, tls: {caBundle: "-----BEGIN CERTIFICATE-----"}}}`},
		"dashboards":       {server, "{dashboards: {enabled: true}}"},
	}
	for name, r := range renders {
		for _, file := range r.values {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r.set = string(text)
		}
		bases[name] = struct{ dir, set string }{r.dir, r.set}
	}
	for name, base := range bases {
		t.Run(name, func(t *testing.T) {
			s := settingsOf(t, base.dir)
			rendered := map[string]rendering{}
			for _, path := range s.paths {
				heading, _, _ := strings.Cut(path, ".")
				if name == "everything" || name == "default" || strings.Contains(base.set, heading+":") {
					likeNull(t, &s, base.dir, base.set, path, rendered)
				}
			}
		})
	}
}

// A rendering is what values are rendered to, or why they are refused.
type rendering struct {
	text string
	err  error
}

// made is a certificate or a key that the chart has made, another one each time.
var made = regexp.MustCompile(`(tls\.crt|tls\.key|caBundle): \S{200,}`)

// likeNull compares what is rendered, or refused, for null with what is for the absence of a value, or for nothing.
func likeNull(t *testing.T, s *settings, dir, set, path string, rendered map[string]rendering) {
	t.Helper()
	render := func(change func(members map[string]any, name string)) (string, error) {
		values := map[string]any{}
		if err := yaml.Unmarshal([]byte(set), &values); err != nil {
			t.Fatal(err)
		}
		members, name := values, path
		for {
			heading, rest, nested := strings.Cut(name, ".")
			if !nested {
				break
			}
			next, _ := members[heading].(map[string]any)
			if next == nil {
				next = map[string]any{}
				members[heading] = next
			}
			members, name = next, rest
		}
		change(members, name)
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		have, found := rendered[string(text)]
		if !found {
			r := release{name: "fingerpost", namespace: "fingerpost", set: string(text), hooks: true}
			manifests, notes, err := r.render(dir)
			have = rendering{made.ReplaceAllString(manifests+notes, "$1: made"), err}
			rendered[string(text)] = have
		}
		return have.text, have.err
	}
	have, err := render(func(members map[string]any, name string) { members[name] = nil })
	if err != nil && strings.Contains(err.Error(), "executing ") {
		t.Errorf("%s: null is refused by the stack of a template: %v", path, err)
	}
	if heading, name := filepath.Split(strings.ReplaceAll(path, ".", "/")); s.requires(path) {
		want := fmt.Sprintf("at '/%s': missing property '%s'", strings.TrimSuffix(heading, "/"), name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: null: %v, want %s", path, err, want)
		}
		return
	}
	want, wantErr := render(func(members map[string]any, name string) {
		delete(members, name)
		switch schema, byDefault := s.at(path); nothing := byDefault.(type) {
		case []any:
			if unsets(schema) {
				members[name] = []any{}
			}
		case map[string]any:
			if unsets(schema) { // helm merges an empty map with the default
				all := map[string]any{}
				for member := range nothing {
					all[member] = nil
				}
				members[name] = all
			}
		}
	})
	if s.isPart(path) {
		isOn := !strings.HasPrefix(path, "spValidator.") && !strings.HasPrefix(path, "controlPlane.")
		if err != nil || wantErr != nil || isOn && have == want {
			t.Errorf("%s: null does not unset it: %v %v", path, err, wantErr)
		}
		return
	}
	if (err == nil) != (wantErr == nil) {
		t.Errorf("%s: null: %v; without: %v", path, err, wantErr)
	} else if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s: null is rendered in another way (-without +null):\n%s", path, diff)
	}
}

// requires reports whether there must be a value, and null is none.
func (s *settings) requires(path string) bool {
	schema := s.schema
	for {
		heading, rest, nested := strings.Cut(path, ".")
		if !nested {
			required, _ := schema["required"].([]any)
			return slices.Contains(required, any(path))
		}
		schema, path = schema["properties"].(map[string]any)[heading].(map[string]any), rest
	}
}

// isPart reports whether a value is a number that null unsets, or has a default as a part of a value that null unsets.
func (s *settings) isPart(path string) bool {
	schema, byDefault := s.at(path)
	if byDefault == nil {
		return false
	}
	_, isList := byDefault.([]any)
	_, isMap := byDefault.(map[string]any)
	return unsets(schema) && !isList && !isMap || s.isBelowUnset(path)
}

func (s *settings) isBelowUnset(path string) bool {
	return slices.ContainsFunc(s.paths, func(whole string) bool {
		schema, _ := s.at(whole)
		return strings.HasPrefix(path, whole+".") && unsets(schema)
	})
}
