package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A diagnosis goes the way of a request to an API server step by step: name, TCP, TLS, HTTP, credentials, a list of
// each kind, and reviews of rights. It uses connections of its own, and no state of others, so that it finds what a
// Connection that happens to be open does not. It ends at the first step without which no other can succeed.
//
// It takes [ProbeTimeout] a step at most, 18 s in all: lists and reviews run at the same time. It changes nothing.

// A Step of a diagnosis is one thing that was tried.
type Step struct {
	Name   string        `json:"name"` // such as DNS or "list pods"
	OK     bool          `json:"ok"`
	Took   time.Duration `json:"tookNanoseconds"`
	Text   string        `json:"text"`             // what was found, or why it failed
	Reason Reason        `json:"reason,omitempty"` // if it failed
	Remedy string        `json:"remedy,omitempty"` // likewise; empty if that depends
}

// Questions are what a diagnosis asks of an API server, besides whether it answers.
type Questions struct {
	Required, Optional []Kind // that are listed

	Rights []authorizationv1.ResourceAttributes // that are reviewed
}

const (
	maxBody   = 1 << 20  // bytes of a response that are read
	maxHeader = 64 << 10 // bytes of its headers
)

// Diagnose tries to reach an API server with a configuration, which is complete. dial replaces the way to dial, and the
// resolver with it; it may be nil.
func Diagnose(ctx context.Context, config *rest.Config, dial DialFunc, questions Questions) []Step {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return []Step{{Name: "address", Text: bounded(err.Error()), Reason: Malformed}}
	}

	way := diagnosis{config: config, base: base, dial: dial}
	switch proxy, err := way.proxy(); {
	case err != nil:
		way.add("proxy", 0, "", err)
	case proxy != nil:
		way.add("proxy", 0,
			"requests go through "+proxy.Redacted()+": what is behind it is not tried step by step", nil)
	default:
		way.reach(ctx)
	}

	if !way.failed() {
		way.ask(ctx, questions)
	}
	return way.steps
}

type diagnosis struct {
	config *rest.Config
	base   *url.URL
	dial   DialFunc
	steps  []Step
}

func (d *diagnosis) failed() bool { return len(d.steps) > 0 && !d.steps[len(d.steps)-1].OK }

// add adds a step, and returns whether it was a success.
func (d *diagnosis) add(name string, took time.Duration, text string, err error) bool {
	d.steps = append(d.steps, newStep(name, took, text, err))
	return err == nil
}

func newStep(name string, took time.Duration, text string, err error) Step {
	step := Step{Name: name, OK: err == nil, Took: took, Text: bounded(text)}
	if err != nil {
		cause := CauseOf(err)
		step.Text, step.Reason, step.Remedy = cause.Text, cause.Reason, cause.Reason.Remedy()
	}
	return step
}

// proxy returns the proxy through which requests go; nil for none.
func (d *diagnosis) proxy() (*url.URL, error) {
	find := d.config.Proxy
	if find == nil {
		find = http.ProxyFromEnvironment
	}
	return find(&http.Request{URL: d.base})
}

// reach goes from the name to TLS.
func (d *diagnosis) reach(ctx context.Context) {
	host := d.base.Hostname()
	port := cmp.Or(d.base.Port(), map[string]string{"http": "80"}[d.base.Scheme], "443")
	isName := net.ParseIP(host) == nil
	if isName && d.dial == nil && !d.lookUp(ctx, host) {
		return
	}

	dial := d.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}

	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	conn, err := dial(limited, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		d.add("TCP", time.Since(began), "", &ProbeError{Unreachable, noAnswer("TCP connection", err)})
		return
	}

	defer conn.Close()
	d.add("TCP", time.Since(began), "connected to "+conn.RemoteAddr().String(), nil)
	if d.base.Scheme == "https" {
		d.shakeHands(ctx, conn)
	}
}

// lookUp asks for the addresses of a name.
func (d *diagnosis) lookUp(ctx context.Context, host string) bool {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		err = &ProbeError{Unreachable, stableError(err, ProbeTimeout)}
	}
	return d.add("DNS", time.Since(began), host+" is "+some(addresses), err)
}

// noAnswer describes a failure of a step that may be a silence.
func noAnswer(what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no %s within %s: packets are dropped on the way, as by a firewall", what, ProbeTimeout)
	}
	return stableError(err, ProbeTimeout)
}

// shakeHands does a TLS handshake, and shows what is presented also if it cannot be trusted. To a server that cannot be
// trusted no client certificate is sent.
func (d *diagnosis) shakeHands(ctx context.Context, conn net.Conn) {
	config, err := rest.TLSConfigFor(d.config)
	if err != nil {
		d.add("TLS", 0, "", &ProbeError{Malformed, err})
		return
	}
	if config == nil {
		config = &tls.Config{} //nolint:gosec // its default is what Kubernetes wants
	}

	insecure := config.InsecureSkipVerify
	config.ServerName = cmp.Or(config.ServerName, d.base.Hostname())
	config.InsecureSkipVerify = true // VerifyConnection verifies, and has what is presented
	var presented string
	config.VerifyConnection = func(state tls.ConnectionState) error {
		presented = tls.VersionName(state.Version) + " with " + certificateText(state.PeerCertificates[0])
		if insecure {
			presented += "; it is not verified"
			return nil
		}
		return d.verify(state, config)
	}

	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	err = tls.Client(conn, config).HandshakeContext(limited)
	if err != nil && ReasonFor(err) != Untrusted {
		err = &ProbeError{Unreachable, noAnswer("TLS handshake", err)}
	}
	d.add("TLS", time.Since(began), presented, err)
}

// verify returns why what a server presents is not trusted.
func (d *diagnosis) verify(state tls.ConnectionState, config *tls.Config) error {
	presented, intermediates := state.PeerCertificates[0], x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := presented.Verify(x509.VerifyOptions{
		Roots: config.RootCAs, DNSName: config.ServerName, Intermediates: intermediates,
	})
	if err == nil {
		return nil
	}
	return &ProbeError{Untrusted, fmt.Errorf("%s; presented is %s; %s",
		cmp.Or(untrusted(err), err.Error()), certificateText(presented), trustedText(d.config))}
}

// ask goes from HTTP to rights, over connections of its own: client-go keeps those that it makes, for the request that
// is next.
func (d *diagnosis) ask(ctx context.Context, questions Questions) {
	config := rest.CopyConfig(d.config)
	config.QPS, config.ContentType, config.WarningHandler = -1, runtime.ContentTypeJSON, rest.NoWarnings{}
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		d.add("HTTP", 0, "", &ProbeError{Malformed, err})
		return
	}

	connections := &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return d.proxy() }, DialContext: d.dial, TLSClientConfig: secure,
		ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
	defer connections.CloseIdleConnections()
	transport, err := rest.HTTPWrappersForConfig(config, connections)
	if err != nil {
		d.add("HTTP", 0, "", &ProbeError{Malformed, err})
		return
	}

	client := &http.Client{
		Transport: transport, Timeout: ProbeTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if !d.request(ctx, client) || !d.identify(ctx, client, config) {
		return
	}

	var last []func() Step
	for _, kind := range questions.Required {
		last = append(last, func() Step { return d.list(ctx, client, kind, false) })
	}
	for _, kind := range questions.Optional {
		last = append(last, func() Step { return d.list(ctx, client, kind, true) })
	}
	for _, right := range questions.Rights {
		last = append(last, func() Step { return review(ctx, client, config, right) })
	}

	steps := make([]Step, len(last))
	var wg sync.WaitGroup
	for i, step := range last {
		wg.Go(func() { steps[i] = step() })
	}
	wg.Wait()
	d.steps = append(d.steps, steps...)
}

// request asks for the version, which needs no right, and looks at who answers.
func (d *diagnosis) request(ctx context.Context, client *http.Client) bool {
	began := time.Now()
	response, body, err := d.get(ctx, client, "version", nil)
	if err != nil {
		return d.add("HTTP", time.Since(began), "", err)
	}

	took, by := time.Since(began), answerer(response)
	var version struct {
		Git string `json:"gitVersion"`
	}
	_ = json.Unmarshal(body, &version) // what is no version has none

	switch code := response.StatusCode; {
	case code == http.StatusOK && version.Git != "":
		return d.add("HTTP", took, "an API server of "+version.Git, nil)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return d.add("HTTP", took, fmt.Sprintf("%s answers %d to a request for its version", by, code), nil)
	case code >= 300 && code < 400:
		to, _ := response.Location()
		err = fmt.Errorf("%s redirects (%d) to %s: redirects are not followed", by, code, hostOf(to))
		return d.add("HTTP", took, "", &ProbeError{Malformed, err})
	case code >= 500:
		return d.add("HTTP", took, "", &ProbeError{NotReady, fmt.Errorf("%s answers %d", by, code)})
	default:
		err = fmt.Errorf("%s answers %d with %q, and no version of Kubernetes: it is no API server", by, code,
			response.Header.Get("Content-Type"))
		return d.add("HTTP", took, "", &ProbeError{Malformed, err})
	}
}

func hostOf(u *url.URL) string {
	if u == nil {
		return "nowhere"
	}
	return u.Host
}

// get sends a GET request, and returns the response with the beginning of its body.
func (d *diagnosis) get(
	ctx context.Context, client *http.Client, path string, query url.Values,
) (*http.Response, []byte, error) {
	address := d.base.JoinPath(path)
	address.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}

	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response, body, err
}

// identify asks who the credentials are, and describes them.
func (d *diagnosis) identify(ctx context.Context, client *http.Client, config *rest.Config) bool {
	text := credentialsText(d.config)
	typed, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return d.add("credentials", 0, "", err)
	}

	began := time.Now()
	review, err := typed.AuthenticationV1().SelfSubjectReviews().Create(
		ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	took := time.Since(began)

	switch {
	case err == nil:
		return d.add("credentials", took, "accepted as "+review.Status.UserInfo.Username+": "+text, nil)
	case CauseOf(err).Reason == Unauthorized:
		err = fmt.Errorf("the API server refuses the credentials (401): %s", text)
		return d.add("credentials", took, "", &ProbeError{Unauthorized, err})
	default: // not every API server has these reviews, and lists show whether it takes the credentials
		return d.add("credentials", took, text, nil)
	}
}

// credentialsText describes credentials by what they contain. Nothing of a token is in it that is secret.
func credentialsText(config *rest.Config) string {
	switch {
	case config.BearerTokenFile != "":
		return "the token in " + config.BearerTokenFile
	case config.BearerToken == "" && len(config.CertData) == 0:
		return "there is neither a token nor a certificate"
	case config.BearerToken == "":
		block, _ := pem.Decode(config.CertData)
		if block == nil {
			return "a client certificate that cannot be read"
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "a client certificate that cannot be read"
		}
		return "a client certificate of " + certificateText(certificate)
	}

	claims, readable := claimsOf(config.BearerToken)
	if !readable {
		return "a token that does not describe itself"
	}
	text := fmt.Sprintf("a token of %s for audience %s, issued by %s", cmp.Or(claims.Subject, "no subject"),
		some(claims.Audience), cmp.Or(claims.Issuer, "no issuer"))
	if _, expires := tokenValidity(config.BearerToken); !expires.IsZero() {
		return text + ", valid until " + expires.UTC().Format(time.RFC3339)
	}
	return text + ", without an end"
}

// list lists at most one object of a kind.
func (d *diagnosis) list(ctx context.Context, client *http.Client, kind Kind, isOptional bool) Step {
	name, began := "list "+kind.Resource.GroupResource().String(), time.Now()
	var response *http.Response
	var err error

	for _, path := range kind.paths() {
		response, _, err = d.get(ctx, client, path, url.Values{"limit": {"1"}, "labelSelector": {kind.Labels}})
		if err != nil || response.StatusCode != http.StatusNotFound {
			break // else an older version may be served
		}
	}
	if err != nil {
		return newStep(name, time.Since(began), "", err)
	}

	took := time.Since(began)
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))

	switch code := response.StatusCode; {
	case code == http.StatusOK && media == runtime.ContentTypeJSON:
		return newStep(name, took, "answered", nil)
	case code == http.StatusNotFound && isOptional:
		return newStep(name, took, "the API server does not serve it, and it is not needed", nil)
	case code == http.StatusUnauthorized:
		err = &ProbeError{Unauthorized, errors.New("the API server refuses the credentials (401)")}
	case code == http.StatusForbidden:
		err = &ProbeError{Forbidden, errors.New("refused (403): grant get, list and watch")}
	case code == http.StatusOK:
		err = &ProbeError{Malformed, fmt.Errorf("the answer is %q, and no list", media)}
	default:
		err = &ProbeError{NotReady, fmt.Errorf("%s answers %d", answerer(response), code)}
	}
	return newStep(name, took, "", err)
}

// review asks whether a right is granted. One that is not may be meant to be so.
func review(
	ctx context.Context, client *http.Client, config *rest.Config, right authorizationv1.ResourceAttributes,
) Step {
	name := fmt.Sprintf("may %s %s", right.Verb, right.Resource)
	if right.Namespace != "" {
		name += " in " + right.Namespace
	}
	typed, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		return newStep(name, 0, "", err)
	}

	began := time.Now()
	answer, err := typed.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}, metav1.CreateOptions{})

	switch took := time.Since(began); {
	case err != nil:
		return newStep(name, took, "", err)
	case answer.Status.Allowed:
		return newStep(name, took, "granted", nil)
	default:
		return newStep(name, took, "not granted: the cluster is read-only for Fingerpost", nil)
	}
}
