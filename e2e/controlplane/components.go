package controlplane

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// Component is one process of a cluster.
type Component string

// The components, in the order in which they are started. A light cluster has
// the first two.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Kwok              Component = "kwok"
)

// etcdArgs leave fsync out: the state need not survive a crash of the machine.
func (c *Cluster) etcdArgs() []string {
	client, peer := "http://"+c.etcdPort.address(), "http://"+c.peerPort.address()
	return []string{
		"--name=" + c.name,
		"--data-dir=" + filepath.Join(c.dir.path, "etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + c.name + "=" + peer,
		// A member without peers is its own leader after one election timeout.
		"--heartbeat-interval=20", // ms
		"--election-timeout=200",  // ms
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (c *Cluster) apiServerArgs(at *port) []string {
	args := []string{
		"--etcd-servers=http://" + c.etcdPort.address(),
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--endpoint-reconciler-type=none", // endpoints may not be on loopback
		fmt.Sprintf("--secure-port=%d", at.number),
		"--tls-cert-file=" + c.file(servingCertFile),
		"--tls-private-key-file=" + c.file(servingKeyFile),
		"--client-ca-file=" + c.file(caFile),
		"--token-auth-file=" + c.file(tokensFile),
		// Not the server's own URL, or tokens would end with a move.
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file(serviceAccountKeyFile),
		"--service-account-signing-key-file=" + c.file(serviceAccountKeyFile),
		"--service-cluster-ip-range=" + c.serviceRanges(),
		"--authorization-mode=RBAC",
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement", // as OpenShift has it
		"--allow-privileged=true",
		"--profiling=false",
	}
	if c.options.Audit {
		args = append(args,
			"--audit-policy-file="+c.file(auditPolicyFile),
			"--audit-log-path="+c.AuditLog(),
			"--audit-log-maxsize=2000", // MB: one file, never rotated
		)
	}
	if c.options.Services {
		args = append(args, "--egress-selector-config-file="+c.file(egressFile))
	}
	return args
}

func (c *Cluster) serviceRanges() string {
	if c.options.IPv6 {
		return c.services.String() + ",fd00:f1:9e::/112" // they are not routed: every cluster may have the same
	}
	return c.services.String()
}

// controllers are those that turn a Deployment and a Service into ready
// EndpointSlices and Endpoints, keep ServiceAccounts and their tokens, and clean up. The
// node-lifecycle controller is among them because it takes away the taint that
// new nodes have.
var controllers = strings.Join([]string{
	"deployment-controller",
	"endpoints-controller",
	"endpointslice-controller",
	"endpointslice-mirroring-controller", // of the Endpoints of gateway mirrors
	"garbage-collector-controller",
	"job-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"replicaset-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"statefulset-controller",
}, ",")

func (c *Cluster) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + c.file(kubeconfigFile(ControllerManager)),
		"--controllers=" + controllers,
		"--use-service-account-credentials=true", // bootstrap RBAC is per controller
		"--service-account-private-key-file=" + c.file(serviceAccountKeyFile),
		"--root-ca-file=" + c.file(caFile),
		"--cluster-cidr=" + c.pods.String(),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=300",
		"--kube-api-burst=500",
	}
}

func (c *Cluster) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + c.file(kubeconfigFile(Scheduler)),
		"--authentication-kubeconfig=",
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=300",
		"--kube-api-burst=500",
	}
}

// kwokArgs are for a run of kwok that gives its pods addresses of the range.
func (c *Cluster) kwokArgs(pods netip.Prefix) []string {
	return []string{
		"--kubeconfig=" + c.file(kubeconfigFile(Kwok)),
		"--config=" + c.file(stagesFile),
		"--manage-all-nodes=true",
		"--cidr=" + pods.String(),
		"--node-ip=" + c.options.NodeIP,
		"--node-lease-duration-seconds=40",
		"--server-address=",
	}
}

// These files are in the state directory.
const (
	caFile                = "ca.crt"
	servingCertFile       = "apiserver.crt"
	servingKeyFile        = "apiserver.key"
	serviceAccountKeyFile = "serviceaccount.key"
	tokensFile            = "tokens.csv"
	stagesFile            = "stages.yaml"
	auditPolicyFile       = "audit-policy.yaml"
	auditLogFile          = "audit.log"
	egressFile            = "egress.yaml"
	egressSocket          = "egress.socket"
)

func kubeconfigFile(user Component) string { return string(user) + ".kubeconfig" }

func (c *Cluster) file(name string) string { return filepath.Join(c.dir.path, name) }
