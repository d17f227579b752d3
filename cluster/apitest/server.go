package apitest

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// A Server is one cluster's API server. All its methods may be called from any goroutine.
type Server struct {
	cluster     string
	certificate tls.Certificate
	authority   []byte
	path        *Path // by its own address
	http        *http.Server

	mu               sync.Mutex
	version          int
	tokens           map[string]bool
	lacking          map[string]string                             // group resource that a token must not ask for
	accounts         map[string]authenticationv1.TokenReviewStatus // tokens of other audiences
	resources        map[string]*resource
	events           []event
	restored         int             // how often an older state was restored
	withoutStreams   bool            // lists are not streamed
	requiresLetters  bool            // names of Services begin with one
	mirrorsEndpoints bool            // in EndpointSlices
	multiplexes      bool            // connections that are opened from here on use HTTP/2
	skew             time.Duration   // how far its clock is ahead
	expired          int             // the oldest version from which a watch may begin
	deleted          map[string]bool // namespaces that were deleted: nothing can be created in them
	audit            func(client, verb, resource string)
	listRemainders   map[string]listRemainder // what is left of lists that were read by pages, by continue token
	changed          chan struct{}            // closed by the next event
}

// A resource is what a server has of one group resource, and how it answers requests about it.
type resource struct {
	versions    []string                              // that are served, the newest first
	objects     map[string]*unstructured.Unstructured // by namespace/name
	requests    map[string]int                        // so far, by verb
	openWatches int
	follow      follower                         // nil: nothing
	mutate      func(*unstructured.Unstructured) // what a webhook does to what is written; nil: nothing
	undeclared  []string                         // fields of its status that its schema does not have
	converter   managedfields.TypeConverter      // of such a schema; nil: not made yet
	terminating bool                             // its CRD is being deleted
	expired     int                              // the oldest version from which a watch of it may begin

	forbidden     map[string]bool   // by verb; "" for all
	rejected      map[string]string // why; by verb and namespace, or none for all
	failing       failure
	answers       map[string]http.HandlerFunc // what answers instead of the server, by verb; "" for all
	delay         time.Duration               // before each response
	silentWatches bool
}

// resource returns what there is of a group resource; it needs mu. "readyz" and "version" count as such, and "" is what
// holds for all of them.
func (s *Server) resource(name string) *resource {
	r := s.resources[name]
	if r == nil {
		r = &resource{
			objects: map[string]*unstructured.Unstructured{}, requests: map[string]int{},
			forbidden: map[string]bool{}, rejected: map[string]string{},
		}
		s.resources[name] = r
	}
	return r
}

// withResource calls a function with a group resource, and with mu held.
func (s *Server) withResource(name string, do func(*resource)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.resource(name))
}

// listRemainder is the part of a list that follows a page.
type listRemainder struct {
	version int
	items   []any
}

// event is one change of an object, in the order in which they happened.
type event struct {
	kind      string
	version   int
	eventType string
	object    *unstructured.Unstructured
	old       *unstructured.Unstructured // what object was before; nil if it was created
}

// Kinds served from the start, by group resource.
var served = map[string][]string{
	"configmaps": {"v1"}, "endpoints": {"v1"}, "events": {"v1"}, "namespaces": {"v1"}, "nodes": {"v1"},
	"pods": {"v1"}, "secrets": {"v1"}, "services": {"v1"},
	"endpointslices.discovery.k8s.io":               {"v1"},
	"events.events.k8s.io":                          {"v1"},
	"externalworkloads.workload.linkerd.io":         {"v1beta1"},
	"jobs.batch":                                    {"v1"},
	"leases.coordination.k8s.io":                    {"v1"},
	"links.multicluster.linkerd.io":                 {"v1alpha3", "v1alpha2", "v1alpha1"},
	"replicasets.apps":                              {"v1"},
	"selfsubjectaccessreviews.authorization.k8s.io": {"v1"},
	"servers.policy.linkerd.io":                     {"v1beta3"},
	"serviceprofiles.linkerd.io":                    {"v1alpha2"},
	"tokenreviews.authentication.k8s.io":            {"v1"},

	"authorizationpolicies.policy.linkerd.io":      {"v1alpha1"},
	"egressnetworks.policy.linkerd.io":             {"v1alpha1"},
	"httplocalratelimitpolicies.policy.linkerd.io": {"v1alpha1"},
	"httproutes.policy.linkerd.io":                 {"v1beta3"},
	"meshtlsauthentications.policy.linkerd.io":     {"v1alpha1"},
	"networkauthentications.policy.linkerd.io":     {"v1alpha1"},
	"serverauthorizations.policy.linkerd.io":       {"v1beta1"},
	"grpcroutes.gateway.networking.k8s.io":         {"v1"},
	"httproutes.gateway.networking.k8s.io":         {"v1"},
	"tcproutes.gateway.networking.k8s.io":          {"v1alpha2"},
	"tlsroutes.gateway.networking.k8s.io":          {"v1alpha2"},
}

func newServer(cluster, host string) *Server {
	s := &Server{
		cluster: cluster, version: 1,
		tokens: map[string]bool{}, lacking: map[string]string{},
		accounts:  map[string]authenticationv1.TokenReviewStatus{},
		resources: map[string]*resource{}, deleted: map[string]bool{},
		listRemainders: map[string]listRemainder{}, changed: make(chan struct{}),
	}

	for name, versions := range served {
		s.resource(name).versions = versions
	}
	s.certificate, s.authority = selfSigned(host)
	s.path = newPath(s, host+port)
	s.http = &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}
	return s
}

// Token returns a new token that the server takes.
func (s *Server) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := fmt.Sprintf("%s-%d", s.cluster, len(s.tokens)+1)
	s.tokens[token] = true
	return token
}

// TokenUntil returns a new token that the server takes, and that expires by its own account. It has the time at which
// it was issued, as those of real API servers have.
func (s *Server) TokenUntil(end time.Time) string {
	claims := base64.RawURLEncoding.EncodeToString(
		fmt.Appendf(nil, `{"iat":%d,"exp":%d}`, time.Now().Unix(), end.Unix()))
	token := "e30." + claims + ".c2ln"
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = true
	return token
}

// TokenWithout returns a new token that the server takes, and that lacks every right on one group resource.
func (s *Server) TokenWithout(resource string) string {
	token := s.Token()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacking[token] = resource
	return token
}

// AccountToken returns a new token (a JWT) of a ServiceAccount that is bound to a Pod and has an audience. The server
// takes it in reviews only.
func (s *Server) AccountToken(namespace, account, pod, audience string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	user := "system:serviceaccount:" + namespace + ":" + account
	claims := fmt.Sprintf(`{"sub":%q,"jti":"%s-%d"}`, user, s.cluster, len(s.accounts)+1)
	token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln" // of a JWT: {}, claims, sig

	s.accounts[token] = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{audience},
		User: authenticationv1.UserInfo{
			Username: user,
			Extra:    map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {pod}},
		},
	}
	return token
}

// Revoke makes the server refuse a token.
func (s *Server) Revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = false
}

// Forbid answers 403 to all requests about a group resource, such as "pods" or "jobs.batch", or stops doing
// so. Watches that are open end.
func (s *Server) Forbid(name string, forbidden bool) {
	s.withResource(name, func(r *resource) {
		r.forbidden[""] = forbidden
		s.broadcast()
	})
}

// Deny answers 403 to requests of one verb about a group resource, such as "create" and "services", or
// stops doing so. Access reviews report it, too.
func (s *Server) Deny(verb, name string, denied bool) {
	s.withResource(name, func(r *resource) { r.forbidden[verb] = denied })
}

// Reject answers 403 to requests of one verb about a group resource, in one namespace or, if that is empty, in
// all, and why as the message; or stops doing so if that is empty. It is a quota, a policy or a webhook: access reviews
// do not report it.
func (s *Server) Reject(verb, name, namespace, why string) {
	s.withResource(name, func(r *resource) { r.rejected[verb+" "+namespace] = why })
}

// failure is an error that the server answers, and after how many seconds it asks the client to come back;
// 0 for nothing.
type failure struct{ code, retryAfter int }

func (f failure) answer(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	http.Error(w, "the server is overloaded", f.code)
}

// Skew puts the clock of the API server ahead of the real one, as the dates of its responses show.
func (s *Server) Skew(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = d
}

// Fail answers all requests about a group resource, or about "readyz" or "version", with an error code, such as 503,
// and a Retry-After in seconds unless that is 0. Code 0 ends it. Watches that are open end.
func (s *Server) Fail(name string, code, retryAfter int) {
	s.withResource(name, func(r *resource) {
		r.failing = failure{code, retryAfter}
		s.broadcast()
	})
}

// Serve makes the server know a group resource in these versions, the newest first; with none it does not exist. Where
// these are others than before it forgets the events about it, as API servers do when a definition changes.
func (s *Server) Serve(name string, versions ...string) {
	s.withResource(name, func(r *resource) {
		if !slices.Equal(r.versions, versions) {
			s.version++
			r.expired = s.version
		}
		r.versions, r.terminating = versions, false
		s.broadcast()
	})
}

// Stream makes the server stream lists, as it does from the start, or refuse to, as API servers before 1.32
// do.
func (s *Server) Stream(can bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withoutStreams = !can
}

// RequireLetters makes the server refuse Services whose name does not begin with a letter, as those before 1.36 do, or
// accept them again.
func (s *Server) RequireLetters(required bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requiresLetters = required
}

// Answer has a handler answer all requests about a group resource, or the server again if it is nil.
func (s *Server) Answer(name string, handler http.HandlerFunc) { s.AnswerVerb("", name, handler) }

// AnswerVerb does it for requests of one verb, such as "create"; all if that is "". Watches that are open end.
func (s *Server) AnswerVerb(verb, name string, handler http.HandlerFunc) {
	s.withResource(name, func(r *resource) {
		r.answers = maps.Clone(r.answers)
		if r.answers == nil {
			r.answers = map[string]http.HandlerFunc{}
		}
		r.answers[verb] = handler
		s.broadcast()
	})
}

// Compact makes the server forget old versions: lists that are being read by pages cannot be read on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.listRemainders)
}

// SilenceWatches makes watches of a group resource silent, without even a bookmark, or ends that. What happens
// meanwhile is never sent.
func (s *Server) SilenceWatches(name string, silent bool) {
	s.withResource(name, func(r *resource) { r.silentWatches = silent })
}

// Backup returns a function that puts the server back into the state in which it is now, as an etcd that is
// restored from a snapshot. Watches end; one from a version that is not reached yet is accepted and silent. As much as
// a cluster writes in hours comes after the snapshot, so that versions are not reached again soon.
func (s *Server) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	version, expired, events := s.version, s.expired, len(s.events)
	objects := map[string]map[string]*unstructured.Unstructured{}
	for name, r := range s.resources {
		objects[name] = maps.Clone(r.objects)
	}

	s.version += 1_000_000
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.version, s.events, s.expired = version, slices.Clone(s.events[:events]), expired
		for name, r := range s.resources {
			clear(r.objects)
			maps.Copy(r.objects, objects[name])
		}
		s.restored++
		s.broadcast()
	}
}

// Expire makes the server forget all events, as etcd does when it is compacted: watches end, and one from an older
// version ends with 410.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.expired = s.version
	s.broadcast()
}

// Multiplex has connections that are opened from here on use HTTP/2. With HTTP/1 a client closes the connection of a
// request that it cancels, and what waits in it is lost.
func (s *Server) Multiplex() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.multiplexes = true
}

// Delay makes each response to a request about a group resource, or to any request if that is "", begin that much
// later.
func (s *Server) Delay(name string, d time.Duration) {
	s.withResource(name, func(r *resource) { r.delay = d })
}

// Audit has a function called for each request, with the name of the client and the verb and group resource that it
// asks for, before the request is carried out.
func (s *Server) Audit(do func(client, verb, resource string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audit = do
}

// follower is called with an object that was created or changed, or as it was when it was deleted.
type follower = func(o *unstructured.Unstructured, deleted bool)

// Follow has a function called with each object of a group resource that is created, changed or deleted from here on,
// in their sequence. It must not call the server, and not change the object.
func (s *Server) Follow(name string, do follower) {
	s.withResource(name, func(r *resource) { r.follow = do })
}

// Undeclare gives Links a schema that has all fields of their status but these, such as
// mirrorServices.conditions.localRef. Without conditions it is Linkerd's. Without "status" they have none.
func (s *Server) Undeclare(missing ...string) {
	s.withResource(linkResource, func(r *resource) {
		r.undeclared, r.converter = missing, nil
		for name, o := range r.objects { // what is not declared is not read either
			r.objects[name] = o.DeepCopy()
			s.keepDeclared(linkResource, r.objects[name])
		}
	})
}

// Mutate does something to each object of a group resource that a client writes, as a webhook would.
func (s *Server) Mutate(name string, change func(*unstructured.Unstructured)) {
	s.withResource(name, func(r *resource) { r.mutate = change })
}

// Requests returns how many requests of a verb, such as "list" or "watch", were made about a group
// resource.
func (s *Server) Requests(verb, name string) (n int) {
	s.withResource(name, func(r *resource) { n = r.requests[verb] })
	return n
}

// Watches returns how many watches are open, by group resource.
func (s *Server) Watches() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := map[string]int{}
	for name, r := range s.resources {
		if r.openWatches > 0 {
			open[name] = r.openWatches
		}
	}
	return open
}

// Apply creates objects, or replaces them.
func (s *Server) Apply(objects ...*unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		o, resource, kind := o.DeepCopy(), resourceOf(o), o.GroupVersionKind()
		req := request{group: kind.Group, version: kind.Version, resource: strings.TrimSuffix(resource, "."+kind.Group)}
		s.recordOwner(req, s.resource(resource).objects[nameOf(o)], o, ownTests)
		s.put(resource, o)
	}
}

// ApplyYAML applies objects that tests write as YAML, one a text.
func (s *Server) ApplyYAML(texts ...string) {
	for _, text := range texts {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			panic("BUG: an object of a test: " + err.Error())
		}
		s.Apply(&o)
	}
}

const namespaces = "namespaces" // the resource

// Delete deletes an object by its kind, and reports whether there was one. What is in a Namespace goes before it, and
// nothing can be created in it afterwards, as on a cluster.
func (s *Server) Delete(kind, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource, o := s.find(kind, namespace, name)
	if o == nil {
		return false
	}
	if resource == namespaces {
		s.deleteContent(name)
		s.deleted[name] = true
	}
	s.deleteObject(resource, nameOf(o))
	return true
}

// deleteContent deletes all objects in a namespace, in the order of their names. It needs mu.
func (s *Server) deleteContent(namespace string) {
	for _, resource := range slices.Sorted(maps.Keys(s.resources)) {
		for _, object := range slices.Sorted(maps.Keys(s.resources[resource].objects)) {
			if strings.HasPrefix(object, namespace+"/") {
				s.deleteObject(resource, object)
			}
		}
	}
}

// find returns an object by its kind, and its group resource; nil for none. A kind that several groups have is written
// with its group, such as HTTPRoute.policy.linkerd.io. It needs mu.
func (s *Server) find(kind, namespace, name string) (resource string, found *unstructured.Unstructured) {
	kind, group, grouped := strings.Cut(kind, ".")
	for candidate, r := range s.resources {
		o := r.objects[namespace+"/"+name]
		if o == nil || !strings.EqualFold(o.GetKind(), kind) || grouped && o.GroupVersionKind().Group != group {
			continue
		}
		if found != nil {
			panic(fmt.Sprintf("BUG: %s %s/%s is %s and %s", kind, namespace, name, resource, candidate))
		}
		resource, found = candidate, o
	}
	return resource, found
}

func nameOf(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() }

// SendDeleted sends the event that an object was deleted, which stays, as a watch does that went wrong.
func (s *Server) SendDeleted(kind, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if resource, o := s.find(kind, namespace, name); o != nil {
		s.recordEvent(resource, "DELETED", o.DeepCopy(), o)
	}
}

// DeleteKind deletes all objects of a group resource, as API servers do before they forget a CRD that was
// deleted; Serve without versions is the next step.
func (s *Server) DeleteKind(name string) {
	s.withResource(name, func(r *resource) {
		r.terminating = true
		for _, object := range slices.Sorted(maps.Keys(r.objects)) {
			s.deleteObject(name, object)
		}
	})
}

// Get returns a copy of an object, or nil.
func (s *Server) Get(resource, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resource(resource).objects[namespace+"/"+name].DeepCopy()
}

// Find returns a copy of an object by its kind, or nil.
func (s *Server) Find(kind, namespace, name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, o := s.find(kind, namespace, name)
	return o.DeepCopy()
}

// List returns all objects of a group resource, as they are held: they must not be changed.
func (s *Server) List(resource string) (all []*unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := s.resource(resource).objects
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, objects[name])
	}
	return all
}

func resourceOf(o *unstructured.Unstructured) string {
	plural := strings.TrimSuffix(strings.ToLower(o.GetKind()), "s") + "s" // Endpoints are many already
	if policy, is := strings.CutSuffix(plural, "ys"); is {
		plural = policy + "ies"
	}
	if group := o.GroupVersionKind().Group; group != "" {
		return plural + "." + group
	}
	return plural
}

// put, deleteObject, recordEvent and broadcast need s.mu.
func (s *Server) put(resource string, o *unstructured.Unstructured) {
	r := s.resource(resource)

	what, old := "MODIFIED", r.objects[nameOf(o)]
	if old == nil {
		what = "ADDED"
		s.version++
		o.SetUID(types.UID(fmt.Sprintf("%s-%d", s.cluster, s.version)))
		if created := o.GetCreationTimestamp(); created.IsZero() {
			o.SetCreationTimestamp(metav1.Now())
		}
	} else {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
		if status, found := old.Object["status"]; found && o.Object["status"] == nil {
			o.Object["status"] = status
		}
	}

	if data, found, _ := unstructured.NestedStringMap(o.Object, "stringData"); found {
		all, _, _ := unstructured.NestedMap(o.Object, "data")
		if all == nil {
			all = map[string]any{}
		}
		for k, v := range data {
			all[k] = base64.StdEncoding.EncodeToString([]byte(v))
		}
		o.Object["data"] = all
		delete(o.Object, "stringData")
	}

	s.keepDeclared(resource, o)
	if resource == namespaces {
		delete(s.deleted, o.GetName())
	}
	o.SetGeneration(generationAfter(old, o))
	s.recordEvent(resource, what, o, old)
	r.objects[nameOf(o)] = o
	s.mirrorEndpoints(resource, o, false)
}

// generationAfter returns the generation of an object that takes the place of another one, if there is one: it counts
// the changes of all but the status and metadata other than labels, as that of an EndpointSlice does.
func generationAfter(old, o *unstructured.Unstructured) int64 {
	if old == nil {
		return 1
	}

	counted := func(o *unstructured.Unstructured) map[string]any {
		parts := maps.Clone(o.Object)
		delete(parts, "status")
		parts["metadata"] = o.GetLabels()
		return parts
	}
	if reflect.DeepEqual(counted(old), counted(o)) {
		return old.GetGeneration()
	}
	return old.GetGeneration() + 1
}

func (s *Server) deleteObject(resource, name string) {
	objects := s.resource(resource).objects
	old := objects[name]
	delete(objects, name)
	s.recordEvent(resource, "DELETED", old.DeepCopy(), old)
	s.mirrorEndpoints(resource, old, true)
}

func (s *Server) recordEvent(resource, what string, o, old *unstructured.Unstructured) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.events = append(s.events, event{resource, s.version, what, o, old})
	if follow := s.resource(resource).follow; follow != nil {
		follow(o, what == "DELETED")
	}
	s.broadcast()
}

func (s *Server) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// request is what a URL asks for.
type request struct {
	verb                         string
	group, version, resource     string // resource in the plural, without group
	namespace, name, subresource string
	metadataOnly                 bool
	labels                       labels.Selector
	fields                       fields.Selector
	options                      metav1.ListOptions
}

// groupResource returns the group resource.
func (r request) groupResource() string {
	if r.group != "" {
		return r.resource + "." + r.group
	}
	return r.resource
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := parse(r)
	s.mu.Lock()
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	known, lacks := s.tokens[token], s.lacking[token]
	own, delay := s.resource("readyz").failing, s.resource("").delay
	if r.URL.Path == "/version" {
		own = s.resource("version").failing
	}
	if err == nil {
		delay = max(delay, s.resource(req.groupResource()).delay)
	}

	w.Header().Set("Date", time.Now().Add(s.skew).UTC().Format(http.TimeFormat))
	s.mu.Unlock()

	if !waitBefore(r, delay) {
		return
	}

	switch path := r.URL.Path; {
	case !known:
		writeError(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case (path == "/readyz" || path == "/version") && own.code != 0:
		own.answer(w)
	case path == "/readyz":
		fmt.Fprint(w, "ok")
	case path == "/version":
		writeJSON(w, http.StatusOK, map[string]string{"gitVersion": "v1.36.0"})
	case path == "/api" || path == "/apis":
		s.discoverGroups(w, path)
	case err != nil:
		writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case req.resource == "":
		s.discover(w, req)
	default:
		s.serveResource(w, r, req, lacks)
	}
}

// waitBefore has the response to a request begin later, and returns false if the client is gone by then.
func waitBefore(r *http.Request, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}
	body, _ := io.ReadAll(r.Body) // until it was read net/http does not notice that the client is gone
	r.Body = io.NopCloser(bytes.NewReader(body))
	timer := time.NewTimer(delay)
	defer timer.Stop()

	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// serveResource answers a request about a group resource, with the errors that tests ask for first. lacks is what the
// token must not ask for.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, req request, lacks string) {
	s.mu.Lock()
	audit := s.audit
	s.resource(req.groupResource()).requests[req.verb]++
	s.mu.Unlock()

	if audit != nil {
		audit(r.RemoteAddr, req.verb, req.groupResource())
	}

	s.mu.Lock()
	of := *s.resource(req.groupResource())
	instead := of.answers[req.verb]
	if instead == nil {
		instead = of.answers[""]
	}

	forbidden := of.forbidden[""] || of.forbidden[req.verb] || lacks == req.groupResource()
	rejected := cmp.Or(of.rejected[req.verb+" "], of.rejected[req.verb+" "+req.namespace])
	serves := slices.Contains(of.versions, req.version)
	unstreamed := s.withoutStreams && req.options.SendInitialEvents != nil
	s.mu.Unlock()

	switch {
	case rejected != "":
		writeError(w, http.StatusForbidden, metav1.StatusReasonForbidden, rejected)
	case instead != nil:
		instead(w, r)
	case of.failing.code != 0:
		of.failing.answer(w)
	case forbidden:
		writeError(w, http.StatusForbidden, metav1.StatusReasonForbidden, req.groupResource()+" is forbidden")
	case !serves:
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			"the server could not find the requested resource")
	case unstreamed:
		writeError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	case req.verb == "watch":
		s.withResource(req.groupResource(), func(r *resource) { r.openWatches++ })
		defer s.withResource(req.groupResource(), func(r *resource) { r.openWatches-- })
		s.watch(w, r, req)
	case req.resource == "selfsubjectaccessreviews":
		s.review(w, r, lacks)
	case req.resource == "tokenreviews":
		s.reviewToken(w, r)
	default:
		s.serveObject(w, r, req)
	}
}

// bodyOf returns what a request holds as JSON.
func bodyOf(r *http.Request) (body json.RawMessage, err error) {
	if r.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		err = json.NewDecoder(r.Body).Decode(&body)
		return body, err
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}

	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(scheme.Codecs.LegacyCodec(object.GetObjectKind().GroupVersionKind().GroupVersion()), object)
}

// review answers whether the caller, who lacks the rights on one group resource, may do something.
func (s *Server) review(w http.ResponseWriter, r *http.Request, lacks string) {
	var review authorizationv1.SelfSubjectAccessReview
	body, err := bodyOf(r)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Spec.ResourceAttributes == nil {
		writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "only reviews of resources are understood")
		return
	}

	asked := review.Spec.ResourceAttributes
	kind := request{resource: asked.Resource, group: asked.Group}.groupResource()
	s.mu.Lock()
	forbidden := s.resource(kind).forbidden
	review.Status.Allowed = !forbidden[""] && !forbidden[asked.Verb] && kind != lacks
	s.mu.Unlock()
	writeJSON(w, http.StatusCreated, review)
}

// reviewToken answers whose a token is.
func (s *Server) reviewToken(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	body, err := bodyOf(r)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}

	if err != nil {
		writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	status, known := s.accounts[review.Spec.Token]
	s.mu.Unlock()

	if !known || !slices.Equal(status.Audiences, review.Spec.Audiences) {
		status = authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}
	}
	review.Spec.Token, review.Status = "", status
	writeJSON(w, http.StatusCreated, review)
}

func parse(r *http.Request) (request, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var req request
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		req.version, parts = parts[1], parts[2:]
	case len(parts) >= 3 && parts[0] == "apis":
		req.group, req.version, parts = parts[1], parts[2], parts[3:]
	case len(parts) == 2 && parts[0] == "apis":
		req.group, parts = parts[1], nil
	default:
		return req, fmt.Errorf("unknown path %s", r.URL.Path)
	}

	if len(parts) > 2 && parts[0] == "namespaces" {
		req.namespace, parts = parts[1], parts[2:]
	}

	for i, field := range []*string{&req.resource, &req.name, &req.subresource} {
		if i < len(parts) {
			*field = parts[i]
		}
	}

	q := r.URL.Query()
	req.metadataOnly = strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	var err error
	if req.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return req, err
	}
	if req.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return req, err
	}

	req.options.ResourceVersion = q.Get("resourceVersion")
	req.options.Limit, _ = strconv.ParseInt(q.Get("limit"), 10, 64)
	req.options.Continue = q.Get("continue")
	if q.Get("sendInitialEvents") == "true" {
		req.options.SendInitialEvents = new(true)
	}
	if n, err := strconv.ParseInt(q.Get("timeoutSeconds"), 10, 64); err == nil {
		req.options.TimeoutSeconds = &n
	}

	switch r.Method {
	case http.MethodPost:
		req.verb = "create"
	case http.MethodPut:
		req.verb = "update"
	case http.MethodPatch:
		req.verb = "patch"
	case http.MethodDelete:
		req.verb = "delete"
	default:
		switch {
		case q.Get("watch") == "true" || q.Get("watch") == "1":
			req.verb = "watch"
		case req.name == "":
			req.verb = "list"
		default:
			req.verb = "get"
		}
	}
	return req, nil
}

// discover answers which versions of a group exist, or which resources a version has.
func (s *Server) discover(w http.ResponseWriter, req request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	var versions []metav1.GroupVersionForDiscovery
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: schema.GroupVersion{Group: req.group, Version: req.version}.String(),
	}

	for kind, r := range s.resources {
		resource, group, _ := strings.Cut(kind, ".")
		if group != req.group {
			continue
		}

		for _, v := range r.versions {
			versions = append(versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v})
			if v == req.version {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: resource, Namespaced: !slices.Contains(clusterScoped, kind),
					Kind: kindOf(group, v, resource), Verbs: r.verbs(),
				})
				if kind == linkResource && !slices.Contains(r.undeclared, "status") {
					verbs := metav1.Verbs{"get", "patch", "update"}
					list.APIResources = append(list.APIResources,
						metav1.APIResource{Name: resource + "/status", Namespaced: true, Kind: resource, Verbs: verbs})
				}
			}
		}
	}

	switch {
	case len(versions) == 0 || req.version != "" && len(list.APIResources) == 0:
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			"the server could not find the requested resource")
	case req.version == "":
		writeJSON(w, http.StatusOK, metav1.APIGroup{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
			Name:     req.group, Versions: versions, PreferredVersion: versions[0],
		})
	default:
		writeJSON(w, http.StatusOK, list)
	}
}

// clusterScoped are the group resources without namespaces.
var clusterScoped = []string{
	"namespaces", "nodes", "selfsubjectaccessreviews.authorization.k8s.io", "tokenreviews.authentication.k8s.io",
}

// kindOf returns the kind of a resource; its own name for one that Kubernetes itself does not have.
func kindOf(group, version, resource string) string {
	of := schema.GroupVersion{Group: group, Version: version}
	for kind := range scheme.Scheme.KnownTypes(of) {
		if plural, _ := meta.UnsafeGuessKindToResource(of.WithKind(kind)); plural.Resource == resource {
			return kind
		}
	}
	return resource
}

// discoverGroups answers which groups exist, without aggregation.
func (s *Server) discoverGroups(w http.ResponseWriter, path string) {
	if path == "/api" {
		writeJSON(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"},
		})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	versions := map[string][]metav1.GroupVersionForDiscovery{}
	for _, kind := range slices.Sorted(maps.Keys(s.resources)) {
		_, group, _ := strings.Cut(kind, ".")
		for _, v := range s.resources[kind].versions {
			version := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v}
			if group != "" && !slices.Contains(versions[group], version) {
				versions[group] = append(versions[group], version)
			}
		}
	}

	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, group := range slices.Sorted(maps.Keys(versions)) {
		all := versions[group]
		list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: all, PreferredVersion: all[0]})
	}
	writeJSON(w, http.StatusOK, list)
}

// verbs returns those that it is served with: one that is being deleted can be read and deleted.
func (r *resource) verbs() metav1.Verbs {
	verbs := metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	if !r.terminating {
		verbs = append(verbs, "create", "patch", "update")
	}
	return verbs
}

// matches reports whether an object is among those asked for.
func (r request) matches(o *unstructured.Unstructured) bool {
	kind, _, _ := unstructured.NestedString(o.Object, "type")
	return (r.namespace == "" || o.GetNamespace() == r.namespace) && (r.name == "" || o.GetName() == r.name) &&
		r.labels.Matches(labels.Set(o.GetLabels())) &&
		r.fields.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "type": kind})
}

// eventFor returns what a watch is sent of an event, as API servers do it: an object that a selector begins to
// match is added, one that it does not match any more is deleted; no object if it never did.
func (r request) eventFor(e event) (what string, o *unstructured.Unstructured) {
	is, was := r.matches(e.object), e.old != nil && r.matches(e.old)
	switch {
	case is && was, is && e.eventType != "MODIFIED":
		return e.eventType, e.object
	case is:
		return "ADDED", e.object
	case was:
		o = e.old.DeepCopy()
		o.SetResourceVersion(e.object.GetResourceVersion())
		return "DELETED", o
	default:
		return "", nil
	}
}

// render returns an object in the version and form asked for.
func (r request) render(o *unstructured.Unstructured) map[string]any {
	out := maps.Clone(o.Object)
	if r.metadataOnly {
		return map[string]any{
			"apiVersion": "meta.k8s.io/v1",
			"kind":       "PartialObjectMetadata",
			"metadata":   out["metadata"],
		}
	}
	out["apiVersion"] = r.apiVersion()
	return out
}

func (r request) apiVersion() string { return strings.TrimPrefix(r.group+"/"+r.version, "/") }

func (s *Server) serveObject(w http.ResponseWriter, r *http.Request, req request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	objects := s.resource(req.groupResource()).objects
	name := req.namespace + "/" + req.name
	applies := req.verb == "patch" && r.Header.Get("Content-Type") == string(types.ApplyPatchType)
	if s.lacksStatus(req) || req.name != "" && objects[name] == nil && (!applies || req.subresource != "") {
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("%s %q not found", req.groupResource(), req.name))
		return
	}

	if s.deleted[req.namespace] && objects[name] == nil && (applies || req.verb == "create") {
		writeError(w, http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("%s %q not found", namespaces, req.namespace))
		return
	}

	switch req.verb {
	case "get":
		writeJSON(w, http.StatusOK, req.render(objects[name]))
	case "delete":
		if !asRead(r, objects[name]) {
			writeError(w, http.StatusConflict, metav1.StatusReasonConflict, "the preconditions do not hold")
			return
		}
		s.deleteObject(req.groupResource(), name)
		writeJSON(w, http.StatusOK, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusSuccess,
		})
	case "list":
		s.list(w, req)
	default:
		if applies {
			s.apply(w, r, req, objects[name])
			return
		}
		s.write(w, r, req, objects[name])
	}
}

// asRead reports whether an object is the one that a deletion names, and has the version that it names.
func asRead(r *http.Request, o *unstructured.Unstructured) bool {
	var options metav1.DeleteOptions
	body, err := bodyOf(r)
	if err == nil {
		err = json.Unmarshal(body, &options)
	}
	p := options.Preconditions
	if err != nil || p == nil {
		return true
	}
	isOther := p.UID != nil && *p.UID != o.GetUID()
	return !isOther && (p.ResourceVersion == nil || *p.ResourceVersion == o.GetResourceVersion())
}

// list answers a list, or the page of it that is asked for; it needs s.mu.
func (s *Server) list(w http.ResponseWriter, req request) {
	now := listRemainder{version: s.version, items: []any{}}
	if req.options.Continue != "" {
		var known bool
		if now, known = s.listRemainders[req.options.Continue]; !known {
			writeError(w, http.StatusGone, metav1.StatusReasonExpired, "the provided continue parameter is too old")
			return
		}
	} else {
		objects := s.matching(req)
		slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
			return strings.Compare(nameOf(a), nameOf(b))
		})
		for _, o := range objects {
			now.items = append(now.items, req.render(o))
		}
	}

	kind, apiVersion := "List", req.apiVersion()
	if len(now.items) > 0 {
		kind = now.items[0].(map[string]any)["kind"].(string) + "List"
	} else if k, known := listKinds[req.resource]; known {
		kind = k
	}

	if req.metadataOnly {
		kind, apiVersion = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(now.version)}
	if n := int(req.options.Limit); n > 0 && n < len(now.items) {
		token := fmt.Sprintf("%s-%d-%d", req.groupResource(), now.version, len(now.items)-n)
		s.listRemainders[token] = listRemainder{now.version, now.items[n:]}
		metadata["continue"], now.items = token, now.items[:n]
	}

	writeJSON(w, http.StatusOK, map[string]any{
		"kind":       kind,
		"apiVersion": apiVersion,
		"items":      now.items,
		"metadata":   metadata,
	})
}

// matching returns the objects that are asked for, in no order; it needs s.mu.
func (s *Server) matching(req request) (all []*unstructured.Unstructured) {
	for _, o := range s.resource(req.groupResource()).objects {
		if req.matches(o) {
			all = append(all, o)
		}
	}
	return all
}

var listKinds = map[string]string{
	"authorizationpolicies": "AuthorizationPolicyList", "configmaps": "ConfigMapList",
	"egressnetworks": "EgressNetworkList", "endpoints": "EndpointsList", "endpointslices": "EndpointSliceList",
	"externalworkloads": "ExternalWorkloadList", "grpcroutes": "GRPCRouteList",
	"httplocalratelimitpolicies": "HTTPLocalRateLimitPolicyList", "httproutes": "HTTPRouteList", "jobs": "JobList",
	"leases": "LeaseList", "links": "LinkList", "meshtlsauthentications": "MeshTLSAuthenticationList",
	"namespaces": "NamespaceList", "networkauthentications": "NetworkAuthenticationList", "nodes": "NodeList",
	"pods": "PodList", "replicasets": "ReplicaSetList", "secrets": "SecretList",
	"serverauthorizations": "ServerAuthorizationList", "servers": "ServerList",
	"serviceprofiles": "ServiceProfileList", "services": "ServiceList", "tcproutes": "TCPRouteList",
	"tlsroutes": "TLSRouteList",
}

// write creates, updates or patches; it needs s.mu.
func (s *Server) write(w http.ResponseWriter, r *http.Request, req request, old *unstructured.Unstructured) {
	body, err := bodyOf(r)
	if err != nil {
		writeError(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
			"only JSON, and protobuf of built-in kinds, are understood: "+err.Error())
		return
	}

	if req.verb == "patch" {
		before, err := old.MarshalJSON()
		if err == nil {
			body, err = jsonpatch.MergePatch(before, body)
		}
		if err != nil {
			writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return
		}
	}

	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(body); err != nil {
		writeError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}

	if o.GetName() == "" {
		o.SetName(o.GetGenerateName() + strconv.Itoa(s.version))
	}
	if req.namespace != "" {
		o.SetNamespace(req.namespace)
	}

	if objects := s.resource(req.groupResource()).objects; req.verb == "create" && objects[nameOf(o)] != nil {
		writeError(w, http.StatusConflict, metav1.StatusReasonAlreadyExists,
			fmt.Sprintf("%s %q already exists", req.groupResource(), o.GetName()))
		return
	}

	problems := validation.IsDNS1035Label(o.GetName())
	if s.requiresLetters && req.groupResource() == "services" && len(problems) > 0 {
		writeError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, fmt.Sprintf(
			"Service %[1]q is invalid: metadata.name: Invalid value: %[1]q: %[2]s", o.GetName(), problems[0]))
		return
	}

	if (req.verb == "update" || req.verb == "patch") && o.GetResourceVersion() != "" &&
		o.GetResourceVersion() != old.GetResourceVersion() {
		writeError(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
		return
	}

	if req.subresource == "status" {
		changed := old.DeepCopy()
		changed.Object["status"] = o.Object["status"]
		o = changed
	}

	s.recordOwner(req, old, o, writtenBy(r))
	if change := s.resource(req.groupResource()).mutate; change != nil {
		change(o) // an API server records owners before webhooks
	}
	s.put(req.groupResource(), o)
	writeJSON(w, http.StatusOK, req.render(o))
}

const bookmarkInterval = time.Minute

// expiredOf returns the oldest version from which a watch may begin. It needs s.mu.
func (s *Server) expiredOf(r request) int {
	return max(s.expired, s.resource(r.groupResource()).expired)
}

// watch streams events: those after the version asked for, or everything first.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, req request) {
	out := watchStream{w, req}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()

	timeout := time.Hour
	if req.options.TimeoutSeconds != nil {
		timeout = time.Duration(*req.options.TimeoutSeconds) * time.Second
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	ticks := time.NewTicker(bookmarkInterval)
	defer ticks.Stop()

	from, _ := strconv.Atoi(req.options.ResourceVersion)
	s.mu.Lock()
	restored, expired := s.restored, s.expiredOf(req)

	if req.options.SendInitialEvents != nil {
		initial := s.matching(req)
		from = s.version
		s.mu.Unlock()
		out.sendInitial(initial, from)
		s.mu.Lock()
	} else if from > 0 && from < expired {
		s.mu.Unlock()
		out.send("ERROR", metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
		})
		return
	}

	next := len(s.events)
	for next > 0 && s.events[next-1].version > from {
		next--
	}

	for {
		// s.mu is held here.
		if s.restored != restored || s.expiredOf(req) != expired {
			s.mu.Unlock()
			return
		}
		pending := s.events[next:]
		next = len(s.events)
		of := s.resource(req.groupResource())
		silent, changed, version := of.silentWatches, s.changed, s.version
		gone := !slices.Contains(of.versions, req.version) || of.failing.code != 0 || of.forbidden[""] ||
			of.answers["watch"] != nil
		s.mu.Unlock()

		if !silent && !out.sendEvents(pending, from) || gone {
			return
		}

		select {
		case <-changed:
		case <-ticks.C:
			if version >= from && !silent {
				out.sendBookmark(version, nil)
			}
		case <-deadline.C:
			return
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
	}
}

// watchStream is the response to a watch.
type watchStream struct {
	to http.ResponseWriter
	request
}

// send returns false if the client is gone.
func (w watchStream) send(what string, object any) bool {
	line, err := json.Marshal(map[string]any{"type": what, "object": object})
	if err != nil {
		panic(err)
	}
	_, err = w.to.Write(append(line, '\n'))
	w.to.(http.Flusher).Flush()
	return err == nil
}

// sendInitial sends everything there is at a version.
func (w watchStream) sendInitial(objects []*unstructured.Unstructured, version int) {
	for _, o := range objects {
		w.send("ADDED", w.render(o))
	}
	w.sendBookmark(version, map[string]any{metav1.InitialEventsAnnotationKey: "true"})
}

// sendEvents sends those after a version that concern what is asked for.
func (w watchStream) sendEvents(all []event, from int) bool {
	for _, e := range all {
		if e.kind != w.groupResource() || e.version <= from {
			continue
		}
		if what, o := w.eventFor(e); o != nil && !w.send(what, w.render(o)) {
			return false
		}
	}
	return true
}

func (w watchStream) sendBookmark(version int, annotations map[string]any) {
	kind, apiVersion := strings.TrimSuffix(listKinds[w.resource], "List"), w.apiVersion()
	if w.metadataOnly {
		kind, apiVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
	}
	m := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if annotations != nil {
		m["annotations"] = annotations
	}
	w.send("BOOKMARK", map[string]any{"kind": kind, "apiVersion": apiVersion, "metadata": m})
}

func writeError(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}

func writeJSON(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(object); err != nil {
		return // the client has gone
	}
}
