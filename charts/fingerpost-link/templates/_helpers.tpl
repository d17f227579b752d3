{{/*
Begins every template, NOTES.txt too. A value or a heading that is null has been left out by helm. files/defaults.yaml,
which is generated, says what counts then: nothing, for maps, lists and what is optional ("unset"), and otherwise the
chart's default. So the templates find everything at its place, whatever a user has set to null.
*/}}
{{- define "fingerpost-link.defaults" -}}
{{- $defaults := .Files.Get "files/defaults.yaml" | fromYaml -}}
{{- include "fingerpost-link.prune" .Values -}}
{{- include "fingerpost-link.fill" (list .Values $defaults.values $defaults.unset "") -}}
{{- if eq (toString .Values.enabled) "false" }}
{{- fail "enabled is false: a chart does not switch itself off; the Chart.yaml of its parent does, by a condition such as fingerpost-link.enabled" }}
{{- end }}
{{- end -}}

{{/* Takes out what is null and has no default, which helm leaves in. */}}
{{- define "fingerpost-link.prune" -}}
{{- $values := . -}}
{{- range $name, $value := $values -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $values $name }}{{ end -}}
{{- if kindIs "map" $value }}{{ include "fingerpost-link.prune" $value }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* A list of values, their defaults, the paths of what null unsets, and the path of the values. */}}
{{- define "fingerpost-link.fill" -}}
{{- $values := index . 0 -}}
{{- $unset := index . 2 -}}
{{- $path := index . 3 -}}
{{- range $name, $default := index . 1 -}}
{{- $at := printf "%s%s" $path $name -}}
{{- if and (hasKey $values $name) (kindIs "map" $default) (not (has $at $unset)) }}
{{- include "fingerpost-link.fill" (list (get $values $name) $default $unset (printf "%s." $at)) }}
{{- else if not (or (hasKey $values $name) (has $at $unset)) }}
{{- $_ := set $values $name (deepCopy $default) }}
{{- else if not (hasKey $values $name) }}
{{- if kindIs "map" $default }}{{ $_ := set $values $name (dict) }}{{ end }}
{{- if kindIs "slice" $default }}{{ $_ := set $values $name (list) }}{{ end }}
{{- end }}
{{- end -}}
{{- end -}}

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
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
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
name: {{ default (include "fingerpost-link.serviceAccount" .root) .name | toYaml }}
{{- if not .cluster }}
namespace: {{ default .root.Release.Namespace .namespace | toYaml }}
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
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name | toYaml }}}
subjects:
- {kind: ServiceAccount, name: {{ include "fingerpost-link.serviceAccount" .root | toYaml }}, namespace: {{ .root.Release.Namespace | toYaml }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata: {{- $metadata | nindent 2 }}
{{- end -}}
