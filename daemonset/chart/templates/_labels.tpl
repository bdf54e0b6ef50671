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
