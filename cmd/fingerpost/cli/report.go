package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/internal/words"
)

// The bounds of a report.
const (
	maxReportFile  = 16 << 20
	maxReportLog   = 4 << 20 // bytes of the log of a container
	maxReportLines = 20_000  // likewise
	maxEvents      = 1000
)

// reportPages are the pages of a replica's debug server that a report has.
var reportPages = []string{"version", "clusters", "problems", "changes", "streams", "digests"}

func reportCommand(version string) *cobra.Command {
	flags := reportFlags{ReplicaFlags: NewReplicaFlags(version)}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Collect what a bug report needs",
		Long: `Collect what a bug report needs: of each replica the pages of its debug server, its metrics and its
log, and of the cluster the Links and the Events of Fingerpost.

Without -f it shows what it would hold, and writes nothing. It has no Secret: none is read, and what
looks like a token or a private key in any of the files is replaced. It does have names of clusters,
namespaces, Services and Pods, and addresses. What cannot be read is named in errors.txt.`,
		Example: `  fingerpost report
  fingerpost report -f report.tar.gz
  fingerpost report -f - | tar tz`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}

	flags.AddFlags(cmd)
	cmd.Flags().StringVarP(&flags.file, "file", "f", "",
		"file to write, a tar archive that is compressed by gzip; - for stdout; empty to write none")
	cmd.Flags().StringSliceVar(&flags.adminAddrs, adminPort.flag, nil, "address of the "+adminPort.purpose+
		", or several addresses, where --"+debugPort.flag+" is given; empty for its default port beside the "+
		debugPort.purpose)
	return cmd
}

type reportFlags struct {
	ReplicaFlags
	file       string
	adminAddrs []string
}

// A reportFile is one file of a report.
type reportFile struct {
	name, what string
	body       []byte
}

// A report is collected part by part: one that fails leaves the others.
type report struct {
	files []reportFile
	errs  []error
}

func (r *report) add(name, what string, body []byte, err error) {
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", name, err))
		return
	}
	body = redact(body)
	if len(body) > maxReportFile {
		body, what = body[:maxReportFile], what+", the beginning"
	}
	r.files = append(r.files, reportFile{name, what, body})
}

func (f *reportFlags) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	replicas, err := f.Open(ctx)
	if err != nil {
		return err
	}

	defer CloseAll(replicas)
	collected := &report{}
	admins, err := f.admins(replicas)
	if err != nil {
		return err
	}

	for i, replica := range replicas {
		f.addReplica(ctx, collected, replica, admins[i])
	}
	f.addCluster(ctx, collected)
	if len(collected.errs) > 0 {
		collected.files = append(collected.files, reportFile{
			"errors.txt", "what could not be read", []byte(errors.Join(collected.errs...).Error() + "\n"),
		})
	}

	to := cmd.OutOrStdout()
	if f.file == "-" {
		to = cmd.ErrOrStderr()
	}
	if err := collected.printTo(to); err != nil {
		return err
	}
	return f.write(cmd, collected, to)
}

// addReplica adds what one replica has, whose admin server openAdmin opens.
func (f *reportFlags) addReplica(
	ctx context.Context, collected *report, replica Replica, openAdmin func(context.Context) Replica,
) {
	folder := path.Join("replicas", fileName(replica.Name))
	for _, page := range reportPages {
		body, err := replica.fetchBody(ctx, "/debug/"+page)
		collected.add(path.Join(folder, page+".json"), "page /debug/"+page, body, err)
	}

	admin := openAdmin(ctx)
	body, err := admin.fetchBody(ctx, "/metrics")
	collected.add(path.Join(folder, "metrics.txt"), "metrics", body, err)
	admin.Close()

	if replica.pod == nil {
		return
	}
	for _, container := range replica.pod.Spec.Containers {
		name := path.Join(folder, fileName(container.Name))
		body, err := logOf(ctx, replica, container.Name, false)
		collected.add(name+".log", "log of the container", body, err)
		if hasRestarted(replica.pod, container.Name) {
			body, err := logOf(ctx, replica, container.Name, true)
			collected.add(name+".previous.log", "its log before it was restarted", body, err)
		}
	}
}

// admins returns what opens the admin server of each replica: of Pods by a forwarded port, and of those that are given
// by their addresses in the same order, or at its default port beside them.
func (f *reportFlags) admins(replicas []Replica) (all []func(context.Context) Replica, err error) {
	servers := f.ReplicaFlags
	servers.port, servers.addrs = adminPort, f.adminAddrs
	given, err := servers.givenReplicas()
	if err != nil {
		return nil, err
	}

	for i, replica := range replicas {
		switch {
		case replica.pod != nil:
			forward := func(ctx context.Context) Replica { return servers.forwardTo(ctx, replica.pods, replica.pod) }
			all = append(all, forward)
		case i < len(given):
			all = append(all, given[i].itself)
		default:
			all = append(all, replica.beside(adminPort).itself)
		}
	}
	return all, nil
}

// beside returns the server at a default port of the host of a replica that was given by its address.
func (r *Replica) beside(p serverPort) *Replica {
	host, _, _ := net.SplitHostPort(r.Addr) // parseAddress has joined it
	server := replicaAt(net.JoinHostPort(host, strconv.Itoa(int(p.number))))
	return &server
}

func hasRestarted(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == container && s.RestartCount > 0
	})
}

// logOf returns the end of the log of a container, or of the one that it has replaced.
func logOf(ctx context.Context, replica Replica, container string, previous bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	stream, err := replica.pods.client.CoreV1().Pods(replica.pod.Namespace).GetLogs(replica.pod.Name,
		&corev1.PodLogOptions{
			Container: container, Timestamps: true, Previous: previous,
			TailLines: new(int64(maxReportLines)), LimitBytes: new(int64(maxReportLog)),
		}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return io.ReadAll(io.LimitReader(stream, maxReportLog))
}

// addCluster adds the Links and the Events of the cluster. Where replicas are given by their addresses, there need not
// be a kubeconfig.
func (f *reportFlags) addCluster(ctx context.Context, collected *report) {
	config, err := f.RESTConfig()
	if err != nil {
		collected.add("cluster", "", nil, err)
		return
	}

	config.Timeout = pageTimeout
	text, what, err := linksText(ctx, config)
	collected.add("cluster/links.yaml", what, text, err)

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		collected.add("cluster", "", nil, err)
		return
	}
	text, what, err = eventsText(ctx, client)
	collected.add("cluster/events.txt", what, text, err)

	version, err := client.Discovery().ServerVersion()
	if err != nil {
		collected.add("cluster/version.txt", "", nil, err)
		return
	}
	collected.add("cluster/version.txt", "of the API server", []byte(version.String()+"\n"), nil)
}

// linksText returns the Links, without what others keep in them.
func linksText(ctx context.Context, config *rest.Config) (text []byte, what string, err error) {
	_, links, err := ListLinks(ctx, config, "")
	if err != nil {
		return nil, "", err
	}

	for _, link := range links {
		link.SetManagedFields(nil)
		annotations := link.GetAnnotations()
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		link.SetAnnotations(annotations)

		one, err := marshalYAML(link.Object)
		if err != nil {
			return nil, "", err
		}
		text = append(append(text, "---\n"...), one...)
	}
	return text, words.Count(len(links), "Link"), nil
}

// eventsText returns the Events of Fingerpost, one a line.
func eventsText(ctx context.Context, client kubernetes.Interface) (text []byte, what string, err error) {
	events, err := client.EventsV1().Events("").List(ctx, metav1.ListOptions{
		FieldSelector: "reportingController=fingerpost", Limit: maxEvents,
	})
	if err != nil {
		return nil, "", err
	}

	for _, e := range events.Items {
		text = fmt.Appendf(text, "%s %s %s %s/%s/%s %s\n", e.CreationTimestamp.UTC().Format(time.RFC3339), e.Type,
			e.Reason, e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name, Printable(e.Note))
	}
	return text, words.Count(len(events.Items), "Event"), nil
}

// printTo prints what a report holds.
func (r *report) printTo(to io.Writer) error {
	total := 0
	table := newTable("FILE", "BYTES", "WHAT")
	table.keepColumns = 1
	for _, file := range r.files {
		total += len(file.body)
		table.addRow(file.name, len(file.body), file.what)
	}
	fmt.Fprintf(to, "%s, %s before compression\n", words.Count(len(r.files), "file"), words.Count(total, "byte"))
	for _, err := range r.errs {
		fmt.Fprintf(to, "not read: %s\n", Printable(err.Error()))
	}
	return table.printTo(to)
}

// write writes the archive, if a file is named.
func (f *reportFlags) write(cmd *cobra.Command, collected *report, to io.Writer) error {
	switch f.file {
	case "":
		fmt.Fprintln(to, "\nNothing is written: 'fingerpost report -f report.tar.gz' writes it.")
		return nil
	case "-":
		return collected.archive(cmd.OutOrStdout())
	}

	var archive bytes.Buffer
	if err := collected.archive(&archive); err != nil {
		return err
	}
	if err := os.WriteFile(f.file, archive.Bytes(), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(to, "\n%s is written, of %s. Look at it before you pass it on: it has names and addresses.\n",
		f.file, words.Count(archive.Len(), "byte"))
	return nil
}

// archive writes the files as a tar archive, compressed.
func (r *report) archive(to io.Writer) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	now := time.Now()

	for _, file := range r.files {
		header := &tar.Header{
			Name: path.Join("fingerpost-report", file.name), Mode: 0o600, Size: int64(len(file.body)), ModTime: now,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(file.body); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// fileName returns a name as one of a file: an address has characters that others do not take.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		isLetter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		isPlain := isLetter || r >= '0' && r <= '9' || strings.ContainsRune(".-_", r)
		if !isPlain {
			return '_'
		}
		return r
	}, strings.TrimLeft(name, "."))
}

// secrets are what is replaced in every file, although nothing of Fingerpost writes it anywhere.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*`), // a token that is a JWT
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`(?i)\bbearer\s+[\w.~+/=-]{8,}`),
	regexp.MustCompile(`(?i)"?\b(token|client-key-data|password)"?\s*[:=]\s*"?[\w.~+/=-]{16,}"?`),
}

func redact(body []byte) []byte {
	for _, secret := range secrets {
		body = secret.ReplaceAll(body, []byte("[redacted]"))
	}
	return body
}
