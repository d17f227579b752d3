package cli

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fingerpost/fingerpost/identity/ca"
)

// A certEntry is an authority of a mesh, as it is shown.
type certEntry struct {
	Kind        string    `json:"kind"` // anchor, issuer, or above the issuer
	Subject     string    `json:"subject"`
	Fingerprint string    `json:"fingerprint"` // SHA-256, as hexadecimal digits
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	By          string    `json:"by,omitempty"` // who writes the object that it is in, if that is another program
	Problem     string    `json:"problem,omitempty"`
}

// meshPage is what is shown of the certificates of a mesh.
type meshPage struct {
	Certificates []certEntry `json:"certificates"` // the worst first
	TrustDomain  string      `json:"trustDomain"`
	LeafLife     string      `json:"leafLife"` // for how long each leaf is valid after it was issued
}

// What is soon, by kind: enough for a rotation, which takes as long as all Pods take to be started again.
const (
	anchorSoon = 60 * 24 * time.Hour
	issuerSoon = 30 * 24 * time.Hour
)

func certsShowCommand(version string) *cobra.Command {
	flags := kubeFlags{version: version}
	var output, namespace string

	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the trust anchors and the issuer of a mesh, and when each ends",
		Long: `Show the trust anchors and the issuer of a mesh, and when each ends: the worst first. It takes the
right to read the ConfigMaps and the Secret of the control plane. The exit code is 1 if one has a
problem.`,
		Example: "  fingerpost certs show\n  fingerpost certs show -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, client, err := flags.connect()
			if err != nil {
				return err
			}
			mesh, err := readMeshCerts(cmd.Context(), client, namespace)
			if err != nil {
				return err
			}

			page := mesh.page(time.Now())
			if output != tableOutput {
				err = printPage(cmd.OutOrStdout(), page, output)
			} else {
				err = page.table(time.Now()).printTo(cmd.OutOrStdout())
			}
			return cmp.Or(err, page.failed())
		},
	}

	groupFlags(cmd.Flags(), flags.addKubeFlags)
	addOutputFlag(cmd, &output)
	cmd.Flags().StringVarP(&namespace, "linkerd-namespace", "L", linkerdPreset,
		"namespace of the mesh's control plane")
	return cmd
}

// page returns the certificates, the worst first: those with a problem, and then those that end first.
func (m *meshCerts) page(now time.Time) *meshPage {
	page := &meshPage{TrustDomain: m.trustDomain, LeafLife: m.leafLife.String()}
	add := func(kind, by string, c *x509.Certificate, soon time.Duration) *certEntry {
		page.Certificates = append(page.Certificates, certEntry{
			Kind: kind, Subject: c.Subject.String(), Fingerprint: ca.Fingerprint(c), By: by,
			NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(), Problem: endProblem(c, soon, now),
		})
		return &page.Certificates[len(page.Certificates)-1]
	}

	for _, c := range m.bundle {
		add("anchor", nameIf("trust-manager", m.bundleOf), c, min(anchorSoon, lifeOf(c)/3))
	}
	for i, c := range m.issuer {
		kind, by := "issuer", nameIf("cert-manager", m.issuerOf)
		if i > 0 {
			kind = "above the issuer"
		}
		entry := add(kind, by, c, min(issuerSoon, lifeOf(c)/3))
		if err := ca.Verify(m.issuer, m.bundle, now); i == 0 && err != nil && entry.Problem == "" {
			entry.Problem = "it does not verify against the anchors: " + err.Error()
		}
	}

	slices.SortStableFunc(page.Certificates, func(a, b certEntry) int {
		fine := func(e certEntry) int { return min(1, 1-min(1, len(e.Problem))) }
		return cmp.Or(fine(a)-fine(b), a.NotAfter.Compare(b.NotAfter))
	})
	return page
}

// nameIf names a program and its object, if there is one.
func nameIf(program, object string) string {
	if object == "" {
		return ""
	}
	return program + " (" + object + ")"
}

func lifeOf(c *x509.Certificate) time.Duration { return c.NotAfter.Sub(c.NotBefore) }

// endProblem returns what is wrong with the time of a certificate; empty for nothing.
func endProblem(c *x509.Certificate, soon time.Duration, now time.Time) string {
	switch left := c.NotAfter.Sub(now); {
	case left < 0:
		return "it has ended"
	case now.Before(c.NotBefore):
		return "it is not valid yet"
	case left < soon:
		return "it ends soon"
	}
	return ""
}

// failed returns an error if a certificate has a problem. It has been printed.
func (p *meshPage) failed() error {
	if len(p.Certificates) == 0 || p.Certificates[0].Problem == "" {
		return nil
	}
	first := p.Certificates[0]
	return WithExitCode(ExitNo, fmt.Errorf("%s %s: %s", first.Kind, Printable(first.Subject), first.Problem))
}

// table returns the certificates for people.
func (p *meshPage) table(now time.Time) *table {
	table := newTable("KIND", "SUBJECT", "SHA256", "ENDS", "IN", "BY", "PROBLEM")
	table.whole = []string{"SHA256", "ENDS"}

	written := false
	for _, c := range p.Certificates {
		written = written || c.By != ""
		left := duration.ShortHumanDuration(c.NotAfter.Sub(now))
		row := table.addRow(c.Kind, c.Subject, c.Fingerprint[:12], utc(c.NotAfter), left, c.By, c.Problem)
		if c.Problem != "" {
			row.colours["PROBLEM"] = Yellow
		}
	}

	if !written {
		table.dropColumn("BY")
	}
	return table
}
