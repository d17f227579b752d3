{{/*
A mesh's whole control plane, with the names that its proxies, its tools and Linkerd's own chart know. What the chart
has for a server beside a mesh is used as it is: here its values get the names of Linkerd's objects, once they are
complete. Doing it again changes nothing.

Where policy is left to Linkerd, its Deployment stays: it has the container of policy, and the one that validates
ServiceProfiles. The server then is a Deployment of the release's name beside it, with the same identity.
*/}}
{{- define "fingerpost.controlPlane" -}}
{{- $v := .Values -}}
{{- $whole := $v.controlPlane.policy.enabled -}}
{{- range list
    (list "controllerNamespace" $v "controllerNamespace" "linkerd" .Release.Namespace)
    (list "service.name" $v.service "name" "" "linkerd-dst")
    (list "service.keep" $v.service "keep" false false)
    (list "service.selector" $v.service "selector" (dict) (dict))
    (list "serviceAccount.name" $v.serviceAccount "name" "" "linkerd-destination")
    (list "serviceAccount.create" $v.serviceAccount "create" true $whole)
    (list "policy.enabled" $v.policy "enabled" false $whole)
    (list "policy.service.name" $v.policy.service "name" "" "linkerd-policy")
    (list "policy.webhook.enabled" $v.policy.webhook "enabled" false $whole)
    (list "policy.webhook.name" $v.policy.webhook "name" "" "linkerd-policy-validator")
    (list "spValidator.enabled" $v.spValidator "enabled" false $whole) }}
{{- $given := get (index . 1) (index . 2) }}
{{- if not (or (deepEqual $given (index . 3)) (deepEqual $given (index . 4))) }}
{{- fail (printf "%s follows from controlPlane.enabled, which makes it %s: leave it out" (index . 0) (toJson (index . 4))) }}
{{- end }}
{{- $_ := set (index . 1) (index . 2) (index . 4) }}
{{- end }}
{{- end -}}

{{/* Not empty if the name of a component is that of a part of the control plane. A list of chart and component. */}}
{{- define "fingerpost.isPart" -}}
{{- if and (index . 0).Values.controlPlane.enabled (has (index . 1) (list "destination" "identity" "proxy-injector")) }}true{{ end -}}
{{- end -}}

{{/* Not empty if the server has the place of Linkerd's Deployment of discovery and policy. */}}
{{- define "fingerpost.isDestination" -}}
{{- if and .Values.controlPlane.enabled .Values.controlPlane.policy.enabled }}true{{ end -}}
{{- end -}}

{{/* What the label linkerd.io/control-plane-component has. A list of chart and component. */}}
{{- define "fingerpost.partLabel" -}}
{{- ternary "fingerpost" (index . 1) (and (eq (index . 1) "destination") (not (include "fingerpost.isDestination" (index . 0)))) -}}
{{- end -}}

{{/* Name of the Deployment of a part. A list of chart and component. */}}
{{- define "fingerpost.partName" -}}
{{- if eq (include "fingerpost.partLabel" .) "fingerpost" }}{{ include "fingerpost.fullname" (index . 0) }}{{ else }}linkerd-{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* Name of the server's Deployment. */}}
{{- define "fingerpost.server" -}}
{{- if include "fingerpost.isDestination" . }}linkerd-destination{{ else }}{{ include "fingerpost.fullname" . }}{{ end -}}
{{- end -}}

{{/* The name in the certificate of the server, where the mesh has issued it. Replicas expect it of one another. */}}
{{- define "fingerpost.serverIdentity" -}}
{{- if or (include "fingerpost.asksIdentity" .) (include "fingerpost.serverCertifies" .) -}}
linkerd-destination.{{ .Release.Namespace }}.serviceaccount.identity.{{ .Release.Namespace }}.{{ include "fingerpost.trustDomain" . }}
{{- end -}}
{{- end -}}

{{/* Labels of Pods beyond those of every object. A list of chart and component. */}}
{{- define "fingerpost.partLabels" -}}
linkerd.io/proxy-deployment: {{ include "fingerpost.partName" . | toYaml }}
linkerd.io/workload-ns: {{ (index . 0).Release.Namespace | toYaml }}
{{- if ne (index . 1) "destination" }}
{{- with (index . 0).Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of Pods of a part: tools read them, and so do proxies through discovery. A port that is skipped is none of its identity. A list of chart and ports that have no identity of the mesh. */}}
{{- define "fingerpost.partAnnotations" -}}
{{- $own := dict "config.linkerd.io/default-inbound-policy" "all-unauthenticated" "config.linkerd.io/opaque-ports" "8443"
    "config.linkerd.io/skip-inbound-ports" (index . 1) "linkerd.io/inject" "disabled"
    "linkerd.io/created-by" (printf "fingerpost/helm %s" (index . 0).Chart.AppVersion) -}}
{{- merge $own (index . 0).Values.podAnnotations | toYaml -}}
{{- end -}}

{{/* Which parts the server's process is besides discovery and policy. Not empty for yes. */}}
{{- define "fingerpost.serverCertifies" -}}
{{- with .Values.controlPlane }}{{ if and .enabled .identity.enabled (eq .layout "one") }}true{{ end }}{{ end -}}
{{- end -}}
{{- define "fingerpost.serverInjects" -}}
{{- with .Values.controlPlane }}{{ if and .enabled .injector.enabled (eq .layout "one") }}true{{ end }}{{ end -}}
{{- end -}}

{{/* The component whose Pods have a part. A list of chart, component, and of the template that decides whether the server has it. */}}
{{- define "fingerpost.partOf" -}}
{{- if include (index . 2) (index . 0) }}destination{{ else }}{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* What Services select the Pods of a part by. A list of chart and component. */}}
{{- define "fingerpost.partSelector" -}}
linkerd.io/control-plane-component: {{ include "fingerpost.partLabel" . }}
{{- end -}}

{{/* How a server gets the certificate of its identity: from the authority of the mesh, as a proxy does, unless files have one or it is that authority. */}}
{{- define "fingerpost.asksIdentity" -}}
{{- if and .Values.controlPlane.enabled (not (include "fingerpost.tlsSecret" .)) (not (include "fingerpost.serverCertifies" .)) }}true{{ end -}}
{{- end -}}
{{- define "fingerpost.identityArgs" -}}
{{- if include "fingerpost.asksIdentity" . -}}
- -identity-from=linkerd-identity-headless.{{ .Release.Namespace }}.svc.{{ .Values.cluster.domain }}:8080
- -identity-token-file=/var/run/secrets/tokens/linkerd-identity-token
- -identity-trust-anchors=/var/run/linkerd/identity/trust-roots/ca-bundle.crt
{{- else if include "fingerpost.serverCertifies" . -}}
- -identity-addr=:8080
{{ include "fingerpost.issuerArgs" . }}
{{- end -}}
{{- end -}}

{{/* What the authority of the mesh is started with, in a process of its own or not. Files are where its defaults have them. */}}
{{- define "fingerpost.issuerArgs" -}}
{{- with .Values.controlPlane.identity -}}
- -identity-scheme={{ .issuer.scheme }}
- -identity-issuance-lifetime={{ .issuer.issuanceLifetime }}
- -identity-clock-skew-allowance={{ .issuer.clockSkewAllowance }}
- -identity-require-audience={{ .requireAudience }}
- -identity-tls=true
{{- end -}}
{{- end -}}

{{/* Volumes of files that parts read, and where. A list of those that are wanted: anchors, issuer, values, identity-token. */}}
{{- define "fingerpost.partMounts" -}}
{{- $all := dict "anchors" "/var/run/linkerd/identity/trust-roots" "issuer" "/var/run/linkerd/identity/issuer" "values" "/var/run/linkerd/config" "identity-token" "/var/run/secrets/tokens" -}}
{{- range . }}
- {name: {{ . }}, mountPath: {{ get $all . }}, readOnly: true}
{{- end }}
{{- end -}}
{{- define "fingerpost.partVolumes" -}}
{{- $all := dict
    "anchors" (dict "configMap" (dict "name" "linkerd-identity-trust-roots"))
    "issuer" (dict "secret" (dict "secretName" "linkerd-identity-issuer" "defaultMode" 288))
    "values" (dict "configMap" (dict "name" "linkerd-config"))
    "identity-token" (dict "projected" (dict "defaultMode" 288 "sources" (list (dict "serviceAccountToken" (dict "path" "linkerd-identity-token" "audience" "identity.l5d.io" "expirationSeconds" 86400))))) -}}
{{- range . }}
- {{ merge (dict "name" .) (get $all .) | toYaml | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/* Which of these the server has, as JSON. */}}
{{- define "fingerpost.serverFiles" -}}
{{- $files := list -}}
{{- if include "fingerpost.asksIdentity" . }}{{ $files = list "anchors" "identity-token" }}{{ end -}}
{{- if include "fingerpost.serverCertifies" . }}{{ $files = list "anchors" "issuer" }}{{ end -}}
{{- if include "fingerpost.serverInjects" . }}{{ $files = concat $files (list "anchors" "values") | uniq }}{{ end -}}
{{- dict "files" $files | toJson -}}
{{- end -}}

{{/* The webhooks of the server's process, as JSON: ports, and for each certificate a volume, its directory and its Secret. */}}
{{- define "fingerpost.serverHooks" -}}
{{- $hooks := list -}}
{{- $ports := list -}}
{{- if .Values.policy.webhook.enabled }}
{{- $ports = append $ports (.Values.ports.webhook | toString) }}
{{- $dir := ternary "/var/run/fingerpost/webhook/policy-validator" "/var/run/fingerpost/webhook" .Values.controlPlane.enabled }}
{{- $hooks = append $hooks (dict "volume" "webhook-tls" "dir" $dir "secret" (include "fingerpost.policyWebhookSecret" .)) }}
{{- end }}
{{- if include "fingerpost.isDestination" . }}
{{- $ports = prepend $ports "8443" }}
{{- $hooks = append $hooks (dict "volume" "sp-validator-tls" "dir" "/var/run/fingerpost/webhook/sp-validator" "secret" (include "fingerpost.validatorSecret" .)) }}
{{- end }}
{{- if include "fingerpost.serverInjects" . }}
{{- $ports = prepend $ports "8443" | uniq }}
{{- $hooks = append $hooks (dict "volume" "proxy-injector-tls" "dir" "/var/run/fingerpost/webhook/proxy-injector" "secret" (include "fingerpost.injectorSecret" .)) }}
{{- end }}
{{- dict "hooks" $hooks "ports" $ports | toJson -}}
{{- end -}}

{{- define "fingerpost.injectorSecret" -}}
{{- default "linkerd-proxy-injector-k8s-tls" .Values.controlPlane.injector.tls.secretName -}}
{{- end -}}

{{/*
The certificate of a webhook that the chart makes: that of the Secret which is there, whichever chart has made it, and otherwise
a new one. It is its own authority. Within one rendering it is the same wherever it is asked for. As JSON, in base64.
A list of chart, Service and Secret.
*/}}
{{- define "fingerpost.madeTLS" -}}
{{- $root := index . 0 -}}
{{- $name := index . 2 -}}
{{- $values := $root.Values.controlPlane -}}
{{- if not (hasKey $values "made") }}{{ $_ := set $values "made" (dict) }}{{ end -}}
{{- if not (hasKey $values.made $name) }}
{{- $there := (lookup "v1" "Secret" $root.Release.Namespace $name | default dict).data | default dict }}
{{- $made := dict "crt" (get $there "tls.crt") "key" (get $there "tls.key") "ca" (get $there "ca.crt" | default (get $there "tls.crt")) }}
{{- if not (and $made.crt $made.key) }}
{{- $host := printf "%s.%s.svc" (index . 1) $root.Release.Namespace }}
{{- $new := genSelfSignedCertWithKey $host (list) (list $host) 3650 (genPrivateKey "ecdsa") }}
{{- $made = dict "crt" ($new.Cert | b64enc) "key" ($new.Key | b64enc) "ca" ($new.Cert | b64enc) }}
{{- end }}
{{- $_ := set $values.made $name $made }}
{{- end }}
{{- get $values.made $name | toJson -}}
{{- end -}}

{{/* Not empty if the chart makes the certificate of a webhook. A list of chart and its values of TLS. */}}
{{- define "fingerpost.makesTLS" -}}
{{- $tls := index . 1 -}}
{{- if and (index . 0).Values.controlPlane.enabled (not $tls.secretName) (not $tls.caBundle) (not $tls.certManager.enabled) }}true{{ end -}}
{{- end -}}

{{/* A dict with chart as root, service, secret, tls (its values), and value, their path. What the configuration of a webhook has about its authority. */}}
{{- define "fingerpost.caBundle" -}}
{{- if include "fingerpost.makesTLS" (list .root .tls) -}}
caBundle: {{ get (include "fingerpost.madeTLS" (list .root .service .secret) | fromJson) "ca" }}
{{- else if not .tls.certManager.enabled -}}
caBundle: {{ required (printf "%s.tls.caBundle must hold the authority of the webhook's certificate, unless certManager is enabled" .value) .tls.caBundle | b64enc }}
{{- end -}}
{{- end -}}

{{/* The Secret of it, if the chart makes it. The same dict, with component. */}}
{{- define "fingerpost.hookSecret" -}}
{{- if include "fingerpost.makesTLS" (list .root .tls) }}
{{- $made := include "fingerpost.madeTLS" (list .root .service .secret) | fromJson }}
---
apiVersion: v1
kind: Secret
metadata: {{- include "fingerpost.metadata" (dict "root" .root "name" .secret "component" .component) | nindent 2 }}
type: kubernetes.io/tls
data:
  tls.crt: {{ $made.crt }}
  tls.key: {{ $made.key }}
{{- end }}
{{- end -}}

{{/* The Certificate of it, if cert-manager makes it. The same dict, with name, that of the object. */}}
{{- define "fingerpost.hookCertificate" -}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {{- include "fingerpost.metadata" (dict "root" .root "name" .name "component" .component) | nindent 2 }}
spec:
  secretName: {{ .secret | toYaml }}
  privateKey: {algorithm: ECDSA, rotationPolicy: Always}
  usages: [server auth]
  issuerRef: {{- toYaml .tls.certManager.issuerRef | nindent 4 }}
  dnsNames:
  - {{ .service }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/*
The values that a mesh was installed with, under Linkerd's names: those of the injector by default, what follows from
values of this chart, and over all controlPlane.values. They are for every tool to read, so that they hold no key.
*/}}
{{- define "fingerpost.meshValues" -}}
{{- $v := .Values -}}
{{- $identity := $v.controlPlane.identity -}}
{{- $anchors := include "fingerpost.trustAnchors" . -}}
{{- $known := dict
    "clusterDomain" $v.cluster.domain
    "clusterNetworks" (join "," $v.policy.clusterNetworks)
    "identityTrustDomain" (include "fingerpost.trustDomain" .)
    "identityTrustAnchorsPEM" $anchors
    "disableIPv6" (not $v.mesh.ipv6)
    "enableEndpointSlices" $v.mesh.endpointSlices
    "controllerReplicas" (int64 $v.replicas)
    "webhookFailurePolicy" $v.controlPlane.injector.failurePolicy
    "egress" (dict "globalEgressNetworkNamespace" $v.policy.globalEgressNetworkNamespace)
    "policyController" (dict "probeNetworks" $v.policy.probeNetworks)
    "proxy" (dict "opaquePorts" $v.mesh.defaultOpaquePorts "defaultInboundPolicy" $v.policy.defaultInboundPolicy
      "outboundTransportMode" $v.mesh.outboundTransportMode)
    "identity" (dict "externalCA" (empty $anchors) "issuer" (pick $identity.issuer "scheme" "clockSkewAllowance" "issuanceLifetime")) -}}
{{- mergeOverwrite (.Files.Get "files/mesh-values.yaml" | fromYaml) $known (deepCopy $v.controlPlane.values) | toYaml -}}
{{- end -}}

{{/* The trust anchors that the chart keeps: those of its values, else those that this release has kept before. Empty where others do. */}}
{{- define "fingerpost.trustAnchors" -}}
{{- $identity := .Values.controlPlane.identity -}}
{{- if and $identity.enabled (not $identity.externalCA) -}}
{{- $there := lookup "v1" "ConfigMap" .Release.Namespace "linkerd-identity-trust-roots" | default dict -}}
{{- $ours := eq (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $there) .Release.Name -}}
{{- default (ternary (dig "data" "ca-bundle.crt" "" $there) "" $ours) $identity.trustAnchorsPEM | trim -}}
{{- end -}}
{{- end -}}

{{/* What of the control plane does not fit together. */}}
{{- define "fingerpost.validateControlPlane" -}}
{{- $v := .Values -}}
{{- $identity := $v.controlPlane.identity -}}
{{- range $theirs, $ours := dict "clusterDomain" "cluster.domain" "clusterNetworks" "policy.clusterNetworks" "identityTrustDomain" "cluster.trustDomain"
    "identityTrustAnchorsPEM" "controlPlane.identity.trustAnchorsPEM" "disableIPv6" "mesh.ipv6" "egress" "policy.globalEgressNetworkNamespace"
    "policyController" "policy.probeNetworks" "webhookFailurePolicy" "controlPlane.injector.failurePolicy" }}
{{- if hasKey $v.controlPlane.values $theirs }}
{{- fail (printf "controlPlane.values.%s follows from %s: set that one" $theirs $ours) }}
{{- end }}
{{- end }}
{{- with omit ($v.controlPlane.values.identity | default dict) "serviceAccountTokenProjection" }}
{{- fail (printf "controlPlane.values.identity.%s follows from controlPlane.identity: set that one" (keys . | sortAlpha | first)) }}
{{- end }}
{{- if and $identity.requireAudience (eq (dig "identity" "serviceAccountTokenProjection" true $v.controlPlane.values | toString) "false") }}
{{- fail "controlPlane.identity.requireAudience is for tokens that are projected: set it to false with controlPlane.values.identity.serviceAccountTokenProjection" }}
{{- end }}
{{- include "fingerpost.refuseKeys" (list $v.controlPlane.values "controlPlane.values") }}
{{- if ne (empty $identity.issuer.crtPEM) (empty $identity.issuer.keyPEM) }}
{{- fail "controlPlane.identity.issuer.crtPEM and keyPEM go together: set both, or none for a Secret that there is" }}
{{- end }}
{{- if and $identity.issuer.keyPEM (ne $identity.issuer.scheme "linkerd.io/tls") }}
{{- fail "controlPlane.identity.issuer.keyPEM is for the scheme linkerd.io/tls: with another one others make the Secret linkerd-identity-issuer" }}
{{- end }}
{{- if and $identity.externalCA $identity.trustAnchorsPEM }}
{{- fail "controlPlane.identity.externalCA leaves the trust anchors to others, so that trustAnchorsPEM has no effect: set one of them" }}
{{- end }}
{{- if and (include "fingerpost.serverCertifies" .) (include "fingerpost.tlsSecret" .) }}
{{- fail "tls.secretName and tls.certManager are not for controlPlane.layout one with identity: the server issues its certificate itself" }}
{{- end }}
{{- if and $identity.enabled (lookup "v1" "Namespace" "" "kube-system") }}
{{- if not (or $identity.externalCA $identity.trustAnchorsPEM (lookup "v1" "ConfigMap" .Release.Namespace "linkerd-identity-trust-roots")) }}
{{- fail (printf "there are no trust anchors: set controlPlane.identity.trustAnchorsPEM, or make the ConfigMap linkerd-identity-trust-roots in namespace %s" .Release.Namespace) }}
{{- end }}
{{- if not (or (ne $identity.issuer.scheme "linkerd.io/tls") $identity.issuer.keyPEM (lookup "v1" "Secret" .Release.Namespace "linkerd-identity-issuer")) }}
{{- fail (printf "there is no issuer: set controlPlane.identity.issuer.crtPEM and keyPEM, or make the Secret linkerd-identity-issuer in namespace %s" .Release.Namespace) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Fails for private keys among values that everybody may read. A list of values and their path. */}}
{{- define "fingerpost.refuseKeys" -}}
{{- $path := index . 1 -}}
{{- range $name, $value := index . 0 }}
{{- if and (eq $name "keyPEM") $value }}
{{- fail (printf "%s.keyPEM would be in a ConfigMap that everybody reads: leave it out" $path) }}
{{- end }}
{{- if kindIs "map" $value }}{{ include "fingerpost.refuseKeys" (list $value (printf "%s.%s" $path $name)) }}{{ end }}
{{- end }}
{{- end -}}

{{/*
A Deployment of one container. A dict with chart as root, component, name, account, container, replicas, resources,
admin (the name of its admin port), annotations of Pods, and as text: args, ports, mounts, volumes.
*/}}
{{- define "fingerpost.deployment" -}}
{{- $root := .root -}}
{{- $part := include "fingerpost.isPart" (list $root .component) -}}
apiVersion: apps/v1
kind: Deployment
metadata: {{- include "fingerpost.metadata" (dict "root" $root "name" .name "component" .component) | nindent 2 }}
spec:
  replicas: {{ .replicas }}
  revisionHistoryLimit: {{ int64 $root.Values.revisionHistoryLimit }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {{- toYaml $root.Values.updateStrategy | nindent 6 }}
  selector:
    matchLabels: {{- include "fingerpost.selector" (list $root .component) | nindent 6 }}
  template:
    metadata:
      {{- with .annotations }}
      annotations: {{- . | nindent 8 }}
      {{- end }}
      labels: {{- include "fingerpost.labels" (list $root .component) | nindent 8 }}
        {{- if $part }}
        {{- include "fingerpost.partLabels" (list $root .component) | nindent 8 }}
        {{- end }}
    spec:
      {{- include "fingerpost.pod" (list $root .component) | nindent 6 }}
      serviceAccountName: {{ .account | toYaml }}
      terminationGracePeriodSeconds: {{ add $root.Values.preStopSeconds 15 }}
      containers:
      - name: {{ .container }}
        {{- include "fingerpost.container" $root | nindent 8 }}
        args:
        {{- .args | nindent 8 }}
        - -log-level={{ $root.Values.log.level }}
        - -log-format={{ $root.Values.log.format }}
        env:
        - name: GOMEMLIMIT
          value: {{ include "fingerpost.goMemLimit" .resources.limits.memory | quote }}
        ports:
        {{- .ports | nindent 8 }}
        {{- include "fingerpost.probes" (list $root .admin) | trim | nindent 8 }}
        {{- if $root.Values.preStopSeconds }}
        lifecycle:
          preStop: {sleep: {seconds: {{ $root.Values.preStopSeconds }}}}
        {{- end }}
        resources: {{- toYaml .resources | nindent 10 }}
        volumeMounts:
        {{- .mounts | trim | nindent 8 }}
      volumes:
      {{- .volumes | trim | nindent 6 }}
{{- end -}}

{{/* What holds up the eviction of several Pods at once. A dict with chart as root, component, name and replicas. */}}
{{- define "fingerpost.disruptionBudget" -}}
{{- if and .root.Values.podDisruptionBudget.enabled (gt (int .replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "fingerpost.metadata" (dict "root" .root "name" .name "component" .component) | nindent 2 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "fingerpost.selector" (list .root .component) | nindent 6 }}
{{- end }}
{{- end -}}
