package app

import (
	"crypto/tls"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/webhook"
)

// ValidatorOptions is everything that the webhook of ServiceProfiles depends on.
type ValidatorOptions struct {
	Version         string // of the binary
	Addr, AdminAddr string // of the webhook; of the admin server, empty for none
	TLS             server.TLSFiles
	Pprof           bool // on the admin server
}

// webhookWindow is how long a request to a webhook may take, and how long those that are open have when the process
// stops.
const webhookWindow = 10 * time.Second

// NewValidator builds the process that validates ServiceProfiles.
func NewValidator(log logr.Logger, options ValidatorOptions) (*Process, error) {
	certificate, err := server.OpenCertificate(log, "webhook", options.TLS)
	if err != nil {
		return nil, err
	}
	profiles := webhook.ServiceProfiles()

	process := newProcess(log, options.Version, nil, webhookWindow)
	process.Metrics.MustRegister(append(certificate.Metrics(), profiles.Verdicts)...)
	handler := admission.NewServer(log, 1, map[string]admission.Review{"/": profiles})
	hook := process.newHTTP("webhook", options.Addr, handler)
	hook.TLS = certificate.ServerConfig(tls.VersionTLS13)
	hook.ReadTimeout, hook.DrainWindow = webhookWindow, webhookWindow

	process.Add(
		Part{Name: "webhook", Run: hook.Start, Ready: []server.Condition{hook.Listens()}},
		Part{Name: "certificate", Run: certificate.Start},
	)
	process.addAdmin(options.AdminAddr, process.Metrics, options.Pprof)
	return process, nil
}
