{{/* Names, labels and the image. */}}

{{- define "torpor.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "torpor.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains (include "torpor.name" .) .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "torpor.name" .) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels that select the pods of this release. Call it with (dict "root" $ "component" "api"). */}}
{{- define "torpor.selector" -}}
app.kubernetes.io/name: {{ include "torpor.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "torpor.labels" -}}
{{ include "torpor.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Call it with (dict "root" $ "image" $.Values.image). */}}
{{- define "torpor.imageReference" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "torpor.image" -}}
{{ include "torpor.imageReference" (dict "root" . "image" .Values.image) }}
{{- end }}

{{- define "torpor.workspaceDomain" -}}
{{ .Values.workspaceDomain | default .Values.host }}
{{- end }}

{{- define "torpor.publicUrl" -}}
{{- if hasKey .Values.settings "public_url" -}}
{{ .Values.settings.public_url }}
{{- else -}}
{{ ternary "https" "http" .Values.ingress.tls.enabled }}://{{ .Values.host }}
{{- end -}}
{{- end }}

{{- define "torpor.workspaceNamespace" -}}
{{ .Values.workspaces.namespace | default .Release.Namespace }}
{{- end }}

{{- define "torpor.secretName" -}}
{{ .Values.secrets.existingSecret | default (printf "%s-secrets" (include "torpor.fullname" .)) }}
{{- end }}

{{- define "torpor.keySecretName" -}}
{{ .Values.installationKey.existingSecret | default (printf "%s-installation-key" (include "torpor.fullname" .)) }}
{{- end }}
