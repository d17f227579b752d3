{{/* The release's name, with the chart's unless it is in it. */}}
{{- define "fingerpost-link.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Roles are of the whole cluster, or in a namespace that another release uses too, so the release's is in their names. */}}
{{- define "fingerpost-link.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "fingerpost-link.fullname" .) -}}
{{- end -}}

{{- define "fingerpost-link.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fingerpost
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fingerpost-link.serviceAccount" -}}
{{- default (include "fingerpost-link.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Metadata of an object. A dict with the chart as root, and what differs: name, cluster (it is in no namespace), namespace, labels, annotations. */}}
{{- define "fingerpost-link.metadata" -}}
name: {{ default (include "fingerpost-link.serviceAccount" .root) .name }}
{{- if not .cluster }}
namespace: {{ default .root.Release.Namespace .namespace }}
{{- end }}
labels:
  {{- include "fingerpost-link.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Begins a role, whose rules follow, after its binding to the account. A dict with the chart as root, suffix, and namespace (none for a ClusterRole). */}}
{{- define "fingerpost-link.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") -}}
{{- $name := printf "%s%s" (include "fingerpost-link.clusterName" .root) .suffix -}}
{{- $metadata := include "fingerpost-link.metadata" (merge (dict "name" $name "cluster" (not (hasKey . "namespace"))) .) -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- $metadata | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ include "fingerpost-link.serviceAccount" .root }}, namespace: {{ .root.Release.Namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata: {{- $metadata | nindent 2 }}
{{- end -}}
