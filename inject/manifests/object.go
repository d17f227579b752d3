package manifests

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/inject"
)

// A role is what can be done about a kind of object.
type role int

const (
	other    role = iota
	named         // a Namespace
	service       // a Service
	workload      // makes Pods, or is one
)

// kinds are those that something can be done about, by their groups: others have kinds of the same names.
var kinds = map[string]struct {
	role   role
	groups []string
	path   string // of the template
}{
	"Namespace": {named, []string{""}, ""},
	"Service":   {service, []string{""}, ""},

	"Pod":                   {workload, []string{""}, ""},
	"ReplicationController": {workload, []string{""}, templatePath},
	"Deployment":            {workload, []string{"apps", "extensions"}, templatePath},
	"ReplicaSet":            {workload, []string{"apps", "extensions"}, templatePath},
	"DaemonSet":             {workload, []string{"apps", "extensions"}, templatePath},
	"StatefulSet":           {workload, []string{"apps"}, templatePath},
	"Job":                   {workload, []string{"batch"}, templatePath},
	"CronJob":               {workload, []string{"batch"}, "/spec/jobTemplate" + templatePath},
}

const templatePath = "/spec/template"

// An object is what is known of one.
type object struct {
	node     *yaml.Node
	role     role
	kind     string
	meta     metav1.ObjectMeta
	workload inject.Workload
}

// template is that of a Pod.
type template struct {
	Metadata *metav1.ObjectMeta `json:"metadata"`
	Spec     *corev1.PodSpec    `json:"spec"`
}

// read decodes what is used of an object.
func read(node *yaml.Node) (*object, error) {
	of := &object{node: node, kind: textIn(node, "kind")}
	known := kinds[of.kind]
	group, _, hasGroup := strings.Cut(textIn(node, "apiVersion"), "/")
	if !hasGroup {
		group = ""
	}
	if !slices.Contains(known.groups, group) || textIn(node, "apiVersion") == "" {
		return of, nil
	}

	text, err := toJSON(node)
	if err != nil {
		return nil, err
	}

	var whole struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := decode(text, &whole); err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}

	of.role, of.meta = known.role, whole.Metadata
	if of.role != workload {
		return of, nil
	}

	found, err := readTemplate(text, of.kind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	of.workload = inject.Workload{
		Namespace: of.meta.Namespace, Meta: found.Metadata, Spec: found.Spec, Path: known.path, Manifest: true,
	}
	if known.path != "" {
		of.workload.Owner = inject.Owner{Kind: of.kind, Name: of.meta.Name}
	}
	return of, nil
}

// readTemplate decodes the template of a workload; that of a Pod is itself.
func readTemplate(text []byte, kind string) (found template, err error) {
	type templated struct {
		Spec struct {
			Template template `json:"template"`
		} `json:"spec"`
	}

	switch kind {
	case "Pod":
		err = decode(text, &found)
		return found, err
	case "CronJob":
		var object struct {
			Spec struct {
				JobTemplate templated `json:"jobTemplate"`
			} `json:"spec"`
		}
		err = decode(text, &object)
		return object.Spec.JobTemplate.Spec.Template, err
	default:
		var object templated
		err = decode(text, &object)
		return object.Spec.Template, err
	}
}

func decode(text []byte, to any) error {
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(text, to); err != nil {
		return fmt.Errorf("it cannot be read: %.300s", err.Error())
	}
	return nil
}

// textIn returns the text that a key of a map has; empty if it has none.
func textIn(node *yaml.Node, key string) string {
	value, _ := lookup(node, key)
	if value == nil || value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
		return ""
	}
	return value.Value
}

// String returns the object in words.
func (o *object) String() string { return o.report(Unchanged).Object() }

func (o *object) report(result Result, findings ...string) Report {
	name := o.meta.Name
	if name == "" {
		name = o.meta.GenerateName
	}
	if metadata, _ := lookup(o.node, "metadata"); metadata != nil && name == "" {
		name = textIn(metadata, "name")
	}
	return Report{Kind: strings.ToLower(o.kind), Name: name, Result: result, Findings: findings}
}

// A Result is what has become of an object.
type Result string

// Results.
const (
	Injected   Result = "injected"
	Annotated  Result = "annotated"
	Uninjected Result = "uninjected"
	Skipped    Result = "skipped" // it could have been changed
	Unchanged  Result = "unchanged"
)

// A Report is about one object of a Document.
type Report struct {
	Kind, Name string // the kind in lower case; both are as hostile as the document
	Result     Result
	Findings   []string // what its author should know
}

// Object returns which object it is.
func (r Report) Object() string { return fmt.Sprintf("%s %q", r.Kind, r.Name) }

// String returns the object, and what has become of it.
func (r Report) String() string { return r.Object() + " " + string(r.Result) }

// each calls do for each object of a Document, also of Lists in Lists. It does so for all, and returns the errors
// together.
func (d *Document) each(do func(of *object) (Report, bool, error)) (reports []Report, err error) {
	var failed []error
	var visit func(node *yaml.Node)

	visit = func(node *yaml.Node) {
		items, _ := lookup(node, "items")
		if items != nil && items.Kind == yaml.SequenceNode && strings.HasSuffix(textIn(node, "kind"), "List") {
			for _, item := range items.Content {
				visit(item)
			}
			return
		}

		of, err := read(node)
		if err != nil {
			failed = append(failed, err)
			return
		}

		report, changed, err := do(of)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", of, err))
			return
		}
		d.changed = d.changed || changed
		reports = append(reports, report)
	}

	if d.root == nil {
		return nil, nil
	}
	visit(d.top())
	if len(failed) > 0 {
		return nil, joinWords(failed)
	}
	return reports, nil
}
