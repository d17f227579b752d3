package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// IssuerFiles are the files of an issuer of certificates, in PEM.
type IssuerFiles struct {
	Certificate, Key string // as a Secret is mounted
	Anchors          string // as a ConfigMap is
}

// IssuerFilesIn returns the files of a scheme, as Linkerd names those of its Secret: linkerd.io/tls has names of its
// own.
func IssuerFilesIn(dir, scheme, anchors string) IssuerFiles {
	certificate, key := "tls.crt", "tls.key"
	if scheme == "linkerd.io/tls" {
		certificate, key = "crt.pem", "key.pem"
	}
	return IssuerFiles{filepath.Join(dir, certificate), filepath.Join(dir, key), anchors}
}

// An IssuerChange is something that operators should know of an issuer, as an Event.
type IssuerChange struct {
	Reason, Action, Note string
	Warning              bool
}

// The reasons of changes.
const (
	IssuerUpdated       = "IssuerUpdated"
	IssuerSkipped       = "IssuerUpdateSkipped"
	IssuerInvalid       = "IssuerValidationFailed"
	IssuerExpiring      = "IssuerExpiring"
	invalidPause        = time.Minute // between two reports that an issuer does not verify
	candidateReadAgain  = 2           // times that it was read and refused, before that is reported
	actionReadFiles     = "ReadFiles"
	actionVerifyIssuer  = "VerifyIssuer"
	actionCertify       = "Certify"
	conditionOfAnIssuer = "issuer"
)

// An Issuer keeps an authority supplied from files that may be replaced at any time, in any order. All of them together
// are a candidate: one that can sign is taken into use at once, and with any other the issuer in use stays. Calls wait
// for neither. A candidate is tried each second: one that is not valid yet is taken when it is.
type Issuer struct {
	log       logr.Logger
	authority *identity.Authority
	files     *reread[identity.Issuer]
	report    func(IssuerChange)

	usable  fedwatch.Value[string] // why there is no issuer that can sign; empty: there is one
	updates *prometheus.CounterVec

	mu      sync.Mutex
	invalid time.Time // when an issuer that does not verify was reported last; guarded by mu

	// Of Start.
	refused  [sha256.Size]byte // of the candidate that was refused last
	times    int               // that it was
	warnings int               // that the issuer in use ends, as reported
}

// NewIssuer returns what reads files for an authority. report must not block; nil for no reports but the log.
func NewIssuer(
	log logr.Logger, authority *identity.Authority, files IssuerFiles, report func(IssuerChange),
) *Issuer {
	i := &Issuer{log: log, authority: authority, report: report}
	i.files = &reread[identity.Issuer]{
		paths: []string{files.Certificate, files.Key, files.Anchors}, parse: i.parse,
	}
	i.usable.Store("it was not read yet")
	i.updates = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_issuer_updates_total",
		Help: "Issuers of certificates that were read from files, by result: taken, or skipped because they cannot " +
			"sign.",
	}, []string{"result"})
	return i
}

// Start reads the files, again and again, until ctx ends.
func (i *Issuer) Start(ctx context.Context) error {
	i.reload()
	reloadUntilDone(ctx, i.reload)
	return nil
}

// Usable returns the Condition that there is an issuer that can sign now. It lasts: an issuer may end.
func (i *Issuer) Usable() Condition { return Lasting(conditionOfAnIssuer, &i.usable) }

// parse makes an Issuer of what the files hold now, and reports what cannot be one, once. It is reported when it was
// read twice: files that are being replaced may have been read in between.
func (i *Issuer) parse(contents [][]byte) (*identity.Issuer, error) {
	source := identity.Source{Certificate: contents[0], Key: contents[1], Anchors: contents[2]}
	issuer, err := identity.NewIssuer(source, i.authority.Domain(), time.Now())
	if err == nil {
		return issuer, nil
	}

	digest := sha256.Sum256(bytes.Join(contents, []byte{0}))
	if digest != i.refused {
		i.refused, i.times = digest, 0
	}
	i.times++

	if i.times == candidateReadAgain {
		action := actionReadFiles
		if reason, is := errors.AsType[*identity.SourceError](err); is {
			action = reason.Step
		}
		i.skip(action, err)
	}
	return nil, err
}

func (i *Issuer) skip(action string, err error) {
	i.updates.WithLabelValues("skipped").Inc()
	i.publish(IssuerChange{IssuerSkipped, action, "The issuer in files is not used: " + err.Error(), true})
}

// reload reads the files if they have changed, and looks at the issuer in use.
func (i *Issuer) reload() {
	changed, err := i.files.read()
	if changed {
		i.take(i.files.value.Load())
	}

	var refused *identity.SourceError
	if i.files.isNews(err) && !errors.As(err, &refused) {
		i.skip(actionReadFiles, err) // such as a file that is missing
	}

	issuer := i.authority.Issuer()
	if issuer == nil {
		i.setUsable(err)
		return
	}
	i.setUsable(issuer.Check(time.Now()))

	if due := issuer.Warnings(time.Now()); due > i.warnings {
		i.warnings = due
		i.publish(IssuerChange{
			IssuerExpiring, actionVerifyIssuer, "The issuer ends at " + issuer.End().Format(time.RFC3339) +
				": no certificate is issued after that, and none lasts longer", true,
		})
	}
}

func (i *Issuer) take(issuer *identity.Issuer) {
	i.authority.Use(issuer)
	i.refused, i.times, i.warnings = [sha256.Size]byte{}, 0, 0
	i.updates.WithLabelValues("taken").Inc()
	note := fmt.Sprintf("Certificates are signed by %s, serial number %s, until %s",
		issuer.Name(), issuer.Serial(), issuer.End().Format(time.RFC3339))
	i.publish(IssuerChange{IssuerUpdated, actionVerifyIssuer, note, false})

	if n := issuer.Skipped(); n > 0 {
		logs.Warn(i.log, "The bundle of anchors holds blocks that are no certificates, which are left out",
			"file", i.files.paths[2], "blocks", n)
	}
}

// setUsable stores why the issuer cannot sign, if that has changed.
func (i *Issuer) setUsable(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	before, _ := i.usable.Load()
	if problem == before || problem != "" && before != "" && i.authority.Issuer() != nil {
		return // texts of x509 have the time in them
	}
	i.usable.Store(problem)
}

// Refused reports that a call was refused because the issuer does not verify, once a minute.
func (i *Issuer) Refused(refusal *identity.Refusal) {
	if refusal.Check != identity.CheckChain {
		return
	}
	i.mu.Lock()
	due := i.invalid.IsZero() || time.Since(i.invalid) >= invalidPause
	if due {
		i.invalid = time.Now()
	}
	i.mu.Unlock()

	if due {
		note := fmt.Sprintf("No certificate is issued: %v", refusal.Err)
		i.publish(IssuerChange{IssuerInvalid, actionCertify, note, true})
	}
}

// publish logs and reports a change.
func (i *Issuer) publish(change IssuerChange) {
	fields := []any{"reason", change.Reason, "note", change.Note}
	if change.Warning {
		logs.Warn(i.log, "Issuer of certificates needs attention", fields...)
	} else {
		i.log.Info("Issuer of certificates is in use", fields...)
	}
	if i.report != nil {
		i.report(change)
	}
}

// Metrics returns the metrics of the issuer. Before there is one, issuer_cert_ttl_seconds has no series.
func (i *Issuer) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		i.updates,
		issuerLife{i.authority},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fingerpost_issuer_expiry_steps",
			Help: "How close the issuer of certificates is to its end: 0, and one more at each moment at which that " +
				"is reported: 60 days before the end, or with a third of a life of a year or less left, and so on.",
		}, func() float64 {
			if issuer := i.authority.Issuer(); issuer != nil {
				return float64(issuer.Warnings(time.Now()))
			}
			return 0
		}),
		unreadableFiles("issuer", i.Unreadable),
	}
}

// Unreadable returns why the files could not be used when that was tried last, by the first of their paths.
func (i *Issuer) Unreadable() map[string]string {
	all := map[string]string{}
	if problem := i.files.unreadable(); problem != "" {
		all[i.files.paths[0]] = problem
	}
	return all
}

// issuerLife is how long an issuer lasts, under the name that Linkerd has for it.
type issuerLife struct{ of *identity.Authority }

var issuerLifeDesc = prometheus.NewDesc("issuer_cert_ttl_seconds",
	"How long the issuer of certificates can sign from now on, in seconds; less than 0 once it has ended.", nil, nil)

// Describe sends the only description.
func (l issuerLife) Describe(to chan<- *prometheus.Desc) { to <- issuerLifeDesc }

// Collect sends the metric, if there is an issuer.
func (l issuerLife) Collect(to chan<- prometheus.Metric) {
	if issuer := l.of.Issuer(); issuer != nil {
		to <- prometheus.MustNewConstMetric(issuerLifeDesc, prometheus.GaugeValue, time.Until(issuer.End()).Seconds())
	}
}
