{{- define "palimpsest.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* Names of objects; short enough for the longest of their endings. */}}
{{- define "palimpsest.fullname" -}}
{{- $name := include "palimpsest.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "palimpsest.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "palimpsest.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "palimpsest.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Of a list: the root, and the component. */}}
{{- define "palimpsest.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "palimpsest.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "palimpsest.labels" -}}
{{- $root := index . 0 -}}
{{ include "palimpsest.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The variable of a secret: databaseUrl is PALIMPSEST_DATABASE_URL. */}}
{{- define "palimpsest.variable" -}}
PALIMPSEST_{{ snakecase . | upper }}
{{- end }}

{{- /* Of a list: the root, and the names of secrets. Variables that name their files. */}}
{{- define "palimpsest.secretEnv" -}}
{{- $root := index . 0 }}
{{- range index . 1 }}
{{- if (get $root.Values.secrets .).existingSecret }}
- name: {{ include "palimpsest.variable" . }}_FILE
  value: /etc/palimpsest/secrets/{{ kebabcase . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of a list: the root, and the names of secrets. The volumes of a pod. */}}
{{- define "palimpsest.volumes" -}}
{{- $root := index . 0 -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range index . 1 }}
      {{- $one := get $root.Values.secrets . }}
      {{- if $one.existingSecret }}
      - secret:
          name: {{ $one.existingSecret }}
          items:
            - {key: {{ $one.key | quote }}, path: {{ kebabcase . }}}
      {{- end }}
      {{- end }}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
# Sockets: of the executor, and of `palimpsest health`.
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "palimpsest.volumeMounts" -}}
- {name: secrets, mountPath: /etc/palimpsest/secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: run, mountPath: /run/palimpsest}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What the processes that run for long are told. */}}
{{- define "palimpsest.serviceSecrets" -}}
databaseUrl signalsDatabaseUrl redisUrl modelApiKey embeddingApiKey deployments
{{- end }}

{{- define "palimpsest.env" -}}
# A folder of the process's own below the volume, which belongs to root.
- {name: PALIMPSEST_RUN_DIR, value: /run/palimpsest/health}
{{- include "palimpsest.secretEnv" (list . (splitList " " (include "palimpsest.serviceSecrets" .))) }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Of a list: the root, and the component's values. What all pods have. */}}
{{- define "palimpsest.pod" -}}
{{- $root := index . 0 -}}
automountServiceAccountToken: false
# Else every Service of the namespace is told in variables, ours as PALIMPSEST_….
enableServiceLinks: false
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Of a list: the root, the component's values, and its name. Where pods go. */}}
{{- define "palimpsest.scheduling" -}}
{{- $root := index . 0 }}
{{- $values := index . 1 }}
{{- $component := index . 2 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ default 1 .maxSkew }}
    whenUnsatisfiable: {{ default "ScheduleAnyway" .whenUnsatisfiable }}
    # Each release of a roll-out is spread for itself.
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "palimpsest.selector" (list $root $component) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Of a list: the name of a port. Probes of a process by its metrics endpoint. */}}
{{- define "palimpsest.httpProbes" -}}
# The process waits for its database for 30 s (PALIMPSEST_START_SECONDS, at most 90), and ends then.
startupProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
# Says nothing of the database: to be restarted would help nothing.
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 6
  failureThreshold: 3
{{- end }}

{{- /* What the schema cannot say; each error says what to do. */}}
{{- define "palimpsest.check" -}}
{{- if not .Values.secrets.databaseUrl.existingSecret }}
{{- fail "secrets.databaseUrl.existingSecret is empty: make a Secret with the URL of your PostgreSQL (kubectl create secret generic palimpsest-database --from-literal=url=postgresql://…) and name it there" }}
{{- end }}
{{- if not (or .Values.tls.existingSecret .Values.insecure) }}
{{- fail "tls.existingSecret is empty: make a Secret of type kubernetes.io/tls for the API (kubectl create secret tls palimpsest-tls --cert=… --key=…, or cert-manager) and name it there; or set insecure: true, and any client that reaches the API may do everything" }}
{{- end }}
{{- if and .Values.tls.clientCa.existingSecret (not .Values.tls.existingSecret) }}
{{- fail "tls.clientCa.existingSecret is set, and tls.existingSecret is empty: client certificates need TLS; name its Secret" }}
{{- end }}
{{- range $secret := keys .Values.secrets | sortAlpha }}
{{- $variable := include "palimpsest.variable" $secret }}
{{- range $name := list $variable (printf "%s_FILE" $variable) }}
{{- if hasKey $.Values.settings $name }}
{{- fail (printf "settings.%s: a secret; put it into a Secret and name that in secrets.%s.existingSecret" $name $secret) }}
{{- end }}
{{- end }}
{{- end }}
{{- $own := dict "LISTEN" "api.service.port" "HTTP_LISTEN" "api.service.httpPort" "INSECURE" "insecure" "TLS_CERTIFICATE_FILE" "tls.existingSecret" "TLS_KEY_FILE" "tls.existingSecret" "TLS_CLIENT_CA_FILE" "tls.clientCa" "MUTUAL_TLS_LISTEN" "tls.clientCa" "RUN_DIR" "" "METRICS_LISTEN" "" "CALLER_SOCKET" "" "STOP_SECONDS" "api.stopSeconds, worker.stopSeconds and worker.executor.stopSeconds" }}
{{- range $name, $instead := $own }}
{{- if hasKey $.Values.settings (printf "PALIMPSEST_%s" $name) }}
{{- fail (printf "settings.PALIMPSEST_%s: the chart sets it itself%s" $name (ternary (printf "; see %s" $instead) "" (ne $instead ""))) }}
{{- end }}
{{- end }}
{{- /* Variables of a container win over settings, and would be seen by none of these checks. */}}
{{- $lists := dict "extraEnv" .Values.extraEnv "api.extraEnv" .Values.api.extraEnv "worker.extraEnv" .Values.worker.extraEnv "worker.executor.extraEnv" .Values.worker.executor.extraEnv }}
{{- range $list, $variables := $lists }}
{{- range $variables }}
{{- $name := trimSuffix "_FILE" .name }}
{{- range $secret := keys $.Values.secrets }}
{{- if eq $name (include "palimpsest.variable" $secret) }}
{{- fail (printf "%s: %s: name its Secret in secrets.%s.existingSecret" $list $name $secret) }}
{{- end }}
{{- end }}
{{- if and (hasPrefix "PALIMPSEST_" .name) (or (hasKey $own (trimPrefix "PALIMPSEST_" $name)) (hasKey $own (trimPrefix "PALIMPSEST_" .name))) }}
{{- fail (printf "%s: %s: the chart sets it itself" $list $name) }}
{{- end }}
{{- if has $name (list "PALIMPSEST_MODEL_TIMEOUT_SECONDS" "PALIMPSEST_START_SECONDS") }}
{{- fail (printf "%s: %s: give it in settings, since how long pods may take goes by it" $list $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $start := float64 (default "30" (get .Values.settings "PALIMPSEST_START_SECONDS")) }}
{{- if gt $start 90.0 }}
{{- fail (printf "settings.PALIMPSEST_START_SECONDS is %v: a pod is killed when it is not ready after 120 seconds; set it to 90 or less, since it starts again anyway" $start) }}
{{- end }}
{{- $timeout := float64 (default "120" (get .Values.settings "PALIMPSEST_MODEL_TIMEOUT_SECONDS")) }}
{{- if le (float64 .Values.worker.executor.stopSeconds) $timeout }}
{{- fail (printf "worker.executor.stopSeconds is %v: no more than a model call may take (settings.PALIMPSEST_MODEL_TIMEOUT_SECONDS, %v), so calls that are paid for would be lost; set it higher" .Values.worker.executor.stopSeconds $timeout) }}
{{- end }}
{{- if and .Values.worker.autoscaling.enabled (not .Values.worker.autoscaling.prometheusAddress) }}
{{- fail "worker.autoscaling.prometheusAddress is empty: say where KEDA asks Prometheus, such as http://prometheus.monitoring:9090" }}
{{- end }}
{{- end }}
