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

{{- define "fingerpost.image" -}}
{{- $i := .Values.image -}}
{{- if $i.digest }}{{ $i.repository }}@{{ $i.digest }}{{ else }}{{ $i.repository }}:{{ default .Chart.AppVersion $i.tag }}{{ end -}}
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

{{/* What every Pod of ours is. A list of chart and component. */}}
{{- define "fingerpost.pod" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $values.podSecurityContext.runAsUser }}
  runAsGroup: {{ $values.podSecurityContext.runAsGroup }}
  fsGroup: {{ $values.podSecurityContext.runAsGroup }}
  seccompProfile: {type: RuntimeDefault}
{{- with $values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- if or $values.nodeAffinity (ne $values.podAntiAffinity.mode "off") }}
affinity:
  {{- with $values.nodeAffinity }}
  nodeAffinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq $values.podAntiAffinity.mode "hard" }}
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "fingerpost.selector" . | nindent 10 }}
  {{- else if eq $values.podAntiAffinity.mode "soft" }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "fingerpost.selector" . | nindent 12 }}
  {{- end }}
{{- end }}
{{- if ne $values.topologySpread.zones "off" }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ $values.topologySpread.zones }}
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels: {{- include "fingerpost.selector" . | nindent 6 }}
{{- end }}
{{- end -}}
