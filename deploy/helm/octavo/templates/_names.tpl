{{- define "octavo.name" -}}
{{- default (ternary .Release.Name (printf "%s-octavo" .Release.Name) (contains "octavo" .Release.Name)) .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "octavo.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The Secret with keys; empty: no key is asked for. */ -}}
{{- define "octavo.secret" -}}
{{- if .Values.auth.existingSecret }}{{ .Values.auth.existingSecret }}{{ else if .Values.auth.keys }}{{ include "octavo.name" . }}{{ end -}}
{{- end -}}

{{- define "octavo.cacheClaim" -}}
{{- if .Values.cache.claim }}{{ .Values.cache.claim }}{{ else if .Values.cache.create }}{{ include "octavo.name" . }}-cache{{ end -}}
{{- end -}}

{{- /* Octavo's own configuration: the user's settings, and what the chart knows better. */ -}}
{{- define "octavo.config" -}}
{{- $own := dict "host" "0.0.0.0" "port" 8000 "shutdown_delay" .Values.shutdown.delay "shutdown_timeout" .Values.shutdown.timeout -}}
{{- if .Values.model.path }}{{ $_ := set $own "model" (printf "/models/%s" .Values.model.path) }}{{ else if .Values.model.name }}{{ $_ := set $own "model" .Values.model.name }}{{ end -}}
{{- if .Values.grpc.enabled }}{{ $_ := set $own "grpc" true }}{{ $_ := set $own "grpc_port" .Values.grpc.port }}{{ end -}}
{{- if .Values.auth.tenantsSecret }}{{ $_ := set $own "tenants" "/etc/octavo-tenants/tenants.yaml" }}{{ end -}}
{{- $places := dict "host" "" "port" "" "model" "model" "shutdown_delay" "shutdown.delay" "shutdown_timeout" "shutdown.timeout" "grpc" "grpc.enabled" "grpc_port" "grpc.port" "tenants" "auth.tenantsSecret" "api_key" "auth" -}}
{{- range $key, $_ := .Values.config }}
{{- $name := $key | replace "-" "_" }}
{{- if hasKey $places $name }}{{ fail (printf "config.%s: the chart sets that itself%s" $key (ternary (printf "; the value for it is %s" (get $places $name)) "" (ne "" (get $places $name)))) }}{{ end }}
{{- end -}}
{{ toYaml (merge $own .Values.config) }}
{{- end -}}

{{- /* A probe of one kind, over HTTP, or over gRPC where that is on. */ -}}
{{- define "octavo.probe" -}}
{{- if .root.Values.grpc.enabled -}}
grpc:
  port: {{ .root.Values.grpc.port }}
  service: octavo.{{ .asks }}
{{- else -}}
httpGet:
  path: {{ ternary "/health" "/health/ready" (eq .asks "liveness") }}
  port: http
{{- end }}
{{ toYaml .times }}
{{- end -}}

{{- define "octavo.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Up at once, by at most doubling; down one by one, and only after five minutes: a start costs more than a pod that waits. */ -}}
{{- define "octavo.behavior" -}}
behavior:
  scaleUp:
    stabilizationWindowSeconds: 0
    policies:
      - {type: Percent, value: 100, periodSeconds: 60}
  scaleDown:
    stabilizationWindowSeconds: 300
    policies:
      - {type: Pods, value: 1, periodSeconds: 120}
{{- end -}}
