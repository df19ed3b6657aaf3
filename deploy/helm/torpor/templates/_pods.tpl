{{/* What pods of Torpor have in common. Call these with (dict "root" $ "component" "api"). */}}

{{- define "torpor.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "torpor.container" -}}
image: {{ include "torpor.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
env:
  {{- include "torpor.env" . | nindent 2 }}
envFrom:
  - secretRef: {name: {{ .secretName | default (include "torpor.secretName" .root) }}}
securityContext:
  {{- include "torpor.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: key, mountPath: /etc/torpor/key, readOnly: true}
  {{- if .root.Values.workspaces.templates }}
  - {name: templates, mountPath: /etc/torpor/templates, readOnly: true}
  {{- end }}
  {{- if and (has .component (list "controller" "test")) (include "torpor.podFile" .root) }}
  - {name: pods, mountPath: /etc/torpor/pods, readOnly: true}
  {{- end }}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "torpor.volumes" -}}
- name: tmp
  emptyDir: {}
- name: key
  secret:
    secretName: {{ include "torpor.keySecretName" .root }}
    # Torpor refuses a key file that all users can read.
    defaultMode: 0440
    items: [{key: torpor.key, path: torpor.key}]
{{- if .root.Values.workspaces.templates }}
- name: templates
  configMap: {name: {{ include "torpor.fullname" .root }}-templates}
{{- end }}
{{- if and (has .component (list "controller" "test")) (include "torpor.podFile" .root) }}
- name: pods
  configMap: {name: {{ include "torpor.fullname" .root }}-pods}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "torpor.podSpec" -}}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- end }}
