package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// answering returns a connection to an API server that answers by answer.
func answering(tb testing.TB, answer func(*http.Request) *http.Response) *api.Connection {
	tb.Helper()
	config := &rest.Config{Host: "https://east.test"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) { return answer(r), nil })
	})
	conn, err := api.NewConnection(config, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	return conn
}

func answer(r *http.Request, code int, contentType string, body io.Reader) *http.Response {
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {contentType}},
		Body:       io.NopCloser(body),
		Request:    r,
	}
}

// noStream answers a watch as an API server that does not stream lists; nil for what is no watch.
func noStream(r *http.Request) *http.Response {
	q := r.URL.Query()
	switch {
	case !q.Has("watch"):
		return nil
	case q.Has("sendInitialEvents"):
		return answer(r, http.StatusUnprocessableEntity, "application/json",
			strings.NewReader(`{"kind":"Status","apiVersion":"v1","reason":"Invalid","code":422}`))
	default:
		quiet, end := io.Pipe()
		context.AfterFunc(r.Context(), func() { end.Close() })
		return answer(r, http.StatusOK, "application/vnd.kubernetes.protobuf;stream=watch", quiet)
	}
}

// protobuf encodes what has that form as an API server does.
func protobuf(tb testing.TB, apiVersion, kind string, object interface{ Marshal() ([]byte, error) }) []byte {
	tb.Helper()
	raw, err := object.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	all, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}).Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return append([]byte("k8s\x00"), all...)
}

// fill fills the store of one kind, and returns a function that ends that once the kind is synced.
func fill(tb testing.TB, conn *api.Connection, k view.Input) (finish func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		api.NewWatcher(conn, k.Kind, k.Store).Run(ctx)
	}()
	return func() {
		<-k.Store.Synced()
		cancel()
		<-done
	}
}

// Every kind that has a form in protobuf is asked for in that, by lists and watches, and read from it.
func TestProtobufOnTheWire(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	lists := map[string][]byte{
		"services": protobuf(t, "v1", "ServiceList",
			&corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: meta("a")}}}),
		"pods": protobuf(t, "v1", "PodList", &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: meta("a")}}}),
		"endpointslices": protobuf(t, "discovery.k8s.io/v1", "EndpointSliceList",
			&discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns",
				Name:      "a",
				Labels:    map[string]string{discoveryv1.LabelServiceName: "a"},
			}}}}),
		//nolint:staticcheck // who reads Endpoints was asked to
		"endpoints": protobuf(t, "v1", "EndpointsList",
			&corev1.EndpointsList{Items: []corev1.Endpoints{{
				ObjectMeta: meta("a"),
				Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}}}},
			}}}),
	}
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "a", Controller: new(true)}
	metadata := protobuf(t, "meta.k8s.io/v1", "PartialObjectMetadataList",
		&metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{
			{ObjectMeta: metav1.ObjectMeta{
				Namespace:       "ns",
				Name:            "a",
				OwnerReferences: []metav1.OwnerReference{owner},
			}},
		}})
	for _, endpoints := range []bool{false, true} {
		for _, k := range view.NewReconciler(logr.Discard(), "east",
			view.Options{Local: true, Endpoints: endpoints}).Inputs() {
			body, typed := lists[k.Resource.Resource]
			reduced := slices.Contains([]string{"replicasets", "jobs", "nodes"}, k.Resource.Resource)
			switch {
			case reduced:
				body = metadata
			case !typed:
				continue // custom resources are JSON everywhere
			}
			t.Run(k.Resource.Resource, func(t *testing.T) {
				asked := map[string]string{}
				conn := answering(t, func(r *http.Request) *http.Response {
					verb := "list"
					if r.URL.Query().Has("watch") {
						verb = "watch"
					}
					asked[verb] = r.Header.Get("Accept")
					if watch := noStream(r); watch != nil {
						return watch
					}
					return answer(r, http.StatusOK, runtime.ContentTypeProtobuf, bytes.NewReader(body))
				})
				fill(t, conn, k)()
				if k.Len() != 1 {
					t.Errorf("%d objects were read from protobuf, want 1", k.Len())
				}
				for _, verb := range []string{"watch", "list"} {
					first, _, _ := strings.Cut(asked[verb], ",")
					if mediaType, as, err := mime.ParseMediaType(first); err != nil ||
						mediaType != runtime.ContentTypeProtobuf || reduced != (as["as"] != "") {
						t.Errorf("the first that a %s accepts is %q", verb, first)
					}
				}
			})
		}
	}
}

// BenchmarkPages is the list of 10,000 Pods by pages, from the first request until all are stored.
func BenchmarkPages(b *testing.B) {
	const pods, pageSize = 10_000, 500
	page := func(from int) []byte {
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		for i := from; i < min(from+pageSize, pods); i++ {
			list.Items = append(list.Items, benchPod(i))
		}
		if from+pageSize < pods {
			list.Continue = strconv.Itoa(from + pageSize)
		}
		return protobuf(b, "v1", "PodList", list)
	}
	pages := map[string][]byte{}
	var sent int
	for from := 0; from < pods; from += pageSize {
		body := page(from)
		sent += len(body)
		if pages[strconv.Itoa(from)] = body; from == 0 {
			pages[""] = body
		}
	}
	conn := answering(b, func(r *http.Request) *http.Response {
		if watch := noStream(r); watch != nil {
			return watch
		}
		return answer(r, http.StatusOK, runtime.ContentTypeProtobuf,
			bytes.NewReader(pages[r.URL.Query().Get("continue")]))
	})
	b.ReportAllocs()
	b.SetBytes(int64(sent))
	for b.Loop() {
		for _, k := range view.NewReconciler(logr.Discard(), federation.Cluster("east"), view.Options{}).Inputs() {
			if k.Name == "Pod" {
				fill(b, conn, k)()
				if k.Len() != pods {
					b.Fatalf("%d Pods, want %d", k.Len(), pods)
				}
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*pods), "ns/Pod")
}

// benchPod is a meshed Pod of one of 100 ReplicaSets, of about 2.5 KB.
func benchPod(i int) corev1.Pod {
	app := fmt.Sprintf("app-%d", i%100)
	container := corev1.Container{
		Name:  "app",
		Image: "registry.test/" + app + ":v1.2.3",
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
	}
	proxy := corev1.Container{Name: "linkerd-proxy", Image: "registry.test/proxy:v2"}
	for j := range 30 {
		proxy.Env = append(proxy.Env, corev1.EnvVar{
			Name:  fmt.Sprintf("LINKERD2_PROXY_SETTING_%d", j),
			Value: "some-value-of-usual-length",
		})
	}
	proxy.Env = append(proxy.Env, corev1.EnvVar{Name: "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", Value: "0.0.0.0:4143"})
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("%s-5d8f6c-%05d", app, i), ResourceVersion: "1",
			Labels: map[string]string{
				"app":                         app,
				"linkerd.io/control-plane-ns": "linkerd",
				"pod-template-hash":           "5d8f6c",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1",
				Kind:       "ReplicaSet",
				Name:       app + "-5d8f6c",
				Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:           fmt.Sprintf("node-%d", i%200),
			ServiceAccountName: app,
			Containers:         []corev1.Container{container, proxy},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}
