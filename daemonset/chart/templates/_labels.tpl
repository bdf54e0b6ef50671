{{- define "inplace.labels" -}}
app.kubernetes.io/name: inplace
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: inplace
{{- end -}}
{{- define "inplace.controllerLabels" -}}
app.kubernetes.io/name: inplace
app.kubernetes.io/component: controller
app.kubernetes.io/part-of: inplace
{{- end -}}
{{- /* The chart knows the version of its own image only. */ -}}
{{- define "inplace.versionLabel" -}}
{{- if not (or .Values.image.tag .Values.image.digest) -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}
{{- end -}}
{{- define "inplace.monitoringLabels" -}}
{{- $labels := dict "app.kubernetes.io/name" "inplace" "app.kubernetes.io/component" "monitoring" "app.kubernetes.io/part-of" "inplace" -}}
{{ toYaml (mergeOverwrite $labels (.Values.monitoring.labels | default dict)) }}
{{- end -}}
{{- define "inplace.userRoleLabels" -}}
app.kubernetes.io/name: inplace
app.kubernetes.io/component: user-roles
app.kubernetes.io/part-of: inplace
{{- end -}}
{{- define "inplace.quotaLabels" -}}
app.kubernetes.io/name: inplace
app.kubernetes.io/part-of: inplace
{{- end -}}
