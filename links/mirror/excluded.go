package mirror

// What a mirror takes over from a Service of a linked cluster acts in this one, so keys by which controllers are told what to do, or what is
// theirs, are not copied: whoever may annotate a Service there would have a DNS record, a load balancer or a Secret made here, or a mirror
// deleted by the GitOps controller that takes it for its own. The list is that of docs/mirror.md, and a test compares the two.
var controllerKeys = []string{
	// Kubernetes and its tools: which proxy serves a Service and how, who has written it.
	"app.kubernetes.io/instance", // by which Argo CD may know what to prune
	"app.kubernetes.io/managed-by",
	"endpoints.kubernetes.io/*",
	"endpointslice.kubernetes.io/*",
	"kubectl.kubernetes.io/*",
	"service.alpha.kubernetes.io/*",
	"service.beta.kubernetes.io/*",
	"service.kubernetes.io/*",

	// Who deploys it, backs it up, or makes copies of it.
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

// policyKeys say how clients of a Service wait and retry. On a mirror they are about the Service of the cluster that says so; on a federated
// Service they would be about those of all other clusters, so there only the local member's count.
var policyKeys = []string{"balancer.linkerd.io/*", "balancer.alpha.linkerd.io/*", "retry.linkerd.io/*", "timeout.linkerd.io/*"}
