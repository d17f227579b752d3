package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/identity/ca"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A certRotator finds out what is next while a trust anchor takes over from others in a cluster, and prints it.
type certRotator struct {
	kubeFlags
	certMaker
	remove []string
	force  bool
}

func certsRotateCommand(version string) *cobra.Command {
	rotator := certRotator{kubeFlags: kubeFlags{version: version}, certMaker: certMaker{version: version}}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Print the next step by which a trust anchor takes over",
		Long: `Print the next step by which a trust anchor takes over from the one in use, without a request that
fails. Run it again and again, with the same two files. The steps are:

  1. the new anchor is made, and printed beside the old one: every proxy must get it, so start
     Pods again
  2. an issuer under the new anchor: every leaf of the old issuer must end
  3. the bundle without the old anchor, which --remove names

What is next is found out from the cluster: its anchors, its issuer, since when they are there, and
what the proxies of its Pods trust. While that is to be waited for nothing is printed, stderr has
what is missing, and the exit code is 1. Nothing is applied: look at each step, and apply it as you
apply the rest of the mesh.`,
		Example: `  fingerpost certs rotate --anchor-cert new.crt --anchor-key new.key | kubectl apply -f -
  fingerpost certs rotate --anchor-cert new.crt --remove 0a1b2c3d | kubectl apply -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := rotator.validateRotation(); err != nil {
				return usageError(cmd, err)
			}
			_, client, err := rotator.connect()
			if err != nil {
				return err
			}
			return rotator.rotate(cmd.Context(), client, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}

	fs := cmd.Flags()
	groupFlags(fs, rotator.addKubeFlags)
	rotator.addOutputFlag(cmd)
	fs.StringVarP(&rotator.domain.Namespace, "linkerd-namespace", "L", linkerdPreset,
		"namespace of the mesh's control plane")
	fs.StringVar(&rotator.domain.TrustDomain, "trust-domain", "",
		"trust domain of the mesh's identities, instead of that of its installation")
	fs.StringVar(&rotator.files.certificate, "anchor-cert", "",
		"file of the new anchor, which is made if it is missing")
	fs.StringVar(&rotator.files.key, "anchor-key", "", "file of its private key, for the first two steps")

	fs.DurationVar(&rotator.anchorLife, "lifetime-anchor", anchorLife, "how long the new anchor is valid, at least 1h")
	rotator.addLifeFlag(cmd)
	fs.StringSliceVar(&rotator.remove, "remove", nil,
		"first 8 digits or more of the fingerprints of anchors that no cluster uses any more, for the last step")
	fs.BoolVar(&rotator.force, "force", false, "print the next step although something is to be waited for")
	return cmd
}

func (r *certRotator) validateRotation() error {
	if r.files.certificate == "" {
		return errors.New("--anchor-cert is missing: name a file for the new anchor, the same one in each step")
	}
	r.scheme = linkerd.IssuerScheme // that of the cluster counts, once it is read
	domain := r.domain
	r.domain.TrustDomain = cmp.Or(domain.TrustDomain, "cluster.local")
	err := r.validate()
	r.domain = domain
	return err
}

// rotate prints the next step of a cluster.
func (r *certRotator) rotate(ctx context.Context, client kubernetes.Interface, out, notes io.Writer) error {
	mesh, err := readMeshCerts(ctx, client, r.domain.Namespace)
	if err != nil {
		return err
	}
	r.scheme = mesh.scheme
	r.domain.TrustDomain = cmp.Or(r.domain.TrustDomain, mesh.trustDomain)

	anchor, err := r.newAnchor(notes)
	if err != nil {
		return err
	}
	rotation := &ca.Rotation{
		Bundle: mesh.bundle, Issuer: mesh.issuer, New: anchor,
		IssuerSince: mesh.issuerSince, LeafLife: mesh.leafLife,
	}

	step := rotation.Next(time.Now())
	if step == ca.ReplaceIssuer { // if the proxies are ready for it, whom it takes long to list
		behind, total, err := mesh.proxiesBehind(ctx, client, r.domain.Namespace, anchor)
		if err != nil && !r.force {
			return err
		}
		rotation.Behind = len(behind)

		step = rotation.Next(time.Now())
		if step == ca.AwaitProxies {
			describeBehind(notes, behind, total)
		}
	}

	return r.printStep(step, rotation, mesh, out, notes)
}

// newAnchor returns the anchor that takes over, without its key. The first time it is made.
func (r *certRotator) newAnchor(notes io.Writer) (*x509.Certificate, error) {
	content, err := readCertFile(r.files.certificate)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r.makeAnchor(notes)
	case err != nil:
		return nil, fmt.Errorf("--anchor-cert: %w", err)
	}

	all, err := ca.ParsePEM(content)
	if err != nil {
		return nil, fmt.Errorf("--anchor-cert %s: %w", r.files.certificate, err)
	}
	return all[0], nil
}

func (r *certRotator) makeAnchor(notes io.Writer) (*x509.Certificate, error) {
	if r.files.key == "" {
		return nil, errors.New("there is no file " + r.files.certificate +
			": give --anchor-key as well, so that an anchor is made")
	}

	anchor, err := ca.NewAnchor(r.domain, r.anchorLife, time.Now())
	if err == nil {
		err = r.files.write(anchor)
	}
	if err != nil {
		return nil, err
	}
	r.files.report(notes, anchor.Certificate)
	return anchor.Certificate, nil
}

// describeBehind writes which Pods are to be started again.
func describeBehind(to io.Writer, behind []proxyPod, total int) {
	byNamespace := map[string]int{}
	for _, pod := range behind {
		byNamespace[pod.namespace]++
	}
	var all []string
	for namespace, n := range byNamespace {
		all = append(all, fmt.Sprintf("%s (%d)", namespace, n))
	}
	slices.Sort(all)

	fmt.Fprintf(to, "%s of %s proxies do not trust the new anchor. Start their Pods again, such as with 'kubectl "+
		"rollout restart', those of the control plane first. They are in: %s\n",
		words.Number(len(behind)), words.Number(total), Printable(words.Some(all, 10)))
}

// printStep prints a step, or why there is none to be printed.
func (r *certRotator) printStep(
	step ca.Step, rotation *ca.Rotation, mesh *meshCerts, out, notes io.Writer,
) error {
	if r.force && step == ca.AwaitProxies {
		step = ca.ReplaceIssuer
	}
	if r.force && step == ca.AwaitLeaves {
		step = ca.RemoveAnchors
	}

	switch step {
	case ca.AddAnchor:
		return r.printBundle(rotation.Grown(), mesh, out, notes, "Step 1 of 3: the new anchor beside the others. "+
			"Once it is applied, start the Pods of the control plane again, then all others with a proxy. Run "+
			"this command again to see which ones lack it.")
	case ca.AwaitProxies:
		return notYet("step 2 comes when every proxy trusts the new anchor")
	case ca.ReplaceIssuer:
		return r.printIssuer(mesh, out, notes)
	case ca.AwaitLeaves:
		return awaitLeaves(rotation)
	case ca.RemoveAnchors:
		return r.printShrunk(rotation, mesh, out, notes)
	case ca.Done:
	}

	fmt.Fprintf(notes, "Done: %s is the only trust anchor, and the issuer is certified by it. To replace it, name "+
		"files that do not exist.\n", nameOfCert(rotation.New))
	return nil
}

func awaitLeaves(rotation *ca.Rotation) error {
	if rotation.IssuerSince.IsZero() {
		return notYet("since when the issuer is there is not known: once that is %s, add --force", rotation.LeafLife)
	}
	return notYet("step 3 comes at %s, when the last leaf of the issuer before has ended: it was replaced at %s",
		utc(rotation.LeavesEnd()), utc(rotation.IssuerSince))
}

func notYet(format string, args ...any) error {
	return WithExitCode(ExitNo, fmt.Errorf("not yet: "+format, args...))
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// nameOfCert names a certificate for people.
func nameOfCert(c *x509.Certificate) string {
	return fmt.Sprintf("%s (sha256 %.8s, until %s)",
		cmp.Or(Printable(c.Subject.String()), "a certificate without a subject"), ca.Fingerprint(c), utc(c.NotAfter))
}

// printBundle prints a bundle of anchors, unless another program writes it.
func (r *certRotator) printBundle(
	bundle []*x509.Certificate, mesh *meshCerts, out, notes io.Writer, what string,
) error {
	if mesh.bundleOf != "" {
		var names []string
		for _, c := range bundle {
			names = append(names, nameOfCert(c))
		}
		return WithExitCode(ExitNo, fmt.Errorf("trust-manager writes the anchors: make the sources of its Bundle %q "+
			"consist of %s", Printable(mesh.bundleOf), strings.Join(names, ", ")))
	}

	fmt.Fprintln(notes, what)
	if mesh.fromValues && r.output != valuesOutput {
		fmt.Fprintln(notes, "Linkerd's chart writes this ConfigMap, too, from identityTrustAnchorsPEM: with -o values "+
			"that is printed, for 'helm upgrade --reuse-values -f'. What is applied beside the chart lasts until its "+
			"next upgrade.")
	}
	return r.print(out, issued{}, bundle)
}

// printIssuer prints an issuer under the new anchor.
func (r *certRotator) printIssuer(mesh *meshCerts, out, notes io.Writer) error {
	if mesh.issuerOf != "" {
		return WithExitCode(ExitNo, fmt.Errorf("step 2 of 3: cert-manager writes the issuer. Have the Issuer that its "+
			"Certificate %q names sign with the anchor in %s, and renew the Certificate", Printable(mesh.issuerOf),
			r.files.certificate))
	}

	anchor, err := r.files.read()
	if err != nil {
		return err
	}
	issuer, err := anchor.NewIssuer(r.domain, r.issuerLife, time.Now())
	if err != nil {
		return err
	}

	fmt.Fprintf(notes, "Step 2 of 3: an issuer under the new anchor. The control plane takes it by itself, which its "+
		"Event IssuerUpdated reports. Proxies renew their leaves by themselves within %s: nothing is to be started "+
		"again.\n", mesh.leafLife)
	r.reportIssuer(notes, issuer.Certificate)
	return r.print(out, issued{issuer, anchor.Certificate}, nil)
}

// printShrunk prints the bundle without the anchors that are named. Which ones they are is not guessed: a linked
// cluster may have its issuer under one of them.
func (r *certRotator) printShrunk(rotation *ca.Rotation, mesh *meshCerts, out, notes io.Writer) error {
	if len(r.remove) == 0 {
		var others []string
		for _, c := range rotation.Others() {
			others = append(others, nameOfCert(c))
		}
		return WithExitCode(ExitNo, fmt.Errorf("step 3 of 3 removes anchors. Name by --remove each one under which no "+
			"linked cluster has its issuer any more: %s", strings.Join(others, ", ")))
	}

	bundle, err := rotation.Shrunk(r.remove)
	if err != nil {
		return WithExitCode(ExitUsage, fmt.Errorf("--remove: %w", err))
	}
	return r.printBundle(bundle, mesh, out, notes, "Step 3 of 3: the anchors without those that go. Once it is "+
		"applied, proxies that start trust the others alone. Those that run go on as they are: start them again "+
		"when it suits.")
}
