package apitest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

// # Who owns a field
//
// Server-side apply is done by the library of API servers, which keeps the owners of fields in
// metadata.managedFields. What it needs to know is which lists are merged by key, and which are one value:
// for built-in kinds client-go has that, for Links it is their schema (links.go), and all other kinds are deduced, with
// every list as one value. An apply that changes nothing gets no new version, as in an API server.
//
// Owners are recorded of what clients write into the kinds of tracked, and of what anybody writes into an
// object that was applied once: other kinds have too many objects for that. Who applies an object that has
// no owners yet finds all its fields owned by before-first-apply, as in an API server.

// tracked are the group resources whose fields have owners from the first request of a client on.
var tracked = []string{"services", "endpoints", linkResource}

const ownTests = "test" // the manager of what tests write with Server.Apply

var builtIn = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// typeConverter returns what knows the lists of a kind; it needs s.mu.
func (s *Server) typeConverter(resource string, kind schema.GroupVersionKind) managedfields.TypeConverter {
	switch {
	case resource == linkResource:
		r := s.resource(resource)
		if r.converter == nil {
			r.converter = s.linkConverter()
		}
		return r.converter
	case scheme.Scheme.Recognizes(kind):
		return builtIn()
	}
	return managedfields.NewDeducedTypeConverter()
}

// fieldManager returns what merges objects of a kind, and records who owns their fields. A request about the
// status changes nothing else, and one about the object does not change its status. It needs s.mu.
func (s *Server) fieldManager(req request, kind schema.GroupVersionKind) (*managedfields.FieldManager, error) {
	kind.Group, kind.Version = req.group, req.version
	reset := fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	if req.subresource == "status" {
		reset = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata"))
	}
	resetFields := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(kind.GroupVersion().String()): reset}
	return managedfields.NewDefaultCRDFieldManager(
		s.typeConverter(req.groupResource(), kind), versionSetter{}, versionSetter{}, versionSetter{},
		kind, kind.GroupVersion(), req.subresource, fieldpath.NewExcludeFilterSetMap(resetFields))
}

// versionSetter converts between versions, which differ in their names only, sets no defaults, and makes
// empty objects.
type versionSetter struct{ runtime.ObjectConvertor }

func (versionSetter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	version, isVersion := to.(schema.GroupVersion)
	if !ok || !isVersion {
		return nil, fmt.Errorf("convert %T to %v", in, to)
	}
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	out.SetAPIVersion(version.String())
	return out, nil
}

func (versionSetter) Default(runtime.Object) {}

func (versionSetter) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// writtenBy returns the manager of a request: the one that it names, or the program that sent it.
func writtenBy(r *http.Request) string {
	if manager := r.URL.Query().Get("fieldManager"); manager != "" {
		return manager
	}
	program, _, _ := strings.Cut(r.UserAgent(), "/")
	return program
}

// apply creates or merges what a client applies; old is nil if there is no object. It needs s.mu.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, req request, old *unstructured.Unstructured) {
	o, err := s.applied(r, req, old)
	switch {
	case err != nil:
		writeFailure(w, err)
		return
	case old == nil:
		s.put(req.groupResource(), o)
		writeJSON(w, http.StatusCreated, req.render(o))
		return
	case sameButTimes(old, o):
		o = old
	default:
		s.put(req.groupResource(), o)
	}

	writeJSON(w, http.StatusOK, req.render(o))
}

// applied returns an object as it is after a request.
func (s *Server) applied(
	r *http.Request, req request, old *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	patch, err := appliedPatch(r)
	if err != nil {
		return nil, err
	}

	query := r.URL.Query()
	if query.Get("fieldManager") == "" {
		return nil, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	if patch.GetName() != "" && patch.GetName() != req.name {
		return nil, apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}

	live := &unstructured.Unstructured{Object: map[string]any{"kind": patch.GetKind()}}
	live.SetName(req.name)
	live.SetNamespace(req.namespace)
	if old != nil {
		live = old.DeepCopy()
	}

	version, id := patch.GetResourceVersion(), patch.GetUID()
	if version != "" && version != live.GetResourceVersion() || id != "" && id != live.GetUID() {
		kind := schema.GroupResource{Group: req.group, Resource: req.resource}
		return nil, apierrors.NewConflict(kind, req.name, errors.New("the object has been modified"))
	}
	live.SetAPIVersion(schema.GroupVersion{Group: req.group, Version: req.version}.String())
	fields, err := s.fieldManager(req, patch.GroupVersionKind())
	if err != nil {
		return nil, err
	}

	merged, err := fields.Apply(live, patch, query.Get("fieldManager"), query.Get("force") == "true")
	if err != nil {
		return nil, err
	}

	o, isObject := merged.(*unstructured.Unstructured)
	if !isObject {
		return nil, fmt.Errorf("an apply of a %T", merged)
	}
	if old != nil {
		o = onlyPart(req, live, o)
	}

	if req.groupResource() == linkResource && halfConditions(o) {
		kind := schema.GroupKind{Group: req.group, Kind: o.GetKind()}
		return nil, apierrors.NewInvalid(kind, req.name,
			field.ErrorList{field.Required(field.NewPath("status", "conditions"), "")})
	}

	s.keepDeclared(req.groupResource(), o)
	o.SetResourceVersion("")
	if change := s.resource(req.groupResource()).mutate; change != nil {
		change(o)
	}
	return o, nil
}

// halfConditions reports whether an object has a condition without a status, which no schema allows: one
// that several managers own, of whom one has left it out.
func halfConditions(o *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		fields, is := c.(map[string]any)
		return is && fields["status"] == nil
	})
}

func appliedPatch(r *http.Request) (*unstructured.Unstructured, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if body, err = yaml.YAMLToJSON(body); err != nil {
		return nil, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	patch := &unstructured.Unstructured{}
	if err := patch.UnmarshalJSON(body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return patch, nil
}

// onlyPart returns what a request makes of an object: one about the status changes nothing else, and one
// about the object does not change its status.
func onlyPart(req request, live, o *unstructured.Unstructured) *unstructured.Unstructured {
	status, rest := live, o.DeepCopy()
	if req.subresource == "status" {
		status, rest = o, live.DeepCopy()
		rest.SetManagedFields(o.GetManagedFields())
	}
	delete(rest.Object, "status")
	if value, found := status.Object["status"]; found {
		rest.Object["status"] = value
	} else if req.subresource == "status" {
		rest.Object["status"] = map[string]any{} // nothing is left of it
	}
	return rest
}

// sameButTimes reports whether two states of an object are equal but for the times at which fields were
// written.
func sameButTimes(a, b *unstructured.Unstructured) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, o := range []*unstructured.Unstructured{a, b} {
		entries := o.GetManagedFields()
		for i := range entries {
			entries[i].Time = nil
		}
		o.SetManagedFields(entries)
		o.SetResourceVersion("")
		o.SetAPIVersion("")
	}
	return reflect.DeepEqual(a.Object, b.Object)
}

// recordOwner records who owns the fields that differ between two states of an object; old is nil if o is
// new. It needs s.mu.
func (s *Server) recordOwner(req request, old, o *unstructured.Unstructured, manager string) {
	owned := old != nil && len(old.GetManagedFields()) > 0
	if !owned && (manager == ownTests || !slices.Contains(tracked, req.groupResource())) {
		return
	}
	s.keepDeclared(req.groupResource(), o)
	live := &unstructured.Unstructured{Object: map[string]any{"kind": o.GetKind()}}
	if old != nil {
		live = old.DeepCopy()
	}

	version := schema.GroupVersion{Group: req.group, Version: req.version}.String()
	live.SetAPIVersion(version)
	o.SetAPIVersion(version)
	fields, err := s.fieldManager(req, o.GroupVersionKind())
	if err != nil {
		panic(err)
	}
	if updated, is := fields.UpdateNoErrors(live, o.DeepCopy(), manager).(*unstructured.Unstructured); is {
		o.SetManagedFields(updated.GetManagedFields())
	}
}

// writeFailure writes an error as an API server does: one that has no code is an internal one.
func writeFailure(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	writeJSON(w, int(status.Code), status)
}
