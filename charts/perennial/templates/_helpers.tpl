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

{{/* The config file: the values, the release namespace and the certificate directory. */}}
{{- define "perennial.config" -}}
{{- $config := deepCopy (.Values.config | default dict) -}}
{{- $_ := set $config "namespace" .Release.Namespace -}}
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
{{- else -}}
{{- $parts = append $parts "noPlacement" -}}
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

{{/* Whether the API server supports ValidatingAdmissionPolicies. Without a cluster, decided by the Kubernetes version. */}}
{{- define "perennial.hasAdmissionPolicies" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" -}}true{{- end -}}
{{- else if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version -}}
true
{{- end -}}
{{- end }}

{{- define "perennial.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "perennial.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
