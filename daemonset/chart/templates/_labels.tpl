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
{{- define "inplace.monitoringLabels" -}}
app.kubernetes.io/name: inplace
app.kubernetes.io/component: monitoring
app.kubernetes.io/part-of: inplace
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
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
