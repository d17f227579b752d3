package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/webhook"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// WebhookOptions are about the admission webhooks of a process.
type WebhookOptions struct {
	Addrs    []string       // at each of which all of them are served, over TLS 1.3; empty: there are none
	TLS      []WebhookFiles // certificates of all; API servers are presented the one of the name that they ask for
	Flag     string         // that has TLS, such as -tls-dir, for errors
	Profiles bool           // ServiceProfiles are reviewed
	Policy   bool           // objects of policy are
	Inject   InjectionFiles // Pods and Services are, if there are files
}

// WebhookFiles are the files of a certificate of webhooks.
type WebhookFiles struct {
	Server string // who presents it, in metrics and the log
	server.TLSFiles
}

// reviews returns what / has: each object has the Review of its kind. Without others a Review has all objects.
func (o *WebhookOptions) reviews(
	lookup func(rules.Reference) (exists, known bool), injection *webhook.Injection,
) (reviews []admission.Review) {
	if injection != nil {
		reviews = append(reviews, injection.Review())
	}
	if o.Profiles {
		reviews = append(reviews, webhook.ServiceProfiles())
	}
	if o.Policy {
		reviews = append(reviews, webhook.Policy(lookup))
	}
	return reviews
}

// webhookWindow is how long a request to a webhook may take, and how long those that are open have when the process
// stops.
const webhookWindow = 10 * time.Second

// addWebhooks adds webhooks, and returns their certificates; none if there are none. They decide about as many requests
// at once as there are processors. What they hold of requests is bounded for all addresses together.
func (p *Process) addWebhooks(
	options WebhookOptions, lookup func(rules.Reference) (exists, known bool), injection *webhook.Injection,
) (certificates server.Certificates, err error) {
	if len(options.Addrs) == 0 {
		return nil, nil
	}
	reviews := options.reviews(lookup, injection)
	if len(reviews) == 0 {
		return nil, errors.New("webhooks have an address, and review nothing")
	}
	if certificates, err = p.addCertificates(options); err != nil {
		return nil, fmt.Errorf("%s: %w", options.Flag, err)
	}

	for _, review := range reviews {
		p.Metrics.MustRegister(review.Verdicts)
	}
	handler := admission.NewServer(p.log, runtime.GOMAXPROCS(0), map[string][]admission.Review{"/": reviews})

	for _, addr := range options.Addrs {
		hook := p.newHTTP("webhook", addr, handler)
		hook.TLS = certificates.ServerConfig(tls.VersionTLS13)
		hook.ReadTimeout, hook.DrainWindow = webhookWindow, webhookWindow
		p.Add(Part{Name: "webhook at " + addr, Run: hook.Start, Ready: []server.Condition{hook.Listens()}})
	}
	return certificates, nil
}

// addCertificates adds the certificates of webhooks, which must be readable now.
func (p *Process) addCertificates(options WebhookOptions) (all server.Certificates, err error) {
	for i, files := range options.TLS {
		isSame := func(other WebhookFiles) bool { return other.Server == files.Server }
		if slices.ContainsFunc(options.TLS[:i], isSame) {
			return nil, fmt.Errorf("two directories end with the same name, so that both are %s", files.Server)
		}

		certificate, err := server.OpenCertificate(p.log, files.Server, files.TLSFiles)
		if err != nil {
			return nil, err
		}
		all = append(all, certificate)
		p.addCertificate("certificate of "+files.Server, certificate)
	}
	return all, nil
}

// ValidatorOptions is everything that a process of webhooks alone depends on.
type ValidatorOptions struct {
	Version   string // of the binary
	AdminAddr string // of the admin server, empty for none
	Pprof     bool   // on the admin server
	Webhooks  WebhookOptions
}

// NewValidator builds a process of webhooks alone, which needs no access to a cluster.
func NewValidator(log logr.Logger, options ValidatorOptions) (*Process, error) {
	process := newProcess(log, options.Version, nil, webhookWindow)
	if _, err := process.addWebhooks(options.Webhooks, nil, nil); err != nil {
		return nil, err
	}
	process.addAdmin(options.AdminAddr, process.Metrics, options.Pprof)
	return process, nil
}
