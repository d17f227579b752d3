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
