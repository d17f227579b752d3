package inject

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"` // OpAdd or OpRemove
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"` // for encoding/json; nil of OpRemove
}

// Operations that there are. A patch for an API server has none that removes.
const (
	OpAdd    = "add"
	OpRemove = "remove"
)

// A patch is operations in order, of an object whose Pod or template is at a prefix.
type patch struct {
	prefix     string
	operations []Operation
}

func (p *patch) add(path string, value any) {
	p.operations = append(p.operations, Operation{OpAdd, p.prefix + path, value})
}

// addMeta adds annotations and labels, sorted, and what they stand in if it is missing.
func (p *patch) addMeta(w *Workload, annotations, labels map[string]string) {
	meta := w.Meta
	if meta == nil {
		p.add("/metadata", struct{}{})
		meta = &metav1.ObjectMeta{}
	}
	p.addTexts("/metadata/annotations", len(meta.Annotations) > 0, annotations)
	p.addTexts("/metadata/labels", len(meta.Labels) > 0, labels)
}

// Annotate returns what to add to the Pod, or template, of a Workload for it to have annotations.
func Annotate(workload *Workload, annotations map[string]string) []Operation {
	p := patch{prefix: workload.Path}
	p.addMeta(workload, annotations, nil)
	return p.operations
}

func (p *patch) addTexts(path string, has bool, texts map[string]string) {
	if len(texts) == 0 {
		return
	}
	if !has {
		p.add(path, struct{}{})
	}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		p.add(path+"/"+escapePointer.Replace(key), texts[key])
	}
}

// escapePointer makes a part of a JSON pointer of a key (RFC 6901).
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// addSpec adds containers and volumes.
func (i *Injector) addSpec(to *patch, workload *Workload, meta *metav1.ObjectMeta, with *settings) {
	const volumes, inits = "/spec/volumes", "/spec/initContainers"
	if len(workload.Spec.Volumes) == 0 {
		to.add(volumes, []struct{}{})
	}
	if len(workload.Spec.InitContainers) == 0 {
		to.add(inits, []struct{}{})
	}

	// A native sidecar comes before the init containers of the Pod, whose connections it proxies.
	first := "/-"
	if with.Proxy.NativeSidecar {
		first = "/0"
	}
	if with.CNIEnabled {
		to.add(inits+first, with.validator())
	} else {
		to.add(volumes+"/-", corev1.Volume{
			Name: string(with.ProxyInit.XtablesMountSource.Name), VolumeSource: emptyDir(""),
		})
		to.add(inits+first, with.init())
	}

	if with.debug {
		to.add("/spec/containers/-", with.debugContainer())
	}
	with.addVolumes(to)

	at := "/spec/containers/-"
	switch {
	case with.Proxy.NativeSidecar:
		at = inits + "/1"
	case with.Proxy.Await:
		at = "/spec/containers/0" // kubelets start the next container once its hook has returned
	}
	to.add(at, i.proxy(workload, meta, with))
}

func emptyDir(medium corev1.StorageMedium) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
}

// addVolumes adds those of the proxy.
func (s *settings) addVolumes(to *patch) {
	const path = "/spec/volumes/-"
	to.add(path, corev1.Volume{Name: endEntityName, VolumeSource: emptyDir(corev1.StorageMediumMemory)})

	if s.Proxy.Tracing.Enabled {
		var files []corev1.DownwardAPIVolumeFile
		for _, name := range []string{"labels", "annotations"} {
			files = append(files, corev1.DownwardAPIVolumeFile{
				Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata." + name},
			})
		}
		to.add(path, corev1.Volume{Name: podinfoName, VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files},
		}})
	}

	if s.Identity.ServiceAccountTokenProjection {
		const day = 24 * 60 * 60 // seconds
		token := &corev1.ServiceAccountTokenProjection{
			Path: tokenName, Audience: "identity.l5d.io", ExpirationSeconds: new(int64(day)),
		}
		to.add(path, corev1.Volume{Name: tokenName, VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: token}}},
		}})
	}
}

// A container is written without what is empty. The type of Kubernetes has resources always, and quantities in another
// form than they were given.
type container struct {
	corev1.Container

	Resources *resources `json:"resources,omitempty"`
}

type resources struct {
	Limits   map[string]Text `json:"limits,omitempty"`
	Requests map[string]Text `json:"requests,omitempty"`
}

// resources returns those of the proxy, which its init containers have as well; nil if there are none.
func (s *settings) resources() *resources {
	of := &s.Proxy.Resources

	all := resources{Limits: map[string]Text{}, Requests: map[string]Text{}}
	for name, quantities := range map[corev1.ResourceName]*limits{
		corev1.ResourceCPU: &of.CPU, corev1.ResourceMemory: &of.Memory,
		corev1.ResourceEphemeralStorage: &of.EphemeralStorage,
	} {
		if quantities.Limit != "" {
			all.Limits[string(name)] = quantities.Limit
		}
		if quantities.Request != "" {
			all.Requests[string(name)] = quantities.Request
		}
	}

	if len(all.Limits)+len(all.Requests) == 0 {
		return nil
	}
	return &all
}

// proxy returns the container of the proxy.
func (i *Injector) proxy(workload *Workload, meta *metav1.ObjectMeta, with *settings) *container {
	values := &with.Proxy
	admin := func(path string) corev1.ProbeHandler { return httpGet(path, values.Ports.Admin) }

	made := &container{Resources: with.resources(), Container: corev1.Container{
		Name: proxyName, Image: with.reference(&values.Image), ImagePullPolicy: with.pullPolicy(&values.Image),
		Env: i.env(workload, meta, with),
		Ports: []corev1.ContainerPort{
			{Name: proxyName, ContainerPort: values.Ports.Inbound},
			{Name: "linkerd-admin", ContainerPort: values.Ports.Admin},
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler: admin("/live"), InitialDelaySeconds: values.LivenessProbe.InitialDelaySeconds,
			TimeoutSeconds: values.LivenessProbe.TimeoutSeconds,
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: admin("/ready"), InitialDelaySeconds: values.ReadinessProbe.InitialDelaySeconds,
			TimeoutSeconds: values.ReadinessProbe.TimeoutSeconds,
		},
		SecurityContext:          with.proxySecurity(workload.Spec),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts:             with.proxyMounts(workload.Spec),
	}}

	if !values.NativeSidecar {
		made.Lifecycle = with.lifecycle()
		return made
	}
	made.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	if values.Await {
		made.StartupProbe = &corev1.Probe{
			ProbeHandler: admin("/ready"), InitialDelaySeconds: values.StartupProbe.InitialDelaySeconds,
			PeriodSeconds: values.StartupProbe.PeriodSeconds, FailureThreshold: values.StartupProbe.FailureThreshold,
		}
	}
	return made
}

// lifecycle returns the hooks of a proxy that is a container like others; nil if it has none.
func (s *settings) lifecycle() *corev1.Lifecycle {
	exec := func(command ...string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
	}
	var hooks corev1.Lifecycle
	if s.Proxy.Await {
		hooks.PostStart = exec("/usr/lib/linkerd/linkerd-await", "--timeout=2m",
			"--port="+strconv.Itoa(int(s.Proxy.Ports.Admin)))
	}
	if s.Proxy.WaitBeforeExitSeconds > 0 {
		hooks.PreStop = exec("/bin/sleep", strconv.FormatUint(s.Proxy.WaitBeforeExitSeconds, 10))
	}

	if hooks == (corev1.Lifecycle{}) {
		return nil
	}
	return &hooks
}

func (s *settings) proxySecurity(spec *corev1.PodSpec) *corev1.SecurityContext {
	if s.Proxy.SecurityContext != nil {
		return s.Proxy.SecurityContext
	}
	security := restricted(s.Proxy.UID)
	if s.Proxy.GID >= 0 {
		security.RunAsGroup = &s.Proxy.GID
	}
	if of := capabilities(spec); of != nil {
		security.Capabilities = of
	}
	return security
}

// restricted returns what the containers that are added have in common, unless the Values have another context.
func restricted(user int64) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
		RunAsUser:      &user,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// capabilities returns those of the first container: where a policy of the cluster demands them, it demands them of
// all containers. nil if it has none.
func capabilities(spec *corev1.PodSpec) *corev1.Capabilities {
	if len(spec.Containers) == 0 || spec.Containers[0].SecurityContext == nil {
		return nil
	}
	of := spec.Containers[0].SecurityContext.Capabilities
	if of == nil || len(of.Add)+len(of.Drop) == 0 {
		return nil
	}
	return &corev1.Capabilities{Add: slices.Clone(of.Add), Drop: slices.Clone(of.Drop)}
}

func (s *settings) proxyMounts(spec *corev1.PodSpec) []corev1.VolumeMount {
	mounts := []corev1.VolumeMount{{Name: endEntityName, MountPath: identityDir}}
	if s.Proxy.Tracing.Enabled {
		mounts = append(mounts, corev1.VolumeMount{Name: podinfoName, MountPath: podinfoDir})
	}
	if s.Identity.ServiceAccountTokenProjection {
		mounts = append(mounts, corev1.VolumeMount{Name: tokenName, MountPath: tokenDir})
	}
	if account := accountMount(spec); account != nil {
		mounts = append(mounts, *account)
	}
	return mounts
}
