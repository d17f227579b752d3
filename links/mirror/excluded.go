package mirror

// controllerKeys are not copied from a Service of a linked cluster. A mirror's labels and annotations act
// in this cluster, and these keys are read by controllers: a user who may annotate a Service there could
// have a DNS record, a load balancer or a Secret created here, or have a GitOps controller delete a mirror
// that it takes for its own. docs/mirror.md has the same list, and a test compares the two.
var controllerKeys = []string{
	// Kubernetes and its tools: which proxy serves a Service and how, which tool has written it.
	"app.kubernetes.io/instance", // Argo CD may prune by it
	"app.kubernetes.io/managed-by",
	"endpoints.kubernetes.io/*",
	"endpointslice.kubernetes.io/*",
	"kubectl.kubernetes.io/*",
	"service.alpha.kubernetes.io/*",
	"service.beta.kubernetes.io/*",
	"service.kubernetes.io/*",

	// Tools that deploy, back up and copy objects.
	"argocd.argoproj.io/*",
	"helm.sh/*",
	"helm.toolkit.fluxcd.io/*",
	"kustomize.toolkit.fluxcd.io/*",
	"meta.helm.sh/*",
	"objectset.rio.cattle.io/*",
	"reflector.v1.k8s.emberstack.com/*",
	"replicator.v1.mittwald.de/*",
	"velero.io/*",

	// DNS, load balancers and gateways.
	"alb.ingress.kubernetes.io/*",
	"cloud.google.com/*",
	"beta.cloud.google.com/*",
	"dns.alpha.kubernetes.io/*",
	"external-dns.alpha.kubernetes.io/*",
	"external-dns.kubernetes.io/*",
	"field.cattle.io/*",
	"getambassador.io/*",
	"haproxy.org/*",
	"ingress.kubernetes.io/*",
	"konghq.com/*",
	"kube-vip.io/*",
	"metallb.io/*",
	"metallb.universe.tf/*",
	"net.gke.io/*",
	"networking.gke.io/*",
	"nginx.ingress.kubernetes.io/*",
	"projectcontour.io/*",
	"tailscale.com/*",
	"traefik.ingress.kubernetes.io/*",

	// Other meshes and networks.
	"consul.hashicorp.com/*",
	"ingress.cilium.io/*",
	"io.cilium/*",
	"istio.io/*",
	"kuma.io/*",
	"lbipam.cilium.io/*",
	"multicluster.kubernetes.io/*",
	"multicluster.x-k8s.io/*",
	"networking.istio.io/*",
	"projectcalico.org/*",
	"service.cilium.io/*",
	"skupper.io/*",
	"submariner.io/*",

	// Certificates, scrapes and policies.
	"cert-manager.io/*",
	"kyverno.io/*",
	"policies.kyverno.io/*",
	"prometheus.io/*",
	"service.alpha.openshift.io/*",
	"service.beta.openshift.io/*",
}

// policyKeys configure timeouts, retries and load balancing of a Service's clients. A mirror has those of
// its remote Service. On a federated Service they would apply to the members of every cluster, so only the
// local member's are copied.
var policyKeys = []string{
	"balancer.linkerd.io/*", "balancer.alpha.linkerd.io/*", "retry.linkerd.io/*", "timeout.linkerd.io/*",
}
