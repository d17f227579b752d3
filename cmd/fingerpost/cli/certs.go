package cli

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/ca"
)

// What Linkerd's pages on certificates ask for.
const (
	anchorLife = 10 * 365 * 24 * time.Hour
	issuerLife = 365 * 24 * time.Hour
)

// valuesOutput prints values of Linkerd's chart instead of objects.
const valuesOutput = "values"

// maxCertFile bounds the files of certificates and keys that are read.
const maxCertFile = 64 << 10

func certsCommand(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make the trust anchor and the issuer of a mesh, and replace them in order",
		Long: `Make the trust anchor and the issuer of a mesh, and replace them in order.

A trust anchor is what all proxies of a mesh trust, and of all meshes that are linked with it. An
issuer is certified by it, and signs the certificates of proxies. Manifests are printed, and nothing
is applied: what an identity is worth is decided by who applies them. The private key of an anchor
is in none of them. It is written to a file, for its owner alone.`,
	}

	cmd.AddCommand(certsNewCommand(version), certsIssuerCommand(version), certsRotateCommand(version),
		certsShowCommand(version))
	return cmd
}

// An anchorFiles are the files of a trust anchor.
type anchorFiles struct{ certificate, key string }

// A certMaker makes authorities for a mesh, and prints them.
type certMaker struct {
	version    string
	domain     identity.Domain
	output     string
	scheme     string
	files      anchorFiles
	anchorLife time.Duration
	issuerLife time.Duration
	withBundle bool
}

func certsNewCommand(version string) *cobra.Command {
	maker := certMaker{version: version}
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a trust anchor and an issuer for a new mesh",
		Long: `Make a trust anchor and an issuer for a new mesh. A Secret with the issuer is printed, and a
ConfigMap with the anchor; or, with -o values, what Linkerd's chart makes both of.

The anchor is written to two files, which must not exist. Its private key certifies every later
issuer, and those of other clusters: keep it offline. No cluster needs it.`,
		Example: `  fingerpost certs new | kubectl apply -f -
  fingerpost certs new --trust-domain shop.example -o values > identity.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := maker.validate(); err != nil {
				return usageError(cmd, err)
			}
			return maker.makeBoth(cmd)
		},
	}

	maker.addFlags(cmd)
	fs := cmd.Flags()
	fs.DurationVar(&maker.anchorLife, "lifetime-anchor", anchorLife, "how long the anchor is valid, at least 1h")
	fs.StringVar(&maker.files.certificate, "anchor-cert", "anchor.crt", "file that the anchor is written to")
	fs.StringVar(&maker.files.key, "anchor-key", "anchor.key", "file that its key is written to, with mode 0600")
	return cmd
}

func certsIssuerCommand(version string) *cobra.Command {
	maker := certMaker{version: version}
	cmd := &cobra.Command{
		Use:   "issuer",
		Short: "Make an issuer under a trust anchor that exists",
		Long: `Make an issuer under a trust anchor that exists: the next one for a cluster, before the one in use
ends, or the first one of another cluster that is to trust the same anchor. A Secret is printed.
Running proxies notice nothing of it: the control plane takes the new issuer without a restart.

For another cluster --trust-roots prints the ConfigMap with the anchor as well. It is not for a
cluster that trusts more than this anchor.`,
		Example: `  fingerpost certs issuer --anchor-cert anchor.crt --anchor-key anchor.key | kubectl apply -f -
  fingerpost certs issuer --trust-roots | kubectl --context west apply -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := maker.validate(); err != nil {
				return usageError(cmd, err)
			}
			return maker.makeIssuer(cmd)
		},
	}

	maker.addFlags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&maker.files.certificate, "anchor-cert", "anchor.crt", "file of the anchor")
	fs.StringVar(&maker.files.key, "anchor-key", "anchor.key", "file of its private key")
	fs.BoolVar(&maker.withBundle, "trust-roots", false, "print the ConfigMap with the anchor, too")
	return cmd
}

func (m *certMaker) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	m.addOutputFlag(cmd)
	AddChoice(cmd, &m.scheme, "scheme", "", "names of the Secret's keys, as identity.issuer.scheme of Linkerd's "+
		"chart has them: ", linkerd.IssuerScheme, linkerd.KubernetesScheme)
	fs.StringVarP(&m.domain.Namespace, "linkerd-namespace", "L", linkerdPreset,
		"namespace of the mesh's control plane")
	fs.StringVar(&m.domain.TrustDomain, "trust-domain", "cluster.local", "trust domain of the mesh's identities")
	m.addLifeFlag(cmd)
}

func (m *certMaker) addOutputFlag(cmd *cobra.Command) {
	AddChoice(cmd, &m.output, "output", "o", "values are those of Linkerd's chart, where it makes the objects: ",
		yamlOutput, jsonOutput, valuesOutput)
}

func (m *certMaker) addLifeFlag(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&m.issuerLife, "lifetime-issuer", issuerLife,
		"how long the issuer is valid, at least 1h and as long as its anchor at most")
}

func (m *certMaker) validate() error {
	switch {
	case len(validation.ValidateNamespaceName(m.domain.Namespace, false)) > 0:
		return fmt.Errorf("--linkerd-namespace: %q names no namespace", m.domain.Namespace)
	case m.issuerLife < ca.MinLife || m.anchorLife != 0 && m.anchorLife < ca.MinLife:
		return fmt.Errorf("a certificate of the control plane is valid for %s at least", ca.MinLife)
	case m.output == valuesOutput && m.scheme != linkerd.IssuerScheme:
		return fmt.Errorf("-o values: Linkerd's chart takes no issuer of scheme %s from values", m.scheme)
	}
	return m.domain.Validate()
}

// makeBoth makes an anchor and an issuer. The files are written before anything is printed: an issuer is of no use to
// who has lost its anchor.
func (m *certMaker) makeBoth(cmd *cobra.Command) error {
	anchor, err := ca.NewAnchor(m.domain, m.anchorLife, time.Now())
	if err != nil {
		return err
	}
	issuer, err := anchor.NewIssuer(m.domain, m.issuerLife, time.Now())
	if err != nil {
		return err
	}

	if err := m.files.write(anchor); err != nil {
		return err
	}
	m.files.report(cmd.ErrOrStderr(), anchor.Certificate)
	m.reportIssuer(cmd.ErrOrStderr(), issuer.Certificate)
	return m.print(cmd.OutOrStdout(), issued{issuer, anchor.Certificate}, []*x509.Certificate{anchor.Certificate})
}

// makeIssuer makes an issuer under an anchor in files.
func (m *certMaker) makeIssuer(cmd *cobra.Command) error {
	anchor, err := m.files.read()
	if err != nil {
		return err
	}
	issuer, err := anchor.NewIssuer(m.domain, m.issuerLife, time.Now())
	if err != nil {
		return err
	}

	m.reportIssuer(cmd.ErrOrStderr(), issuer.Certificate)
	var bundle []*x509.Certificate
	if m.withBundle {
		bundle = append(bundle, anchor.Certificate)
	}
	return m.print(cmd.OutOrStdout(), issued{issuer, anchor.Certificate}, bundle)
}

func (m *certMaker) reportIssuer(to io.Writer, issuer *x509.Certificate) {
	fmt.Fprintf(to, "The issuer is valid until %s. What is printed holds its private key: pass it on to "+
		"kubectl, or encrypt it.\n", issuer.NotAfter.UTC().Format(time.RFC3339))
}

// write writes an anchor to files that do not exist yet, the key first: without it the certificate is of no use.
func (f anchorFiles) write(anchor *ca.Authority) error {
	key, err := anchor.KeyPEM()
	if err != nil {
		return err
	}
	if err := writeNew(f.key, key, 0o600); err != nil {
		return fmt.Errorf("the private key of the anchor: %w", err)
	}
	if err := writeNew(f.certificate, anchor.PEM(), 0o644); err != nil {
		return errors.Join(fmt.Errorf("the anchor: %w", err), os.Remove(f.key))
	}
	return nil
}

// writeNew writes a file that does not exist.
func writeNew(path string, content []byte, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// report writes where an anchor is.
func (f anchorFiles) report(to io.Writer, anchor *x509.Certificate) {
	fmt.Fprintf(to, "The trust anchor is in %s, valid until %s. Its private key is in %s: keep that offline, "+
		"it certifies every later issuer, and no cluster needs it.\n",
		Printable(f.certificate), anchor.NotAfter.UTC().Format(time.RFC3339), Printable(f.key))
}

// read reads an anchor with its key.
func (f anchorFiles) read() (*ca.Authority, error) {
	certificate, err := readCertFile(f.certificate)
	if err != nil {
		return nil, fmt.Errorf("--anchor-cert: %w", err)
	}

	key, err := readCertFile(f.key)
	if err != nil {
		return nil, fmt.Errorf("--anchor-key: %w", err)
	}

	anchor, err := ca.Load(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the anchor in %s and %s: %w", f.certificate, f.key, err)
	}
	return anchor, nil
}

// readCertFile reads a file of a certificate or key, up to its bound.
func readCertFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxCertFile+1))
	_ = file.Close() // of which nothing is written
	if err == nil && len(content) > maxCertFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxCertFile)
	}
	return content, err
}

// An issued issuer has the anchor that it was certified by.
type issued struct {
	*ca.Authority
	by *x509.Certificate
}

// print prints an issuer and a bundle, either of which may be missing.
func (m *certMaker) print(to io.Writer, issuer issued, bundle []*x509.Certificate) error {
	var key []byte
	if issuer.Authority != nil {
		var err error
		if key, err = issuer.KeyPEM(); err != nil {
			return err
		}
	}
	if m.output == valuesOutput {
		return printPage(to, m.values(issuer, key, bundle), yamlOutput)
	}

	var all []manifest
	if issuer.Authority != nil {
		all = append(all, m.secret(issuer, key))
	}
	if len(bundle) > 0 {
		data := manifest{linkerd.AnchorsKey: string(ca.EncodePEM(bundle...))}
		all = append(all, manifest{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": m.metadata(linkerd.AnchorsName), "data": data,
		})
	}
	return (&linkOptions{output: cmp.Or(m.output, yamlOutput)}).writeManifests(to, all)
}

// secret returns the Secret of an issuer.
func (m *certMaker) secret(issuer issued, key []byte) manifest {
	encode := base64.StdEncoding.EncodeToString
	certificateKey, keyKey := linkerd.IssuerKeys(m.scheme)
	data := manifest{certificateKey: encode(issuer.PEM()), keyKey: encode(key)}
	secret := manifest{
		"apiVersion": "v1", "kind": "Secret", "metadata": m.metadata(linkerd.IssuerName), "data": data,
	}

	if m.scheme == linkerd.KubernetesScheme {
		secret["type"] = linkerd.KubernetesScheme
		data["ca.crt"] = encode(ca.EncodePEM(issuer.by)) // as cert-manager has it; it is not read
	}
	return secret
}

// metadata returns that of an object of a control plane, with the labels that Linkerd's chart sets.
func (m *certMaker) metadata(name string) manifest {
	return manifest{
		"name": name, "namespace": m.domain.Namespace,
		"labels": manifest{
			linkerd.ComponentLabel: "identity", linkerd.ControlPlaneLabel: m.domain.Namespace,
		},
		"annotations": manifest{linkerd.CreatedByAnnotation: "fingerpost/cli " + m.version},
	}
}

// values returns what Linkerd's chart makes the objects of.
func (m *certMaker) values(issuer issued, key []byte, bundle []*x509.Certificate) manifest {
	values := manifest{}
	if len(bundle) > 0 {
		values["identityTrustAnchorsPEM"] = string(ca.EncodePEM(bundle...))
	}
	if issuer.Authority != nil {
		values["identityTrustDomain"] = m.domain.TrustDomain
		tls := manifest{"crtPEM": string(issuer.PEM()), "keyPEM": string(key)}
		values["identity"] = manifest{"issuer": manifest{"scheme": m.scheme, "tls": tls}}
	}
	return values
}
