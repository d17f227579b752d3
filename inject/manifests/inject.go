package manifests

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/inject"
)

// An Injection is how manifests get proxies.
type Injection struct {
	values   *inject.Values
	injector *inject.Injector
	ask      string            // for InjectAnnotation
	settings map[string]string // annotations that were asked for
	differ   map[string]string // those of them that the Values have otherwise
}

// NewInjection returns an Injection. With an Injector the whole proxy is added; without, the annotation for which
// a webhook adds it. Settings are annotations: an object gets those that differ from the Values, and those that it has.
// An error is an [inject.OverrideError].
func NewInjection(
	values *inject.Values, injector *inject.Injector, ingress bool, settings map[string]string,
) (*Injection, error) {
	differ, err := values.Overrides(settings)
	if err != nil {
		return nil, err
	}
	made := &Injection{values: values, injector: injector, ask: "enabled", settings: settings, differ: differ}
	if ingress {
		made.ask = "ingress"
	}
	return made, nil
}

// Inject changes a Document. Twice is as good as once. After an error, which names each object that cannot be injected,
// the Document is of no use.
func (i *Injection) Inject(in *Document) ([]Report, error) {
	return in.each(func(of *object) (Report, bool, error) {
		switch of.role {
		case named:
			return i.namespace(of)
		case service:
			return i.service(of)
		case workload:
			return i.workload(of)
		default:
			return of.report(Unchanged), false, nil
		}
	})
}

// annotations returns those of settings that an object gets.
func (i *Injection) annotations(has map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, i.differ)
	for key, value := range i.settings {
		if _, is := has[key]; is {
			all[key] = value
		}
	}
	return all
}

const refused = inject.InjectAnnotation + " is disabled"

func (i *Injection) namespace(of *object) (Report, bool, error) {
	if of.meta.Annotations[inject.InjectAnnotation] == "disabled" {
		return of.report(Skipped, refused), false, nil
	}
	all := i.annotations(of.meta.Annotations)
	all[inject.InjectAnnotation] = i.ask
	changed, err := annotate(of, &inject.Workload{Meta: &of.meta}, all)
	return of.report(Annotated), changed, err
}

func (i *Injection) service(of *object) (Report, bool, error) {
	value, is := i.annotations(of.meta.Annotations)[inject.OpaqueAnnotation]
	if !is {
		return of.report(Unchanged), false, nil
	}
	changed, err := annotate(of, &inject.Workload{Meta: &of.meta}, map[string]string{inject.OpaqueAnnotation: value})
	return of.report(Annotated), changed, err
}

// annotate adds annotations that differ from those that are there.
func annotate(of *object, to *inject.Workload, annotations map[string]string) (changed bool, err error) {
	missing := maps.Clone(annotations)
	if to.Meta != nil {
		maps.DeleteFunc(missing, func(key, value string) bool {
			has, is := to.Meta.Annotations[key]
			return is && has == value
		})
	}
	if len(missing) == 0 {
		return false, nil
	}
	return apply(of.node, inject.Annotate(to, missing))
}

func (i *Injection) workload(of *object) (Report, bool, error) {
	was := &of.workload
	switch {
	case was.Spec == nil:
		return of.report(Skipped, inject.UnsupportedResource.Words()), false, nil
	case annotationOf(was.Meta, inject.InjectAnnotation) == "disabled":
		return of.report(Skipped, refused), false, nil
	case inject.IsControlPlane(was, &of.meta) && i.injector == nil:
		return Report{}, false, errors.New("it belongs to the control plane, which is injected with --manual only")
	}

	cleaned, err := apply(of.node, inject.Uninject(was, &of.meta, inject.InjectAnnotation))
	if err != nil {
		return Report{}, false, err
	}
	if of, err = read(of.node); err != nil {
		return Report{}, false, err
	}
	if reasons := i.values.Reasons(&of.workload); len(reasons) > 0 {
		return Report{}, false, words(reasons)
	}

	all := i.annotations(annotationsOf(of.workload.Meta))
	all[inject.InjectAnnotation] = i.ask
	changed, err := annotate(of, &of.workload, all)
	if err != nil || i.injector == nil {
		return of.report(Injected), cleaned || changed, err
	}
	return i.manual(of.node)
}

// manual adds the proxy itself.
func (i *Injection) manual(annotated *yaml.Node) (Report, bool, error) {
	of, err := read(annotated)
	if err != nil {
		return Report{}, false, err
	}
	outcome := i.injector.Inject(&of.workload)
	if !outcome.Injected {
		return Report{}, false, words(outcome.Reasons)
	}
	_, err = apply(of.node, outcome.Patch)
	return of.report(Injected, outcome.Warnings...), true, err
}

func annotationsOf(meta *metav1.ObjectMeta) map[string]string {
	if meta == nil {
		return nil
	}
	return meta.Annotations
}

func annotationOf(meta *metav1.ObjectMeta, key string) string { return annotationsOf(meta)[key] }

// words returns reasons as an error.
func words(reasons []inject.Reason) error {
	var all []string
	for _, reason := range reasons {
		all = append(all, reason.Words())
	}
	return errors.New(strings.Join(all, "; "))
}

// joinWords returns errors in one line.
func joinWords(errs []error) error {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return errors.New(strings.Join(slices.Compact(all), "; "))
}

// Uninject removes from a Document what an Injection adds, but for annotations of settings. After an error the Document
// is of no use.
func Uninject(from *Document) ([]Report, error) {
	return from.each(func(of *object) (Report, bool, error) {
		var operations []inject.Operation
		switch of.role {
		case workload:
			operations = inject.Uninject(&of.workload, &of.meta)
		case named:
			operations = inject.UninjectMeta(&of.meta)
		default:
			return of.report(Unchanged), false, nil
		}

		changed, err := apply(of.node, operations)
		if !changed {
			return of.report(Skipped), false, err
		}
		return of.report(Uninjected), true, err
	})
}
