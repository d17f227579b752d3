package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/podowner"
	"github.com/fingerpost/fingerpost/inject"
)

// InjectionOptions are what injection needs of the process.
type InjectionOptions struct {
	Injector func() *inject.Injector // in force now; nil: none was read yet
	Age      func() time.Duration    // of the Injector
	Owners   *podowner.Reader

	// Event records one about an object. It must not wait.
	Event func(about *corev1.ObjectReference, reason, note string)
}

// Injection reviews Pods and Services: it adds proxies to Pods, and the annotation of opaque ports to both.
type Injection struct {
	InjectionOptions

	requests, responses   *prometheus.CounterVec
	ignored               *prometheus.CounterVec
	seconds               prometheus.Histogram
	events, droppedEvents prometheus.Counter
	eventRate             *rate.Limiter
	verdicts              *admission.Verdicts
}

// eventsPerSecond bounds Events: a Deployment of a thousand Pods needs none about each.
const eventsPerSecond = 5

// Labels of metrics. Each has as many values as there are Namespaces, kinds of owners and reasons.
const (
	ownerKindLabel = "owner_kind"
	namespaceLabel = "namespace"
	decidedLabel   = "annotation_at"
)

// NewInjection returns a review of Pods and Services, whose Injector and Owners are set later than its metrics exist:
// see [Injection.ForgetNamespace].
func NewInjection() *Injection {
	made := &Injection{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_inject_admission_requests_total",
			Help: "Reviews of Pods and Services, by kind of the owner, namespace, and whose annotation asks for it.",
		}, []string{ownerKindLabel, namespaceLabel, decidedLabel}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_inject_admission_responses_total",
			Help: "The same with whether nothing was added to a Pod, and why it got no proxy.",
		}, []string{ownerKindLabel, namespaceLabel, "skip", "skip_reason", decidedLabel}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_inject_ignored_annotations_total",
			Help: "Annotations whose value could not be honoured, by key.",
		}, []string{"annotation"}),

		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fingerpost_inject_seconds", Help: "Time of a review of a Pod or Service, in seconds.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .1, 1, 10},
		}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_inject_events_total", Help: "Events about owners of Pods that were not left out.",
		}),
		droppedEvents: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_inject_events_dropped_total",
			Help: "Events about owners of Pods that were left out, because there were more than 5 a second.",
		}),
		eventRate: rate.NewLimiter(eventsPerSecond, eventsPerSecond),
	}

	made.verdicts = admission.NewVerdictsByKind(prometheus.CounterOpts{
		Name: "fingerpost_inject_reviews_total",
		Help: "Reviews of Pods and Services by kind, other for what is none, and verdict: allowed, denied (never), " +
			"failed if there was no answer, or unreadable if the request was none.",
	}, []string{podKind, serviceKind, otherKind}, injectedKind)
	return made
}

const (
	podKind     = "Pod"
	serviceKind = "Service"
)

func injectedKind(of metav1.GroupVersionKind) string {
	if of.Group == "" && (of.Kind == podKind || of.Kind == serviceKind) {
		return of.Kind
	}
	return otherKind
}

// ForgetNamespace removes the series of a Namespace that was deleted.
func (i *Injection) ForgetNamespace(namespace string) {
	i.requests.DeletePartialMatch(prometheus.Labels{namespaceLabel: namespace})
	i.responses.DeletePartialMatch(prometheus.Labels{namespaceLabel: namespace})
}

// Collectors returns all metrics but the verdicts, which are those of the Review.
func (i *Injection) Collectors() []prometheus.Collector {
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fingerpost_inject_values_age_seconds",
		Help: "How long ago the files of values and trust anchors were last as they are in force, in seconds: it " +
			"grows while they cannot be used.",
	}, func() float64 { return i.Age().Seconds() })
	return []prometheus.Collector{i.requests, i.responses, i.ignored, i.seconds, i.events, i.droppedEvents, age}
}

// Review returns the review.
func (i *Injection) Review() admission.Review {
	return admission.Review{
		Subject: "Pod or Service", Verdicts: i.verdicts, AnyFormat: true, Decide: i.decide,
		Takes: func(kind metav1.GroupVersionKind) bool { return injectedKind(kind) != otherKind },
	}
}

var errNoValues = errors.New("there are no values and trust anchors to inject: the files could never be used")

// decide allows everything. An error is for what has nothing to do with the object.
func (i *Injection) decide(ctx context.Context, request *admission.Request) (admission.Response, error) {
	began := time.Now()
	kind := injectedKind(request.Kind)
	if kind == otherKind || len(request.Object) == 0 {
		return admission.Response{}, nil
	}

	injector := i.Injector()
	if injector == nil {
		return admission.Response{}, errNoValues
	}
	if err := i.Owners.WaitSynced(ctx); err != nil {
		return admission.Response{}, err
	}
	annotations, err := i.Owners.Annotations(ctx, request.Namespace)
	if err != nil {
		return admission.Response{}, err
	}

	decide := i.pod
	if kind == serviceKind {
		decide = i.service
	}
	response, err := decide(ctx, injector, request, annotations)
	i.seconds.Observe(time.Since(began).Seconds())
	return response, err
}

// read reads an object. An API server sends none that it cannot read itself.
func read(object []byte, to any) error {
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(object, to); err != nil {
		return fmt.Errorf("the object cannot be read: %.300s", err.Error())
	}
	return nil
}

func (i *Injection) service(
	_ context.Context, injector *inject.Injector, r *admission.Request, annotations map[string]string,
) (admission.Response, error) {
	var service corev1.Service
	if err := read(r.Object, &service); err != nil {
		return admission.Response{}, err
	}
	operations := injector.Service(annotations, &service.ObjectMeta, &service.Spec)
	i.requests.WithLabelValues("", r.Namespace, "").Inc()
	i.responses.WithLabelValues("", r.Namespace, "false", "", "").Inc()
	return patched(operations, nil)
}

func patched(operations []inject.Operation, warnings []string) (admission.Response, error) {
	if len(operations) == 0 {
		return admission.Response{Warnings: warnings}, nil
	}
	patch, err := json.Marshal(operations)
	return admission.Response{Patch: patch, Warnings: warnings}, err
}

func (i *Injection) pod(
	ctx context.Context, injector *inject.Injector, request *admission.Request, annotations map[string]string,
) (admission.Response, error) {
	var pod corev1.Pod
	if err := read(request.Object, &pod); err != nil {
		return admission.Response{}, err
	}
	owner := i.Owners.OwnerOf(ctx, request.Namespace, pod.OwnerReferences)
	outcome := injector.Inject(&inject.Workload{
		Namespace: request.Namespace, NamespaceAnnotations: annotations, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
		Owner: inject.Owner{Kind: owner.Kind, Name: owner.Name},
	})

	i.count(request.Namespace, owner.Kind, &outcome)
	i.report(request.Namespace, nameOf(&pod), owner, &outcome)
	return patched(outcome.Patch, outcome.Warnings)
}

// nameOf returns what is known of the name of a Pod: of one that is made for a controller the beginning.
func nameOf(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}

func (i *Injection) count(namespace, ownerKind string, outcome *inject.Outcome) {
	kind := strings.ToLower(ownerKind)
	switch kind {
	case "", "deployment", "replicaset", "replicationcontroller", "statefulset", "daemonset", "job", "cronjob", "node":
	default:
		kind = otherKind // there are as many as who makes Pods likes to name
	}
	var reasons []string
	for _, reason := range outcome.Reasons {
		reasons = append(reasons, string(reason))
	}

	skip := strconv.FormatBool(len(outcome.Patch) == 0)
	i.requests.WithLabelValues(kind, namespace, outcome.DecidedAt).Inc()
	i.responses.WithLabelValues(kind, namespace, skip, strings.Join(reasons, ","), outcome.DecidedAt).Inc()
	for _, key := range outcome.Ignored {
		i.ignored.WithLabelValues(key).Inc()
	}
}

// report records an Event about the owner of a Pod.
func (i *Injection) report(namespace, pod string, owner podowner.Owner, outcome *inject.Outcome) {
	if owner.Kind == "" {
		return
	}
	if !i.eventRate.Allow() {
		i.droppedEvents.Inc()
		return
	}

	i.events.Inc()
	about := &corev1.ObjectReference{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: namespace, Name: owner.Name, UID: owner.UID,
	}
	if outcome.Injected {
		i.Event(about, "Injected", "Pod "+pod+" gets a proxy")
		return
	}

	var words []string
	for _, reason := range outcome.Reasons {
		words = append(words, reason.Words())
	}
	i.Event(about, "InjectionSkipped", "Pod "+pod+" gets no proxy: "+strings.Join(words, "; "))
}
