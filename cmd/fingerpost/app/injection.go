package app

import (
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/podowner"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/webhook"
	"github.com/fingerpost/fingerpost/inject"
)

// InjectionFiles are what a mesh was installed with, in files that may change.
type InjectionFiles struct {
	Values  string // of Linkerd's chart (YAML); empty: nothing is injected
	Anchors string // trust anchors (PEM)

	Services inject.Services // where proxies reach the control plane; in no file
}

// addInjection adds what injection depends on, and returns its review; nil if nothing is injected.
func (p *Process) addInjection(
	conn *api.Connection, namespace string, files InjectionFiles,
) (*webhook.Injection, error) {
	if files.Values == "" {
		return nil, nil
	}

	createdBy := "fingerpost/proxy-injector " + p.version
	injector := server.OpenReload(p.log, "values of injection", []string{files.Values, files.Anchors},
		func(contents [][]byte) (*inject.Injector, error) {
			values, err := inject.ParseValues(contents[0])
			if err != nil {
				return nil, err
			}
			if _, err := linkerd.ParseAnchors(string(contents[1])); err != nil {
				return nil, err
			}
			return inject.New(values, inject.Options{
				Namespace: namespace, Anchors: string(contents[1]), CreatedBy: createdBy, Services: files.Services,
			})
		})

	injection := webhook.NewInjection()
	owners, err := podowner.NewReader(conn, injection.ForgetNamespace)
	if err != nil {
		return nil, err
	}
	injection.InjectionOptions = webhook.InjectionOptions{
		Injector: injector.Load, Age: injector.Age, Owners: owners,
		Event: func(about *corev1.ObjectReference, reason, note string) {
			p.events.Eventf(about, nil, corev1.EventTypeNormal, reason, "Inject", "%s", note)
		},
	}

	p.Metrics.MustRegister(injection.Collectors()...)
	p.Add(
		Part{Name: "values of injection", Run: injector.Start, Ready: []server.Condition{injector.Loaded()}},
		Part{Name: "owners of Pods", Run: owners.Run, Ready: []server.Condition{listed(owners)}},
	)
	return injection, nil
}

// listed is the Condition that all of a Reader was listed.
func listed(owners *podowner.Reader) server.Condition {
	return server.Condition{
		Name: "namespaces, replicasets and jobs",
		Load: func() (time.Duration, []<-chan struct{}) {
			var waits []<-chan struct{}
			for _, synced := range owners.Synced() {
				select {
				case <-synced:
				default:
					waits = append(waits, synced)
				}
			}
			if len(waits) > 0 {
				return server.Forever, waits
			}
			return 0, nil
		},
	}
}

// InjectorOptions is everything that a process which injects, and does nothing else, depends on.
type InjectorOptions struct {
	Version   string       // of the binary
	Config    *rest.Config // access to the local cluster
	Dial      api.DialFunc // connects to the API server; nil for TCP
	Listen    server.ListenFunc
	AdminAddr string // of the admin server, empty for none
	Pprof     bool   // on the admin server
	Namespace string // of the control plane
	Webhooks  WebhookOptions
}

// NewInjector builds a process that injects, and does nothing else.
func NewInjector(log logr.Logger, options InjectorOptions) (*Process, error) {
	process := newProcess(log, options.Version, options.Listen, webhookWindow)
	if err := process.addInjector(options); err != nil {
		process.abandon()
		return nil, err
	}
	process.Metrics.MustRegister(process.Ready.Metric())
	process.addAdmin(options.AdminAddr, process.Metrics, options.Pprof)
	return process, nil
}

// addInjector adds the webhook, and what it depends on.
func (p *Process) addInjector(options InjectorOptions) error {
	conn, err := api.NewConnection(options.Config, options.Dial)
	if err != nil {
		return err
	}
	if err := p.addEvents(conn); err != nil {
		return err
	}

	injection, err := p.addInjection(conn, options.Namespace, options.Webhooks.Inject)
	if err == nil && injection == nil {
		err = errors.New("there is no file of values to inject")
	}
	if err != nil {
		return err
	}
	_, err = p.addWebhooks(options.Webhooks, nil, injection)
	return err
}
