package fakeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// Token is the token that each cluster takes and that may read everything.
const Token = "reader"

// history is how many events at least a cluster remembers. A watch from before them is answered with 410, as by
// kube-apiserver, and lists anew.
const history = 1000

// bookmarkInterval is that of kube-apiserver.
const bookmarkInterval = time.Minute

// A Series is n objects of one kind that never change, made when they are asked for.
type Series struct {
	N  int
	At func(i int) Object
}

// A Cluster is one API server. Its methods may be called from any goroutine.
type Cluster struct {
	Name string

	server *Server

	mu      sync.Mutex
	version int
	series  map[string][]Series
	objects map[string]map[string]Object // by resource and namespace/name; never written to
	events  []event
	gone    int             // the version of the last event that is not remembered any more
	changed chan struct{}   // closed by the next event
	epoch   context.Context // ends with the next HangUp
	end     context.CancelFunc
	fault   Fault
	tokens  map[string]bool // whether a token may read
	used    map[string]int  // requests by token
	reviews int             // of tokens
	issued  map[string]authenticationv1.TokenReviewStatus
}

type event struct {
	resource, what string
	version        int
	object         Object
}

func newCluster(s *Server, name string) *Cluster {
	c := &Cluster{
		Name: name, server: s, version: 1000, series: map[string][]Series{}, objects: map[string]map[string]Object{},
		changed: make(chan struct{}), tokens: map[string]bool{Token: true}, used: map[string]int{},
		issued: map[string]authenticationv1.TokenReviewStatus{},
	}
	c.epoch, c.end = context.WithCancel(s.ctx)
	return c
}

// A Request is what a client asks for.
type Request struct {
	*http.Request
	Verb                         string // list, watch, get, create, patch; probe for /readyz
	Namespace, Name, Subresource string
	Resource                     string
	Protobuf                     bool // what the client would take

	form  form
	epoch context.Context // ends when the cluster hangs up
}

// A Fault answers a request in the cluster's place, or returns false.
type Fault func(w http.ResponseWriter, r *Request) bool

// Misbehave makes the cluster answer by f whatever f answers, from the next request on; nil ends it. What is
// open is hung up on.
func (c *Cluster) Misbehave(f Fault) {
	c.mu.Lock()
	c.fault = f
	c.mu.Unlock()
	c.HangUp()
}

// HangUp ends every request that is under way.
func (c *Cluster) HangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	c.epoch, c.end = context.WithCancel(c.server.ctx)
}

// Grant makes the cluster take a token, which may read everything or nothing.
func (c *Cluster) Grant(token string, read bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[token] = read
}

// Issue makes the cluster know a token of a ServiceAccount's Pod for an audience, when it reviews tokens.
func (c *Cluster) Issue(token, namespace, account, pod, audience string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issued[token] = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{audience},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:" + namespace + ":" + account,
			Extra:    map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {pod}},
		},
	}
}

// Reviews returns how many tokens were reviewed.
func (c *Cluster) Reviews() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reviews
}

// Revoke makes the cluster refuse a token from the next request on.
func (c *Cluster) Revoke(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, token)
	delete(c.used, token)
}

// Used returns how many requests came with a token.
func (c *Cluster) Used(token string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used[token]
}

// Serve adds objects that are made when they are asked for. It is called before there are clients.
func (c *Cluster) Serve(resource string, s Series) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.series[resource] = append(c.series[resource], s)
}

// Apply creates objects, or replaces them. They belong to the cluster from then on.
func (c *Cluster) Apply(objects ...Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		c.apply(o)
	}
}

// apply needs c.mu.
func (c *Cluster) apply(o Object) {
	resource, name := resourceOf(o), o.GetNamespace()+"/"+o.GetName()
	what := "MODIFIED"
	if old := c.objects[resource][name]; old != nil {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	} else {
		what = "ADDED"
		o.SetUID(types.UID(fmt.Sprintf("%s-%d", c.Name, c.version)))
		o.SetCreationTimestamp(metav1.Now())
	}
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
	if c.objects[resource] == nil {
		c.objects[resource] = map[string]Object{}
	}
	c.objects[resource][name] = o
	c.publish(event{resource, what, c.version, o})
}

// Delete deletes an object that was applied.
func (c *Cluster) Delete(o Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resource, name := resourceOf(o), o.GetNamespace()+"/"+o.GetName()
	if c.objects[resource][name] == nil {
		return
	}
	last := c.objects[resource][name].DeepCopyObject().(Object)
	c.version++
	last.SetResourceVersion(strconv.Itoa(c.version))
	delete(c.objects[resource], name)
	c.publish(event{resource, "DELETED", c.version, last})
}

// publish needs c.mu.
func (c *Cluster) publish(e event) {
	c.events = append(c.events, e)
	if len(c.events) >= 2*history {
		c.gone = c.events[history-1].version
		c.events = slices.Clone(c.events[history:])
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// A Snapshot is what a cluster held at one time.
type Snapshot struct {
	version int
	objects map[string]map[string]Object
}

// Snapshot returns what the cluster holds, as a backup of etcd does.
func (c *Cluster) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Snapshot{c.version, map[string]map[string]Object{}}
	for resource, objects := range c.objects {
		s.objects[resource] = maps.Clone(objects)
	}
	return s
}

// Restore makes the cluster what it was, its version included, and hangs up on all clients, as an API server
// does whose etcd was restored. A watch from a later version is taken, and is silent until that version comes
// again.
func (c *Cluster) Restore(s Snapshot) {
	c.mu.Lock()
	c.version, c.objects, c.events, c.gone = s.version, s.objects, nil, 0
	c.mu.Unlock()
	c.HangUp()
}

// Get returns an object that was applied; nil if there is none.
func (c *Cluster) Get(resource, namespace, name string) Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects[resource][namespace+"/"+name]
}

// all returns the objects of a resource by their number, and the version that they are of. It needs c.mu.
func (c *Cluster) all(resource string) Series {
	parts := slices.Clone(c.series[resource])
	stored := c.objects[resource]
	names := slices.Sorted(maps.Keys(stored))
	applied := make([]Object, 0, len(names))
	for _, name := range names {
		applied = append(applied, stored[name])
	}
	parts = append(parts, Series{len(applied), func(i int) Object { return applied[i] }})
	var n int
	for _, p := range parts {
		n += p.N
	}
	return Series{n, func(i int) Object {
		for _, p := range parts {
			if i < p.N {
				return p.At(i)
			}
			i -= p.N
		}
		panic("fakeapi: there are fewer objects")
	}}
}

// parse returns what is asked for below the cluster's own path.
func parse(r *http.Request, path string) (*Request, bool) {
	req := &Request{Request: r, Protobuf: strings.Contains(r.Header.Get("Accept"), "protobuf")}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var version string
	switch {
	case len(parts) == 1 && strings.HasSuffix(path, "z"):
		req.Verb = "probe"
		return req, true
	case len(parts) > 2 && parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		version, parts = parts[1]+"/"+parts[2], parts[3:]
	default:
		return nil, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		req.Namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&req.Resource, &req.Name, &req.Subresource} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost:
		req.Verb = "create"
	case r.Method != http.MethodGet:
		req.Verb = strings.ToLower(r.Method)
	case q.Get("watch") == "true" || q.Get("watch") == "1":
		req.Verb = "watch"
	case req.Name == "":
		req.Verb = "list"
	default:
		req.Verb = "get"
	}
	if k, known := kinds[req.Resource]; known && k.version.String() == version {
		req.form = formOf(k, r.Header.Get("Accept"))
	}
	return req, true
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request, path string) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	c.mu.Lock()
	fault, epoch := c.fault, c.epoch
	read, known := c.tokens[token]
	if known {
		c.used[token]++
	}
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(epoch, cancel)()
	r = r.WithContext(ctx)
	c.answer(epoch, w, r, path, fault, known, read)
	if epoch.Err() != nil {
		panic(http.ErrAbortHandler) // the client must not take this for the whole answer
	}
}

func (c *Cluster) answer(epoch context.Context, w http.ResponseWriter, r *http.Request, path string, fault Fault,
	known, read bool,
) {
	req, ok := parse(r, path)
	if ok {
		req.epoch = epoch
	}
	switch {
	case !ok:
		Fail(w, r, http.StatusNotFound, metav1.StatusReasonNotFound)
	case !known:
		Fail(w, r, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case fault != nil && fault(w, req):
	case req.Verb == "probe":
		_, _ = io.WriteString(w, "ok")
	case req.Resource == "selfsubjectaccessreviews":
		c.review(w, req, read)
	case req.Resource == "tokenreviews":
		c.reviewToken(w, req)
	case !read:
		Fail(w, r, http.StatusForbidden, metav1.StatusReasonForbidden)
	case req.Resource == "events" && req.Verb == "create":
		reply(w, http.StatusCreated, map[string]any{
			"apiVersion": "v1",
			"kind":       "Event",
			"metadata":   map[string]any{"name": "e"},
		})
	case req.form.empty == nil:
		Fail(w, r, http.StatusNotFound, metav1.StatusReasonNotFound)
	case req.Verb == "list":
		c.list(w, req)
	case req.Verb == "watch":
		c.watch(w, req)
	case req.Verb == "get":
		if o := c.Get(req.Resource, req.Namespace, req.Name); o != nil {
			write(w, http.StatusOK, req.form.contentType(), req.form.whole(o))
		} else {
			Fail(w, r, http.StatusNotFound, metav1.StatusReasonNotFound)
		}
	default: // no client writes here
		Fail(w, r, http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

// Fail answers with a Status.
func Fail(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason) {
	protobuf := strings.Contains(r.Header.Get("Accept"), "protobuf")
	contentType := "application/json"
	if protobuf {
		contentType = "application/vnd.kubernetes.protobuf"
	}
	write(w, code, contentType, Status(protobuf,
		metav1.Status{Code: int32(code), Reason: reason, Message: "the fake API server answers " + string(reason)}))
}

func write(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

func reply(w http.ResponseWriter, code int, object any) {
	write(w, code, "application/json", must(json.Marshal(object)))
}

// reviewToken answers whose a token is.
func (c *Cluster) reviewToken(w http.ResponseWriter, r *Request) {
	var review authenticationv1.TokenReview
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &review)
	}
	if err != nil {
		Fail(w, r.Request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.mu.Lock()
	c.reviews++
	status, known := c.issued[review.Spec.Token]
	c.mu.Unlock()
	if !known || !slices.Equal(status.Audiences, review.Spec.Audiences) {
		status = authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}
	}
	review.Spec.Token, review.Status = "", status
	review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
	reply(w, http.StatusCreated, review)
}

// review answers whether the caller may do something: read, or not.
func (c *Cluster) review(w http.ResponseWriter, r *Request, read bool) {
	var review authorizationv1.SelfSubjectAccessReview
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &review)
	}
	if err != nil {
		Fail(w, r.Request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if a := review.Spec.ResourceAttributes; a != nil {
		review.Status.Allowed = read && slices.Contains([]string{"get", "list", "watch"}, a.Verb)
	}
	review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
	reply(w, http.StatusCreated, review)
}

// tooLarge answers requests for a version that has not come yet, as kube-apiserver does.
func tooLarge(w http.ResponseWriter, r *Request) {
	body := Status(r.Protobuf, metav1.Status{
		Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "Too large resource version",
		Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{
				Type:    metav1.CauseTypeResourceVersionTooLarge,
				Message: "Too large resource version",
			}},
			RetryAfterSeconds: 1,
		},
	})
	contentType := "application/json"
	if r.Protobuf {
		contentType = "application/vnd.kubernetes.protobuf"
	}
	write(w, http.StatusGatewayTimeout, contentType, body)
}

// selected reports whether an object is among those asked for. Field selectors are not looked at: what is
// read by them is checked again by who reads it.
func (r *Request) selected(o Object, by labels.Selector) bool {
	return (r.Namespace == "" || o.GetNamespace() == r.Namespace) && by.Matches(labels.Set(o.GetLabels()))
}

// list answers a page of a list. As in kube-apiserver before 1.34, a limit counts only if the list need not
// come from the cache.
func (c *Cluster) list(w http.ResponseWriter, r *Request) {
	q := r.URL.Query()
	by, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		Fail(w, r.Request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.mu.Lock()
	all, version := c.all(r.Resource), c.version
	c.mu.Unlock()
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	asked, _ := strconv.Atoi(q.Get("resourceVersion"))
	if asked > version {
		tooLarge(w, r)
		return
	}
	to := all.N
	if limit > 0 && q.Get("resourceVersion") == "" {
		to = min(all.N, from+limit)
	}
	m := metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}
	if to < all.N {
		m.Continue = strconv.Itoa(to)
	}
	items := make([][]byte, 0, max(0, to-from))
	for i := from; i < to; i++ {
		if o := all.At(i); r.selected(o, by) {
			items = append(items, r.form.raw(o))
		}
	}
	write(w, http.StatusOK, r.form.contentType(), r.form.list(m, items))
}

// watch answers what is there, if that is asked for, and then what happens.
func (c *Cluster) watch(w http.ResponseWriter, r *Request) {
	q := r.URL.Query()
	by, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		Fail(w, r.Request, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	initial := q.Get("sendInitialEvents") == "true"
	c.mu.Lock()
	all, version, gone := c.all(r.Resource), c.version, c.gone
	c.mu.Unlock()
	if initial && from > version {
		tooLarge(w, r)
		return
	}
	if from == 0 { // whatever is remembered
		from = gone
	}
	if !initial && from < gone {
		Fail(w, r.Request, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	stream := startStream(w, r)
	bookmark := func(version int, annotations map[string]string) {
		o := r.form.empty()
		o.SetResourceVersion(strconv.Itoa(version))
		o.SetAnnotations(annotations)
		stream.send("BOOKMARK", o)
	}
	if initial {
		for i := range all.N {
			if o := all.At(i); r.selected(o, by) {
				stream.send("ADDED", o)
			}
		}
		from = version
		bookmark(from, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	stream.flush()
	ticks := time.NewTicker(bookmarkInterval)
	defer ticks.Stop()
	for {
		c.mu.Lock()
		if r.epoch.Err() != nil || from < c.gone { // hung up on, whatever has happened since, or too slow
			c.mu.Unlock()
			return
		}
		first := len(c.events)
		for first > 0 && c.events[first-1].version > from {
			first--
		}
		pending, changed, version := c.events[first:], c.changed, c.version
		c.mu.Unlock()
		for _, e := range pending {
			if e.resource == r.Resource && r.selected(e.object, by) {
				stream.send(e.what, e.object)
			}
			from = e.version
		}
		stream.flush()
		select {
		case <-changed:
		case <-ticks.C:
			if version >= from {
				bookmark(version, nil)
				stream.flush()
			}
		case <-r.Context().Done():
			return
		}
	}
}

// stream is the answer to a watch.
type stream struct {
	w       http.ResponseWriter
	form    form
	pending []byte
}

func startStream(w http.ResponseWriter, r *Request) *stream {
	contentType := r.form.contentType()
	if r.form.protobuf {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	return &stream{w: w, form: r.form}
}

func (s *stream) send(what string, o Object) {
	s.pending = append(s.pending, s.form.event(what, o)...)
	if len(s.pending) > 1<<18 {
		s.flush()
	}
}

func (s *stream) flush() {
	_, _ = s.w.Write(s.pending) // a client that is gone shows in the request's context
	_ = http.NewResponseController(s.w).Flush()
	s.pending = s.pending[:0]
}
