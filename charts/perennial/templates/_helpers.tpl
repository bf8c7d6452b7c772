{{/* A cluster can have only one Perennial: its webhook configurations and its Service have fixed names. */}}
{{- define "perennial.selector" -}}
app.kubernetes.io/name: perennial
app.kubernetes.io/instance: perennial
{{- end }}

{{- define "perennial.labels" -}}
{{ include "perennial.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- include "perennial.commonLabels" . }}
{{- end }}

{{/* Labels of people, which never replace those above. */}}
{{- define "perennial.commonLabels" -}}
{{- with omit .Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A new node has Perennial's gate taint until the operator removes it. */}}
{{- define "perennial.tolerations" -}}
- {key: perennial.dev/restoring, operator: Exists}
{{- with .Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "perennial.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Returns a config key or its default: (list . "webhook" "enabled" true). */}}
{{- define "perennial.setting" -}}
{{- $root := index . 0 -}}
{{- $section := get ($root.Values.config | default dict) (index . 1) | default dict -}}
{{- $value := index . 3 -}}
{{- if and (hasKey $section (index . 2)) (not (kindIs "invalid" (get $section (index . 2)))) -}}
{{- $value = get $section (index . 2) -}}
{{- end -}}
{{- if kindIs "float64" $value }}{{ int $value }}{{ else }}{{ $value }}{{ end -}}
{{- end }}

{{/* The Deployments by name, with roles, replicas and resources. One with all roles unless values name several. */}}
{{- define "perennial.deployments" -}}
{{- $all := dict -}}
{{- $covered := list -}}
{{- range $name, $part := .Values.deployments -}}
{{- if $part -}}
{{- $_ := set $all (printf "perennial-%s" $name) (merge (dict "component" $name) (dict "replicas" (ternary $part.replicas $.Values.replicas (hasKey $part "replicas"))) $part) -}}
{{- $covered = concat $covered $part.roles -}}
{{- end -}}
{{- end -}}
{{- if not $all -}}
{{- $_ := set $all "perennial" (dict "replicas" .Values.replicas) -}}
{{- else -}}
{{- if get (get (.Values.config | default dict) "controller" | default dict) "roles" -}}
{{- fail "deployments and config.controller.roles exclude each other: every Deployment has its own roles" -}}
{{- end -}}
{{- $needed := list "capture" "restore" -}}
{{- if include "perennial.webhooks" . }}{{ $needed = append $needed "webhooks" }}{{ end -}}
{{- if include "perennial.placement" . }}{{ $needed = append $needed "placement" }}{{ end -}}
{{- range $needed -}}
{{- if not (has . $covered) -}}
{{- fail (printf "no Deployment of `deployments` has the role %s" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toYaml $all }}
{{- end }}

{{/* Number of shards: that of the largest Deployment, so that its replicas share the work. */}}
{{- define "perennial.shards" -}}
{{- $shards := 1 -}}
{{- range $name, $part := include "perennial.deployments" . | fromYaml -}}
{{- $shards = max $shards (int $part.replicas) -}}
{{- end -}}
{{ $shards }}
{{- end }}

{{- define "perennial.webhooks" -}}
{{- $roles := get (get (.Values.config | default dict) "controller" | default dict) "roles" | default list -}}
{{- if kindIs "string" $roles }}{{ $roles = splitList "," $roles }}{{ end -}}
{{- if and (eq (include "perennial.setting" (list . "webhook" "enabled" true)) "true") (or (not $roles) (has "webhooks" $roles)) -}}
true
{{- end -}}
{{- end }}

{{- define "perennial.placement" -}}
{{- $roles := get (get (.Values.config | default dict) "controller" | default dict) "roles" | default list -}}
{{- if kindIs "string" $roles }}{{ $roles = splitList "," $roles }}{{ end -}}
{{- if and (eq (include "perennial.setting" (list . "placement" "enabled" true)) "true") (or (not $roles) (has "placement" $roles) (has "webhooks" $roles)) -}}
true
{{- end -}}
{{- end }}

{{- define "perennial.metrics" -}}
{{- if eq (include "perennial.setting" (list . "metrics" "enabled" true)) "true" -}}
true
{{- end -}}
{{- end }}

{{/* Name of the mounted certificate Secret. Empty if Perennial creates its own certificate. */}}
{{- define "perennial.certificate" -}}
{{- if include "perennial.webhooks" . -}}
{{- if eq .Values.certificates.source "certManager" -}}
{{ .Values.certificates.secretName | default "perennial-certificate" }}
{{- else if eq .Values.certificates.source "secret" -}}
{{ required "certificates.secretName is needed with certificates.source=secret" .Values.certificates.secretName }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The config file: the values, the release namespace, the number of shards and the certificate directory. */}}
{{- define "perennial.config" -}}
{{- $config := deepCopy (.Values.config | default dict) -}}
{{- $_ := set $config "namespace" .Release.Namespace -}}
{{- $controller := get $config "controller" | default dict -}}
{{- $elects := ne (toString (get (get $controller "leaderElection" | default dict) "enabled")) "false" -}}
{{- if and $elects (or (not (hasKey $controller "shards")) (kindIs "invalid" (get $controller "shards"))) -}}
{{- $_ := set $controller "shards" (include "perennial.shards" . | int) -}}
{{- $_ := set $config "controller" $controller -}}
{{- end -}}
{{- if include "perennial.certificate" . -}}
{{- $webhook := get $config "webhook" | default dict -}}
{{- $_ := set $webhook "certDir" "/etc/perennial-certificate" -}}
{{- $_ := set $config "webhook" $webhook -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{/* Rules of a role for the features that the config enables: (list . "cluster"). */}}
{{- define "perennial.rules" -}}
{{- $root := index . 0 -}}
{{- $scope := index . 1 -}}
{{- $all := $root.Files.Get "files/permissions.yaml" | fromYaml -}}
{{- $parts := list "keeper" -}}
{{- if include "perennial.webhooks" $root -}}
{{- $parts = append $parts "webhooks" -}}
{{- if not (include "perennial.certificate" $root) -}}
{{- $parts = append $parts "certificates" -}}
{{- end -}}
{{- else -}}
{{- $parts = append $parts "noWebhooks" -}}
{{- end -}}
{{- if include "perennial.placement" $root -}}
{{- $parts = append $parts "placement" -}}
{{- end -}}
{{- if ne (include "perennial.setting" (list $root "records" "hmac" "none")) "none" -}}
{{- $parts = append $parts "signatures" -}}
{{- end -}}
{{- $rules := list -}}
{{- range $parts -}}
{{- $rules = concat $rules (get (get $all .) $scope | default list) -}}
{{- end -}}
{{ toYaml $rules }}
{{- end }}

{{/* The namespace of the Leases, if it is not that of the release. */}}
{{- define "perennial.leaseNamespace" -}}
{{- $election := get (get (.Values.config | default dict) "controller" | default dict) "leaderElection" | default dict -}}
{{- $namespace := get $election "namespace" | default "" -}}
{{- if ne $namespace .Release.Namespace }}{{ $namespace }}{{ end -}}
{{- end }}

{{/* A Role for Leases in their own namespace, and its binding: (list root name account metadata rules). */}}
{{- define "perennial.leaseRole" -}}
{{- $root := index . 0 -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ index . 1 }}
  namespace: {{ include "perennial.leaseNamespace" $root }}
{{ index . 3 }}
rules:
{{ toYaml (index . 4) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ index . 1 }}
  namespace: {{ include "perennial.leaseNamespace" $root }}
{{ index . 3 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ index . 1 }}
subjects:
- kind: ServiceAccount
  name: {{ index . 2 }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}

{{/* Whether the API server supports ValidatingAdmissionPolicies. Without a cluster, decided by the Kubernetes version. */}}
{{- define "perennial.hasAdmissionPolicies" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" -}}true{{- end -}}
{{- else if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version -}}
true
{{- end -}}
{{- end }}

{{/* Overrides replace fields of the defaults; a field that is null is left out: (list defaults overrides). */}}
{{- define "perennial.overridden" -}}
{{- $fields := deepCopy (index . 0) -}}
{{- range $name, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $fields $name -}}
{{- else -}}
{{- $_ := set $fields $name $value -}}
{{- end -}}
{{- end -}}
{{ toYaml $fields }}
{{- end }}

{{- define "perennial.podSecurity" -}}
{{- $defaults := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- /* restricted-v2 of OpenShift refuses a fixed user and assigns one of the namespace. */ -}}
{{- if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- $_ := set $defaults "runAsUser" 65532 -}}
{{- $_ := set $defaults "runAsGroup" 65532 -}}
{{- end -}}
{{ include "perennial.overridden" (list $defaults (.Values.podSecurityContext | default dict)) }}
{{- end }}

{{- define "perennial.containerSecurity" -}}
{{- $defaults := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{ include "perennial.overridden" (list $defaults (.Values.securityContext | default dict)) }}
{{- end }}
