{{/*
Begins every template, NOTES.txt too. A value or a heading that is null has been left out by helm. files/defaults.yaml,
which is generated, says what counts then: nothing, for maps, lists and what is optional ("unset"), and otherwise the
chart's default. So the templates find everything at its place, whatever a user has set to null.
*/}}
{{- define "fingerpost.defaults" -}}
{{- $defaults := .Files.Get "files/defaults.yaml" | fromYaml -}}
{{- include "fingerpost.prune" .Values -}}
{{- include "fingerpost.fill" (list .Values $defaults.values $defaults.unset "") -}}
{{- if eq (toString .Values.enabled) "false" }}
{{- fail "enabled is false: a chart does not switch itself off; the Chart.yaml of its parent does, by a condition such as fingerpost.enabled" }}
{{- end }}
{{- if .Values.controlPlane.enabled }}
{{- include "fingerpost.controlPlane" . }}
{{- end }}
{{- end -}}

{{/* Takes out what is null and has no default, which helm leaves in. */}}
{{- define "fingerpost.prune" -}}
{{- $values := . -}}
{{- range $name, $value := $values -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $values $name }}{{ end -}}
{{- if kindIs "map" $value }}{{ include "fingerpost.prune" $value }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* A list of values, their defaults, the paths of what null unsets, and the path of the values. */}}
{{- define "fingerpost.fill" -}}
{{- $values := index . 0 -}}
{{- $unset := index . 2 -}}
{{- $path := index . 3 -}}
{{- range $name, $default := index . 1 -}}
{{- $at := printf "%s%s" $path $name -}}
{{- if and (hasKey $values $name) (kindIs "map" $default) (not (has $at $unset)) }}
{{- include "fingerpost.fill" (list (get $values $name) $default $unset (printf "%s." $at)) }}
{{- else if not (or (hasKey $values $name) (has $at $unset)) }}
{{- $_ := set $values $name (deepCopy $default) }}
{{- else if not (hasKey $values $name) }}
{{- if kindIs "map" $default }}{{ $_ := set $values $name (dict) }}{{ end }}
{{- if kindIs "slice" $default }}{{ $_ := set $values $name (list) }}{{ end }}
{{- end }}
{{- end -}}
{{- end -}}

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

{{/* What a selector names never changes: it is immutable. That of a part of a control plane is the one of Linkerd's Deployment, so that each may follow the other. A list of chart and component. */}}
{{- define "fingerpost.selector" -}}
{{- if include "fingerpost.isPart" . -}}
{{ include "fingerpost.partSelector" . }}
linkerd.io/control-plane-ns: {{ (index . 0).Release.Namespace | toYaml }}
linkerd.io/proxy-deployment: {{ include "fingerpost.partName" . | toYaml }}
{{- else -}}
{{ include "fingerpost.names" . }}
{{- end -}}
{{- end -}}

{{/* Labels that name the chart's objects. A list of chart and component. */}}
{{- define "fingerpost.names" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "fingerpost.name" $root | toYaml }}
app.kubernetes.io/instance: {{ $root.Release.Name | toYaml }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "fingerpost.labels" -}}
{{- $root := index . 0 -}}
{{ include "fingerpost.names" . }}
{{- if include "fingerpost.isPart" . }}
{{ include "fingerpost.partSelector" . }}
linkerd.io/control-plane-ns: {{ $root.Release.Namespace | toYaml }}
{{- end }}
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

{{/* Not empty if replicas prove to each other who they are. */}}
{{- define "fingerpost.authenticatesPeers" -}}
{{- if and .Values.state.authenticatePeers (include "fingerpost.peers" .) }}true{{ end -}}
{{- end -}}

{{/* Metadata of an object. A dict with the chart as root, and what differs: name, cluster (it is in no namespace), namespace, component, labels, annotations. */}}
{{- define "fingerpost.metadata" -}}
{{- $root := .root -}}
name: {{ default (include "fingerpost.fullname" $root) .name | toYaml }}
{{- if not .cluster }}
namespace: {{ default $root.Release.Namespace .namespace | toYaml }}
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

{{/* Begins a role, whose rules follow, after its binding to an account. A dict with the chart as root, and suffix, namespace (none for a ClusterRole), account; name and binding, of a role that has a name of Linkerd's. */}}
{{- define "fingerpost.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") -}}
{{- $name := default (printf "%s%s" (include "fingerpost.clusterName" .root) (default "" .suffix)) .name -}}
{{- $metadata := include "fingerpost.metadata" (merge (dict "name" $name "cluster" (not (hasKey . "namespace"))) .) -}}
{{- $bound := include "fingerpost.metadata" (merge (dict "name" (default $name .binding) "cluster" (not (hasKey . "namespace"))) .) -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- $bound | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name | toYaml }}}
subjects:
- {kind: ServiceAccount, name: {{ default (include "fingerpost.serviceAccount" .root) .account | toYaml }}, namespace: {{ .root.Release.Namespace | toYaml }}}
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
{{- default (ternary "linkerd-multicluster" .Release.Namespace .Values.controlPlane.enabled) .Values.links.namespace -}}
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
{{- if .Values.controlPlane.enabled }}linkerd{{ else }}{{ include "fingerpost.fullname" . }}{{ end }}-sp-validator
{{- end -}}

{{- define "fingerpost.validatorSecret" -}}
{{- default (printf "%s%s" (include "fingerpost.validator" .) (include "fingerpost.tlsSuffix" .)) .Values.spValidator.tls.secretName -}}
{{- end -}}

{{/* What the Secret of a webhook's certificate has after the name of its Service. */}}
{{- define "fingerpost.tlsSuffix" -}}
{{- ternary "-k8s-tls" "-tls" .Values.controlPlane.enabled -}}
{{- end -}}

{{/* The headless Service of the Policy API. */}}
{{- define "fingerpost.policyService" -}}
{{- default (printf "%s-policy" (include "fingerpost.fullname" .)) .Values.policy.service.name -}}
{{- end -}}

{{/* The Service of the webhook for objects of policy. */}}
{{- define "fingerpost.policyWebhook" -}}
{{- default (printf "%s-policy-validator" (include "fingerpost.fullname" .)) .Values.policy.webhook.name -}}
{{- end -}}

{{- define "fingerpost.policyWebhookSecret" -}}
{{- $name := ternary "linkerd" (include "fingerpost.fullname" .) .Values.controlPlane.enabled -}}
{{- default (printf "%s-policy-validator%s" $name (include "fingerpost.tlsSuffix" .)) .Values.policy.webhook.tls.secretName -}}
{{- end -}}

{{/* What Services select Pods of the server by. */}}
{{- define "fingerpost.serviceSelector" -}}
{{- if .Values.controlPlane.enabled }}{{ include "fingerpost.partSelector" (list . "destination") }}
{{- else }}{{ with .Values.service.selector }}{{ toYaml . }}{{ else }}{{ include "fingerpost.selector" (list . "destination") }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Annotations of what has a name of Linkerd's, and may outlive the release. */}}
{{- define "fingerpost.keep" -}}
{{- ternary (dict "helm.sh/resource-policy" "keep") (dict) .Values.service.keep | toYaml -}}
{{- end -}}

{{/* 90 percent of a quantity of memory, in bytes: the rest is for what Go's collector does not count. */}}
{{- define "fingerpost.goMemLimit" -}}
{{- $text := ternary . (int64 . | toString) (kindIs "string" .) -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- minf 9e18 (mulf (float64 $number) (get $units (trimPrefix $number $text)) 0.9) | floor | int64 -}}
{{- end -}}

{{/* What every container of ours is. */}}
{{- define "fingerpost.container" -}}
image: {{ include "fingerpost.image" . | toYaml }}
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
  {{- with get (index $ 0).Values.probes $probe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
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
  {{- with $values.podSecurityContext.runAsUser }}
  runAsUser: {{ int64 . }}
  {{- end }}
  {{- with $values.podSecurityContext.runAsGroup }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  {{- end }}
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
{{- include "fingerpost.translate" . }}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- if and (has (toString $v.updateStrategy.maxUnavailable) (list "0" "0%")) (has (toString $v.updateStrategy.maxSurge) (list "0" "0%")) }}
{{- fail "updateStrategy.maxUnavailable and updateStrategy.maxSurge are both 0: no rollout could begin" }}
{{- end }}
{{- if and $v.resourceQuota.enabled (not $v.priorityClassName) }}
{{- fail "resourceQuota.enabled is for Pods of priorityClassName, which is empty" }}
{{- end }}
{{- include "fingerpost.validatePolicy" . }}
{{- if $v.controlPlane.enabled }}
{{- include "fingerpost.validateControlPlane" . }}
{{- end }}
{{- include "fingerpost.validateFlags" . }}
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

{{/* Refuses a value of another chart, by the longest name of it that is known, with its name here. */}}
{{- define "fingerpost.translate" -}}
{{- $names := .Files.Get "files/linkerd-values.yaml" | fromYaml }}
{{- $found := "" }}
{{- range $theirs, $_ := $names }}
{{- $at := $.Values }}
{{- range splitList "." $theirs }}
{{- $at = ternary $at (dict) (kindIs "map" $at) }}
{{- $at = ternary (get $at .) (dict) (hasKey $at .) }}
{{- end }}
{{- $isThere := not (and (kindIs "map" $at) (empty $at)) }}
{{- if and $isThere (or (not $found) (hasPrefix (printf "%s." $found) $theirs)) }}
{{- $found = $theirs }}
{{- end }}
{{- end }}
{{- if hasPrefix "nothing" (get $names $found) }}
{{- fail (printf "the value %s means %s" $found (get $names $found)) }}
{{- end }}
{{- if $found }}
{{- fail (printf "the value %s is called %s in this chart" $found (get $names $found)) }}
{{- end }}
{{- range $theirs, $_ := $names }}
{{- $top := splitList "." $theirs | first }}
{{- if and (hasKey $.Values $top) (not (hasKey (($.Files.Get "files/defaults.yaml") | fromYaml).values $top)) }}
{{- fail (printf "what the value %s has is not known in this chart: docs/drop-in.md has all that have a name here" $top) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What of policy does not fit together. */}}
{{- define "fingerpost.validatePolicy" -}}
{{- $policy := .Values.policy -}}
{{- if and $policy.webhook.enabled (not $policy.enabled) }}
{{- fail "policy.webhook.enabled is for a server that serves policy: set policy.enabled as well" }}
{{- end }}
{{- range $value := list "clusterNetworks" "probeNetworks" }}
{{- range get $policy $value }}
{{- if not (include "fingerpost.isCIDR" .) }}
{{- fail (printf "policy.%s: %s is no network, such as 10.0.0.0/8" $value .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $policy.enabled }}
{{- $service := include "fingerpost.service" . }}
{{- $taken := dict $service "service.name" (printf "%s-headless" $service) "service.name with -headless" }}
{{- range $value, $name := dict "policy.service.name" (include "fingerpost.policyService" .) "policy.webhook.name" (include "fingerpost.policyWebhook" .) }}
{{- if hasKey $taken $name }}
{{- fail (printf "%s is %s, the name that %s gives another Service: set one of them to another name" $value $name (get $taken $name)) }}
{{- end }}
{{- $_ := set $taken $name $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A duration as Go writes it, in milliseconds. */}}
{{- define "fingerpost.milliseconds" -}}
{{- $units := dict "ms" 1.0 "s" 1e3 "m" 60e3 "h" 3600e3 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- printf "%.6f" $sum -}}
{{- end -}}

{{/* Fails unless a duration is shorter than another one. A list of the name of a value and the value, twice. */}}
{{- define "fingerpost.validateShorter" -}}
{{- $shorter := index . 1 | toString -}}
{{- $longer := index . 3 | toString -}}
{{- if not (lt (include "fingerpost.milliseconds" $shorter | float64) (include "fingerpost.milliseconds" $longer | float64)) }}
{{- fail (printf "%s (%s) must be shorter than %s (%s)" (index . 0) $shorter (index . 2) $longer) }}
{{- end }}
{{- end -}}

{{/* What the process would refuse of its flags, and would not start. TestFlagsStart compares it with the process. */}}
{{- define "fingerpost.validateFlags" -}}
{{- $v := .Values -}}
{{- $probed := "5s" -}}
{{- range $v.extraArgs }}
{{- if regexMatch "^--?probe-interval=" . }}
{{- $probed = regexReplaceAll "^[^=]*=" . "" }}
{{- end }}
{{- end }}
{{- $lease := $v.write.lease }}
{{- range list
    (list "how often clusters are probed, -probe-interval" $probed "links.suspectAfter" $v.links.suspectAfter)
    (list "links.suspectAfter" $v.links.suspectAfter "links.staleAfter" $v.links.staleAfter)
    (list "0" "0s" "write.lease.renewInterval" $lease.renewInterval)
    (list "write.lease.renewInterval" $lease.renewInterval "write.lease.fence" $lease.fence)
    (list "write.lease.fence" $lease.fence "write.lease.duration" $lease.duration) }}
{{- include "fingerpost.validateShorter" . }}
{{- end }}
{{- range splitList "," $v.mesh.defaultOpaquePorts }}
{{- $ends := splitList "-" . }}
{{- $first := first $ends | atoi }}
{{- $last := last $ends | atoi }}
{{- if and . (or (lt $first 1) (gt $last 65535) (gt $first $last)) }}
{{- fail (printf "mesh.defaultOpaquePorts: %s is neither a port nor a range of ports" .) }}
{{- end }}
{{- end }}
{{- range $v.links.allowHosts }}
{{- if and (contains "/" .) (not (include "fingerpost.isCIDR" .)) }}
{{- fail (printf "links.allowHosts: %s is neither a name nor an address nor a CIDR" .) }}
{{- end }}
{{- end }}
{{- $taken := dict "9998" "the debug server" }}
{{- if $v.controlPlane.enabled }}
{{- $_ := set $taken "8443" "webhooks of the control plane" }}
{{- $_ := set $taken "8080" "the authority of the mesh" }}
{{- end }}
{{- $unused := dict "peer" (not (include "fingerpost.peers" .)) "policy" (not $v.policy.enabled) "webhook" (not $v.policy.webhook.enabled) -}}
{{- range $name := list "grpc" "admin" "peer" "policy" "webhook" }}
{{- $port := get $v.ports $name | toString }}
{{- if get $unused $name }}{{ continue }}{{ end }}
{{- if hasKey $taken $port }}
{{- fail (printf "ports.%s is %s, which is that of %s" $name $port (get $taken $port)) }}
{{- end }}
{{- $_ := set $taken $port (printf "ports.%s" $name) }}
{{- end }}
{{- end -}}

{{/* Not empty if a text is an IPv4 or IPv6 network. */}}
{{- define "fingerpost.isCIDR" -}}
{{- $parts := splitList "/" . -}}
{{- $address := first $parts -}}
{{- $bits := last $parts -}}
{{- $groups := regexFindAll "[0-9A-Fa-f]+" $address -1 | len -}}
{{- $isV4 := regexMatch "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\\.|$)){4}$" $address | and (not (hasSuffix "." $address)) -}}
{{- $isV6 := and (regexMatch "^([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4})*)?(::)?([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4})*)?$" $address)
    (ternary (lt $groups 8) (eq $groups 8) (contains "::" $address)) -}}
{{- if and (eq (len $parts) 2) (regexMatch "^(0|[1-9][0-9]{0,2})$" $bits) (or (and $isV4 (le (int $bits) 32)) (and $isV6 (le (int $bits) 128))) -}}
true
{{- end -}}
{{- end -}}
