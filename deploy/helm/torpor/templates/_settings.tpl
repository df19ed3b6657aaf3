{{/* The environment of Torpor's processes. */}}

{{/* Helm reads every number as a floating point number, which it would print as 2.592e+06. */}}
{{- define "torpor.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{/* Pods have addresses of such networks. */}}
{{- define "torpor.privateNetworks" -}}
10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7
{{- end }}

{{/* The settings that the chart decides, unless `settings` has others. */}}
{{- define "torpor.defaults" -}}
public_url: {{ include "torpor.publicUrl" .root | quote }}
log_format: json
{{- if and (eq .component "proxy") (not (hasKey .root.Values.settings "trusted_proxies")) }}
# Only with an Ingress and without another way from outside (checks.yaml): then clients are Ingress controllers, or pods.
trusted_proxies: {{ include "torpor.privateNetworks" . }}
{{- end }}
{{- end }}

{{/* The settings that only the chart decides, by component. */}}
{{- define "torpor.ownSettings" -}}
runtime: kubernetes
listen: "0.0.0.0,::"
port: 8080
metrics_port: 9090
domain: {{ include "torpor.workspaceDomain" .root }}
secret_key_file: /etc/torpor/key/torpor.key
kubernetes_namespace: {{ include "torpor.workspaceNamespace" .root }}
kubernetes_kit_image: {{ include "torpor.imageReference" (dict "root" .root "image" .root.Values.kitImage) }}
{{- if .root.Values.workspaces.templates }}
templates_dir: /etc/torpor/templates
{{- end }}
{{- if eq .component "api" }}
# Its NetworkPolicy admits only proxies.
trusted_proxies: {{ list (get .root.Values.settings "trusted_proxies") (include "torpor.privateNetworks" .) | compact | join "," | quote }}
{{- end }}
{{- if eq .component "proxy" }}
api_url: http://{{ include "torpor.fullname" .root }}-api:8080
{{- end }}
{{- if and (has .component (list "controller" "test")) (include "torpor.podFile" .root) }}
kubernetes_pod_file: /etc/torpor/pods/pods.yaml
{{- end }}
{{- if eq .component "test" }}
data: /tmp/data
{{- end }}
{{- end }}

{{/* The values of the chart that decide about a setting. */}}
{{- define "torpor.elsewhere" -}}
database_url: TORPOR_DATABASE_URL in `secrets`
redis_url: TORPOR_REDIS_URL in `secrets`
oidc_client_secret: TORPOR_OIDC_CLIENT_SECRET in `secrets`
domain: "`workspaceDomain`"
secret_key_file: "`installationKey`"
kubernetes_namespace: "`workspaces.namespace`"
kubernetes_pod_file: "`workspaces.pods`"
kubernetes_kit_image: "`kitImage`"
templates_dir: "`workspaces.templates`"
runtime: nothing, the chart is for the runtime `kubernetes`
data: nothing, no process of the chart uses a data directory
listen: nothing, processes listen on all addresses of their pods
port: "`proxy.service.port`"
metrics_port: nothing, it is 9090
api_url: nothing, it is the Service of the API
coordinator_node_id: nothing, it is the name of the pod
fake_engine: nothing, it is for tests
{{- end }}

{{- define "torpor.env" -}}
{{- $settings := mergeOverwrite (include "torpor.defaults" . | fromYaml) (deepCopy .root.Values.settings) (include "torpor.ownSettings" . | fromYaml) -}}
{{- range $name, $value := $settings }}
- name: TORPOR_{{ upper $name }}
  value: {{ include "torpor.text" $value | quote }}
{{- end }}
{{- range $name, $value := .root.Values.environment }}
- name: {{ $name }}
  value: {{ include "torpor.text" $value | quote }}
{{- end }}
{{- end }}

{{/* The file of kubernetes_pod_file. Workspaces and jobs pull Torpor's image, too. */}}
{{- define "torpor.podFile" -}}
{{- $pods := deepCopy .Values.workspaces.pods -}}
{{- if .Values.imagePullSecrets -}}
{{- range $part := list "workspaces" "jobs" -}}
{{- $given := get $pods $part | default dict -}}
{{- $_ := set $pods $part (set $given "imagePullSecrets" (concat (get $given "imagePullSecrets" | default list) $.Values.imagePullSecrets | uniq)) -}}
{{- end -}}
{{- range $template, $given := get $pods "templates" | default dict -}}
{{- if hasKey $given "imagePullSecrets" -}}
{{- $_ := set $given "imagePullSecrets" (concat ($given.imagePullSecrets | default list) $.Values.imagePullSecrets | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $pods }}{{ toYaml . }}{{ end -}}
{{- end }}
