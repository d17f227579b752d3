package object

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

// An Object is the Go type of a kind, such as *corev1.Service.
type Object interface {
	metav1.Object
	runtime.Object
}

// A Client sends requests about objects of one kind in one namespace, as a typed client does. C is what is applied.
type Client[T Object, C any] interface {
	Create(ctx context.Context, o T, options metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Apply(ctx context.Context, fields C, options metav1.ApplyOptions) (T, error)
	Patch(
		ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions,
		sub ...string,
	) (T, error)
	Deleter
}

// A Deleter deletes objects of one kind in one namespace.
type Deleter interface {
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// A Writer writes objects of one kind. It keeps nothing: any number of goroutines may use it, each for other objects.
// Its contexts end with the term, so that nothing is sent after it.
type Writer[T Object, C any] struct {
	*Owner
	Resource    schema.GroupResource
	In          func(namespace string) Client[T, C]
	Permissions *apply.Permissions
	Wrote       func(resource, verb string, err error) // called for each write, also if a permission is missing
}

// Do sends a write in a namespace that needs the permission for a verb.
func (w *Writer[T, C]) Do(ctx context.Context, namespace, verb string, request func() error) error {
	err := w.Permissions.Do(ctx, w.permission(namespace, verb), request)
	w.Wrote(w.Resource.Resource, verb, err)
	return err
}

func (w *Writer[T, C]) permission(namespace, verb string) apply.Permission {
	return apply.Permission{Resource: w.Resource, Namespace: namespace, Verbs: []string{verb}}
}

// Create creates an object. If there is one already it returns what taken does, which is called with that one: why it
// is none of ours; or that it exists, if taken returns nil because it is ours, and the watch has not delivered it yet.
func (w *Writer[T, C]) Create(ctx context.Context, want T, taken func(found T) error) error {
	in := w.In(want.GetNamespace())
	return w.Do(ctx, want.GetNamespace(), "create", func() error {
		_, err := in.Create(ctx, want, metav1.CreateOptions{FieldManager: w.Manager})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		if err := w.Permissions.Require(ctx, w.permission(want.GetNamespace(), "get")); err != nil {
			return err
		}

		found, getErr := in.Get(ctx, want.GetName(), metav1.GetOptions{})
		if getErr != nil {
			return err
		}
		return cmp.Or(taken(found), err)
	})
}

// Apply applies fields to an object as it was read, which fails with a conflict if it has changed. What others have
// updated in it is ours from then on, unless it is shared with them. One that is gone is no error: the event of its
// deletion is on its way. fields returns what is applied to a version of the object, given its resourceVersion.
func (w *Writer[T, C]) Apply(ctx context.Context, is T, shared bool, fields func(version string) C) error {
	version, err := is.GetResourceVersion(), error(nil)
	if !shared && w.HasUpdaters(is) {
		version, err = w.takeOver(ctx, is)
	}
	if err != nil {
		return IgnoreNotFound(err)
	}

	return w.Do(ctx, is.GetNamespace(), "patch", func() error {
		options := metav1.ApplyOptions{FieldManager: w.Manager, Force: true}
		_, err := w.In(is.GetNamespace()).Apply(ctx, fields(version), options)
		return IgnoreNotFound(err)
	})
}

// takeOver replaces those that wrote an object as we do, otherwise than by apply, as owners of its fields by us. It
// returns the resourceVersion that the object has then.
func (w *Writer[T, C]) takeOver(ctx context.Context, is T) (version string, err error) {
	if err := w.Permissions.Require(ctx, w.permission(is.GetNamespace(), "get")); err != nil {
		return "", err
	}

	in := w.In(is.GetNamespace())
	now, err := in.Get(ctx, is.GetName(), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if now.GetUID() != is.GetUID() || now.GetResourceVersion() != is.GetResourceVersion() {
		return "", apierrors.NewConflict(w.Resource, is.GetName(), errors.New("it has changed"))
	}
	if err := csaupgrade.UpgradeManagedFields(now, w.updaters(now), w.Manager); err != nil {
		return "", err
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": now.GetUID(), "resourceVersion": now.GetResourceVersion(), "managedFields": now.GetManagedFields(),
	}})
	if err != nil {
		return "", err
	}

	err = w.Do(ctx, is.GetNamespace(), "patch", func() error {
		options := metav1.PatchOptions{FieldManager: w.Manager}
		now, err = in.Patch(ctx, is.GetName(), types.MergePatchType, patch, options)
		return err
	})
	if err != nil {
		return "", err
	}
	return now.GetResourceVersion(), nil
}

// Delete deletes an object as it was read, see [Delete].
func (w *Writer[T, C]) Delete(ctx context.Context, is metav1.Object) error {
	return w.Do(ctx, is.GetNamespace(), "delete", func() error { return Delete(ctx, w.In(is.GetNamespace()), is) })
}

// Delete deletes an object as it was read, for a writer without a Writer: it fails with a conflict if the object has
// changed, or is another one of its name. One that is gone is no error.
func Delete(ctx context.Context, in Deleter, is metav1.Object) error {
	uid, version := is.GetUID(), is.GetResourceVersion()
	asRead := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
	return IgnoreNotFound(in.Delete(ctx, is.GetName(), asRead))
}

// IgnoreNotFound treats a deleted object as success: the event of its deletion enqueues its key.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// IsRefusal reports whether it is certain that nothing was written, and that it will not be before something else
// changes. After another error it may have been.
func IsRefusal(err error) bool {
	return apply.IsMissingPermissions(err) ||
		apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err)
}

// IsResponse reports whether an error is a response of an API server: then the next request may succeed.
func IsResponse(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
