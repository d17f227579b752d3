package docs

import "testing"

// The pages.
const (
	readme  = "README.md"
	install = "docs/install.md"
	link    = "docs/link-two-clusters.md"
	fleets  = "docs/fleets.md"
)

// notRun are the commands that are not run, each as its page has it, and why.
var notRun = []struct{ page, command, why string }{
	{readme, "make build\n", "make test-e2e begins with it: bin/fingerpost is what it makes"},
	{readme, "make demo\n", "make test-e2e plays it"},
	{readme, "make test\n", "these tests are a part of it"},
	{install, newMesh, "proxies take nodes; e2e/live installs the chart so"},
	{install, stepCertificate, "it takes step, and the key of a trust anchor; the test has a certificate of its own"},
	{fleets, openShift, "it takes OpenShift; tools/chart renders the chart so"},
}

const stepCertificate = `step certificate create linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local tls.crt tls.key \
  --ca ca.crt --ca-key ca.key --not-after 2160h --no-password --insecure
`

const newMesh = `kubectl create namespace linkerd
fingerpost certs new | kubectl apply -f -
helm install fingerpost charts/fingerpost -n linkerd --set cluster.name=east --set controlPlane.enabled=true \
  --set crds.mesh=true --set crds.links=true
kubectl -n shop get deployment -o yaml | fingerpost inject - | kubectl apply -f -
fingerpost check --namespace linkerd
`

const openShift = `helm install fingerpost charts/fingerpost -n fingerpost --create-namespace \
  --set cluster.name=east --set controllerNamespace=$mesh --set crds.links=true \
  --set podSecurityContext.runAsUser=null --set podSecurityContext.runAsGroup=null
`

// endless are the commands that do not end by themselves, and what a reader sees before going on to the next one. They
// run until the end of their page's section.
var endless = []struct{ page, command, until string }{
	{readme, "bin/fingerpost serve ", "Ready"},
	{link, "fingerpost endpoints web-federated.shop:8080 --watch ", "+"},
}

// instead are the blocks that come instead of the one before, and how a reader who has run that undoes it.
var instead = []struct{ page, command, undo string }{
	{
		install, "token=$($WEST create token fingerpost-link ",
		"kubectl --context east -n fingerpost delete link/west secret/cluster-credentials-west",
	},
}

// withLinkerd are the sections that are about an installed Linkerd, and are left out where there is none.
var withLinkerd = []struct{ page, headline string }{
	{install, "In the place of Linkerd's destination"},
}

// Each entry of the lists is about something that stands in its page.
func TestLists(t *testing.T) {
	var all [][2]string
	for _, n := range notRun {
		all = append(all, [2]string{n.page, n.command})
	}
	for _, e := range endless {
		all = append(all, [2]string{e.page, e.command})
	}
	for _, i := range instead {
		all = append(all, [2]string{i.page, i.command})
	}
	for _, s := range withLinkerd {
		all = append(all, [2]string{s.page, s.headline})
	}

	for _, entry := range all {
		if page, text := entry[0], entry[1]; !isIn(t, page, text) {
			t.Errorf("%s has no %q: remove it from the list", page, text)
		}
	}
}
