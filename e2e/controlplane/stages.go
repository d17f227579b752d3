package controlplane

import (
	"bytes"
	"strings"
)

// Unready is an annotation for pods. While it is "true" the pod runs but is
// not Ready, and so its endpoint is not ready either; when it is taken away the
// pod becomes Ready. In a pod template it makes all pods begin that way.
const Unready = "fingerpost.test/unready"

// stages are kwok's configuration. They describe to kwok how nodes and pods get on, in place of kubelets. A stage is
// taken as soon as its selector matches:
//
//	node: (new, or not Ready) -> Ready
//	pod:  Pending -> Running and Ready -> gone when deleted
//	                 Running and Ready, of a Job -> Succeeded
//	                 Running and Ready <-> Running and not Ready
//
// The way back to Ready is what a real kubelet does after its node was away:
// the control plane marks the pods of a lost node not Ready, and only their
// kubelet may report that they are well again.
const stages = `
kind: KwokConfiguration
apiVersion: config.kwok.x-k8s.io/v1alpha1
options:
  # One pod at a time. Two workers that need a first address at the same moment
  # each make a pool of their own, and two pods get the same address.
  podPlayStageParallelism: 1
  # A file with options gets no defaults; these are them.
  nodePlayStageParallelism: 4
  nodeLeaseParallelism: 4
  podsOnNodeSyncParallelism: 1
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |` + nodeConditions + `
      phase: Running
      addresses:
      - {type: InternalIP, address: {{ NodeIP | Quote }}}
      - {type: Hostname, address: {{ .metadata.name | Quote }}}
      allocatable: {cpu: "1000", memory: 1Ti, pods: "10000"}
      capacity: {cpu: "1000", memory: 1Ti, pods: "10000"}
---
# A node's real heartbeat is its Lease. This renews its status now and then.
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-heartbeat}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: In, values: ["True"]}
  delay: {durationMilliseconds: 300000, jitterDurationMilliseconds: 330000}
  next:
    statusTemplate: |` + nodeConditions + `
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-run}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |` + podConditions + `
      phase: Running
      startTime: {{ Now | Quote }}` + bothAddresses + `
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}
    - {key: '.metadata.annotations["` + Unready + `"]', operator: NotIn, values: ["true"]}
  next:
    statusTemplate: |` + podConditions + `
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-unready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: In, values: ["True"]}
    - {key: '.metadata.annotations["` + Unready + `"]', operator: In, values: ["true"]}
  next:
    statusTemplate: |` + podConditions + `
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-complete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.metadata.ownerReferences.[].kind', operator: In, values: [Job]}
  next:
    statusTemplate: |
      phase: Succeeded
      conditions:
      - {type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ Now | Quote }}}
      - {type: ContainersReady, status: "False", reason: PodCompleted, lastTransitionTime: {{ Now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        imageID: ""
        ready: false
        restartCount: 0
        state:
          terminated: {exitCode: 0, reason: Completed, startedAt: {{ Now | Quote }}, finishedAt: {{ Now | Quote }}}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next:
    delete: true
`

// nodeConditions is the part of a node's status that shows it is well.
const nodeConditions = `
      conditions:
      {{ range NodeConditions }}
      - type: {{ .type | Quote }}
        status: {{ .status | Quote }}
        reason: {{ .reason | Quote }}
        message: {{ .message | Quote }}
        lastHeartbeatTime: {{ Now | Quote }}
        lastTransitionTime: {{ Now | Quote }}
      {{ end }}`

// podConditions is the part of a running pod's status that shows whether it is
// Ready, which the annotation decides.
const podConditions = `
      {{ $ready := ne "true" (toString (get (default dict .metadata.annotations) "` + Unready + `")) }}
      conditions:
      {{ range list "Initialized" "ContainersReady" "Ready" }}
      - type: {{ . }}
        status: {{ if or $ready (eq . "Initialized") }}"True"{{ else }}"False"{{ end }}
        lastTransitionTime: {{ Now | Quote }}
      {{ end }}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        imageID: ""
        ready: {{ $ready }}
        restartCount: 0
        state: {running: {startedAt: {{ Now | Quote }}}}
      {{ end }}`

// bothAddresses are those of a running pod: one of each family that the cluster has.
const bothAddresses = `
      {{ with NodeIPsWith .spec.nodeName }}
      hostIP: {{ index . 0 | Quote }}
      hostIPs: [{{ range . }}{ip: {{ . | Quote }}},{{ end }}]
      {{ end }}
      {{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
      podIP: {{ index . 0 | Quote }}
      podIPs: [{{ range . }}{ip: {{ . | Quote }}},{{ end }}]
      {{ end }}`

// oneAddress is bothAddresses in the words of kwok before v0.8.0, which gives a pod one address, of IPv4. A later kwok
// does not build beside the modules of Kubernetes 1.33.
const oneAddress = `
      {{ with NodeIPWith .spec.nodeName }}
      hostIP: {{ . | Quote }}
      hostIPs: [{ip: {{ . | Quote }}}]
      {{ end }}
      {{ with PodIPWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
      podIP: {{ . | Quote }}
      podIPs: [{ip: {{ . | Quote }}}]
      {{ end }}`

// stagesOf returns the stages in the words of a kwok that prints this as its version.
func stagesOf(version []byte) []byte {
	if bytes.Contains(version, []byte(" v0.7.")) {
		return []byte(strings.Replace(stages, bothAddresses, oneAddress, 1))
	}
	return []byte(stages)
}
