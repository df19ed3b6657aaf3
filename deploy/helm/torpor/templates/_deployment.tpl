{{/* A Deployment of one role, and its PodDisruptionBudget. Call it with (dict "root" $ "component" "api"). */}}
{{- define "torpor.deployment" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
{{- $isController := eq .component "controller" -}}
{{- $name := printf "%s-%s" (include "torpor.fullname" $root) .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "torpor.labels" . | nindent 4 }}
spec:
  replicas: {{ include "torpor.text" $values.replicas }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "torpor.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- with $root.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "torpor.labels" . | nindent 8 }}
        # The agents of workspaces are reached only from pods with this label.
        app.kubernetes.io/part-of: torpor
      annotations:
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        # Processes read these when they start.
        checksum/files: {{ list $root.Values.secrets $root.Values.installationKey $root.Values.workspaces $root.Values.imagePullSecrets | toJson | sha256sum }}
    spec:
      {{- include "torpor.podSpec" . | nindent 6 }}
      serviceAccountName: {{ include "torpor.fullname" $root }}-{{ ternary "controller" "front" $isController }}
      automountServiceAccountToken: {{ $isController }}
      # Longer than drain_grace and the pause before it: open connections can finish.
      terminationGracePeriodSeconds: {{ add 20 (ceil (index $root.Values.settings "drain_grace" | default 30)) }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "torpor.selector" . | nindent 14 }}
      containers:
        - name: {{ .component }}
          args: [serve, --role, {{ .component }}]
          {{- include "torpor.container" . | nindent 10 }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          ports:
            - {name: http, containerPort: 8080}
            - {name: metrics, containerPort: 9090}
          startupProbe:
            httpGet: {path: /health, port: metrics}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 90
          livenessProbe:
            httpGet: {path: /health, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            # API and proxy also serve while the object store, Redis or the leader is missing: without them, nothing would answer.
            httpGet: {path: {{ ternary "/health/ready" "/health" $isController }}, port: metrics}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
          {{- if not $isController }}
          lifecycle:
            # Until no proxy and no Service sends new connections here.
            preStop: {sleep: {seconds: 5}}
          {{- end }}
      volumes:
        {{- include "torpor.volumes" . | nindent 8 }}
{{- if $root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "torpor.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ include "torpor.text" $root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "torpor.selector" . | nindent 6 }}
{{- end }}
{{- end }}
