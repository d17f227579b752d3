{{- define "fingerpost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, with the chart's unless it is in it. */}}
{{- define "fingerpost.fullname" -}}
{{- $name := include "fingerpost.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Roles are of the whole cluster, or in a namespace that another release uses too, so the release's is in their names. */}}
{{- define "fingerpost.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "fingerpost.fullname" .) -}}
{{- end -}}

{{/* What a selector names never changes: it is immutable. A list of chart and component. */}}
{{- define "fingerpost.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "fingerpost.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "fingerpost.labels" -}}
{{- $root := index . 0 -}}
{{ include "fingerpost.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fingerpost
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The host at which all replicas are asked for state; empty where they are not. */}}
{{- define "fingerpost.peers" -}}
{{- $ca := .Values.tls.clientCA -}}
{{- if and .Values.state.peers (or (not (include "fingerpost.tlsSecret" .)) $ca.secretName $ca.configMapName) -}}
{{ include "fingerpost.fullname" . }}-peers.{{ .Release.Namespace }}.svc.{{ .Values.cluster.domain }}
{{- end -}}
{{- end -}}

{{/* Metadata of an object. A dict with the chart as root, and what differs: name, cluster (it is in no namespace), namespace, component, labels, annotations. */}}
{{- define "fingerpost.metadata" -}}
{{- $root := .root -}}
name: {{ default (include "fingerpost.fullname" $root) .name }}
{{- if not .cluster }}
namespace: {{ default $root.Release.Namespace .namespace }}
{{- end }}
labels:
  {{- include "fingerpost.labels" (list $root (default "destination" .component)) | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Begins a role, whose rules follow, after its binding to an account. A dict with the chart as root, and suffix, namespace (none for a ClusterRole), account. */}}
{{- define "fingerpost.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") -}}
{{- $name := printf "%s%s" (include "fingerpost.clusterName" .root) (default "" .suffix) -}}
{{- $metadata := include "fingerpost.metadata" (merge (dict "name" $name "cluster" (not (hasKey . "namespace"))) .) -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- $metadata | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ default (include "fingerpost.serviceAccount" .root) .account }}, namespace: {{ .root.Release.Namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata: {{- $metadata | nindent 2 }}
{{- end -}}

{{/* A registry of the values takes the place of the one in the repository, if that names one. */}}
{{- define "fingerpost.image" -}}
{{- $i := .Values.image -}}
{{- with default $i.registry (.Values.global | default dict).imageRegistry }}{{ . }}/{{ regexReplaceAll "^[^/]*[.:][^/]*/" $i.repository "" }}{{ else }}{{ $i.repository }}{{ end -}}
{{- if $i.digest }}@{{ $i.digest }}{{ else }}:{{ default .Chart.AppVersion $i.tag }}{{ end -}}
{{- end -}}

{{- define "fingerpost.serviceAccount" -}}
{{- default (include "fingerpost.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "fingerpost.service" -}}
{{- default (include "fingerpost.fullname" .) .Values.service.name -}}
{{- end -}}

{{- define "fingerpost.trustDomain" -}}
{{- default .Values.cluster.domain .Values.cluster.trustDomain -}}
{{- end -}}

{{- define "fingerpost.linkNamespace" -}}
{{- default .Release.Namespace .Values.links.namespace -}}
{{- end -}}

{{/* Not empty if something is written into this cluster: who reads Endpoints writes no EndpointSlices. */}}
{{- define "fingerpost.writes" -}}
{{- if and .Values.mesh.endpointSlices (or .Values.write.externalWorkloads .Values.write.federated (ne .Values.mirror.mode "off")) }}true{{ end -}}
{{- end -}}

{{/* The Secret with the certificate of the gRPC server; empty to serve plaintext. */}}
{{- define "fingerpost.tlsSecret" -}}
{{- if .Values.tls.secretName }}{{ .Values.tls.secretName }}{{ else if .Values.tls.certManager.enabled }}{{ include "fingerpost.fullname" . }}-tls{{ end -}}
{{- end -}}

{{- define "fingerpost.validator" -}}
{{- include "fingerpost.fullname" . }}-sp-validator
{{- end -}}

{{- define "fingerpost.validatorSecret" -}}
{{- default (printf "%s-tls" (include "fingerpost.validator" .)) .Values.spValidator.tls.secretName -}}
{{- end -}}

{{/* 90 percent of a quantity of memory, in bytes: the rest is for what Go's collector does not count. */}}
{{- define "fingerpost.goMemLimit" -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) 0.9 | floor | int64 -}}
{{- end -}}

{{/* What every container of ours is. */}}
{{- define "fingerpost.container" -}}
image: {{ include "fingerpost.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  privileged: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Probes of a container. A list of chart and the name of the admin port. */}}
{{- define "fingerpost.probes" -}}
{{- $port := index . 1 -}}
{{- range $probe, $path := dict "startup" "/ping" "liveness" "/ping" "readiness" "/ready" }}
{{ $probe }}Probe:
  httpGet: {path: {{ $path }}, port: {{ $port }}}
  {{- toYaml (get (index $ 0).Values.probes $probe) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The volume with the account's token, which no Pod of ours gets unasked. */}}
{{- define "fingerpost.token" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600}
    - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{/* What every Pod of ours is. A list of chart and component. */}}
{{- define "fingerpost.pod" -}}
{{- $values := (index . 0).Values -}}
{{- $selector := include "fingerpost.selector" . | fromYaml -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $values.podSecurityContext.runAsUser }}
  runAsGroup: {{ $values.podSecurityContext.runAsGroup }}
  fsGroup: {{ $values.podSecurityContext.runAsGroup }}
  seccompProfile: {type: RuntimeDefault}
{{- range $field := list "imagePullSecrets" "priorityClassName" "runtimeClassName" "nodeSelector" "tolerations" "hostAliases" "dnsPolicy" "dnsConfig" }}
{{- with get $values $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- $onNodes := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $selector) }}
{{- $anti := get (dict
    "soft" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $onNodes)))
    "hard" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $onNodes))) $values.podAntiAffinity.mode }}
{{- with merge (dict) $values.affinity (ternary (dict "podAntiAffinity" $anti) (dict) (not (empty $anti))) }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $zones := dict "maxSkew" 1 "topologyKey" "topology.kubernetes.io/zone" "whenUnsatisfiable" $values.topologySpread.zones
    "matchLabelKeys" (list "pod-template-hash") "labelSelector" (dict "matchLabels" $selector) }}
{{- with $values.topologySpreadConstraints | default (ternary (list) (list $zones) (eq $values.topologySpread.zones "off")) }}
topologySpreadConstraints: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* What the schema cannot refuse with one clear sentence, and the API server or the process would refuse later. */}}
{{- define "fingerpost.validate" -}}
{{- $v := .Values -}}
{{- range $theirs, $ours := .Files.Get "files/linkerd-values.yaml" | fromYaml }}
{{- $top := splitList "." $theirs | first }}
{{- if and (hasKey $v $top) (ne $top (splitList "." $ours | first)) }}
{{- fail (printf "the value %s is called %s in this chart" $theirs $ours) }}
{{- end }}
{{- end }}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- if and (has (toString $v.updateStrategy.maxUnavailable) (list "0" "0%")) (has (toString $v.updateStrategy.maxSurge) (list "0" "0%")) }}
{{- fail "updateStrategy.maxUnavailable and updateStrategy.maxSurge are both 0: no rollout could begin" }}
{{- end }}
{{- $flags := .Files.Lines "files/flags.txt" }}
{{- range $v.extraArgs }}
{{- if not (has (regexFind "[^-][^=]*" .) $flags) }}
{{- fail (printf "extraArgs: %s is no flag of fingerpost serve" .) }}
{{- end }}
{{- end }}
{{- if and $v.rbac.create (lookup "v1" "Namespace" "" "kube-system") }}
{{- range $value, $namespace := dict "controllerNamespace" $v.controllerNamespace "links.namespace" $v.links.namespace }}
{{- if and $namespace (ne $namespace $.Release.Namespace) (not (lookup "v1" "Namespace" "" $namespace)) }}
{{- fail (printf "there is no namespace %s: create it, or set %s to one that exists, such as %s" $namespace $value $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
